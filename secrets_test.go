//go:build unix

package leasehold

import (
	"bytes"
	"context"
	"crypto/rand"
	"encoding/base64"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"log/slog"
	"maps"
	"net/http"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/codes"
	"go.opentelemetry.io/otel/trace"
	"go.opentelemetry.io/otel/trace/embedded"
	"go.opentelemetry.io/otel/trace/noop"

	"github.com/leasehold-go/leasehold/internal/archive"
	"github.com/leasehold-go/leasehold/internal/emulator"
)

// witness keeps what a host leaves behind, and searches it for secrets. It is the host's log, its tracer and its transport.
type witness struct {
	t    *testing.T
	base http.RoundTripper

	mu       sync.Mutex
	evidence map[string]map[string]bool // texts, by the kind of place where they were found
}

func newWitness(t *testing.T) *witness {
	return &witness{t: t, evidence: make(map[string]map[string]bool)}
}

// saw takes down a text. The same one counts once.
func (w *witness) saw(place, text string) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.evidence[place] == nil {
		w.evidence[place] = make(map[string]bool)
	}
	w.evidence[place][text] = true
}

// Write takes down what is logged.
func (w *witness) Write(p []byte) (int, error) {
	w.saw("log", string(p))
	return len(p), nil
}

// value takes down what a value of the library's looks like, however a host prints it.
func (w *witness) value(place string, values ...any) {
	w.t.Helper()
	for _, value := range values {
		for _, text := range printed(w.t, value) {
			w.saw(place, text)
		}
	}
}

// failure takes down all there is of an error.
func (w *witness) failure(op string, err error) {
	w.t.Helper()
	if err == nil {
		w.t.Errorf("%s succeeded, want a failure to look at", op)
	}
	for ; err != nil; err = errors.Unwrap(err) {
		for _, verb := range []string{"%v", "%+v", "%#v", "%q"} {
			w.saw("error", fmt.Sprintf(verb, err))
		}
		if e, ok := err.(*Error); ok {
			w.value("error", *e)
		}
	}
}

// files takes down the names and contents of a directory.
func (w *witness) files(place, dir string) {
	w.t.Helper()
	err := filepath.WalkDir(dir, func(path string, d fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		if path != dir { // which has the test's name in it
			w.saw(place, path)
		}
		if !d.Type().IsRegular() {
			return nil
		}
		data, err := os.ReadFile(path)
		w.saw(place, path+" holds "+string(data))
		return err
	})
	if err != nil && !errors.Is(err, fs.ErrNotExist) { // else it was removed meanwhile
		w.t.Error(err)
	}
}

// processes takes down what every process of the machine shows of itself: those of the sandboxes, and the host's children.
func (w *witness) processes() {
	for place, name := range map[string]string{"command line": "cmdline", "environment": "environ"} {
		paths, _ := filepath.Glob("/proc/[0-9]*/" + name)
		for _, path := range paths {
			if data, err := os.ReadFile(path); err == nil { // else it has ended
				w.saw(place, string(data))
			}
		}
	}
}

// RoundTrip takes down the address of a request, and the credentials that go to where they do not belong.
func (w *witness) RoundTrip(q *http.Request) (*http.Response, error) {
	place := "address"
	switch path := q.URL.Path; {
	case strings.HasSuffix(path, "/ssh-access"), strings.Contains(path, "/signed-preview-url/"):
		place = "address of a revocation" // which has what is revoked in it: so the API wants it
	case strings.HasPrefix(path, "/preview/"):
		w.saw("header of a preview", q.Header.Get("Authorization"))
	default:
		w.saw("header of an API request", q.Header.Get("X-Daytona-Preview-Token"))
	}
	w.saw(place, q.URL.String())
	return w.base.RoundTrip(q)
}

// The witness as a tracer: it takes down every name and attribute.
type (
	witnessTracing struct {
		embedded.TracerProvider
		w *witness
	}
	witnessTracer struct {
		embedded.Tracer
		w *witness
	}
	witnessSpan struct {
		noop.Span
		w *witness
	}
)

func (p witnessTracing) Tracer(name string, _ ...trace.TracerOption) trace.Tracer {
	p.w.saw("span", name)
	return witnessTracer{w: p.w}
}

