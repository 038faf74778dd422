package leasehold

import (
	"context"
	"errors"
	"io"
	"sync/atomic"
	"time"

	"github.com/leasehold-go/leasehold/internal/archive"
	"github.com/leasehold-go/leasehold/internal/daytona"
)

// pieceReader reads an archive that a script in the sandbox makes in pieces, see [archive.RemoteExport]. While one piece
// is downloaded, the next ones are made and asked for. It ends with io.EOF only when the sandbox's tar has ended well,
// every piece had its length and checksum, and all of them together the length that the script counted.
type pieceReader struct {
	t       *transfer
	ctx     context.Context
	cancel  context.CancelFunc
	request archive.RemoteExport
	moved   func() // called when something arrived

	// What fetch receives. When it ends it closes pieces, after it has set one of end and err.
	pieces chan archive.Piece
	end    atomic.Pointer[archive.Reply] // the script's last word
	err    error
	needed atomic.Int64 // number of the first piece that may still be downloaded

	piece    archive.Piece
	body     *resumingReader // of the piece; nil when there is none under way
	sum      archive.Sum     // of what was read of it
	received int64
}

// piecesAhead is how many whole pieces wait behind the one that is downloaded. Together with the one that is made, and
// with the one that was announced last, there are as many as the sandbox makes room for.
const piecesAhead = archive.PieceCount - 2

// openPieces has the archive begun. It returns when the first piece is there. The reader must be closed.
func (t *transfer) openPieces(ctx context.Context, request archive.RemoteExport, moved func()) (*pieceReader, error) {
	reply, err := t.execute(ctx, request.Make(), request.Scratch)
	if err != nil {
		return nil, err
	}
	if len(reply.Pieces) == 0 && reply.Word != archive.WordBusy {
		return nil, t.exportRefused(request, reply)
	}
	p := &pieceReader{t: t, request: request, moved: moved, pieces: make(chan archive.Piece, piecesAhead)}
	p.ctx, p.cancel = context.WithCancel(ctx)
	go func() {
		defer close(p.pieces)
		p.err = p.fetch(reply)
	}()
	return p, nil
}

// fetch asks for pieces, one request after another, as long as there is room for them. It returns nil after the last one.
func (p *pieceReader) fetch(reply archive.Reply) error {
	for next := 0; ; {
		for _, piece := range reply.Pieces {
			switch {
			case piece.Number > next:
				return p.t.refused("")
			case piece.Number == next:
				p.moved()
				if err := p.pass(piece); err != nil {
					return err
				}
				next++
			}
		}
		switch {
		case reply.Word == archive.WordOK && reply.Bytes > 0:
			p.end.Store(&reply)
			return nil
		case reply.Word != "" && reply.Word != archive.WordBusy:
			return p.t.exportRefused(p.request, reply)
		}
		var err error
		if reply, err = p.t.execute(p.ctx, p.request.Take(next, int(p.needed.Load())), p.request.Scratch); err != nil {
			return err
		}
	}
}

// pass hands a piece to Read. However long that is busy with earlier ones, the sandbox is told in time that somebody still is
// interested.
func (p *pieceReader) pass(piece archive.Piece) error {
	const (
		pause = archive.Patience * time.Second / 3
		limit = 5 * time.Second // of the request, while the piece waits
	)
	tick := time.NewTicker(pause)
	defer tick.Stop()
	for {
		select {
		case p.pieces <- piece:
			return nil
		case <-p.ctx.Done():
			return ctxError(p.ctx)
		case <-tick.C:
			call, cancel := context.WithTimeout(p.ctx, limit)
			_, _ = p.t.box.Execute(call, p.request.Take(piece.Number, int(p.needed.Load())), 0) // fetch sees what is wrong
			cancel()
		}
	}
}

// total is the length of the archive, 0 while it is not known.
func (p *pieceReader) total() int64 {
	if end := p.end.Load(); end != nil {
		return end.Bytes
	}
	return 0
}

// Read reads the next bytes of the archive.
func (p *pieceReader) Read(b []byte) (int, error) {
	for {
		if p.body == nil {
			piece, more := <-p.pieces // fetch ends with the context
			switch {
			case more:
			case p.err != nil:
				return 0, p.err
			case p.received != p.total():
				return 0, p.t.fail(KindProtocol, "the archive does not have the length that the sandbox counted")
			default:
				return 0, io.EOF
			}
			p.piece, p.sum = piece, archive.Sum{}
			p.body = &resumingReader{t: p.t, ctx: p.ctx, path: p.request.Path(piece.Number), size: piece.Size}
		}
		n, err := p.body.Read(b)
		p.sum.Write(b[:n])
		p.received += int64(n)
		switch {
		case n > 0:
			p.moved()
			return n, nil
		case err != io.EOF:
			return 0, err
		case p.piece.Summed && p.sum.Sum32() != p.piece.Sum:
			e := p.t.fail(KindProtocol, "a piece of the archive arrived with another checksum")
			e.Retryable = true
			return 0, e
		}
		p.body.close()
		p.body = nil
		p.needed.Store(int64(p.piece.Number) + 1)
	}
}

// close ends what is under way.
func (p *pieceReader) close() {
	p.cancel()
	if p.body != nil {
		p.body.close()
	}
	for range p.pieces { // until fetch has ended
	}
}

// exportRefused is the error for the last word of an export that did not succeed.
func (t *transfer) exportRefused(request archive.RemoteExport, reply archive.Reply) *Error {
	t.source = request.Dir
	if i := reply.Bytes; request.Files != nil && i < int64(len(request.Files)) {
		t.source = request.Files[i]
	}
	t.full = reply.Word == archive.WordNoSpace
	return t.refused(reply.Word)
}

// resumingReader reads a file of a known size, and continues where it stopped when the connection breaks. It gives up
// after maxDownloadFailures failures in a row that brought not one byte.
type resumingReader struct {
	t      *transfer
	ctx    context.Context
	path   string
	size   int64
	offset int64
	body   *daytona.Download
	failed int
	pause  backoff
}

const maxDownloadFailures = 5

func (d *resumingReader) Read(p []byte) (int, error) {
	for {
		if d.offset == d.size {
			return 0, io.EOF
		}
		err := d.open()
		if err == nil {
			var n int
			n, err = d.body.Read(p[:min(int64(len(p)), d.size-d.offset)])
			d.offset += int64(n)
			if n > 0 {
				d.failed, d.pause = 0, backoff{}
				return n, nil // an error comes again
			}
			if err == nil {
				continue
			}
			d.close()
		}
		var remote *daytona.Error
		d.failed++
		if err == io.EOF || !errors.As(err, &remote) || !unanswered(remote) && remote.Status != 429 || d.failed >= maxDownloadFailures {
			if err == io.EOF {
				err = d.t.fail(KindProtocol, "the archive in the sandbox became shorter")
			}
			return 0, err
		}
		if d.pause.wait(d.ctx, remote.RetryAfter) != nil {
			return 0, ctxError(d.ctx)
		}
	}
}

// open makes a request for the rest, unless one is under way.
func (d *resumingReader) open() error {
	if d.body != nil {
		return nil
	}
	body, err := d.t.box.Download(d.ctx, d.path, d.offset)
	if err != nil {
		return err
	}
	if body.Size != d.size {
		body.Close()
		return d.t.fail(KindProtocol, "the archive in the sandbox changed its size")
	}
	d.body = body
	return nil
}

func (d *resumingReader) close() {
	if d.body != nil {
		d.body.Close()
		d.body = nil
	}
}
