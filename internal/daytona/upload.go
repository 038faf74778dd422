package daytona

import (
	"bytes"
	"fmt"
	"io"
	"mime/multipart"
	"sync"
)

// upload is the body of a bulk upload: a form with the parts files[i].path and files[i].file, in this order, made as it
// is read. There is no goroutine and no pipe behind it: the transport reads the caller's readers directly.
type upload struct {
	k *call

	// Used by the reading goroutine alone.
	files   []File            // not yet begun
	head    bytes.Buffer      // what comes before the next content
	form    *multipart.Writer // writes to head
	content io.Reader         // of the file in hand, nil between files

	mu     sync.Mutex
	sent   []int64 // bytes of each file begun
	ended  bool    // the form was read to its end
	closed bool
}

func newUpload(files []File, k *call) *upload {
	u := &upload{k: k, files: append([]File{}, files...)} // never nil: that is how the end is known
	u.form = multipart.NewWriter(&u.head)
	return u
}

// Read returns the next bytes of the form.
func (u *upload) Read(p []byte) (int, error) {
	for {
		u.mu.Lock()
		closed, ended := u.closed, u.ended
		u.mu.Unlock()
		switch {
		case closed:
			return 0, io.ErrClosedPipe
		case u.head.Len() > 0:
			n, err := u.head.Read(p)
			u.drained()
			return n, err
		case ended:
			return 0, io.EOF
		case u.content == nil:
			if err := u.next(); err != nil {
				return 0, err
			}
			continue
		}
		n, err := u.content.Read(p)
		u.mu.Lock()
		u.sent[len(u.sent)-1] += int64(n)
		u.mu.Unlock()
		if err == io.EOF {
			u.content, err = nil, nil
		}
		if err != nil {
			u.k.mu.Lock()
			u.k.source = err
			u.k.mu.Unlock()
		}
		if n > 0 || err != nil {
			return n, err
		}
	}
}

// next begins the next file, or makes the end of the form.
func (u *upload) next() error {
	if len(u.files) == 0 {
		u.files = nil
		return u.form.Close()
	}
	u.mu.Lock()
	i := len(u.sent)
	u.sent = append(u.sent, 0)
	u.mu.Unlock()
	f := u.files[0]
	u.files = u.files[1:]
	if err := u.form.WriteField(fmt.Sprintf("files[%d].path", i), f.Path); err != nil {
		return err
	}
	// The file name of the part is of no meaning to the daemon, and a path may hold what a header cannot.
	if _, err := u.form.CreateFormFile(fmt.Sprintf("files[%d].file", i), "file"); err != nil {
		return err
	}
	u.content = f.Content
	return nil
}

// drained notes that the end of the form was read. The daemon's answer can overtake the read that would return io.EOF.
func (u *upload) drained() {
	if u.files == nil && u.head.Len() == 0 {
		u.mu.Lock()
		u.ended = true
		u.mu.Unlock()
	}
}

// Close makes further reads fail. It does not wait for one that is in progress.
func (u *upload) Close() error {
	u.mu.Lock()
	defer u.mu.Unlock()
	u.closed = true
	return nil
}

// counts returns the bytes of every file, or nothing if the form was not read to its end.
func (u *upload) counts() []int64 {
	u.mu.Lock()
	defer u.mu.Unlock()
	if !u.ended {
		return nil
	}
	return u.sent
}