func (t witnessTracer) Start(ctx context.Context, name string, options ...trace.SpanStartOption) (context.Context, trace.Span) {
	s := witnessSpan{w: t.w}
	s.SetName(name)
	config := trace.NewSpanStartConfig(options...)
	s.SetAttributes(config.Attributes()...)
	return trace.ContextWithSpan(ctx, s), s
}

func (s witnessSpan) IsRecording() bool                          { return true }
func (s witnessSpan) SetName(name string)                        { s.w.saw("span", name) }
func (s witnessSpan) SetStatus(_ codes.Code, description string) { s.w.saw("span", description) }
func (s witnessSpan) RecordError(err error, _ ...trace.EventOption) {
	s.w.saw("span", fmt.Sprintf("%+v", err))
}
func (s witnessSpan) AddEvent(name string, options ...trace.EventOption) {
	s.SetName(name)
	config := trace.NewEventConfig(options...)
	s.SetAttributes(config.Attributes()...)
}
func (s witnessSpan) SetAttributes(attributes ...attribute.KeyValue) {
	for _, a := range attributes {
		s.w.saw("span", string(a.Key)+"="+a.Value.Emit())
	}
}

// forms are what a secret looks like, as it is and encoded, wherever it stands in what was encoded.
func forms(secret string) []string {
	all := []string{secret, url.QueryEscape(secret), hex.EncodeToString([]byte(secret)), strings.ToUpper(hex.EncodeToString([]byte(secret)))}
	for begin := range 3 {
		whole := secret[begin : len(secret)-(len(secret)-begin)%3]
		all = append(all, base64.StdEncoding.EncodeToString([]byte(whole)), base64.URLEncoding.EncodeToString([]byte(whole)))
	}
	return all
}

// places returns where a secret is.
func (w *witness) places(secret string) map[string]string {
	w.mu.Lock()
	defer w.mu.Unlock()
	found, all := make(map[string]string), forms(secret)
	for place, texts := range w.evidence {
		for text := range texts {
			for _, form := range all {
				if at := strings.Index(text, form); at >= 0 {
					found[place] += fmt.Sprintf("\n%.80q … %q", text, text[max(0, at-100):min(len(text), at+len(form)+50)])
					break
				}
			}
		}
	}
	return found
}

// want fails the test if a secret is anywhere but in the places that it is for.
func (w *witness) want(name, secret string, may ...string) {
	w.t.Helper()
	if len(secret) < 8 {
		w.t.Fatalf("%s is %q: no secret to look for", name, secret)
	}
	for place, text := range w.places(secret) {
		if !slices.Contains(may, place) {
			w.t.Errorf("%s is in the %s:%s", name, place, text)
		}
	}
}

// onFirst is a writer that calls f with the first bytes.
type onFirst struct {
	once sync.Once
	f    func()
}

func (o *onFirst) Write(p []byte) (int, error) {
	o.once.Do(o.f)
	return len(p), nil
}

