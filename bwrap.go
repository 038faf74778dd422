package leasehold

import (
	"context"
	"path"
	"strings"
	"sync"
	"time"
	"unicode"
	"unicode/utf8"

	"github.com/leasehold-go/leasehold/internal/archive"
	"github.com/leasehold-go/leasehold/internal/script"
)

// BwrapReason says why the commands of a lease are not wrapped, or are in a lesser way: see [Bwrap].
type BwrapReason string

// The reasons. The empty one says, with BwrapAvailable, that nothing is missing, and without it that nobody has looked.
const (
	BwrapOff               BwrapReason = "off"                    // [Config].NoBwrap, or a local backend
	BwrapRootUser          BwrapReason = "root-user"              // the sandbox's user is root, whom a read-only mount does not hold
	BwrapNoUser            BwrapReason = "no-user"                // the sandbox's user has no name: files could end up as root's
	BwrapNoBwrap           BwrapReason = "no-bwrap"               // bubblewrap is not installed
	BwrapNoSudoRule        BwrapReason = "no-sudo-rule"           // sudo is not installed, or does not let the user run bwrap without a password
	BwrapNoSu              BwrapReason = "no-su"                  // su is not installed, or refuses
	BwrapNamespacesRefused BwrapReason = "namespaces-refused"     // the sandbox does not let bwrap mount anything
	BwrapWorkspace         BwrapReason = "workspace-not-bindable" // the workspace is not writable in the wrapper
	BwrapTimedOut          BwrapReason = "timed-out"              // something hung
	BwrapOther             BwrapReason = "other"                  // the probe, or a wrapper, failed otherwise

	// These come with BwrapAvailable: a fresh /proc cannot be mounted, and commands see the sandbox's own, read-only; or bwrap is
	// older than 0.5, and makes no /tmp that the user can write to: commands have the sandbox's own, where writes stay.
	BwrapSharedProc BwrapReason = "proc-refused"
	BwrapSharedTmp  BwrapReason = "tmp-refused"
)

// bwrapReasons are the words of [script.ProbeBwrap].
var bwrapReasons = map[string]BwrapReason{
	"ok": "", "shared-proc": BwrapSharedProc, "shared-tmp": BwrapSharedTmp, "root": BwrapRootUser, "no-user": BwrapNoUser, "no-bwrap": BwrapNoBwrap,
	"no-sudo-rule": BwrapNoSudoRule, "no-su": BwrapNoSu, "namespaces-refused": BwrapNamespacesRefused,
	"workspace-not-bindable": BwrapWorkspace, "timed-out": BwrapTimedOut,
}

const (
	// bwrapProbeTime bounds a probe, which rides on a request of an acquisition or a resume: it takes at most this, and at
	// most half of Config.CallTimeout, which bounds the request.
	bwrapProbeTime = 10 * time.Second
	// maxBinds is how many writable directories a wrapper binds. A command of a lease with more of them is not wrapped.
	maxBinds = 256
	// maxBindText is how long they may be together, as shell words. The wrapper's text has each twice, and is an argument:
	// beyond script.MaxWord it, and with it the command, could not be started.
	maxBindText = script.MaxWord / 4
	// maxUser is the longest user name. Linux has 32 bytes, directories of users more.
	maxUser = 256
)

// Bwrap is what is known of the advisory wrapper in a lease's sandbox. Where the image has bubblewrap, sudo with a rule for
// it, and su, commands are run such that the file system is read-only for them, but for the workspace, the directories that
// were imported with [AccessReadWrite], and a /tmp and /dev/shm of their own: what would not survive the sandbox fails at
// once. It is advice to whoever runs in the sandbox, and no security. Nothing that is missing fails a lease or a command.
//
// It is found out at each acquisition, resume and probe, in a request that is made anyway and within ten seconds of it.
// [Provider.Bind] takes the word of the reference. [Config].NoBwrap and [Command].NoBwrap turn it off, [Result].Wrapped says
// whether a command was wrapped. Terminals and channels never are. The file docs/bwrap.md says what an image needs.
type Bwrap struct {
	BwrapAvailable  bool        `json:"bwrapAvailable,omitempty"`  // commands are wrapped
	SandboxUsername string      `json:"sandboxUsername,omitempty"` // whom commands run as; empty: not known
	BwrapReason     BwrapReason `json:"bwrapReason,omitempty"`     // why they are not, or in a lesser way
}

