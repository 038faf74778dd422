package openapicheck

import (
	"bufio"
	"bytes"
	"io"
	"net"
	"net/http"
	"net/url"
	"slices"
	"sync"
)

// Exchange is one request and its reply, as they were on the wire.
type Exchange struct {
	Method    string
	URL       *url.URL
	Header    http.Header
	Body      []byte
	Whole     bool // Body is the whole body: the server read it to its end
	Status    int
	Reply     http.Header
	ReplyBody []byte
	Socket    bool // the connection became a WebSocket; what it carried is not kept
	Aborted   bool // the server gave up, and dropped the connection
}

// Recorder keeps the exchanges of a server, in the order in which they ended.
type Recorder struct {
	mu   sync.Mutex // guards done
	done []*Exchange
}

// Middleware records what passes through it.
func (rec *Recorder) Middleware(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		e := &Exchange{Method: r.Method, URL: r.URL, Header: r.Header.Clone()}
		body := &recordedBody{ReadCloser: r.Body}
		writer := &recordedReply{ResponseWriter: w, e: e}
		r2 := r.WithContext(r.Context())
		r2.Body = body
		e.Aborted = true // until next has returned
		defer func() {
			e.Body, e.Whole = body.read.Bytes(), body.ended
			rec.mu.Lock()
			defer rec.mu.Unlock()
			rec.done = append(rec.done, e)
		}()
		next.ServeHTTP(writer, r2)
		e.Aborted = false
		writer.status(http.StatusOK)
		if e.Status < 300 && !e.Socket && !body.ended {
			// A decoder knows the end of its value without having seen the end of the body.
			_, _ = io.Copy(io.Discard, body)
		}
		e.Reply = w.Header().Clone()
		if e.Reply.Get("Content-Type") == "" && len(e.ReplyBody) > 0 {
			e.Reply.Set("Content-Type", http.DetectContentType(e.ReplyBody)) // as net/http does
		}
	})
}

// Exchanges returns those that have ended.
func (rec *Recorder) Exchanges() []*Exchange {
	rec.mu.Lock()
	defer rec.mu.Unlock()
	return slices.Clone(rec.done)
}

type recordedBody struct {
	io.ReadCloser
	read  bytes.Buffer
	ended bool
}

func (b *recordedBody) Read(p []byte) (int, error) {
	n, err := b.ReadCloser.Read(p)
	b.read.Write(p[:n])
	b.ended = b.ended || err == io.EOF
	return n, err
}

type recordedReply struct {
	http.ResponseWriter
	e *Exchange
}

func (w *recordedReply) status(status int) {
	if w.e.Status == 0 && (status >= 200 || status == http.StatusSwitchingProtocols) {
		w.e.Status = status
	}
}

func (w *recordedReply) WriteHeader(status int) {
	w.status(status)
	w.ResponseWriter.WriteHeader(status)
}

func (w *recordedReply) Write(p []byte) (int, error) {
	w.status(http.StatusOK)
	n, err := w.ResponseWriter.Write(p)
	w.e.ReplyBody = append(w.e.ReplyBody, p[:n]...)
	return n, err
}

func (w *recordedReply) FlushError() error {
	w.status(http.StatusOK)
	return http.NewResponseController(w.ResponseWriter).Flush()
}

func (w *recordedReply) Flush() { _ = w.FlushError() }

func (w *recordedReply) Unwrap() http.ResponseWriter { return w.ResponseWriter }

func (w *recordedReply) Hijack() (net.Conn, *bufio.ReadWriter, error) {
	conn, rw, err := http.NewResponseController(w.ResponseWriter).Hijack()
	if err == nil {
		w.status(http.StatusSwitchingProtocols)
		w.e.Socket = true
	}
	return conn, rw, err
}