// TestS1NothingLeftBehindHoldsASecret: a host lives a whole life, failures included, and everything that is left of it is
// searched for the API key, for the tokens that it was given, and for what it gave to its commands: errors, logs, spans,
// references, envelopes, records, files of the host and of the sandbox, addresses, what a crash prints, and the process
// lists at every request.
func TestS1NothingLeftBehindHoldsASecret(t *testing.T) {
	w := newWitness(t)
	ctx := t.Context()
	state, records, scratch, local := t.TempDir(), t.TempDir(), t.TempDir(), t.TempDir()
	t.Setenv("TMPDIR", scratch)
	logger := slog.New(slog.NewTextHandler(w, &slog.HandlerOptions{Level: slog.LevelDebug}))
	server, err := emulator.Start(emulator.Options{Dir: state, Logger: logger})
	must := func(err error) {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
	}
	must(err)
	t.Cleanup(func() { _ = server.Close() })
	carrier := http.DefaultTransport.(*http.Transport).Clone()
	t.Cleanup(carrier.CloseIdleConnections)
	w.base = carrier
	store, err := NewFileStore(records, FileStoreOptions{})
	must(err)
	cfg := Config{Reuse: true, Logger: logger, TracerProvider: witnessTracing{w: w}, Store: store, Transport: w}
	p := rigProvider(t, server, cfg)
	t.Cleanup(func() { _ = p.Close(context.Background()) })
	key, given, typed := server.APIKey(), rand.Text(), rand.Text()

	l, err := p.Acquire(ctx, request())
	must(err)
	w.value("value", p, l, l.Executor(), l.Ref(), p.Idle(), store)
	for _, text := range printed(t, p.cfg)[1:] { // the first is its JSON form, which nobody needs
		w.saw("value", text)
	}
	workspace := l.Ref().Workspace
	sandboxFiles := func(place string) {
		w.files(place, filepath.Join(state, "sandboxes"))
		shared, _ := filepath.Glob(fmt.Sprintf("/dev/shm/.leasehold-%d-*", os.Getuid())) // where a sandbox has it
		for _, note := range shared {
			w.files(place, note)
		}
	}
	// A profile that is slow enough to look around.
	home := filepath.Dir(workspace)
	must(os.WriteFile(filepath.Join(home, ".profile"), []byte(`cat /proc/[0-9]*/cmdline >>"$HOME/seen" 2>/dev/null`+"\n"), 0o600))
	profileSaw := func() {
		if seen, err := os.ReadFile(filepath.Join(home, "seen")); err == nil {
			w.saw("command line", string(seen))
			must(os.Remove(filepath.Join(home, "seen")))
		}
	}

	// Commands, one after the other, each looked at while it runs and after it has ended.
	const waits = `echo up; while [ ! -e looked ]; do sleep 0.02; done; rm looked; `
	look := func() {
		w.processes()
		must(os.WriteFile(filepath.Join(workspace, "looked"), nil, 0o600))
	}
	env := map[string]string{"GIVEN": given}
	for _, transport := range []Transport{TransportJournal, TransportSession} {
		process, err := l.Executor().Start(ctx, Command{
			Script: waits + `[ "${#GIVEN} $(($(cat | wc -c)))" = "26 26" ]`, Env: env, Stdin: strings.NewReader(typed), Stdout: &onFirst{f: look}, Transport: transport,
		})
		must(err)
		w.value("value", process, process.Ref(), l)
		result, err := process.Wait()
		must(err)
		if result.ExitCode != 0 || result.Transport != transport {
			t.Fatalf("Wait() = %+v, want exit 0 over %s", result, transport)
		}
		w.value("value", result)
		profileSaw()
		sandboxFiles("sandbox file")
	}
	term := openTerminal(t, l, TerminalOptions{Args: shell(waits), Env: env})
	readUntil(t, term, "up")
	look()
	wantExit(t, term, Exit{State: ExitExited})
	channel := openChannel(t, l, ChannelOptions{Args: shell(waits + "cat >/dev/null"), Env: env})
	readUntil(t, channel, "up")
	look()
	_, err = io.WriteString(channel, typed)
	must(errors.Join(err, channel.CloseWrite()))
	wantExit(t, channel, Exit{State: ExitExited})
	must(errors.Join(term.Close(), channel.Close()))
	w.value("value", term, channel)
	profileSaw()

	must(os.WriteFile(filepath.Join(local, "file"), []byte("content"), 0o600))
	sent, err := l.Importer().Dir(ctx, local, "in", ImportOptions{})
	must(err)
	staged := 0
	got, err := l.Exporter().Dir(ctx, "in", filepath.Join(local, "out"), ExportOptions{Progress: func(Progress) {
		w.files("host file", local)
		w.files("host file", scratch)
		stages, _ := filepath.Glob(filepath.Join(local, archive.StagePrefix+"*"))
		for _, stage := range stages {
			if info, err := os.Lstat(stage); err == nil && info.Mode().Perm() != 0o700 {
				t.Errorf("the export's scratch has mode %v, want 0700", info.Mode())
			}
		}
		staged += len(stages)
	}})
	must(err)
	if w.value("value", sent, got); staged == 0 {
		t.Error("no scratch of the export was seen")
	}

	// What opens the sandbox to others.
	port := service(t, echo)
	endpoint := endpointOf(t, l, port)
	tokens := map[string]string{"the endpoint's token": endpoint.token()}
	get(t, endpoint.Client(), endpoint.URL().JoinPath("a").String())
	server.Sandbox(l.ref.Sandbox).RotateToken()
	get(t, endpoint.Client(), endpoint.URL().JoinPath("b").String())
	tokens["the endpoint's next token"] = endpoint.token()
	signed, err := endpoint.Sign(ctx, time.Minute)
	must(err)
	access, err := l.OpenSSH(ctx, time.Hour)
	must(err)
	w.value("value", endpoint, signed, access, endpoint.URL(), endpoint.Generation())
	tokens["the signed URL's token"], tokens["the SSH token"] = signed.secret.token, access.Token()
	snapshots, err := NewSnapshots(p)
	must(err)
	w.value("value", snapshots, snapshots.Plan("label"))
	w.processes()
	maps.Copy(tokens, w.crash(server, l, port))

	// A provider, or something before it, that says all it knows.
	words := key + " " + strings.Join(slices.Collect(maps.Values(tokens)), " ")
	for name, answer := range map[string]emulator.Fault{
		"refused":    {Action: emulator.StatusBefore, Status: 400, Body: structured(400, words)},
		"forbidden":  {Action: emulator.StatusBefore, Status: 403, Body: "<html>" + words},
		"redirected": {Action: emulator.StatusBefore, Status: 302, Header: http.Header{"Location": {"http://127.0.0.1:1/?" + url.Values{"words": {words}}.Encode()}}},
		"nonsense":   {Action: emulator.StatusBefore, Status: 200, Body: `{"id":` + strconv.Quote(words) + `,"url":` + strconv.Quote(words) + `}`},
	} {
		answer.Count = -1
		server.SetFaults(answer)
		q := rigProvider(t, server, Config{Logger: logger, TracerProvider: cfg.TracerProvider, Transport: w, CallTimeout: 50 * time.Millisecond, Timeout: 100 * time.Millisecond})
		bound, err := q.Bind(l.Ref())
		must(err)
		snapshots, err := NewSnapshots(q)
		must(err)
		for op, call := range map[string]func(context.Context) error{
			"probe":  func(ctx context.Context) error { return second(q.Probe(ctx, request())) },
			"resume": func(ctx context.Context) error { return second(q.Resume(ctx, l.Ref())) },
			"run": func(ctx context.Context) error {
				return second(bound.Executor().Run(ctx, Command{Args: []string{"true"}, Env: env}))
			},
			"import": func(ctx context.Context) error {
				return second(bound.Importer().Dir(ctx, local, "again", ImportOptions{}))
			},
			"export": func(ctx context.Context) error {
				return second(bound.Exporter().File(ctx, "in/file", filepath.Join(local, "f"), ExportOptions{}))
			},
			"terminal": func(ctx context.Context) error { return second(bound.OpenTerminal(ctx, TerminalOptions{Env: env})) },
			"endpoint": func(ctx context.Context) error { return second(bound.Endpoint(ctx, port)) },
			"sign":     func(ctx context.Context) error { return second(endpoint.Sign(ctx, time.Minute)) },
			"ssh":      func(ctx context.Context) error { return second(bound.OpenSSH(ctx, time.Hour)) },
			"snapshot": func(ctx context.Context) error {
				return second(snapshots.Build(ctx, snapshots.Plan("x"), BuildRequest{Image: "x"}))
			},
		} {
			bounded, cancel := context.WithTimeout(ctx, 200*time.Millisecond)
			w.failure(op+" "+name, call(bounded))
			cancel()
		}
		must(q.Close(ctx))
	}
	server.SetFaults(
		emulator.Fault{Method: "POST", Path: "/toolbox/**", Count: -1, Action: emulator.StatusBefore, Status: 400, Body: structured(400, words)},
		emulator.Fault{Method: "DELETE", Path: "/api/sandbox/*", Count: -1, Action: emulator.StatusBefore, Status: 403, Body: structured(403, words)},
	)
	_, err = p.Acquire(ctx, request())
	w.failure("acquire", err)
	var unaccounted *Error
	if !errors.As(err, &unaccounted) || unaccounted.Cleanup == nil {
		t.Fatalf("Acquire() = %v, want an envelope", err)
	}
	w.value("value", *unaccounted.Cleanup)
	server.SetFaults()
	w.files("record", records)

	must(errors.Join(signed.Revoke(ctx), access.Revoke(ctx)))
	sandboxFiles("sandbox file")
	receipt, err := p.Release(ctx, l.Ref(), ReleaseOptions{})
	must(err)
	receipts := []any{receipt}
	cleaned, err := p.Cleanup(ctx, *unaccounted.Cleanup)
	must(err)
	w.value("value", append(receipts, cleaned)...)
	sandboxFiles("file of a sandbox that was given back")
	for place, dir := range map[string]string{"record": records, "host file": scratch, "host file of the export": local} {
		w.files(place, dir)
	}
	w.processes()

	w.want("the API key", key)
	for name, token := range tokens {
		w.want(name, token, "address of a revocation")
	}
	w.want("a command's variable", given, "environment", "sandbox file")
	w.want("a command's input", typed, "environment", "sandbox file")

	// That nothing was found proves something only of who would have found it.
	least := map[string]int{"log": 30, "span": 20, "error": 100, "value": 50, "record": 10, "host file": 5, "sandbox file": 10, "file of a sandbox that was given back": 3, "address": 20, "crash": 1}
	if runtime.GOOS == "linux" {
		least["command line"], least["environment"] = 10, 5
		if found := w.places(given); found["environment"] == "" {
			t.Error("the witness did not see the processes of a command")
		}
	}
	for place, want := range least {
		w.mu.Lock()
		got := len(w.evidence[place])
		w.mu.Unlock()
		if got < want {
			t.Errorf("%d texts of the kind %q, want %d: the test proves little", got, place, want)
		}
	}
	for _, text := range []string{"x" + key + "x", base64.StdEncoding.EncodeToString([]byte("ab" + key)), hex.EncodeToString([]byte(key)), "?k=" + url.QueryEscape(key)} {
		if w := newWitness(t); len(w.places(key)) > 0 {
			t.Errorf("the key is found in nothing")
		} else if w.saw("x", text); len(w.places(key)) != 1 {
			t.Errorf("the key is not found in %q", text)
		}
	}
}

