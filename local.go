package leasehold

import (
	"strings"

	"github.com/leasehold-go/leasehold/internal/emulator"
)

// LocalConfig configures [NewLocal]. The zero value is useful.
type LocalConfig struct {
	// Config has the meaning it has for [New], but for APIKey and APIURL, which must be empty: the backend has its own.
	// Snapshot may be empty, [LocalSnapshot], or one that was made here: a captured one has the files of its sandbox, a
	// built one none, because nothing is built. Any image is accepted, and nothing is pulled.
	Config Config
	// Dir holds the sandboxes. Sandboxes in it outlive the provider, stopped, and can be resumed by a later one on the
	// same directory, which one provider at a time may use. Their processes do not: of their commands the later one can attach
	// to those that had ended. Empty: a temporary directory, removed by Close and, on Linux, after the death of the process.
	Dir string
	// Faults makes the backend misbehave by plan. Nil: it behaves. A plan is for one backend.
	Faults *FaultPlan
}

// LocalSnapshot is the one snapshot that a local backend begins with.
const LocalSnapshot = emulator.DefaultSnapshot

// NewLocal returns a provider on an embedded backend, which needs no account and no network but a loopback port. The
// provider is the one that [New] returns: only what it talks to differs, an emulation of Daytona's control plane and
// toolbox over HTTP and WebSocket in this process. Each sandbox is a directory with real processes, which end with the
// sandbox, with Close, and, on Linux, with this process, however it ends. It fails with [ErrInvalid] for a bad
// configuration and with [ErrIO] if the backend cannot use Dir or the port.
//
// Of the host's environment commands see what describes the machine, such as PATH, the locale and the proxies. HOME and
// TMPDIR are the sandbox's own. Its ports are the host's: two sandboxes cannot listen on the same one.
//
// It is for development and tests, on Unix, and it is no security boundary: commands run as the current user, with the
// user's rights, in the host's own file system. There it does not wrap them, see [Bwrap]: what they write anywhere stays.
func NewLocal(config LocalConfig) (Provider, error) {
	var p problems
	if config.Config.APIKey != "" {
		p.add("LocalConfig.Config.APIKey", "must be empty: the local backend has its own")
	}
	if config.Config.APIURL != "" {
		p.add("LocalConfig.Config.APIURL", "must be empty: the local backend has its own")
	}
	cfg := config.Config
	cfg.APIKey, cfg.APIURL = "local", ""
	if _, err := cfg.withDefaults(); err != nil { // before anything is started
		p = append(p, err.(*Error).Fields...)
	}
	if err := p.err("configure"); err != nil {
		return nil, err
	}
	options := emulator.Options{Dir: config.Dir, Logger: cfg.Logger}
	if config.Faults != nil {
		options.Seed = config.Faults.seed
	}
	server, err := emulator.Start(options)
	if err != nil {
		return nil, &Error{Op: "configure", Kind: KindIO, Dispatched: DispatchedNo, Message: "the local backend did not start: " + err.Error(), cause: err}
	}
	if config.Faults != nil {
		config.Faults.attach(server)
	}
	cfg.APIKey, cfg.APIURL = server.APIKey(), server.URL()
	cfg.NoBwrap = true // what a command writes here does survive
	provider, err := newProvider(cfg)
	if err != nil {
		_ = server.Close()
		return nil, err
	}
	// Port and key are new each time, the organisation is recorded in the directory: it alone is the account.
	provider.account = newAccount("local", server.Organization())
	provider.onClose = server.Close
	provider.embedded = strings.TrimSuffix(server.URL(), "/api")
	return provider, nil
}