// readBwrap reads what a probe printed.
func readBwrap(line string) Bwrap {
	word, user, _ := strings.Cut(strings.TrimSuffix(line, "\n"), " ")
	reason, known := bwrapReasons[word]
	if !validUser(user) {
		user = ""
	}
	switch {
	case !known:
		return Bwrap{SandboxUsername: user, BwrapReason: BwrapOther}
	case reason != "" && reason != BwrapSharedProc && reason != BwrapSharedTmp:
		return Bwrap{SandboxUsername: user, BwrapReason: reason}
	case user == "":
		return Bwrap{BwrapReason: BwrapNoUser}
	}
	return Bwrap{BwrapAvailable: true, SandboxUsername: user, BwrapReason: reason}
}

// validUser reports whether a user's name can be given to su, and read back.
func validUser(name string) bool {
	return name != "" && len(name) <= maxUser && name[0] != '-' && utf8.ValidString(name) &&
		!strings.ContainsFunc(name, func(r rune) bool { return unicode.IsControl(r) || unicode.IsSpace(r) || r == utf8.RuneError })
}

func (b Bwrap) check(p *problems, field string) {
	checkIdentifier(p, field+".BwrapReason", string(b.BwrapReason), false)
	if (b.BwrapAvailable || b.SandboxUsername != "") && !validUser(b.SandboxUsername) {
		p.add(field+".SandboxUsername", "is not the name of a user")
	}
}

// bwrapProbe returns the line of a script of the library's own that probes in the directory that the variable ws holds,
// and reports with say. Config.NoBwrap needs none.
func (p *provider) bwrapProbe(say string) string {
	if p.cfg.NoBwrap {
		return ":"
	}
	return say + "bwrap \"" + script.ProbeBwrap("ws", min(bwrapProbeTime, p.cfg.CallTimeout/2)) + `"`
}

// probed returns what the probe of a script reported. Without a report, which a lost connection or an odd shell may cost,
// commands are not wrapped.
func (p *provider) probed(found map[string]string) Bwrap {
	if p.cfg.NoBwrap {
		return Bwrap{BwrapReason: BwrapOff}
	}
	return readBwrap(found["bwrap"])
}

// bwrapState is what a lease knows for the plan of its commands.
type bwrapState struct {
	mu    sync.Mutex
	probe Bwrap
	list  *writableList // nil: to be read
}

// found returns what the last probe found.
func (s *bwrapState) found() Bwrap {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.probe
}

// find takes in what a probe found.
func (s *bwrapState) find(b Bwrap) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.probe = b
}

// listChanged makes the next command read the list of writable directories.
func (s *bwrapState) listChanged() { s.know(nil) }

// know takes in the list of writable directories.
func (s *bwrapState) know(list *writableList) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.list = list
}

// wrapper returns the wrapper of a command, or nil. It is advice, so what is not known for sure leaves the command without
// one, and fails nothing. The list of writable directories is read, in one request, after it may have changed.
func (l *Lease) wrapper(ctx context.Context, cmd *Command) *script.Bwrap {
	l.bwrap.mu.Lock()
	probe, list := l.bwrap.probe, l.bwrap.list
	l.bwrap.mu.Unlock()
	if cmd.NoBwrap || l.p.cfg.NoBwrap || !probe.BwrapAvailable || !validUser(probe.SandboxUsername) {
		return nil
	}
	if list == nil {
		read, err := l.readWritable(ctx)
		if err != nil {
			return nil
		}
		list = &read
		l.bwrap.know(list)
	}
	return planBwrap(probe, l.ref.Workspace, *list)
}

// planBwrap returns the wrapper of a lease's commands: the workspace is writable, and the directories of the list. It
// returns nil if they are too many, or their names too long.
func planBwrap(probe Bwrap, workspace string, list writableList) *script.Bwrap {
	dirs := outermost(workspace, list.dirs)
	size := 0
	for _, dir := range dirs {
		size += len(script.Quote(dir))
	}
	if len(dirs) > maxBinds || size > maxBindText {
		return nil
	}
	return &script.Bwrap{
		User: probe.SandboxUsername, Writable: dirs, SharedProc: probe.BwrapReason == BwrapSharedProc,
		SharedTmp: probe.BwrapReason == BwrapSharedTmp, List: path.Join(workspace, sentinelDir, archive.Writable), Lines: list.lines,
	}
}

// unwrapped learns from a command that began, and was to be wrapped, and was not: either the list of writable directories
// has changed, or the wrapper works no more.
func (l *Lease) unwrapped(stale bool) {
	if stale {
		l.bwrap.listChanged()
		return
	}
	b := l.bwrap.found()
	b.BwrapAvailable, b.BwrapReason = false, BwrapOther
	l.bwrap.find(b)
}
