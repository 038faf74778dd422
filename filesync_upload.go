package leasehold

import (
	"context"
	"errors"
	"fmt"
	"io"
	"path"
	"time"

	"github.com/leasehold-go/leasehold/internal/archive"
	"github.com/leasehold-go/leasehold/internal/daytona"
)

// importPlan is what to import, and how.
type importPlan struct {
	stages   []importStage
	bundle   string // name of the one directory that is a read-only bundle, in the one stage
	own      string // where the lease's own directory lies in the one stage by the paths; "" if it does not
	delta    Delta  // for the one stage
	remove   bool
	stream   *watchedReader // the source, if it can be read only once; nil if not
	writable []string       // directories to record, if they are to be writable
}

// importStage is one directory of the sandbox that files go to.
type importStage struct {
	dest string                                           // absolute
	load func(ctx context.Context) (*archive.Load, error) // for each attempt
}

func (i *Importer) run(ctx context.Context, op string, options ImportOptions, prepare func(*transfer) importPlan) (_ TransferResult, err error) {
	start := time.Now()
	ctx, span := i.l.p.span(ctx, op)
	defer func() { endSpan(span, err) }()
	ctx, end := i.l.p.untilClosed(ctx)
	defer end()
	for attempt := 0; ; attempt++ {
		t, err := i.l.transfer(op)
		if err != nil {
			return TransferResult{}, err
		}
		plan := prepare(t)
		t.completeImport(&plan, options)
		if err = t.invalid(); err == nil {
			err = t.connect(ctx)
		}
		if err != nil {
			t.done()
			return TransferResult{}, err
		}
		result, again, err := t.importOnce(ctx, plan, options)
		if err == nil {
			(&meter{report: options.Progress}).done(Progress{Bytes: result.Bytes, TotalBytes: result.Bytes, Entries: result.Entries, TotalEntries: result.Entries})
			err = i.after(ctx, op, options.After)
			result.Duration = time.Since(start)
			return result, err
		}
		if e, ok := err.(*Error); ok && plan.stream != nil {
			e.Retryable = false // not the same call
		}
		if !again || plan.stream != nil || attempt > 0 || ctx.Err() != nil {
			return TransferResult{}, err
		}
	}
}

// AfterError says which of [ImportOptions.After] failed. The files are in their places, and later commands did not run.
type AfterError struct {
	Index  int    // of the command
	Result Result // what is known of it
	Err    error  // of [Executor.Run]; nil if it ended, with an exit code other than 0
}

// Error names the command by its index, and its exit code if it has one.
func (e *AfterError) Error() string {
	if e.Err != nil {
		return fmt.Sprintf("the files are in place, but command %d after them did not come to an end that is known", e.Index)
	}
	return fmt.Sprintf("the files are in place, but command %d after them exited with %d", e.Index, e.Result.ExitCode)
}

// Unwrap returns the error of [Executor.Run].
func (e *AfterError) Unwrap() error { return e.Err }

// after runs the commands that follow an import.
func (i *Importer) after(ctx context.Context, op string, commands []Command) error {
	for n, cmd := range commands {
		result, err := i.l.Executor().Run(ctx, cmd)
		if err == nil && result.ExitCode == 0 {
			continue
		}
		cause := &AfterError{Index: n, Result: result, Err: err}
		e := &Error{Kind: KindRefused, Sandbox: i.l.ref.Sandbox, Dispatched: DispatchedYes}
		if err != nil {
			e = failed(op, err)
			e.Retryable, e.Dispatched = false, DispatchedYes // of the import, whatever became of the command
		}
		e.Op, e.Message, e.cause = op, cause.Error(), cause
		return e
	}
	return nil
}

