package leasehold

import (
	"context"
	"crypto/rand"
	"encoding/json"
	"strings"

	"github.com/leasehold-go/leasehold/internal/daytona"
	"github.com/leasehold-go/leasehold/internal/script"
)

// sentinelFile marks a workspace as one lease's. It lies in a directory of the library's own inside the workspace, which
// imports keep and exports leave out.
const (
	sentinelDir  = ".leasehold"
	sentinelFile = sentinelDir + "/lease.json"
)

// sentinel is the content of the file.
type sentinel struct {
	Version int    `json:"version"`
	Token   string `json:"token"`
	Sandbox string `json:"sandbox"`
	Attempt string `json:"attempt"`
}

// sentinelToken binds a workspace to the sandbox, the attempt and the whole scope of its acquisition: a copy of the file
// in another sandbox, or a sandbox made for another run, does not match.
func sentinelToken(ref LeaseRef) string {
	s := ref.Scope
	return fingerprint("sentinel", ref.Sandbox, ref.Attempt, s.Tenant, s.Environment, s.Run, s.Agent, s.Workspace)
}

// setup is what the set-up of a workspace found out.
type setup struct {
	workspace string // absolute
	shell     string
	bwrap     Bwrap
}

// setUp makes the workspace directory, finds the shell and writes the sentinel, in one request. Its script may run twice:
// the provider's proxy repeats a request whose connection broke.
func (p *provider) setUp(ctx context.Context, op string, box *daytona.Toolbox, ref LeaseRef, enter func(Phase)) (setup, error) {
	enter(PhaseWorkspace)
	content, err := json.Marshal(sentinel{Version: 1, Token: ref.Sentinel, Sandbox: ref.Sandbox, Attempt: ref.Attempt})
	if err != nil {
		return setup{}, &Error{Op: op, Kind: KindProtocol, Sandbox: ref.Sandbox}
	}
	mark := newMark()
	start := func(ctx context.Context) (*daytona.Sandbox, error) {
		sb, _, err := p.drive(ctx, op, ref.target(), goalStarted)
		return sb, err
	}
	output, err := p.runOwn(ctx, op, box, ref.target(), p.setUpScript(mark, p.cfg.Workspace, string(content)), start)
	if err != nil {
		return setup{}, err
	}
	var result setup
	found := markedLines(output, mark)
	for _, step := range []struct {
		name    string
		phase   Phase
		message string
	}{
		{"workspace", PhaseWorkspace, "the workspace directory could not be made"},
		{"shell", PhaseShell, "no shell was found"},
		{"sentinel", PhaseSentinel, "the workspace could not be marked"},
	} {
		enter(step.phase)
		if _, ok := found[step.name]; !ok {
			return setup{}, &Error{Op: op, Kind: KindRefused, Sandbox: ref.Sandbox, Dispatched: DispatchedYes, Message: step.message}
		}
	}
	result.shell, result.workspace, result.bwrap = found["shell"], found["path"], p.probed(found)
	if !validWorkspace(result.workspace) {
		return setup{}, &Error{Op: op, Kind: KindProtocol, Sandbox: ref.Sandbox, Dispatched: DispatchedYes, Message: "the workspace's path cannot be written as text"}
	}
	if result.shell != "bash" {
		result.shell = "sh"
	}
	return result, nil
}

// setUpScript reports each step with a marked line. It ends at the first step that fails. It starts one process: each more
// would be felt, in a request that every acquisition waits for. The probe comes last, and starts more only where there is a
// wrapper: it costs no request, and has a time limit of its own.
func (p *provider) setUpScript(mark, workspace, content string) string {
	say := "printf '\\n" + mark + " %s %s\\n' "
	return strings.Join([]string{
		"umask 022",
		"ws=" + script.Quote(workspace),
		"case $ws in /*) ;; *) ws=${PWD%/}/$ws ;; esac",
		`mkdir -p -- "$ws/` + sentinelDir + `" </dev/null || exit 1`,
		say + "workspace ok",
		"shell=sh; command -v bash >/dev/null 2>&1 && shell=bash",
		say + `shell "$shell"`,
		// Written in place: nobody looks for it before the acquisition has returned.
		`printf %s ` + script.Quote(content) + ` >"$ws/` + sentinelFile + `" || exit 1`,
		// The directory is the library's: it must not show up in a workspace that is a Git work tree.
		`printf '*\n' >"$ws/` + sentinelDir + `/.gitignore"`,
		say + "sentinel ok",
		say + `path "$ws"`,
		p.bwrapProbe(say),
		"",
	}, "\n")
}

