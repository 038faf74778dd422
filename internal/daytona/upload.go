package daytona

import (
	"bufio"
	"fmt"
	"io"
	"mime/multipart"
	"sync"
)

// upload is the body of a bulk upload: a form with the parts files[i].path and files[i].file, in this order. A goroutine
// writes it into a pipe, since a transport waits for a Read of its body even after the context ended, and only a pipe
// can be closed under a reader of the caller's that blocks.
type upload struct {
	io.Reader // the pipe's end for the transport
	pipe      *io.PipeReader
	kind      string // Content-Type
	k         *call

	mu       sync.Mutex
	sent     []int64 // bytes of each file begun
	complete bool    // the whole form was written
	closed   bool
}

// uploadBuffer is what an upload holds in memory, whatever its size.
const uploadBuffer = 64 << 10

func newUpload(files []File, k *call) *upload {
	r, w := io.Pipe()
	u := &upload{Reader: r, pipe: r, k: k}
	buffer := bufio.NewWriterSize(w, uploadBuffer)
	form := multipart.NewWriter(buffer)
	u.kind = form.FormDataContentType()
	go func() { w.CloseWithError(u.write(files, form, buffer)) }()
	return u
}

// write writes the form. It ends early when the pipe was closed.
func (u *upload) write(files []File, form *multipart.Writer, buffer *bufio.Writer) error {
	chunk := make([]byte, uploadBuffer)
	for i, f := range files {
		if err := form.WriteField(fmt.Sprintf("files[%d].path", i), f.Path); err != nil {
			return err
		}
		// The file name of the part is of no meaning to the daemon, and a path may hold what a header cannot.
		part, err := form.CreateFormFile(fmt.Sprintf("files[%d].file", i), "file")
		if err != nil {
			return err
		}
		u.mu.Lock()
		u.sent = append(u.sent, 0)
		u.mu.Unlock()
		if err := u.copy(part, f.Content, chunk); err != nil {
			return err
		}
	}
	if err := form.Close(); err != nil {
		return err
	}
	// The daemon's answer may overtake this goroutine once the last bytes are on their way.
	u.mu.Lock()
	u.complete = true
	u.mu.Unlock()
	return buffer.Flush()
}

// copy copies one file.
func (u *upload) copy(part io.Writer, content io.Reader, chunk []byte) error {
	for {
		u.mu.Lock()
		closed := u.closed
		u.mu.Unlock()
		if closed {
			return io.ErrClosedPipe
		}
		n, err := content.Read(chunk)
		u.mu.Lock()
		u.sent[len(u.sent)-1] += int64(n)
		u.mu.Unlock()
		if n > 0 {
			if _, err := part.Write(chunk[:n]); err != nil {
				return err
			}
		}
		switch {
		case err == io.EOF:
			return nil
		case err != nil:
			u.k.mu.Lock()
			u.k.source = err
			u.k.mu.Unlock()
			return err
		}
	}
}

// Close ends the upload without waiting for a reader of the caller's: one read may be in progress, and is the last.
func (u *upload) Close() error {
	u.mu.Lock()
	u.closed = true
	u.mu.Unlock()
	return u.pipe.Close()
}

// counts returns the bytes of every file, or nothing if the form was not written to its end.
func (u *upload) counts() []int64 {
	u.mu.Lock()
	defer u.mu.Unlock()
	if !u.complete {
		return nil
	}
	return u.sent
}
