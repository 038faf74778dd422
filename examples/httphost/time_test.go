package main

import (
	"bufio"
	"context"
	"io"
	"log/slog"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/leasehold-go/leasehold"
)

// memory is a listener in memory, whose connections keep to the time of a bubble.
type memory chan net.Conn

func (m memory) Accept() (net.Conn, error) {
	conn, ok := <-m
	if !ok {
		return nil, net.ErrClosed
	}
	return conn, nil
}
func (m memory) Close() error   { close(m); return nil }
func (m memory) Addr() net.Addr { return &net.UnixAddr{Name: "memory", Net: "unix"} }

// dial returns one connection of a client.
func (m memory) dial() net.Conn {
	client, server := net.Pipe()
	m <- server
	return client
}

// inMemory serves in a bubble.
func inMemory(t *testing.T, server *http.Server) memory {
	m := make(memory)
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		_ = server.Serve(m)
	}()
	t.Cleanup(func() {
		_ = server.Close()
		<-ended
	})
	return m
}

func TestAClientThatSendsNothingIsCut(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s, err := newService(nil, t.TempDir(), nil, defaultLimits, slog.New(slog.DiscardHandler))
		if err != nil {
			t.Fatal(err)
		}
		server := s.server()
		took := make(chan time.Duration, 1)
		server.Handler = http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			began := time.Now()
			body := s.timed(w, r, 100)
			if _, err := io.Copy(io.Discard, body); err == nil {
				_, _ = body.Read(make([]byte, 1)) // as decoders do, which look twice for the end
				time.Sleep(10 * time.Minute)      // it does something with what it has
				if err := r.Context().Err(); err != nil {
					t.Errorf("the request of a client that waits: %v, want it to go on", err)
				}
			}
			took <- time.Since(began)
		})
		m := inMemory(t, server)

		slow := m.dial() // a byte in time, and then nothing
		_, _ = io.WriteString(slow, "PUT / HTTP/1.1\r\nHost: x\r\nContent-Length: 10\r\n\r\n")
		time.Sleep(readTime - time.Second)
		_, _ = io.WriteString(slow, "a")
		if got, want := <-took, 2*readTime-time.Second; got != want {
			t.Errorf("a client that sends nothing more was cut after %s, want %s", got, want)
		}
		_ = slow.Close()

		patient := m.dial() // everything, and then it waits
		_, _ = io.WriteString(patient, "PUT / HTTP/1.1\r\nHost: x\r\nContent-Length: 1\r\n\r\na")
		if got, want := <-took, 10*time.Minute; got != want {
			t.Errorf("the work after the body took %s, want %s", got, want)
		}
		_ = patient.Close()

		silent := m.dial() // not even a header
		began := time.Now()
		_, _ = io.ReadAll(silent)
		if got := time.Since(began); got != server.ReadHeaderTimeout {
			t.Errorf("a client without a header was cut after %s, want %s", got, server.ReadHeaderTimeout)
		}
		_ = silent.Close()
	})
}

// TestAStrangerHoldsNoConnection: neither by a body that no handler reads, or none reads to its end, nor by taking nothing of
// the answers.
func TestAStrangerHoldsNoConnection(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		tenants, _, err := parseTenants(tokens, defaultLimits)
		if err != nil {
			t.Fatal(err)
		}
		s, err := newService(nil, t.TempDir(), tenants, limits{body: 10}, slog.New(slog.DiscardHandler))
		if err != nil {
			t.Fatal(err)
		}
		m := inMemory(t, s.server())
		token := "Authorization: Bearer " + acmeToken + "\r\n"
		for _, c := range []struct {
			request string
			status  string
		}{
			{"POST /v1/leases HTTP/1.1\r\nHost: x\r\nContent-Length: 1\r\n\r\n", "401"},
			{"POST /nothing HTTP/1.1\r\nHost: x\r\nContent-Length: 1\r\n\r\n", "404"},
			{"GET /healthz HTTP/1.1\r\nHost: x\r\nContent-Length: 1\r\n\r\n", "400"},
			{"POST /v1/leases HTTP/1.1\r\nHost: x\r\n" + token + "Transfer-Encoding: chunked\r\n\r\n10\r\n{\"run\":\"12345678\r\n", "413"},
		} {
			conn := m.dial()
			began := time.Now()
			_, _ = io.WriteString(conn, c.request)
			answer, _ := io.ReadAll(conn)
			if got := time.Since(began); got > readTime || !strings.HasPrefix(string(answer), "HTTP/1.1 "+c.status) {
				t.Errorf("%.30q was answered with %.30q and cut after %s, want %s within %s", c.request, answer, got, c.status, readTime)
			}
			_ = conn.Close()
		}
		deaf := m.dial()
		_, _ = io.WriteString(deaf, "GET /app.js HTTP/1.1\r\nHost: x\r\n\r\n")
		time.Sleep(writeTime + time.Second)
		if rest, _ := io.ReadAll(deaf); len(rest) > 0 {
			t.Errorf("a client that takes nothing for long was answered %.30q, want to be cut", rest)
		}
		_ = deaf.Close()
	})
}

