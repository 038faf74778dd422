//go:build unix

package leasehold

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math"
	"net/http"
	"os"
	"path/filepath"
	"reflect"
	"slices"
	"strconv"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/coder/websocket"
	"github.com/google/go-cmp/cmp"

	"github.com/leasehold-go/leasehold/internal/archive"
	"github.com/leasehold-go/leasehold/internal/emulator"
	"github.com/leasehold-go/leasehold/internal/script"
)

// parsed gives data to the parser of a stored form. What it accepts is the same after JSON. What it refuses it refuses with a
// short ErrInvalid, and returns nothing of it.
func parsed[T any](t *testing.T, parse func([]byte) (T, error), data []byte) (T, bool) {
	t.Helper()
	value, err := parse(data)
	if err != nil {
		var none T
		if !errors.Is(err, ErrInvalid) || len(err.Error()) > 1<<14 || !reflect.DeepEqual(value, none) {
			t.Fatalf("%T: error = %.200q with %+v, want a short ErrInvalid alone", value, err, value)
		}
		return value, false
	}
	again, err := json.Marshal(value)
	if err != nil {
		t.Fatal(err)
	}
	back, err := parse(again)
	if diff := cmp.Diff(value, back); err != nil || diff != "" {
		t.Fatalf("%T: after JSON: %v (-want +got):\n%s", value, err, diff)
	}
	return value, true
}

func seed(f *testing.F, value any) string {
	f.Helper()
	data, err := json.Marshal(value)
	if err != nil {
		f.Fatal(err)
	}
	f.Add(data)
	return string(data)
}

// FuzzReferences: what a host stored, and got back from wherever it stored it.
func FuzzReferences(f *testing.F) {
	valid := seed(f, validRef())
	for _, at := range []string{"9999-12-31T23:59:59-23:59", "0000-01-01T00:00:00+23:59", "2026-01-01T00:00:00.5+02:00"} {
		f.Add([]byte(strings.Replace(valid, `"createdAt":"`, `"expiresAt":"`+at+`","createdAt":"`, 1)))
	}
	f.Add([]byte(strings.Replace(valid, "/home/daytona/workspace", "/"+strings.Repeat("a", maxPath), 1)))
	f.Add([]byte(strings.Replace(valid, `"labels":{`, `"labels":{"":"","\u0000":"\n",`, 1)))
	seed(f, CommandRef{Version: 1, Sandbox: "s", Attempt: "a", Transport: TransportJournal, ID: strings.Repeat("a", 26), Mark: "lh" + strings.Repeat("a", 26)})
	seed(f, CommandRef{Version: 1, Sandbox: "s", Attempt: "a", Transport: TransportSession, ID: "x", Session: "s", Command: "c", Mark: "~lh" + strings.Repeat("A", 32), Deadline: time.Unix(1, 0)})
	seed(f, SnapshotRef{Version: 1, Name: "go-tools-0123456789abcdef", ID: "s", Account: strings.Repeat("a", 64), Credential: strings.Repeat("b", 64)})
	f.Fuzz(func(t *testing.T, data []byte) {
		if ref, ok := parsed(t, ParseLeaseRef, data); ok {
			back, _ := parsed(t, ParseLeaseRef, []byte(ref.key()))
			if back.key() != ref.key() {
				t.Errorf("the key of %+v is that of %+v", ref, back)
			}
		}
		if ref, ok := parsed(t, ParseCommandRef, data); ok && filepath.Base(ref.ID) != ref.ID {
			t.Errorf("the id %q would be another file's name", ref.ID)
		}
		parsed(t, ParseSnapshotRef, data)
	})
}

