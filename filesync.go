package leasehold

import (
	"context"
	"errors"
	"log/slog"
	"path"
	"strings"
	"sync"
	"time"
	"unicode/utf8"

	"github.com/leasehold-go/leasehold/internal/archive"
	"github.com/leasehold-go/leasehold/internal/daytona"
)

// TransferResult says what an import or export moved. It is complete: a transfer that is not is an error.
type TransferResult struct {
	Entries  int64 // files, directories and links that were sent
	Bytes    int64 // content of the files
	Duration time.Duration
	Route    Route // by which way an export came; empty for an import
	// Skipped lists what was left out without being asked for: sockets, FIFOs and devices, names that are the library's
	// own, and the unsafe links of an export with [LinksOmit]. It holds at most 1,000 of them, SkippedCount counts all.
	Skipped      []SkippedEntry
	SkippedCount int
	// Unchanged counts the files, directories and links of an import that the sandbox had already and that were not sent:
	// those of a read-only bundle, or of [ImportOptions.Delta]. Removed counts what [ImportOptions.Delete] removed.
	Unchanged int64
	Removed   int64
	// Leftover is the path of a directory's earlier content on the host that an export replaced and could not remove.
	// It is empty in all but odd cases, such as a file that another user put there.
	Leftover string
}

// Route is the way by which an export came.
type Route string

// The values of [Route].
const (
	// RouteFiles is the ordinary way: through scratch files in the sandbox, which are downloaded.
	RouteFiles Route = "files"
	// RouteTerminal is the way out of a sandbox whose disk is full, whose quota is used up or whose files are limited
	// in their size: a raw terminal, one chunk at a time, each asked for only after the host has written the one before.
	// Nothing is written in the sandbox, and the sources are left as they are. The archive is limited to the size of the
	// sandbox's disk as the provider reports it; the host's reserve is checked before each write; the end of the
	// sandbox's tar, and a digest, are proved. It needs Bash and GNU tar, dd, base64 and sha256sum in the sandbox.
	RouteTerminal Route = "terminal"
)

// SkippedEntry is one entry that a transfer left out.
type SkippedEntry struct {
	Name   string `json:"name"`   // path in the tree, with slashes
	Reason string `json:"reason"` // "socket", "fifo", "device", "unsafe link", "reserved name" or "unknown type"
}

// Progress is the state of a transfer. Totals are 0 when they are not known.
type Progress struct {
	// Bytes is the content sent of an import. Of an export it is the archive received, headers included, because that is
	// the total that is known.
	Bytes        int64
	TotalBytes   int64
	Entries      int64
	TotalEntries int64
	Done         bool // the last report of a transfer that succeeded
}

// progressInterval is the least time between two reports. A progress bar needs no more, and a report for each of a
// million small files would cost more than the files.
const progressInterval = 50 * time.Millisecond

// meter passes reports on, from one goroutine at a time, not too often. A nil function receives none.
type meter struct {
	report func(Progress)
	last   time.Time
	state  Progress

	mu     sync.Mutex    // guards the fields below
	closed bool          // nothing is reported any more
	made   chan struct{} // closed when the last report that was begun was made; nil: none was
}

func (m *meter) update(entries, bytes int64) {
	if m.report == nil {
		return
	}
	m.state.Entries, m.state.Bytes = entries, bytes
	now := time.Now()
	if now.Sub(m.last) < progressInterval {
		return
	}
	m.last = now
	made := make(chan struct{})
	defer close(made)
	if m.begin(made) {
		m.report(m.state)
	}
}

// begin admits a report, which was made when made is closed.
func (m *meter) begin(made chan struct{}) bool {
	m.mu.Lock()
	defer m.mu.Unlock()
	if !m.closed {
		m.made = made
	}
	return !m.closed
}

// close ends the reports. It waits for one that is being made, unless ctx ends: the caller's function may wait for ever.
func (m *meter) close(ctx context.Context) {
	m.mu.Lock()
	m.closed = true
	made := m.made
	m.mu.Unlock()
	if made == nil {
		return
	}
	select {
	case <-made:
	case <-ctx.Done():
	}
}

func (m *meter) done(s Progress) {
	if m.report != nil {
		s.Done = true
		m.report(s)
	}
}

// Timings of the removal of scratch files. It runs after a failure too, on a context of its own.
const (
	scratchCleanupTimeout  = 15 * time.Second
	scratchCleanupCall     = 5 * time.Second // of one attempt: one that is never answered leaves time for others
	scratchCleanupAttempts = 4
	// A request that was cut off may be handled after the cleanup looked: it looks again.
	scratchSecondLook = 1
)

// transfer is what one import or export needs.
type transfer struct {
	l    *Lease
	op   string
	box  *daytona.Toolbox
	done func() // ends the activity on the lease

	bad    problems // of the caller's input
	source string   // what was refused, for errors
	full   bool     // the sandbox has no room for an export's scratch files
}

