package main

import (
	"bufio"
	"encoding/json"
	"io"
	"os"
	"os/exec"
	"strings"
	"sync"
	"testing"
	"time"
)

// browser is a headless Chromium that is told what to do over a pair of pipes, by the DevTools protocol: messages of JSON
// with a NUL behind each.
type browser struct {
	t       *testing.T
	out     io.Writer
	session string // of the page

	mu       sync.Mutex
	last     int
	replies  map[int]chan reply
	requests []string // that the page made
	problems []string // that it had
	gone     bool
}

type reply struct {
	Result json.RawMessage
	Error  *struct{ Message string }
}

// startBrowser starts one with an empty page. It ends with the test.
func startBrowser(t *testing.T) *browser {
	t.Helper()
	program, err := exec.LookPath("chromium")
	if err != nil {
		if os.Getenv("LEASEHOLD_REQUIRE_ALL") == "1" {
			t.Fatal("chromium is not installed")
		}
		t.Skip("chromium is not installed")
	}
	theirs, ours := pipe(t)
	in, theirOut := pipe(t)
	cmd := exec.Command(program, "--headless", "--remote-debugging-pipe", "--user-data-dir="+t.TempDir(), "--window-size=1280,800",
		"--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage", "--no-first-run", "--disable-background-networking",
		"--disable-component-update", "--disable-extensions", "--host-resolver-rules=MAP * ~NOTFOUND , EXCLUDE 127.0.0.1", "about:blank")
	var stderr strings.Builder
	cmd.Stderr, cmd.ExtraFiles = &stderr, []*os.File{theirs, theirOut}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	_, _ = theirs.Close(), theirOut.Close()
	b := &browser{t: t, out: ours, replies: make(map[int]chan reply)}
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		b.read(bufio.NewReader(in))
	}()
	hung := time.AfterFunc(3*time.Minute, func() { _ = cmd.Process.Kill() })
	t.Cleanup(func() {
		defer hung.Stop()
		b.send("", "Browser.close", nil)
		<-ended // its side of the pipe is closed with the last of its processes
		if err := cmd.Wait(); err != nil {
			t.Logf("chromium: %v\n%s", err, &stderr)
		}
		_, _ = ours.Close(), in.Close()
	})
	target := parse[struct{ TargetID string }](t, b.call("", "Target.createTarget", map[string]any{"url": "about:blank"}))
	b.session = parse[struct{ SessionID string }](t, b.call("", "Target.attachToTarget", map[string]any{"targetId": target.TargetID, "flatten": true})).SessionID
	for _, domain := range []string{"Page", "Runtime", "Log", "Network"} {
		b.page(domain+".enable", nil)
	}
	return b
}

func pipe(t *testing.T) (r, w *os.File) {
	t.Helper()
	r, w, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	return r, w
}

// read takes replies and events, until the browser is gone.
func (b *browser) read(in *bufio.Reader) {
	for {
		data, err := in.ReadBytes(0)
		b.mu.Lock()
		if err != nil {
			b.gone = true
			for _, waiting := range b.replies {
				close(waiting)
			}
			b.mu.Unlock()
			return
		}
		var message struct {
			reply
			ID     int
			Method string
			Params struct {
				Request          struct{ URL string }
				Entry            struct{ Level, Text, URL string }
				ExceptionDetails json.RawMessage
			}
		}
		if json.Unmarshal(data[:len(data)-1], &message) == nil {
			b.take(message.ID, message.reply, message.Method, message.Params.Request.URL,
				message.Params.Entry.Level+": "+message.Params.Entry.Text+" "+message.Params.Entry.URL, message.Params.ExceptionDetails)
		}
		b.mu.Unlock()
	}
}

func (b *browser) take(id int, r reply, method, url, entry string, exception []byte) {
	switch method {
	case "":
		if waiting := b.replies[id]; waiting != nil {
			delete(b.replies, id)
			waiting <- r
		}
	case "Network.requestWillBeSent":
		b.requests = append(b.requests, url)
	case "Log.entryAdded":
		// A refused token and a cut connection, which the test is about, are logged as well.
		if strings.HasPrefix(entry, "error: ") && !strings.Contains(entry, "401 (Unauthorized)") && !strings.Contains(entry, "net::ERR_") {
			b.problems = append(b.problems, entry)
		}
	case "Runtime.exceptionThrown":
		b.problems = append(b.problems, string(exception))
	}
}

// send sends a command, and returns where its reply will come.
func (b *browser) send(session, method string, params any) <-chan reply {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.last++
	message := map[string]any{"id": b.last, "method": method}
	if params != nil {
		message["params"] = params
	}
	if session != "" {
		message["sessionId"] = session
	}
	waiting := make(chan reply, 1)
	if b.gone {
		close(waiting)
		return waiting
	}
	b.replies[b.last] = waiting
	data, err := json.Marshal(message)
	if err == nil {
		_, err = b.out.Write(append(data, 0))
	}
	if err != nil {
		b.t.Errorf("%s: %v", method, err)
	}
	return waiting
}

func (b *browser) call(session, method string, params any) json.RawMessage {
	b.t.Helper()
	r, ok := <-b.send(session, method, params)
	if !ok {
		b.t.Fatalf("%s: the browser is gone", method)
	}
	if r.Error != nil {
		b.t.Fatalf("%s: %s", method, r.Error.Message)
	}
	return r.Result
}

func (b *browser) page(method string, params any) json.RawMessage {
	b.t.Helper()
	return b.call(b.session, method, params)
}

func (b *browser) open(url string) {
	b.t.Helper()
	b.page("Page.navigate", map[string]any{"url": url})
}

// evaluate returns the value of an expression, or of its promise.
func (b *browser) evaluate(expression string) any {
	b.t.Helper()
	got := parse[struct {
		Result           struct{ Value any }
		ExceptionDetails json.RawMessage
	}](b.t, b.page("Runtime.evaluate", map[string]any{"expression": expression, "awaitPromise": true, "returnByValue": true}))
	if got.ExceptionDetails != nil {
		return string(got.ExceptionDetails)
	}
	return got.Result.Value
}

// press presses a key that has a name.
func (b *browser) press(key string) {
	b.t.Helper()
	codes := map[string]int{"Tab": 9, "Enter": 13, "Escape": 27}
	event := map[string]any{"type": "rawKeyDown", "key": key, "code": key, "windowsVirtualKeyCode": codes[key]}
	if key == "Enter" {
		event["type"], event["text"] = "keyDown", "\r"
	}
	b.page("Input.dispatchKeyEvent", event)
	b.page("Input.dispatchKeyEvent", map[string]any{"type": "keyUp", "key": key, "code": key, "windowsVirtualKeyCode": codes[key]})
}

// typeText types, a key for each character.
func (b *browser) typeText(text string) {
	b.t.Helper()
	var taken <-chan reply
	for _, c := range text {
		b.send(b.session, "Input.dispatchKeyEvent", map[string]any{"type": "keyDown", "key": string(c), "text": string(c)})
		taken = b.send(b.session, "Input.dispatchKeyEvent", map[string]any{"type": "keyUp", "key": string(c)})
	}
	<-taken
}