// importOnce makes one attempt with scratch directories of its own. It reports whether another attempt can help: when
// the connection broke during the upload, or when an answer was lost that nothing records. An import can be repeated,
// and doing all of it again is what makes the outcome certain.
func (t *transfer) importOnce(ctx context.Context, plan importPlan, options ImportOptions) (_ TransferResult, again bool, _ error) {
	request := archive.RemoteImport{Scratch: archive.StageName(), Own: t.own()}
	if options.Access == AccessReadWrite {
		request.Record = writableLines(plan.writable)
	}
	var loads []*archive.Load
	var total archive.Summary
	closeLoads := func() {
		for _, load := range loads {
			load.Close()
		}
	}
	for _, s := range plan.stages {
		load, err := s.load(ctx)
		if err != nil {
			closeLoads()
			t.done()
			return TransferResult{}, false, t.archived(ctx, err)
		}
		loads = append(loads, load)
	}
	ended := func(r TransferResult, err error) (TransferResult, bool, error) {
		closeLoads()
		t.done()
		return r, false, err
	}
	if len(loads) == 0 {
		return ended(TransferResult{}, nil)
	}
	var scratch []string
	for n, s := range plan.stages {
		scratch = append(scratch, archive.Stage(s.dest, request.Scratch, n))
	}

	if plan.bundle != "" {
		digest, err := loads[0].Digest(ctx)
		if err != nil {
			return ended(TransferResult{}, t.archived(ctx, err))
		}
		request.Bundle, request.Digest = plan.bundle, digest
		request.Marker = path.Join(t.own(), "bundles", fingerprint("bundle", path.Join(plan.stages[0].dest, plan.bundle)))
	}

	ctx, watch := t.watch(ctx, options.StallTimeout, request.Scratch, scratch)
	defer watch.end()
	if plan.bundle != "" {
		bundle := archive.RemoteBundle{Mark: request.Scratch, Dir: path.Join(plan.stages[0].dest, plan.bundle), Digest: request.Digest, Marker: request.Marker}
		reply, err := t.execute(ctx, bundle.Script(), request.Scratch)
		if err != nil || reply.Word == archive.WordOK {
			return ended(t.unchanged(loads[0], loads[0].Total.Entries), err)
		}
	}
	if plan.stream != nil {
		plan.stream.w = watch
	}
	cleanUp := func() { t.removeScratch(ctx, scratch[0], scratch[1:]...) }

	if plan.delta != DeltaNone {
		err := t.compare(ctx, loads[0], request.Scratch, plan, watch)
		if err != nil || loads[0].Nothing() && len(request.Record) == 0 { // else the script records it
			closeLoads()
			cleanUp()
			return t.unchanged(loads[0], loads[0].Have.Entries), false, err
		}
	}
	for _, load := range loads {
		total.Entries += load.Total.Entries
		total.Bytes += load.Total.Bytes
	}
	m := &meter{report: options.Progress, state: Progress{TotalBytes: total.Bytes, TotalEntries: total.Entries}}
	sums, err := t.upload(ctx, scratch, loads, m, watch)
	m.close(ctx)
	var lost *daytona.Error
	if err != nil {
		broke := errors.As(err, &lost) && unanswered(lost) && ctx.Err() == nil
		if !broke || sums == nil {
			cleanUp()
			return TransferResult{}, broke, t.uploadFailed(ctx, err)
		}
		// All of it was sent and no answer came. The script will tell whether all of it arrived.
	}
	for n, load := range loads {
		request.Stages = append(request.Stages, load.Stage(plan.stages[n].dest, sums[n].Archive))
	}
	reply, err := t.execute(ctx, request.Script(), request.Scratch)
	if len(request.Record) > 0 {
		t.l.bwrap.listChanged()
	}
	if err == nil && reply.Word == archive.WordOK {
		t.done()
		var sum archive.Summary
		var unchanged, removed int64
		for n, load := range loads {
			sum.Add(sums[n])
			unchanged += load.Have.Entries
			removed += load.Gone
		}
		result := t.result(sum, time.Time{})
		result.Unchanged, result.Removed = unchanged, removed
		return result, false, nil
	}
	cleanUp()
	t.source = path.Clean(reply.Name)
	switch {
	case err != nil:
		return TransferResult{}, false, err
	case reply.Word == archive.WordGone, reply.Word == archive.WordMissing, reply.Word == archive.WordShort:
		return TransferResult{}, true, t.refused(reply.Word)
	default:
		return TransferResult{}, false, t.refused(reply.Word)
	}
}