// FuzzRecords: what is in a store, in a row or in a file of a directory that others can write to. A file is either a record,
// and then can be claimed, or reported and left as it is.
func FuzzRecords(f *testing.F) {
	for _, r := range []Record{storedRecord(), leasedRecord()} {
		valid := seed(f, r.Envelope)
		f.Add([]byte(strings.Replace(valid, `"phase":`, `"observed":"..","phase":`, 1)))
		f.Add([]byte(strings.Replace(valid, `"name":"`, `"Name":"x","name":"`, 1)))
		record, err := r.Encode()
		if err != nil {
			f.Fatal(err)
		}
		f.Add(record)
		const attempt = "11111111-2222-4333-8444-555555555555"
		entry := seed(f, fileEntry{Version: fileVersion, Owner: "o", Token: 7, Record: record})
		f.Add([]byte(strings.ReplaceAll(entry, r.Envelope.Attempt, attempt)))
		f.Add([]byte(strings.Replace(strings.ReplaceAll(entry, r.Envelope.Attempt, attempt), `"token":7`, `"token":`+strconv.Itoa(math.MaxInt64), 1)))
	}
	dir := f.TempDir()
	reported := 0
	store, err := NewFileStore(dir, FileStoreOptions{OnUnreadable: func(string, error) { reported++ }})
	if err != nil {
		f.Fatal(err)
	}
	f.Fuzz(func(t *testing.T, data []byte) {
		if envelope, ok := parsed(t, ParseCleanupEnvelope, data); ok && !strings.HasSuffix(envelope.Name, "create-"+envelope.Attempt) {
			t.Errorf("name %q, attempt %q", envelope.Name, envelope.Attempt)
		}
		attempt := "11111111-2222-4333-8444-555555555555"
		if record, ok := parsed(t, ParseRecord, data); ok {
			if _, err := record.Encode(); err != nil {
				t.Errorf("%+v is read, and not written: %v", record, err)
			}
			attempt = record.Envelope.Attempt
			if path := store.recordPath(attempt); filepath.Dir(path) != dir {
				t.Errorf("the file of attempt %q would be %s", attempt, path)
			}
		}
		path := store.recordPath(attempt)
		if err := os.WriteFile(path, data, 0o600); err != nil {
			t.Fatal(err)
		}
		defer os.Remove(path)
		reported = 0
		clear(store.reported)
		entries, err := store.List(t.Context(), "", 10)
		if err != nil || len(entries)+reported != 1 {
			t.Fatalf("List() = %d entries, %v, and %d reported, want one of both", len(entries), err, reported)
		}
		claim, err := store.Claim(t.Context(), attempt, "me")
		if claimed := err == nil; claimed != (len(entries) == 1) {
			t.Fatalf("Claim() = %v of %d entries", err, len(entries))
		}
		if err == nil {
			if diff := cmp.Diff(entries[0].Record, claim.Record); diff != "" {
				t.Errorf("claimed another record (-listed +claimed):\n%s", diff)
			}
			return
		}
		if left, err := os.ReadFile(path); err != nil || string(left) != string(data) {
			t.Errorf("what is no record was changed: %q, %v, want %q", left, err, data)
		}
	})
}