// second is what a call says of its failure.
func second[T any](_ T, err error) error { return err }

// crashVariable makes the test binary a host that panics. What it needs comes through its standard input.
const crashVariable = "LEASEHOLD_TEST_CRASH"

// crashOrder is what a host needs to use a lease, and its answer: the tokens that it was given.
type crashOrder struct {
	URL, Key string
	Ref      LeaseRef
	Port     int
}

func init() {
	if os.Getenv(crashVariable) == "" {
		return
	}
	check := func(err error) {
		if err != nil {
			panic(err)
		}
	}
	ctx := context.Background()
	var order crashOrder
	check(json.NewDecoder(os.Stdin).Decode(&order))
	cfg := Config{APIURL: order.URL, APIKey: order.Key, Reuse: true, NoBwrap: true, Logger: slog.New(slog.NewTextHandler(os.Stderr, nil))}
	p, err := newProvider(cfg)
	check(err)
	p.embedded = strings.TrimSuffix(order.URL, "/api")
	l, err := p.Bind(order.Ref)
	check(err)
	endpoint, err := l.Endpoint(ctx, order.Port)
	check(err)
	signed, err := endpoint.Sign(ctx, time.Minute)
	check(err)
	check(json.NewEncoder(os.Stdout).Encode(map[string]string{"the crashed host's token": endpoint.token(), "the crashed host's signed URL": signed.secret.token}))
	_, err = l.Executor().Run(ctx, Command{Args: []string{"echo", "x"}, Env: map[string]string{"T": signed.secret.token}, Stdout: &onFirst{f: func() {
		panic(fmt.Sprintf("%+v %+v %+v %+v %+v", p, cfg, l, endpoint, signed)) // in a goroutine of the library's
	}}})
	check(err)
}

// crash takes down what a host prints that panics in the middle of its work, and returns the tokens that it was given.
func (w *witness) crash(server *emulator.Server, l *Lease, port int) map[string]string {
	w.t.Helper()
	order, err := json.Marshal(crashOrder{URL: server.URL(), Key: server.APIKey(), Ref: l.Ref(), Port: port})
	if err != nil {
		w.t.Fatal(err)
	}
	var stdout, stderr bytes.Buffer
	host := exec.CommandContext(w.t.Context(), os.Args[0])
	host.Env = append(os.Environ(), crashVariable+"=1", "GOTRACEBACK=all")
	host.Stdin, host.Stdout, host.Stderr = bytes.NewReader(order), &stdout, &stderr
	if err := host.Run(); err == nil || !strings.Contains(stderr.String(), "panic: ") || !strings.Contains(stderr.String(), "onFirst") {
		w.t.Errorf("the host ended with %v, want a panic in a writer:\n%s", err, &stderr)
	}
	w.saw("crash", stderr.String())
	tokens := make(map[string]string)
	if err := json.Unmarshal(stdout.Bytes(), &tokens); err != nil || len(tokens) == 0 {
		w.t.Fatalf("the host said %q", stdout.String())
	}
	return tokens
}