// noProvider gives everything back at once, in time.
type noProvider struct{ leasehold.Provider }

func (noProvider) Destroy(ctx context.Context, _ leasehold.LeaseRef) (leasehold.Receipt, error) {
	return leasehold.Receipt{State: leasehold.ReceiptDestroyed}, ctx.Err()
}

// TestTheEndWaitsForNoClient: one whose request does not end takes no time from the giving back.
func TestTheEndWaitsForNoClient(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s, err := newService(noProvider{}, t.TempDir(), nil, defaultLimits, slog.New(slog.DiscardHandler))
		if err != nil {
			t.Fatal(err)
		}
		if _, err := s.leases.add(leasehold.LeaseRef{Attempt: "a"}); err != nil {
			t.Fatal(err)
		}
		server := s.server()
		server.Handler = http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			_, _ = io.Copy(io.Discard, s.timed(w, r, 1000))
		})
		conn := inMemory(t, server).dial()
		_, _ = io.WriteString(conn, "PUT / HTTP/1.1\r\nHost: x\r\nContent-Length: 1000\r\n\r\n")
		ended := make(chan struct{})
		go func() { // a byte now and then
			defer close(ended)
			for err := error(nil); err == nil; time.Sleep(readTime / 2) {
				_, err = io.WriteString(conn, "a")
			}
		}()
		swept := false
		err = s.shutDown(server, false, func(ctx context.Context) error {
			swept = true
			return ctx.Err()
		})
		if err != nil || !swept || len(s.leases.all) > 0 {
			t.Errorf("shutDown() = %v, swept %v, with %d leases left, want all given back", err, swept, len(s.leases.all))
		}
		<-ended
	})
}

// TestAConnectionServesAfterAStream: what bounds the writes of a stream does not bound those of the next response.
func TestAConnectionServesAfterAStream(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		dir := t.TempDir()
		tenants, _, err := parseTenants(tokens, defaultLimits)
		if err != nil {
			t.Fatal(err)
		}
		s, err := newService(nil, dir, tenants, defaultLimits, slog.New(slog.DiscardHandler))
		if err != nil {
			t.Fatal(err)
		}
		l, err := s.leases.add(leasehold.LeaseRef{Attempt: "a", Scope: leasehold.Scope{Tenant: "acme"}})
		if err != nil {
			t.Fatal(err)
		}
		c, _, err := l.newCommand(commandRequest{ID: "c"}, "", defaultLimits)
		if err != nil {
			t.Fatal(err)
		}
		conn := inMemory(t, s.server()).dial()
		defer func() { _ = conn.Close() }()
		answers := bufio.NewReader(conn)
		ask := func(path string) *http.Response {
			t.Helper()
			r, err := http.NewRequestWithContext(context.Background(), "GET", "http://x"+path, nil)
			if err != nil {
				t.Fatal(err)
			}
			r.Header.Set("Authorization", "Bearer "+acmeToken)
			if err := r.Write(conn); err != nil {
				t.Fatal(err)
			}
			response, err := http.ReadResponse(answers, r)
			if err != nil {
				t.Fatalf("GET %s: %v", path, err)
			}
			return response
		}
		response := ask("/v1/leases/a/commands/c/events")
		body := bufio.NewReader(response.Body)
		for range 3 { // while the command says nothing, the stream shows that it is alive
			if line, err := body.ReadString('\n'); err != nil || line != ":\n" {
				t.Fatalf("the stream has %q, %v, want a comment", line, err)
			}
			_, _ = body.ReadString('\n')
		}
		if _, err := c.stream(streamOut).Write([]byte("x")); err != nil {
			t.Fatal(err)
		}
		c.finish(commandExited, leasehold.Result{Exited: true, Complete: true}, nil)
		rest, err := io.ReadAll(body)
		if err != nil || !strings.Contains(string(rest), "id: 1-0\nevent: stdout\ndata: eA==\n\n") || !strings.Contains(string(rest), "event: end\n") {
			t.Errorf("the stream goes on with %q, %v, want the output and the end", rest, err)
		}
		time.Sleep(writeTime + time.Second)
		if response := ask("/healthz"); response.StatusCode != http.StatusOK {
			t.Errorf("the next response on the connection: %s, want 200", response.Status)
		}
		if _, err := os.Stat(filepath.Join(dir, "leases", "a", "commands", "c", "output")); err != nil {
			t.Error(err)
		}
	})
}