// verify proves that the workspace is the lease's, in one request that writes nothing, and probes for the wrapper if it is.
func (p *provider) verify(ctx context.Context, op string, box *daytona.Toolbox, ref LeaseRef, start startFunc) (Bwrap, error) {
	mark := newMark()
	output, err := p.runOwn(ctx, op, box, ref.target(), p.verifyScript(mark, ref.Workspace, ref.Sentinel), start)
	if err != nil {
		return Bwrap{}, err
	}
	found := markedLines(output, mark)
	reason := Reason("")
	if content, ok := found["content"]; ok {
		var s sentinel
		if json.Unmarshal([]byte(content), &s) != nil || s.Token != ref.Sentinel {
			reason = ReasonSentinelDiffers
		}
	} else if _, ok := found["missing"]; ok {
		reason = ReasonSentinelMissing
	} else {
		return Bwrap{}, &Error{Op: op, Kind: KindProtocol, Phase: PhaseSentinel, Sandbox: ref.Sandbox, Dispatched: DispatchedYes, Retryable: true, Message: "the workspace could not be looked at; the sandbox was kept"}
	}
	if reason != "" {
		return Bwrap{}, &Error{Op: op, Kind: KindGone, Phase: PhaseSentinel, Reason: reason, Sandbox: ref.Sandbox, Dispatched: DispatchedYes, Message: "the sandbox does not hold the lease's workspace"}
	}
	return p.probed(found), nil
}

// verifyScript says missing only if it could have seen the file: the deepest directory that exists on the way to it can
// be searched.
func (p *provider) verifyScript(mark, workspace, token string) string {
	return strings.Join([]string{
		"ws=" + script.Quote(workspace),
		"f=$ws/" + sentinelFile,
		`if [ -f "$f" ]; then`,
		`  if text=$(cat <"$f"); then printf '\n` + mark + ` content %s\n' "$text"; fi`,
		`  case $text in *` + token + `*)`,
		p.bwrapProbe("printf '\n" + mark + " %s %s\n' "),
		`  ;; esac`,
		`else`,
		`  d=${f%/*}; while [ -n "$d" ] && [ ! -d "$d" ]; do d=${d%/*}; done`,
		`  if [ -x "${d:-/}" ]; then printf '\n` + mark + ` missing -\n'; fi`,
		`fi`,
		"",
	}, "\n")
}

// startFunc has a sandbox run.
type startFunc func(ctx context.Context) (*daytona.Sandbox, error)

// runOwn runs a short script of the library's own, which must bear being run twice, and returns its merged output. What a
// repeat may mend, such as a toolbox that is not up yet, is repeated until ctx ends. Before each repeat start has the sandbox
// run again: it may have stopped, or been lost, since it was found running.
func (p *provider) runOwn(ctx context.Context, op string, box *daytona.Toolbox, t target, text string, start startFunc) (string, error) {
	var pause backoff
	for {
		callCtx, cancel := context.WithTimeout(ctx, p.cfg.CallTimeout)
		result, err := box.Execute(callCtx, text, p.cfg.CallTimeout)
		cancel()
		if err == nil {
			return result.Output, nil
		}
		mapped := failed(op, err)
		mapped.Sandbox = t.label()
		if !mapped.Retryable && mapped.Kind != KindNotRunning {
			return "", mapped
		}
		if pause.wait(ctx, mapped.RetryAfter) != nil {
			return "", outOfTime(ctx, mapped, nil)
		}
		sb, err := start(ctx)
		if err != nil {
			return "", err
		}
		box = p.clientFor(t).Toolbox(sb)
	}
}

// newMark returns a word that no output contains by chance.
func newMark() string { return "leasehold-" + rand.Text() }

// markedLines returns what follows each marked word in output. A value ends at the next mark or at the end.
func markedLines(output, mark string) map[string]string {
	found := make(map[string]string)
	for _, part := range strings.Split(output, "\n"+mark+" ")[1:] {
		name, value, _ := strings.Cut(part, " ")
		found[name] = strings.TrimSuffix(value, "\n")
	}
	return found
}
