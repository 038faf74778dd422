// Runs the published host's own worker handle, as a puppet: it reads one command a line on standard input, does it, and
// writes what came of it, and what the host saw meanwhile, to descriptor 3, one JSON object a line. The test decides.
import fs from "node:fs";
import path from "node:path";
import readline from "node:readline";
import { pathToFileURL } from "node:url";

const [host, plugin] = process.argv.slice(2);
const load = (...file) => import(pathToFileURL(path.join(...file)).href);
const { createPluginWorkerHandle } = await load(host, "package/dist/services/plugin-worker-manager.js");
const { pluginManifestV1Schema } = await load(host, "node_modules/@paperclipai/shared/dist/validators/plugin.js");
const manifest = pluginManifestV1Schema.parse((await load(plugin, "manifest.js")).default);

const tell = (line) => fs.writeSync(3, JSON.stringify(line) + "\n");
const sessions = new Map();
let handle;

const observe = (session, name, decode) => {
  sessions.set(name, session);
  session.onData((chunk) => tell({ session: name, data: decode(chunk) }));
  session.wait().then((exit) => tell({ session: name, exit }));
};

const commands = {
  async start({ env }) {
    handle = createPluginWorkerHandle(manifest.id, {
      entrypointPath: path.join(plugin, manifest.entrypoints.worker), manifest, config: {}, apiVersion: 1,
      instanceInfo: { instanceId: "interop", hostVersion: "2026.916.1" }, hostHandlers: {}, rpcTimeoutMs: 20_000, autoRestart: false, env,
    });
    for (const event of ["ready", "exit", "crash", "status"]) handle.on(event, (detail) => tell({ event, detail }));
    await handle.start();
    return { supportedMethods: handle.supportedMethods, pid: handle.diagnostics().pid };
  },
  stop: () => handle.stop(),
  state: () => ({ status: handle.status, ...handle.diagnostics() }),
  call: ({ id, method, params, timeoutMs, watch }) =>
    handle.call(method, params, timeoutMs, watch ? (stream, chunk) => tell({ log: id, stream, chunk }) : undefined),
  async openDuplex({ name, input }) {
    observe(await handle.openDuplexChannel(input), name, (chunk) => Buffer.from(chunk).toString("base64"));
  },
  async openLogin({ name, input }) {
    observe(await handle.openLoginPtySession(input), name, (chunk) => Buffer.from(chunk).toString("base64"));
  },
  write: ({ name, data, text }) => sessions.get(name).write(text ?? Buffer.from(data, "base64")),
  kill: ({ name }) => sessions.get(name).kill(),
  close: ({ name }) => sessions.get(name).close(),
};

for await (const line of readline.createInterface({ input: process.stdin })) {
  const command = JSON.parse(line);
  Promise.resolve()
    .then(() => commands[command.do](command))
    .then(
      (result) => tell({ id: command.id, result: result ?? null }),
      (error) => tell({ id: command.id, error: { name: error.name, code: error.code, message: error.message, data: error.data } }),
    );
}
process.exit(0);