// transfer begins a transfer, whose done ends it. It sends nothing.
func (l *Lease) transfer(op string) (*transfer, error) {
	done, err := l.begin(op)
	if err != nil {
		return nil, err
	}
	if !l.p.admitStream() {
		done()
		return nil, &Error{Op: op, Kind: KindClosed, Sandbox: l.ref.Sandbox, Dispatched: DispatchedNo, Message: errProviderClosed.Error()}
	}
	return &transfer{l: l, op: op, done: sync.OnceFunc(func() {
		done()
		l.p.streams.Done()
	})}, nil
}

// connect finds the sandbox. Nothing was sent to it before, and nothing has to be removed after a failure.
func (t *transfer) connect(ctx context.Context) (err error) {
	if t.box, err = t.l.toolbox(ctx); err != nil {
		return failed(t.op, err)
	}
	return nil
}

// fail returns an error of the operation.
func (t *transfer) fail(kind Kind, message string) *Error {
	return &Error{Op: t.op, Kind: kind, Sandbox: t.l.ref.Sandbox, Message: message}
}

// removeScratch removes the scratch directories of an operation in the sandbox and ends the lease's activity. When the
// caller's context has ended, or ends meanwhile, that goes on in the background, so that the caller returns at once: giving
// the lease back waits for it.
func (t *transfer) removeScratch(ctx context.Context, scratch string, more ...string) {
	again := 0
	if ctx.Err() != nil {
		again = scratchSecondLook
	}
	text := archive.RemoteCleanup(scratch, again, more...)
	removed := make(chan struct{})
	go func() {
		defer close(removed)
		defer t.done()
		ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), scratchCleanupTimeout)
		defer cancel()
		var pause backoff
		for range scratchCleanupAttempts {
			call, cancel := context.WithTimeout(ctx, scratchCleanupCall)
			result, err := t.box.Execute(call, text, 0)
			cancel()
			if err == nil {
				if reply, ok := archive.ParseReply(result.Output, scratch); ok && reply.Word == archive.WordOK {
					return
				}
			}
			// Whatever else it was, the next answer may be another one: a token that was just rotated, a proxy's page.
			if e := failed(t.op, err); e != nil && (e.Kind == KindNotFound || e.Kind == KindNotRunning || e.Kind == KindClosed) {
				break
			}
			if pause.wait(ctx, 0) != nil {
				break
			}
		}
		t.l.p.cfg.Logger.LogAttrs(ctx, slog.LevelWarn, "leasehold: scratch files of a transfer may be left in the sandbox",
			slog.String("op", t.op))
	}()
	select {
	case <-removed:
	case <-ctx.Done():
	}
}

// execute runs a script that bears being delivered twice. A lost reply is asked for again, once: the script then waits
// for the first delivery and repeats its answer, or says that there is none.
func (t *transfer) execute(ctx context.Context, text, scratch string) (archive.Reply, error) {
	result, err := t.box.Execute(ctx, text, 0)
	var remote *daytona.Error
	if errors.As(err, &remote) && ctx.Err() == nil && unanswered(remote) {
		result, err = t.box.Execute(ctx, text, 0)
	}
	if err != nil && context.Cause(ctx) == errNoProgress {
		return archive.Reply{}, t.canceled(ctx)
	}
	if err != nil {
		return archive.Reply{}, t.l.observe(t.op, err)
	}
	reply, ok := archive.ParseReply(result.Output, scratch)
	if !ok {
		e := t.fail(KindProtocol, "the sandbox's shell did not report how the transfer ended")
		e.Dispatched = DispatchedYes
		return reply, e
	}
	return reply, nil
}

// unanswered reports whether a request got no answer, or one that only a proxy can have given.
func unanswered(e *daytona.Error) bool {
	switch e.Reason {
	case daytona.ReasonLost, daytona.ReasonConnect, daytona.ReasonDecode:
		return true
	case daytona.ReasonStatus:
		return e.Status >= 502 && e.Status <= 504
	}
	return false
}

// refused is the error for the word of a script that did not succeed.
func (t *transfer) refused(word archive.Word) *Error {
	var e *Error
	switch word {
	case archive.WordNoSpace:
		e = t.fail(KindQuota, "the sandbox's disk is full, or a quota or file-size limit was reached")
	case archive.WordScratch:
		e = t.fail(KindRefused, "the lease's own directory in the sandbox cannot be written")
	case archive.WordNoTar:
		e = t.fail(KindRefused, "the sandbox has no tar")
	case archive.WordExtract:
		e = t.fail(KindRefused, "the sandbox could not write every entry")
	case archive.WordConflict:
		e = t.fail(KindConflict, "a directory of one side has the name of something else on the other: nothing was changed")
	case archive.WordDeep:
		e = t.fail(KindConflict, t.named("is in the sandbox already, too deep to be merged: nothing was changed"))
	case archive.WordReserved:
		e = t.fail(KindRefused, t.named("leads to the lease's own directory, which no transfer touches: nothing was changed"))
	case archive.WordPublish:
		e = t.fail(KindRefused, "an entry could not be renamed to its place: earlier ones are in theirs")
	case archive.WordNotDir:
		e = t.fail(KindConflict, t.named("is not a directory"))
	case archive.WordNotFile:
		e = t.fail(KindConflict, t.named("is not a regular file"))
	case archive.WordSymlink:
		e = t.fail(KindUnsafe, t.named("is a symbolic link"))
	case archive.WordOutside:
		e = t.fail(KindUnsafe, t.named("leads out of the workspace"))
	case archive.WordTooLong:
		e = t.fail(KindLimit, "a path in the sandbox is longer than its tar can take")
	case archive.WordNoSource:
		e = t.fail(KindNotFound, t.named("does not exist in the sandbox"))
	case archive.WordDenied:
		e = t.fail(KindRefused, "a source may not be read by the sandbox's user")
	case archive.WordChanged:
		e = t.fail(KindConflict, "a source changed while it was archived")
		e.Retryable = true
	case archive.WordNoList:
		e = t.fail(KindRefused, "the remote directory cannot be listed, so nothing can be removed from it: nothing was changed")
	case archive.WordArchive:
		e = t.fail(KindRefused, "the sandbox's tar failed")
	case archive.WordMissing, archive.WordShort, archive.WordCanceled:
		e = t.fail(KindUnavailable, "the upload did not arrive whole")
		e.Retryable = true
	case archive.WordGone:
		e = t.fail(KindUncertain, "a request was lost, and how it ended was not recorded")
		e.Retryable = true
	default:
		e = t.fail(KindProtocol, "the sandbox's answer could not be understood")
	}
	e.Dispatched = DispatchedYes
	return e
}