// FuzzConfig: a configuration is refused with the name of each field that is wrong, and without its values, or New takes it,
// and its effective form is one that stays as it is.
func FuzzConfig(f *testing.F) {
	f.Setenv("DAYTONA_API_KEY", "")
	hour := int64(time.Hour)
	f.Add("key", "", "", "", "", "", "", "", int64(0), int64(0), int64(0), int64(0), 15, 60, 7, 0, 0, false)
	f.Add("key", "https://API.example/api//", "eu", "snap", "", "python", "/work/../w", "acme-", hour, hour/60, hour*2, hour/2, -1, 0, 0, 8, 1, true)
	f.Add("k y", "ftp://u:p@x/?q#f", " ", "s", "i", "perl", "~/x", "A-", int64(1), int64(-1), int64(1), int64(1), 1<<40, -2, -2, -1, -1, true)
	f.Add("key", "http://[::1]:8080/{x}", "", "", "image", "", "..", "x", hour, hour, hour*24*365*9000, hour*48, 1, 1, 0, 1, 4, false)
	f.Fuzz(func(t *testing.T, key, address, target, snapshot, image, language, workspace, prefix string, timeout, call, ttl, claim int64, stop, archive, remove, creations, cpu int, reuse bool) {
		config := Config{
			APIKey: key, APIURL: address, Target: target, Snapshot: snapshot, Image: image, Language: language, Workspace: workspace, LabelPrefix: prefix,
			Timeout: time.Duration(timeout), CallTimeout: time.Duration(call), TTL: time.Duration(ttl), ClaimTime: time.Duration(claim),
			AutoStopMinutes: &stop, AutoArchiveMinutes: &archive, AutoDeleteMinutes: &remove, MaxCreations: creations, Resources: Resources{CPU: cpu}, Reuse: reuse,
		}
		wrong := config.Validate()
		p, err := newProvider(config)
		if (wrong == nil) != (err == nil) {
			t.Fatalf("Validate() = %v, and New() = %v", wrong, err)
		}
		if err != nil {
			var e *Error
			if !errors.As(err, &e) || e.Kind != KindInvalid || e.Dispatched != DispatchedNo || len(e.Fields) == 0 {
				t.Fatalf("error = %+v, want ErrInvalid with fields", err)
			}
			for _, field := range e.Fields {
				if name, _, _ := strings.Cut(strings.TrimPrefix(field.Field, "Config."), "."); !reflect.ValueOf(config).FieldByName(name).IsValid() || !strings.Contains(err.Error(), field.Problem) {
					t.Errorf("%+v names no field of a Config, or is not in %q", field, err)
				}
			}
			if len(err.Error()) > 1<<12 {
				t.Errorf("an error of %d bytes", len(err.Error()))
			}
			return
		}
		defer func() {
			if err := p.Close(t.Context()); err != nil {
				t.Error(err)
			}
		}()
		if p.cfg.APIKey != "" {
			t.Error("the provider keeps the key")
		}
		effective := p.cfg
		effective.APIKey = key
		again, err := effective.withDefaults()
		if diff := cmp.Diff(effective, again, cmp.Comparer(func(a, b http.RoundTripper) bool { return a == b }), cmp.FilterPath(func(p cmp.Path) bool { return p.String() == "Logger" }, cmp.Ignore())); err != nil || diff != "" {
			t.Errorf("the effective configuration is another one (-first +second): %v\n%s", err, diff)
		}
		if text := fmt.Sprintf("%+v %v", effective, p); len(key) > 20 && strings.Contains(text, key) && !strings.Contains(fmt.Sprintf("%q", []string{address, target, snapshot, image, workspace, prefix}), key) {
			t.Errorf("the key is printed: %s", text)
		}
	})
}

// FuzzEndpointAddress: the address that a provider names for a port gets a token only if it is that port's own host, over TLS,
// and a path of it stays there.
func FuzzEndpointAddress(f *testing.F) {
	const embedded = "http://127.0.0.1:4000"
	for _, address := range []string{
		"https://80-box.proxy.example", "https://80-BOX.proxy.example:8443/a/", "http://80-box.proxy.example", "https://80-box", "https://u@80-box.x", "https://80-box.x?", "https://80-box.x#",
		"https://80-box.x/../y", "https://[80-box.x]", "https://80-box.x%2f@y", "https://80-box.x://", "https://80-box.x:", embedded + "/preview/80-box", embedded + "/preview/80-box/", embedded + "/preview/80-other", "https://80-box.\x00",
	} {
		f.Add(address, 80, "box")
	}
	f.Fuzz(func(t *testing.T, raw string, port int, key string) {
		for _, origin := range []string{"", embedded} {
			address, problem := endpointAddress(raw, port, key, origin)
			if problem != "" {
				if len(problem) > 100 || len(key) > 20 && strings.Contains(problem, key) {
					t.Errorf("problem %q", problem)
				}
				continue
			}
			label := strconv.Itoa(port) + "-" + key
			local := origin != "" && address.String() == origin+"/preview/"+label
			if !local && (address.Scheme != "https" || !strings.EqualFold(address.Host[:min(len(address.Host), len(label)+1)], label+".")) {
				t.Errorf("%q is taken, of the host %q, for port %d of %q", raw, address.Host, port, key)
			}
			if address.User != nil || address.RawQuery != "" || address.ForceQuery || address.Fragment != "" || strings.HasSuffix(address.Path, "/") {
				t.Errorf("%q is taken as %+v", raw, address)
			}
			if below := address.JoinPath("..", "..", "x"); below.Host != address.Host || below.Scheme != address.Scheme {
				t.Errorf("a path of %q leads to %q", raw, below)
			}
			again, problem := endpointAddress(address.String(), port, key, origin)
			if problem != "" || again.String() != address.String() {
				t.Errorf("%q became %q, which becomes %q: %s", raw, address, again, problem)
			}
		}
	})
}