// unchanged is the result of an import that had nothing to send.
func (t *transfer) unchanged(load *archive.Load, entries int64) TransferResult {
	left := load.Total
	left.Entries, left.Bytes = 0, 0
	result := t.result(left, time.Time{})
	result.Unchanged = entries
	return result
}

// compare takes from the load what the sandbox has.
func (t *transfer) compare(ctx context.Context, load *archive.Load, scratch string, plan importPlan, watch *watch) error {
	dest := plan.stages[0].dest
	digests := plan.delta == DeltaDigests
	reply, err := t.execute(ctx, archive.RemoteList{Dir: dest, Scratch: scratch, Own: t.own(), Digests: digests}.Script(), scratch)
	switch {
	case err != nil:
		return err
	case reply.Word == archive.WordNoSource: // everything is new
		return nil
	case reply.Word == archive.WordNoList && !plan.remove:
		return nil
	case reply.Word != archive.WordOK:
		t.source = dest
		return t.refused(reply.Word)
	}
	list := &resumingReader{t: t, ctx: ctx, path: path.Join(dest, scratch, archive.RemoteListed), size: reply.Bytes}
	defer list.close()
	err = load.Compare(ctx, watch.reader(list), archive.CompareOptions{Digests: digests, Remove: plan.remove, Own: plan.own, Step: watch.moved})
	if err != nil {
		return t.archived(ctx, err)
	}
	return nil
}

// upload streams loads to their scratch directories in one request, and closes them. The summaries are nil unless all of
// them were taken. It does not wait for a source that blocks when the context has ended.
func (t *transfer) upload(ctx context.Context, scratch []string, loads []*archive.Load, m *meter, watch *watch) ([]archive.Summary, error) {
	type part struct {
		archive.Part
		load int
		r    *io.PipeReader
		w    *io.PipeWriter
	}
	var parts []part
	var files []daytona.File
	for n, load := range loads {
		for _, p := range load.Parts() {
			r, w := io.Pipe()
			parts = append(parts, part{p, n, r, w})
			files = append(files, daytona.File{Path: path.Join(scratch[n], p.Name), Content: watch.reader(r)})
		}
	}
	type outcome struct {
		sums []archive.Summary
		err  error
	}
	written := make(chan outcome, 1)
	go func() { // the upload reads one after another, too
		sums := make([]archive.Summary, len(loads))
		var entries, bytes int64
		var err error
		for _, p := range parts {
			var one archive.Summary
			one, err = p.Write(ctx, p.w, func(e, b int64) { m.update(entries+e, bytes+b) })
			sums[p.load].Add(one)
			entries, bytes = entries+one.Entries, bytes+one.Bytes
			p.w.CloseWithError(err) // nil is io.EOF
			if err != nil {
				break
			}
		}
		for _, load := range loads {
			load.Close()
		}
		written <- outcome{sums, err}
	}()
	err := t.box.Upload(ctx, files...)
	for _, p := range parts {
		p.r.CloseWithError(errUploadEnded)
	}
	var out outcome
	select {
	case out = <-written:
	case <-ctx.Done():
		return nil, context.Cause(ctx)
	}
	var a *archive.Error
	switch {
	case errors.As(out.err, &a) && a.Kind != archive.ErrWrite:
		return nil, out.err // it is what ended the upload
	case err == nil && out.err != nil:
		return nil, out.err
	case out.err != nil:
		return nil, err
	}
	return out.sums, err
}

var errUploadEnded = errors.New("the upload ended")

// uploadFailed is the error of an upload. What the caller can do something about is told apart: a full disk, and a file where
// the destination, or what leads to it, has to be a directory.
func (t *transfer) uploadFailed(ctx context.Context, err error) error {
	var remote *daytona.Error
	if errors.As(err, &remote) {
		switch {
		case remote.NoSpace():
			return t.refused(archive.WordNoSpace)
		case remote.NotDirectory():
			return t.refused(archive.WordConflict)
		}
	}
	return t.archived(ctx, err)
}