// named says something of what was refused.
func (t *transfer) named(what string) string { return archive.QuoteName(t.source) + " " + what }

// canceled is the error of a context that ended.
func (t *transfer) canceled(ctx context.Context) *Error {
	if context.Cause(ctx) == errNoProgress {
		e := t.fail(KindTimeout, "the transfer made no progress for its StallTimeout")
		e.Dispatched, e.Retryable = DispatchedUnknown, true
		return e
	}
	e := failed(t.op, ctxError(ctx))
	e.Sandbox, e.Dispatched = t.l.ref.Sandbox, DispatchedUnknown
	return e
}

// archived turns an error of the archive package, or of the stream below it, into one of the operation.
func (t *transfer) archived(ctx context.Context, err error) error {
	if ctx.Err() != nil {
		return t.canceled(ctx)
	}
	var a *archive.Error
	if !errors.As(err, &a) || a.Kind == archive.ErrRead && a.Cause != nil {
		return t.l.observe(t.op, err)
	}
	e := t.fail(KindIO, a.Error())
	e.cause = a.Cause
	switch a.Kind {
	case archive.ErrUnsafe:
		e.Kind = KindUnsafe
	case archive.ErrLimit, archive.ErrSpace:
		e.Kind = KindLimit
	case archive.ErrCorrupt:
		e.Kind, e.Retryable = KindProtocol, true
	case archive.ErrType:
		e.Kind = KindConflict
	case archive.ErrChanged:
		e.Retryable = true
	}
	return e
}

// remotePath makes an absolute path of one in the sandbox, which the caller gave as field: relative ones belong to the
// workspace, "" is the workspace.
func (t *transfer) remotePath(field, name string) string {
	dir, own := t.l.inWorkspace(name), t.own()
	switch {
	case strings.ContainsRune(name, 0):
		t.bad.add(field, "has a NUL byte")
	case !utf8.ValidString(name):
		t.bad.add(field, "is not UTF-8, which the provider's interface cannot carry")
	case strings.Contains(dir+"/", "/"+archive.StagePrefix):
		t.bad.add(field, "has a name of the library's own scratch")
	case dir == own || strings.HasPrefix(dir, own+"/"):
		t.bad.add(field, "is the lease's own directory")
	}
	return dir
}

// localPath checks a path of the host, which the caller gave as field.
func (t *transfer) localPath(field, name string) {
	switch {
	case name == "": // which would mean the working directory of the process
		t.bad.add(field, "is empty")
	case strings.ContainsRune(name, 0):
		t.bad.add(field, "has a NUL byte")
	}
}

// matcher reads patterns, which the caller gave as field.
func (t *transfer) matcher(field string, patterns []string) *archive.Matcher {
	m, err := archive.NewMatcher(patterns)
	if err != nil {
		t.bad.add(field, "%s", err)
	}
	return m
}

// invalid is the error of the caller's input, and nil if it has no problem.
func (t *transfer) invalid() error { return ofSandbox(t.l.ref.Sandbox, t.bad.err(t.op)) }

// own is the lease's own directory in the sandbox.
func (t *transfer) own() string { return path.Join(t.l.ref.Workspace, sentinelDir) }

// below returns the path of name relative to dir, and false if it does not lie below it.
func below(name, dir string) (string, bool) {
	if dir != "/" {
		dir += "/"
	}
	return strings.CutPrefix(name, dir)
}

func (t *transfer) result(s archive.Summary, start time.Time) TransferResult {
	r := TransferResult{Entries: s.Entries, Bytes: s.Bytes, SkippedCount: s.SkippedCount, Leftover: s.Leftover, Duration: time.Since(start)}
	for _, skipped := range s.Skipped {
		r.Skipped = append(r.Skipped, SkippedEntry{skipped.Name, string(skipped.Reason)})
	}
	return r
}