// FuzzOwnScripts: what the library's own scripts are said to have printed. What is taken of it can be put into a reference,
// and into the line of a wrapper.
func FuzzOwnScripts(f *testing.F) {
	const mark = "leasehold-MARK"
	say := func(words ...string) string { return "\n" + mark + " " + strings.Join(words, "\n"+mark+" ") + "\n" }
	f.Add(say("workspace ok", "shell bash", "sentinel ok", "path /w", "bwrap ok daytona"), `"/w/a"`)
	f.Add(say("bwrap shared-tmp a b", "bwrap -x", "path /w/\n/x", "shell zsh"), "\"/w\"\n\"/w/a\"\n\"/x/\xff\"\n\"/y")
	f.Add(say("bwrap root root", "content {}", "missing -"), `"/`+strings.Repeat("a", maxBindText)+`"`)
	f.Fuzz(func(t *testing.T, output, list string) {
		found := markedLines(output, mark)
		size := 0
		for name, value := range found {
			size += len(name) + len(value)
		}
		if size > len(output) || len(found) > strings.Count(output, mark) {
			t.Errorf("%d values of %d bytes came of %d bytes", len(found), size, len(output))
		}
		bwrap := readBwrap(found["bwrap"])
		ref := validRef()
		ref.Bwrap = bwrap
		data, err := json.Marshal(ref)
		if err != nil {
			t.Fatal(err)
		}
		if back, err := ParseLeaseRef(data); err != nil || back.Bwrap != bwrap {
			t.Errorf("of %q came %+v, which a reference gives back as %+v, %v", found["bwrap"], bwrap, back.Bwrap, err)
		}
		writable := parseWritable([]byte(list))
		for _, dir := range writable.dirs {
			if !validWorkspace(dir) {
				t.Errorf("%q is a directory", dir)
			}
		}
		if again := parseWritable([]byte(strings.Join(writableLines(writable.dirs), "\n"))); !slices.Equal(again.dirs, writable.dirs) {
			t.Errorf("%q is written, and %q read", writable.dirs, again.dirs)
		}
		plan := planBwrap(bwrap, "/w", writable)
		if plan == nil {
			return
		}
		size = 0
		for i, dir := range plan.Writable {
			size += len(script.Quote(dir))
			if slices.ContainsFunc(plan.Writable[:i], func(other string) bool { return within(dir, other) || dir == other }) {
				t.Errorf("%q is bound twice: %q", dir, plan.Writable)
			}
		}
		if len(plan.Writable) > maxBinds || size > maxBindText || plan.Writable[0] != "/w" || plan.List != "/w/"+sentinelDir+"/"+archive.Writable {
			t.Errorf("plan %+v of %q", plan, list)
		}
	})
}

// consoleInput is what the sandbox's end of a terminal does.
type consoleInput struct {
	frames []byte
	size   int // of one
	code   int // with which it closes
	reason string
}

// said is what it sends, given the terminal's mark.
func (in *consoleInput) said(mark string) []byte {
	return []byte(strings.ReplaceAll(string(in.frames), "MARK", mark))
}

func (in *consoleInput) play(c *ptyBoxConn) {
	c.connected()
	go c.drain()
	for rest := in.said(c.mark); len(rest) > 0; {
		n := min(max(in.size, 1), len(rest))
		c.send(rest[:n])
		rest = rest[n:]
	}
	_ = c.Close(websocket.StatusCode(in.code), in.reason[:min(len(in.reason), 120)])
}

