package emulator

import (
	"bytes"
	"errors"
	"io"
	"net"
	"os"
	"testing"
	"testing/synctest"
	"time"
)

func TestMemoryConnCarriesBothDirectionsAtOnce(t *testing.T) {
	a, b := memoryPipe()
	data := bytes.Repeat([]byte("0123456789"), pipeBuffer/5) // twice the buffer
	copied := make(chan error, 1)
	go func() {
		_, err := io.Copy(b, b)
		b.CloseWrite()
		copied <- err
	}()
	go func() {
		a.Write(data)
		a.CloseWrite()
	}()
	got, err := io.ReadAll(a)
	if err != nil || !bytes.Equal(got, data) {
		t.Errorf("echo: got %d bytes, %v; want the %d that were sent", len(got), err, len(data))
	}
	if err := <-copied; err != nil {
		t.Errorf("copy: %v", err)
	}
}

func TestMemoryConnDeadlines(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		a, b := memoryPipe()
		defer a.Close()
		defer b.Close()
		start := time.Now()
		a.SetReadDeadline(start.Add(time.Minute))
		if _, err := a.Read(make([]byte, 1)); !errors.Is(err, os.ErrDeadlineExceeded) || time.Since(start) != time.Minute {
			t.Errorf("read: got %v after %v, want the deadline after a minute", err, time.Since(start))
		}
		a.SetDeadline(time.Now().Add(time.Hour))
		n, err := a.Write(make([]byte, pipeBuffer+1))
		if n != pipeBuffer || !errors.Is(err, os.ErrDeadlineExceeded) {
			t.Errorf("write: got %d, %v; want the buffer full and the deadline", n, err)
		}
		a.SetReadDeadline(time.Time{})
		go func() { b.Write([]byte("x")) }()
		if n, err := a.Read(make([]byte, 1)); n != 1 || err != nil {
			t.Errorf("read after the deadline was removed: got %d, %v", n, err)
		}
	})
}

func TestMemoryConnClose(t *testing.T) {
	a, b := memoryPipe()
	if _, err := a.Write([]byte("last")); err != nil {
		t.Fatal(err)
	}
	blocked := make(chan error)
	go func() {
		_, err := a.Read(make([]byte, 1))
		blocked <- err
	}()
	a.Close()
	if err := <-blocked; !errors.Is(err, net.ErrClosed) {
		t.Errorf("read on the closed end: got %v, want net.ErrClosed", err)
	}
	if got, err := io.ReadAll(b); err != nil || string(got) != "last" {
		t.Errorf("the other end: got %q, %v; want what was written before", got, err)
	}
	if _, err := b.Write([]byte("x")); err == nil {
		t.Error("a write to a closed connection succeeded")
	}
}

func TestMemoryListenerAfterClose(t *testing.T) {
	l := newMemoryListener()
	l.Close()
	if err := l.Close(); err != nil {
		t.Errorf("second Close: %v", err)
	}
	if _, err := l.Accept(); !errors.Is(err, net.ErrClosed) {
		t.Errorf("Accept: got %v, want net.ErrClosed", err)
	}
	if _, err := l.dial(t.Context()); err == nil {
		t.Error("a closed listener was reached")
	}
}
