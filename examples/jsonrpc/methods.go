package main

import (
	"context"
	"encoding/json"
	"maps"
	"slices"
	"time"
)

// hostClose is what the host grants the close of a session.
const hostClose = 10 * time.Second

// driverKey is the key under which the manifest registers the driver.
const driverKey = "leasehold"

// methods is everything that this worker answers, but for shutdown. What is not in it is not advertised: the host asks
// the list before it relies on a method, so an optional one costs a row here, and nothing where the host has none.
func (w *worker) methods() map[string]method {
	return map[string]method{
		"initialize": w.initialize,
		"health":     func(context.Context, json.RawMessage) (any, error) { return map[string]string{"status": "ok"}, nil },

		"environmentValidateConfig":        plain(hostDefault, func(_ context.Context, p validateParams) (any, error) { return w.validate(p) }),
		"environmentProbe":                 environmentCall(w, atMost(120*time.Second), w.probe),
		"environmentAcquireLease":          environmentCall(w, settings.deadline, w.acquire),
		"environmentResumeLease":           environmentCall(w, atMost(60*time.Second), w.resume),
		"environmentReleaseLease":          environmentCall(w, settings.deadline, w.release),
		"environmentDestroyLease":          environmentCall(w, settings.deadline, w.destroy),
		"environmentRealizeWorkspace":      environmentCall(w, settings.deadline, w.realize),
		"environmentExecute":               environmentCall(w, unlimited, w.execute), // it has a deadline of its own
		"environmentSyncIn":                environmentCall(w, settings.deadline, w.syncIn),
		"environmentSyncOut":               environmentCall(w, settings.deadline, w.syncOut),
		"environmentRunnerIngressEndpoint": environmentCall(w, settings.deadline, w.runnerIngress),

		"loginPtyOpen":  plain(hostDefault, w.openLogin),
		"loginPtyStop":  plain(hostDefault, w.stopLogin),
		"loginPtyClose": plain(hostClose, w.closeLogin),

		"duplexChannelOpen":  plain(hostDefault, w.openDuplex),
		"duplexChannelStop":  plain(hostDefault, w.stopDuplex),
		"duplexChannelClose": plain(hostClose, w.closeDuplex),

		// Newer hosts only.
		"prepareIdleSleep":           plain(hostDefault, w.prepareIdleSleep),
		"releaseIdleSleep":           plain(hostDefault, w.releaseIdleSleep),
		"environmentStopLease":       environmentCall(w, atMost(60*time.Second), w.stop),
		"environmentCancelExecution": environmentCall(w, atMost(hostDefault), w.cancelExecution),
	}
}

// orderedMethods are those whose calls must take effect in the order in which they came.
func (w *worker) orderedMethods() map[string]orderedMethod {
	return map[string]orderedMethod{
		"loginPtyInput":      queued(w.typeLogin),
		"duplexChannelWrite": queued(w.writeDuplex),
	}
}

// unavailable are the methods that the protocol knows and this worker has not.
var unavailable = []string{
	"validateConfig", "configChanged", "onEvent", "runJob", "handleWebhook", "getData", "performAction", "executeTool",
	"environmentStartInteractiveSetup", "environmentGetInteractiveSetup", "environmentCaptureTemplate",
	"environmentCancelInteractiveSetup", "environmentDeleteTemplate",
	"environmentTask", "environmentAcquireServiceLease", "environmentGetServiceConnection", "environmentDeleteServiceData",
	"environmentDeleteTaskWorkspaceData", "environmentService", "environmentProcessHandoff", "environmentRunProcessControl",
	"environmentRunnerRecovery", "environmentRunnerRecoveryExecute",
}

// initialize answers the host's first call with the list of methods.
func (w *worker) initialize(context.Context, json.RawMessage) (any, error) {
	supported := append(slices.Collect(maps.Keys(w.server.methods)), slices.Collect(maps.Keys(w.server.ordered))...)
	supported = slices.DeleteFunc(append(supported, "shutdown"), func(name string) bool { return name == "initialize" })
	slices.Sort(supported)
	return map[string]any{"ok": true, "supportedMethods": supported}, nil
}

// plain is a method that needs no provider.
func plain[P any](host time.Duration, serve func(context.Context, P) (any, error)) method {
	return func(ctx context.Context, raw json.RawMessage) (any, error) {
		p, err := decode[P](raw)
		if err != nil {
			return nil, err
		}
		ctx, cancel := context.WithTimeout(ctx, host-min(reserve, host/5))
		defer cancel()
		return serve(ctx, p)
	}
}

// environmentCall is a method that is called for a company's environment: with the provider of its settings, and with
// a deadline, which the settings decide about.
func environmentCall[P any](w *worker, budget func(settings) time.Duration, serve func(context.Context, call, P) (any, error)) method {
	return func(ctx context.Context, raw json.RawMessage) (any, error) {
		of, err := decode[environment](raw)
		if err != nil {
			return nil, err
		}
		switch {
		case of.DriverKey != driverKey:
			return nil, invalidParams("params.driverKey is not " + driverKey)
		case of.CompanyID == "" || of.EnvironmentID == "":
			return nil, invalidParams("params name no company or no environment")
		}
		p, err := decode[P](raw)
		if err != nil {
			return nil, err
		}
		s, err := parseSettings(of.Config)
		if err != nil {
			return nil, err
		}
		provider, done, err := w.providers.get(of.CompanyID, s)
		if err != nil {
			return nil, err
		}
		defer done()
		ctx, cancel := context.WithTimeout(ctx, budget(s))
		defer cancel()
		return serve(ctx, call{environment: of, settings: s, provider: provider}, p)
	}
}

// unlimited is the budget of a method that sets its own.
func unlimited(settings) time.Duration { return 365 * 24 * time.Hour }