// FuzzConsole: whatever a sandbox sends as a terminal or a channel, and however it ends the connection, the host comes to an
// end: with an exit only if the script said it, with no more output than was sent, and with errors of the library's own words.
func FuzzConsole(f *testing.F) {
	const say = "\x16MARK "
	exited := `{"exitCode":0}`
	f.Add(false, []byte("$ "+say+"started\nhello\r\n"+say+"exit 3\n"), 5, 1000, exited)
	f.Add(true, []byte("$ "+say+"started 42\nhello\x17MARK"+say+"out 11\n"+say+"err F01BUks=\n"+say+"exit 0\n"), 7, 1000, exited)
	f.Add(true, []byte(say+"started 1\nabc"+say+"out 4\n"), 100, 1011, `{"exitCode":137,"exitReason":"SIGKILL"}`)
	f.Add(true, []byte(say+"started 1\n"+say+"in 5\n"+say+"closed\n"+say+"err !\n"), 3, 1008, "s3cr3t")
	f.Add(false, []byte(say+"missing stty\n"+say+"nodir\n"), 1, 1001, "s3cr3t")
	f.Add(false, []byte("s3cr3t: no such shell"), 30, 1011, `{"exitCode":1,"exitReason":"s3cr3t"}`)
	f.Add(true, []byte(say+"started 1\n"+say+"out 0\n"), 30, 4000, "")
	f.Add(true, []byte(say+"started 1\nx"+say+"exit 3\n"), 30, 1000, exited)
	var current atomic.Pointer[consoleInput]
	box := &ptyBox{Handler: http.HandlerFunc((&world{}).toolbox), marks: make(map[string]string), envs: make(map[string]map[string]string), over: context.Background()}
	box.terminal = func(c *ptyBoxConn) { current.Load().play(c) }
	r := newRig(f, Config{}, emulator.Options{InMemory: true, Toolbox: box})
	l, err := r.Acquire(context.Background(), request())
	if err != nil {
		f.Fatal(err)
	}
	f.Fuzz(func(t *testing.T, channel bool, frames []byte, size, code int, reason string) {
		in := &consoleInput{frames, max(size, len(frames)/100), code, reason}
		current.Store(in)
		ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
		defer cancel()
		var mark string
		var read io.ReadCloser
		var wait func(context.Context) (Exit, error)
		var err error
		if channel {
			var ch *Channel
			var stderr io.Writer
			if len(reason)%2 == 0 {
				stderr = io.Discard
			}
			if ch, err = l.OpenChannel(ctx, ChannelOptions{Args: []string{"x"}, Stderr: stderr}); err == nil {
				mark, read, wait = ch.c.mark, ch, ch.Wait
				_, _ = io.WriteString(ch, "input")
			}
		} else {
			var term *Terminal
			if term, err = l.OpenTerminal(ctx, TerminalOptions{}); err == nil {
				mark, read, wait = term.c.mark, term, term.Wait
			}
		}
		own := func(err error) {
			var e *Error
			if !errors.As(err, &e) || strings.Contains(fmt.Sprintf("%+v %+v", err, *e), "s3cr3t") || errors.Is(err, context.DeadlineExceeded) {
				t.Errorf("error = %+v of %q", err, frames)
			}
		}
		if err != nil {
			own(err)
			return
		}
		sent := in.said(mark)
		n, err := io.Copy(io.Discard, read)
		if err != nil {
			own(err)
		}
		if n > int64(len(sent)) {
			t.Errorf("%d bytes came of %d", n, len(sent))
		}
		exit, err := wait(ctx)
		if err != nil {
			own(err)
		}
		cut := channel && len(reason)%2 == 0 // standard error may not have come whole
		if exited := exit.State == ExitExited; exited != (err == nil) && !(exited && cut) || exited && !strings.Contains(string(sent), "\x16"+mark) || !exited && exit.Code != -1 {
			t.Errorf("Wait() = %+v, %v of %q", exit, err, frames)
		}
		if err := read.Close(); err != nil {
			own(err)
		}
	})
}
