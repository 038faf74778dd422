package leasehold

import (
	"context"
	"errors"
	"io"

	"github.com/leasehold-go/leasehold/internal/archive"
	"github.com/leasehold-go/leasehold/internal/daytona"
)

// pieceReader reads an archive that a script in the sandbox makes in pieces, see [archive.RemoteExport]. While one piece
// is downloaded, the next ones are made. It ends with io.EOF only when the sandbox's tar has ended well, every piece had
// its length and checksum, and all of them together the length that the script counted.
type pieceReader struct {
	t       *transfer
	ctx     context.Context
	request archive.RemoteExport
	moved   func() // called when something arrived

	ready    []archive.Piece // whole, and not read to the end
	next     int             // number of the piece after those
	end      *archive.Reply  // the script's last word
	body     *resumingReader // of the first ready piece; nil when there is none under way
	sum      archive.Sum     // of what was read of it
	received int64
	asked    chan asked // a request that is under way; nil for none
	cancel   context.CancelFunc
}

// asked is how a request for more pieces ended.
type asked struct {
	reply archive.Reply
	err   error
}

// openPieces has the archive begun. It returns when the first piece is there. The reader must be closed.
func (t *transfer) openPieces(ctx context.Context, request archive.RemoteExport, moved func()) (*pieceReader, error) {
	reply, err := t.execute(ctx, request.Make(), request.Scratch)
	if err != nil {
		return nil, err
	}
	p := &pieceReader{t: t, request: request, moved: moved}
	p.ctx, p.cancel = context.WithCancel(ctx)
	if err := p.take(reply); err != nil {
		p.close()
		return nil, err
	}
	return p, nil
}

// total is the length of the archive, 0 while it is not known.
func (p *pieceReader) total() int64 {
	if p.end == nil {
		return 0
	}
	return p.end.Bytes
}

// Read reads the next bytes of the archive.
func (p *pieceReader) Read(b []byte) (int, error) {
	for {
		switch {
		case len(p.ready) > 0:
		case p.end == nil:
			if err := p.await(); err != nil {
				return 0, err
			}
			continue
		case p.received != p.end.Bytes:
			return 0, p.t.fail(KindProtocol, "the archive does not have the length that the sandbox counted")
		default:
			return 0, io.EOF
		}
		piece := p.ready[0]
		if p.body == nil {
			p.body = &resumingReader{t: p.t, ctx: p.ctx, path: p.request.Path(piece.Number), size: piece.Size}
			p.sum = archive.Sum{}
			// With one more piece ahead there is time to ask. The sandbox goes on with what the answer makes room for.
			if len(p.ready) <= 2 {
				p.ask()
			}
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
		case piece.Summed && p.sum.Sum32() != piece.Sum:
			e := p.t.fail(KindProtocol, "a piece of the archive arrived with another checksum")
			e.Retryable = true
			return 0, e
		}
		p.body.close()
		p.body, p.ready = nil, p.ready[1:]
	}
}

// ask asks for the piece after the ready ones, unless that is under way or there is none.
func (p *pieceReader) ask() {
	if p.asked != nil || p.end != nil {
		return
	}
	needed := p.next
	if len(p.ready) > 0 {
		needed = p.ready[0].Number
	}
	text, answer := p.request.Take(p.next, needed), make(chan asked, 1)
	p.asked = answer
	go func() {
		reply, err := p.t.execute(p.ctx, text, p.request.Scratch)
		answer <- asked{reply, err}
	}()
}

// await waits for an answer.
func (p *pieceReader) await() error {
	p.ask()
	a := <-p.asked // a request ends with the context
	p.asked = nil
	if a.err != nil {
		return a.err
	}
	return p.take(a.reply)
}

// take takes an answer in.
func (p *pieceReader) take(reply archive.Reply) error {
	for _, piece := range reply.Pieces {
		switch {
		case piece.Number == p.next:
			p.ready = append(p.ready, piece)
			p.next++
			p.moved()
		case piece.Number > p.next:
			return p.t.refused("")
		}
	}
	switch reply.Word {
	case "", archive.WordBusy:
	case archive.WordOK:
		if reply.Bytes <= 0 {
			return p.t.refused("")
		}
		p.end = &reply
	default:
		return p.t.exportRefused(p.request, reply)
	}
	return nil
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

// close ends what is under way.
func (p *pieceReader) close() {
	p.cancel()
	if p.body != nil {
		p.body.close()
	}
	if p.asked != nil {
		<-p.asked
	}
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
