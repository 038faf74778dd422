// What the host knows of the plugin before it starts it. The host keeps the manifest of an installed plugin until the
// version changes.
const minutes = (title, defaultValue, minimum = 0) => ({ type: "integer", minimum, default: defaultValue, title: `${title} (minutes)` });

export default {
  id: "leasehold.sandbox-provider",
  apiVersion: 1,
  version: "0.1.0",
  displayName: "Leasehold sandboxes",
  description: "Runs agents in Daytona sandboxes that are never leaked, with exact command output and checked file transfers.",
  author: "Leasehold",
  categories: ["automation"],
  capabilities: ["environment.drivers.register"],
  entrypoints: { worker: "./worker.js" },
  environmentDrivers: [
    {
      driverKey: "leasehold",
      kind: "sandbox_provider",
      displayName: "Leasehold (Daytona)",
      description: "A Daytona sandbox for each run.",
      supportsReusableLeases: true,
      supportsLoginPty: true,
      sandboxCapabilities: {
        reusableLeases: true,
        nativeSyncIn: true,
        nativeSyncOut: true,
        persistentProcessSessions: true,
        independentControlCommands: true,
        incrementalSessionOutput: true,
        concurrentSyncOperations: true,
        duplexCommandStream: true,
        runnerWebSocketIngress: true,
      },
      configSchema: {
        type: "object",
        properties: {
          apiKey: { type: "string", format: "secret-ref", title: "API key", description: "Of the Daytona API. Empty: DAYTONA_API_KEY of the worker." },
          apiUrl: { type: "string", title: "API URL", description: "Empty: Daytona's own. Another one needs an API key of its own." },
          target: { type: "string", title: "Target", description: "Region. Empty: the organisation's default." },
          snapshot: { type: "string", title: "Snapshot" },
          image: { type: "string", title: "Image", description: "Instead of a snapshot." },
          language: { type: "string", enum: ["python", "javascript", "typescript"] },
          cpu: { type: "integer", minimum: 1, title: "CPU cores", description: "With an image only, as memory, disk and GPU." },
          memory: { type: "integer", minimum: 1, title: "Memory (GiB)" },
          disk: { type: "integer", minimum: 1, title: "Disk (GiB)" },
          gpu: { type: "integer", minimum: 1, title: "GPU units" },
          timeoutMs: { type: "integer", minimum: 1, maximum: 86400000, default: 300000, title: "Timeout (ms)", description: "Of an acquisition as a whole, of a release, and so on. The host waits 30 s longer." },
          livenessTimeoutMs: { type: "integer", maximum: 86400000, default: 30000, title: "Liveness timeout (ms)", description: "Of one answer of the provider." },
          autoStopInterval: minutes("Stop when idle", 15),
          autoArchiveInterval: minutes("Archive when stopped", 60),
          autoDeleteInterval: minutes("Delete when stopped; -1: never", 10080, -1),
          ttlMinutes: { type: "integer", minimum: 1, title: "Lifetime (minutes)", description: "After which the provider destroys a sandbox in whatever state it is. Nothing else ends one whose creation a crash of the worker cut short." },
          reuseLease: { type: "boolean", default: false, title: "Reuse", description: "Stop a sandbox after a run, and start it again for the next one." },
          archiveOnRelease: { type: "boolean", default: false, title: "Archive on release", description: "Keep a sandbox that is not reused, in cold storage." },
        },
      },
    },
  ],
};
