package main

import (
	"archive/tar"
	"bytes"
	"errors"
	"io"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/leasehold-go/leasehold"
)

func untar(t *testing.T, data []byte) map[string]string {
	t.Helper()
	files := make(map[string]string)
	for r := tar.NewReader(bytes.NewReader(data)); ; {
		header, err := r.Next()
		if err == io.EOF {
			return files
		}
		if err != nil {
			t.Fatal(err)
		}
		content, err := io.ReadAll(r)
		if err != nil {
			t.Fatal(err)
		}
		files[strings.TrimPrefix(header.Name, "./")] = string(content)
	}
}

// TestEventsGoOnAfterACut: the connection ends in the middle of a command, which goes on meanwhile, and the client goes
// on behind the last event that it had.
func TestEventsGoOnAfterACut(t *testing.T) {
	t.Parallel()
	h := startHost(t, nil)
	c := h.client(t)
	lease := c.acquire()
	command := c.start(lease, `printf 'one\0\377\r\n'; printf 'err' >&2; until [ -e go ]; do sleep 0.02; done; printf 'two \303'; printf '\250'; exit 7`)
	const wantOut, wantErr = "one\x00\xff\r\ntwo \xc3\xa8", "err"
	first := c.follow(command, "", func(o observed) bool { return len(o.stdout) == 7 && len(o.stderr) == 3 })
	if first.last != "7-3" {
		t.Errorf("id of the last event before the cut: %s, want 7-3", first.last)
	}
	c.want(200, "PUT", lease+"/files", archive(t, map[string]string{"go": ""}))
	second := c.follow(command, first.last, nil)
	if got := first.stdout + second.stdout; got != wantOut || first.stderr+second.stderr != wantErr {
		t.Errorf("both parts: %q, %q, want %q, %q", got, first.stderr+second.stderr, wantOut, wantErr)
	}
	if second.end.State != commandExited || *second.end.Result.ExitCode != 7 || second.end.Result.StdoutBytes != int64(len(wantOut)) {
		t.Errorf("the end: %+v, want exit 7 and all bytes", second.end)
	}
	if second.last != "13-3-end" {
		t.Errorf("id of the end: %s, want 13-3-end", second.last)
	}
	c.want(204, "GET", command+"/events", nil, "Last-Event-ID", second.last)
	c.want(400, "GET", command+"/events", nil, "Last-Event-ID", "x")

	// Whatever a client has, it gets the rest.
	for _, from := range []string{"0-0", "1-0", "6-3", "7-0", "13-0", "13-2", "13-3"} {
		offsets, err := parseEventID(from)
		if err != nil {
			t.Fatal(err)
		}
		got := c.follow(command, from, nil)
		if got.stdout != wantOut[offsets.Stdout:] || got.stderr != wantErr[offsets.Stderr:] {
			t.Errorf("from %s: %q, %q, want %q, %q", from, got.stdout, got.stderr, wantOut[offsets.Stdout:], wantErr[offsets.Stderr:])
		}
	}
}

// TestEventsEndBehindAPartOfAFrame: the disk took no more than that of the last output, and the rest is told all the same.
func TestEventsEndBehindAPartOfAFrame(t *testing.T) {
	t.Parallel()
	h := startHost(t, nil)
	c := h.client(t)
	lease := c.acquire()
	for _, part := range [][]byte{{streamOut, 0, 0}, {streamErr, 0, 0, 0, 9, 'x'}} {
		command := c.start(lease, "echo whole; exit 3")
		c.follow(command, "", nil)
		f, err := os.OpenFile(outputFile(filepath.Join(h.dir, strings.TrimPrefix(command, "/v1/"))), os.O_WRONLY|os.O_APPEND, 0)
		if err != nil {
			t.Fatal(err)
		}
		if _, err := f.Write(part); err != nil {
			t.Fatal(err)
		}
		if err := f.Close(); err != nil {
			t.Fatal(err)
		}
		if got := c.follow(command, "", nil); got.stdout != "whole\n" || got.last != "6-0-end" || *got.end.Result.ExitCode != 3 {
			t.Errorf("behind it came %q, and the end %s with %+v, want the whole output and exit 3", got.stdout, got.last, got.end.Result)
		}
	}
}

func TestACommandStartsOnceForEachID(t *testing.T) {
	t.Parallel()
	h := startHost(t, nil)
	c := h.client(t)
	lease := c.acquire()
	request := commandRequest{ID: "build-1", Script: "echo ran >>log"}
	c.want(201, "POST", lease+"/commands", request)
	again := parse[commandRecord](t, c.want(200, "POST", lease+"/commands", request))
	if again.ID != "build-1" || again.Ref != nil || again.Digest != "" {
		t.Errorf("asked again: %+v, want the command, without what is the service's", again)
	}
	c.follow(lease+"/commands/build-1", "", nil)
	c.want(200, "POST", lease+"/commands", request)
	request.Script = "echo another"
	c.want(409, "POST", lease+"/commands", request)
	if _, got, _ := c.run(lease, "cat log"); got != "ran\n" {
		t.Errorf("log = %q, want that it ran once", got)
	}
	// One that did not begin says so.
	path := lease + "/commands/" + parse[commandRecord](t, c.want(201, "POST", lease+"/commands", commandRequest{Script: "pwd", Dir: "missing"})).ID
	end := c.follow(path, "", nil).end
	if end.State != commandFailed || end.Result.Kind != leasehold.KindNotFound || end.Result.ExitCode != nil {
		t.Errorf("in a directory that is missing: %+v %+v, want failed, not found", end, end.Result)
	}
}

