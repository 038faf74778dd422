package leasehold

import (
	"context"
	"errors"
	"io"
	"strings"

	"github.com/leasehold-go/leasehold/internal/archive"
	"github.com/leasehold-go/leasehold/internal/daytona"
)

// throughTerminal exports without a file in the sandbox, see [RouteTerminal].
func (x *Exporter) throughTerminal(ctx context.Context, op string, job exportJob, m *meter, watch *watch) (archive.Summary, error) {
	t, err := x.l.transfer(op)
	if err != nil {
		return archive.Summary{}, err
	}
	var sb *daytona.Sandbox
	if err = t.connect(ctx); err == nil {
		sb, err = x.l.read(ctx, op)
	}
	if err != nil {
		t.done()
		return archive.Summary{}, err
	}
	// The archive cannot be larger than the disk on which the files are; the provider reports that in GiB.
	limit := int64(sb.Disk * (1 << 30))
	id := strings.TrimPrefix(archive.StageName(), ".")
	conn, err := t.openTerminal(ctx, id, archive.TerminalEnv(job.request))
	if err != nil {
		t.closeTerminal(ctx, id)
		return archive.Summary{}, t.l.observe(op, err)
	}
	defer func() {
		conn.Close()
		t.closeTerminal(ctx, id)
	}()
	term := archive.NewTerminal(struct {
		io.Reader
		io.Writer
	}{watch.reader(conn), conn}, job.request, limit)
	o := job.extraction
	o.ReserveStep = 1 // the free space is asked for before each write
	m.state = Progress{}
	o.Progress = func(entries, _ int64) { m.update(entries, term.Size()) }
	sum, err := job.extract(ctx, term, o)
	if err == nil {
		t.listSockets(&sum, *term.Reply(), o.Exclude)
		return sum, nil
	}
	var missing archive.MissingTool
	switch reply := term.Reply(); {
	case ctx.Err() == nil && reply != nil && reply.Word != archive.WordOK:
		return sum, t.exportRefused(job.request, *reply)
	case errors.As(err, &missing):
		e := t.fail(KindQuota, "the sandbox has no room for the files of an export, and for one through a terminal "+missing.Error())
		e.Dispatched = DispatchedYes
		return sum, e
	}
	return sum, t.archived(ctx, err)
}

// openTerminal starts a terminal of an id that nobody else can have, and connects to it.
func (t *transfer) openTerminal(ctx context.Context, id string, env map[string]string) (*daytona.PTYConn, error) {
	err := createPTY(ctx, t.box, id, env)
	if nameTaken(err) { // by a first delivery of the request
		err = nil
	}
	if err != nil {
		return nil, err
	}
	return t.box.ConnectPTY(ctx, id)
}

// closeTerminal ends the terminal, and the lease's activity. Once the context has ended it does so in the background.
func (t *transfer) closeTerminal(ctx context.Context, id string) {
	remove := func() {
		defer t.done()
		_ = removePTY(context.WithoutCancel(ctx), t.l, t.box, t.op, id) // which logs it
	}
	if ctx.Err() != nil {
		go remove()
		return
	}
	remove()
}