func TestOutputLog(t *testing.T) {
	t.Parallel()
	path := filepath.Join(t.TempDir(), "output")
	l, err := openLog(path, 200_000)
	if err != nil {
		t.Fatal(err)
	}
	var want [3]string
	add := func(stream byte, text string) {
		t.Helper()
		if err := l.append(stream, []byte(text)); err != nil {
			t.Fatal(err)
		}
		want[stream] += text
	}
	add(streamOut, "a")
	add(streamErr, "bcd")
	add(streamOut, strings.Repeat("0123456789", 5000)) // more than a frame
	if err := l.append(streamErr, make([]byte, 200_000)); !errors.Is(err, errOutputLimit) {
		t.Errorf("append beyond the limit = %v, want %v", err, errOutputLimit)
	}
	whole := l.size
	if _, err := l.file.WriteAt([]byte{streamOut, 0, 0, 0, 9, 'x'}, l.size); err != nil { // a process was killed
		t.Fatal(err)
	}
	if err := l.file.Close(); err != nil {
		t.Fatal(err)
	}
	if l, err = openLog(path, 200_000); err != nil {
		t.Fatal(err)
	}
	defer func() { _ = l.file.Close() }()
	if l.size != whole || l.bytes != (leasehold.Offsets{Stdout: 50_001, Stderr: 3}) {
		t.Errorf("opened again: %d bytes, %+v, want %d and 50001, 3", l.size, l.bytes, whole)
	}
	add(streamErr, "e")
	for _, from := range []leasehold.Offsets{{}, {Stdout: 1}, {Stdout: 2, Stderr: 2}, {Stdout: 40_000, Stderr: 3}, {Stdout: 50_001, Stderr: 4}, {Stdout: 60_000}} {
		var got [3]string
		reader := logReader{file: l.file, from: from}
		for {
			f, err := reader.next(l.size)
			if err == io.EOF {
				break
			}
			if err != nil {
				t.Fatal(err)
			}
			got[f.stream] += string(f.data)
		}
		wantOut, wantErr := want[streamOut][min(from.Stdout, 50_001):], want[streamErr][from.Stderr:]
		if got[streamOut] != wantOut || got[streamErr] != wantErr {
			t.Errorf("from %+v: %d and %d bytes, want %d and %d", from, len(got[streamOut]), len(got[streamErr]), len(wantOut), len(wantErr))
		}
	}
	if info, err := os.Stat(path); err != nil || info.Mode().Perm() != 0o600 {
		t.Errorf("mode = %v, %v, want 0600", info.Mode(), err)
	}
}

// FuzzOutputLog: whatever is on the disk, and whatever a client says that it has, it gets what the whole frames hold behind
// that, and what is added afterwards.
func FuzzOutputLog(f *testing.F) {
	f.Add([]byte{streamOut, 0, 0, 0, 2, 'a', 'b', streamErr, 0, 0, 0, 1, 'c', streamOut, 0, 0, 0, 9, 'x'}, "1-1")
	f.Add([]byte{streamErr, 0, 1, 0, 0}, "18446744073709551615-0")
	f.Add([]byte{7, 0, 0, 0, 0}, "0-0-end")
	dir := f.TempDir()
	f.Fuzz(func(t *testing.T, stored []byte, id string) {
		from, err := parseEventID(id)
		if err != nil {
			from = leasehold.Offsets{}
		}
		if again, err := parseEventID(eventID(from)); err != nil || again != from || from.Stdout < 0 || from.Stderr < 0 {
			t.Fatalf("the id %q is %+v, and %q is %+v, %v", id, from, eventID(from), again, err)
		}
		path := filepath.Join(dir, "output")
		if err := os.WriteFile(path, stored, 0o600); err != nil {
			t.Fatal(err)
		}
		l, err := openLog(path, 1<<20)
		if err != nil {
			t.Fatal(err)
		}
		defer func() { _ = l.file.Close() }()
		if err := l.append(streamErr, []byte("added")); err != nil && l.bytes.Stdout+l.bytes.Stderr <= 1<<19 {
			t.Fatal(err)
		}
		all := func(from leasehold.Offsets) (got [3]string) {
			reader := logReader{file: l.file, from: from}
			for {
				f, err := reader.next(l.size)
				if err == io.EOF {
					return got
				}
				if err != nil {
					t.Fatal(err)
				}
				got[f.stream] += string(f.data)
			}
		}
		whole := all(leasehold.Offsets{})
		if len(whole[streamOut])+len(whole[streamErr]) > len(stored)+len("added") || int64(len(whole[streamOut])) != l.bytes.Stdout || int64(len(whole[streamErr])) != l.bytes.Stderr {
			t.Errorf("of %q came %q, and the log counts %+v", stored, whole, l.bytes)
		}
		want := [3]string{streamOut: whole[streamOut][min(from.Stdout, l.bytes.Stdout):], streamErr: whole[streamErr][min(from.Stderr, l.bytes.Stderr):]}
		if got := all(from); got != want {
			t.Errorf("from %+v: got %q, want %q", from, got, want)
		}
	})
}
