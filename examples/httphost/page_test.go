package main

import (
	"bytes"
	"encoding/base64"
	"fmt"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
)

// TestThePageLoadsNothingFromElsewhere: its files name no other host, hold no script or style of their own, and are served
// with a policy that would refuse them.
func TestThePageLoadsNothingFromElsewhere(t *testing.T) {
	t.Parallel()
	h := startHost(t, nil)
	elsewhere := regexp.MustCompile(`(?i)(https?:)?//[a-z0-9]|<style| style=| on[a-z]+=|<script>|@import|innerHTML|eval\(`)
	for _, path := range []string{"/", "/style.css", "/app.js", "/screen.js"} {
		response, err := plain.Get(h.url + path)
		if err != nil {
			t.Fatal(err)
		}
		var body bytes.Buffer
		_, err = body.ReadFrom(response.Body)
		_ = response.Body.Close()
		if err != nil {
			t.Fatal(err)
		}
		if found := elsewhere.FindString(body.String()); found != "" {
			t.Errorf("%s has %q, want nothing of the kind", path, found)
		}
		got := response.Header.Get("Content-Security-Policy")
		for _, want := range []string{"default-src 'none'", "script-src 'self'", "frame-ancestors 'none'"} {
			if !strings.Contains(got, want) || strings.Contains(got, "unsafe") {
				t.Errorf("%s has the policy %q, want %q in it, and nothing unsafe", path, got, want)
			}
		}
	}
}

// script has what a terminal must know: colours, a line that is written over, characters of several bytes, two streams.
const script = `printf '\033[1mbuilding leasehold\033[0m\n'
for part in lease exec files; do printf '%-8s\033[32mok\033[0m\n' $part; done
printf ' 10%%\r100%%\tbyte for byte\n'
echo 'warning: 1 test was slow' >&2
printf 'c\047est d\303\251j\303\240 fini \342\234\223\n'
`

const printed = "building leasehold\nlease   ok\nexec    ok\nfiles   ok\n100%    byte for byte\nwarning: 1 test was slow\nc'est déjà fini ✓"

// TestThePage is a person with a keyboard and no mouse: signs in, takes a lease, runs commands, is cut off, interrupts,
// and gives the lease back.
func TestThePage(t *testing.T) {
	t.Parallel()
	h := startHost(t, nil)
	b := startBrowser(t)
	b.open(h.url)

	// The form takes the token, and refuses another one.
	b.wait("document.activeElement?.id === 'token'")
	b.typeText("not-the-token")
	b.press("Enter")
	b.wait("notice.textContent.includes('token') && document.activeElement?.id === 'token'")
	b.typeText(acmeToken)
	b.press("Enter")
	b.wait("!main.hidden && !document.getElementById('no-leases').hidden")

	b.tabTo("create")
	b.press("Enter")
	b.wait("document.activeElement?.id === 'command'")
	c := h.client(t)
	lease := "/v1/leases/" + c.leases()[0].ID
	c.want(200, "PUT", lease+"/files", archive(t, map[string]string{"build.sh": script}))
	nightly := parse[leaseView](t, c.want(201, "POST", "/v1/leases", leaseRequest{Environment: "ci", Run: "nightly-42"})).ID
	c.want(200, "POST", "/v1/leases/"+nightly+"/release", releaseRequest{Keep: true})
	b.typeText("sh build.sh")
	b.press("Enter")
	b.wait("document.getElementById('command-state').textContent.startsWith('exit 0')")
	output := b.text("[...output.children].map((line) => line.textContent).join('\\n').trim()")
	if sorted(output) != sorted(printed) { // the streams come in any order
		t.Errorf("output:\n%s\nwant, in the order of the streams:\n%s", output, printed)
	}
	if got := b.text("[...output.querySelectorAll('.err')].map((e) => e.textContent).join('') + output.querySelectorAll('.c2').length"); got != "warning: 1 test was slow3" {
		t.Errorf("standard error, and green: %q, want the warning, and 3", got)
	}
	b.wait("leases.innerText.includes('nightly-42') && leases.innerText.includes('stopped') && !leases.innerText.includes('running')")
	b.screenshot("httphost-page.png")
	b.named()

	// A cut connection: the page goes on behind the last event that it had.
	b.wait("document.activeElement?.id === 'command'") // and what is in it is selected: typing replaces it
	b.typeText("echo begun; until [ -e go ]; do sleep 0.02; done; echo after; exec sleep 600")
	b.press("Enter")
	b.wait("output.textContent === 'begun'")
	h.server.CloseClientConnections()
	c.want(200, "PUT", lease+"/files", archive(t, map[string]string{"go": ""}))
	b.wait("output.textContent === 'begunafter' && document.getElementById('command-state').textContent === 'running'")
	b.tabTo("interrupt")
	b.press("Enter")
	b.wait("document.getElementById('command-state').textContent.startsWith('exit 130')")

	// Nothing is destroyed by one key.
	b.tabTo("destroy")
	b.press("Enter")
	b.wait("document.getElementById('confirm').open")
	b.press("Escape")
	b.wait("!document.getElementById('confirm').open && document.activeElement?.id === 'destroy'")
	if got := c.leases(); len(got) != 2 {
		t.Errorf("leases: %+v, want both, since none was destroyed", got)
	}
	b.press("Enter")
	b.press("Tab")
	b.press("Enter")
	b.wait("leases.children.length === 1 && document.getElementById('detail').hidden")
	if got := c.leases(); len(got) != 1 || got[0].ID != nightly {
		t.Errorf("leases: %+v, want the other one alone", got)
	}
	b.clean(h.url)
}

// TestALateAnswerIsNobodys: what is answered to a token that was refused already does not sign out the one that came after.
func TestALateAnswerIsNobodys(t *testing.T) {
	t.Parallel()
	h := startHost(t, nil)
	signedIn, answered := make(chan struct{}), make(chan struct{})
	slow := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Path == "/v1/idle" && r.Header.Get("Authorization") != "Bearer "+acmeToken {
			<-signedIn
			defer close(answered)
		}
		h.server.Config.Handler.ServeHTTP(w, r)
	}))
	t.Cleanup(slow.Close)
	b := startBrowser(t)
	b.open(slow.URL)
	b.wait("document.activeElement?.id === 'token'")
	b.evaluate(`
		var refused = 0, ask = fetch;
		fetch = async (...request) => {
			const answer = await ask(...request);
			if (answer.status === 401) refused++;
			return answer;
		}`)
	b.typeText("not-the-token")
	b.press("Enter")
	b.wait("refused === 1 && document.activeElement?.id === 'token'")
	b.typeText(acmeToken)
	b.press("Enter")
	b.wait("!main.hidden")
	close(signedIn)
	<-answered
	b.wait("refused === 2")
	b.wait("!main.hidden && document.getElementById('sign-in').hidden && notice.textContent === ''")
	b.tabTo("create")
	b.press("Enter")
	b.wait("document.activeElement?.id === 'command'")
}

func sorted(text string) string {
	lines := strings.Split(text, "\n")
	slices.Sort(lines)
	return strings.Join(lines, "\n")
}

// wait waits until an expression is true in the page.
func (b *browser) wait(expression string) {
	b.t.Helper()
	if got := b.evaluate(fmt.Sprintf(`(async () => {
		for (let i = 0; !(%s); i++) {
			if (i > 3000) return "not true: " + document.activeElement?.id + " " + document.body.innerText;
			await new Promise((resolve) => setTimeout(resolve, 20));
		}
		return "";
	})()`, expression)); got != "" {
		b.t.Fatalf("%s: %v", expression, got)
	}
}

func (b *browser) text(expression string) string {
	b.t.Helper()
	return fmt.Sprint(b.evaluate(expression))
}

// tabTo goes to an element by the key Tab alone.
func (b *browser) tabTo(id string) {
	b.t.Helper()
	var way []string
	for range 40 {
		b.press("Tab")
		at := b.text("document.activeElement?.id || document.activeElement.textContent")
		if at == id {
			if got := b.text("getComputedStyle(document.activeElement).outlineStyle"); got != "solid" {
				b.t.Errorf("%s has the outline %q in focus, want one that is seen", id, got)
			}
			return
		}
		way = append(way, at)
	}
	b.t.Fatalf("no way to %s by Tab: %q", id, way)
}

// named checks that everything that can be operated has a name for those who do not see it.
func (b *browser) named() {
	b.t.Helper()
	type value struct{ Value any }
	tree := parse[struct {
		Nodes []struct {
			Ignored    bool
			Role, Name value
		}
	}](b.t, b.page("Accessibility.getFullAXTree", nil))
	operable := 0
	for _, node := range tree.Nodes {
		switch node.Role.Value {
		case "button", "textbox", "combobox", "link", "log":
			operable++
			if node.Name.Value == nil || node.Name.Value == "" {
				b.t.Errorf("a %v has no name", node.Role.Value)
			}
		}
	}
	if operable < 8 {
		b.t.Errorf("%d operable elements in %d, want those of the page", operable, len(tree.Nodes))
	}
}

// screenshot keeps a picture of the page.
func (b *browser) screenshot(name string) {
	b.t.Helper()
	picture := parse[struct{ Data string }](b.t, b.page("Page.captureScreenshot", map[string]any{"format": "png"}))
	data, err := base64.StdEncoding.DecodeString(picture.Data)
	if err != nil || !bytes.HasPrefix(data, []byte("\x89PNG")) || len(data) < 10_000 {
		b.t.Fatalf("a picture of %d bytes, %v, want a PNG of a page with something on it", len(data), err)
	}
	dir := os.Getenv("LEASEHOLD_ARTIFACTS")
	if dir == "" {
		dir = b.t.ArtifactDir()
	}
	path := filepath.Join(dir, name)
	if err := os.WriteFile(path, data, 0o644); err != nil {
		b.t.Fatal(err)
	}
	b.t.Log("a picture of the page:", path)
}

// clean checks that the page asked nobody else for anything, and that nothing in it went wrong.
func (b *browser) clean(url string) {
	b.t.Helper()
	b.mu.Lock()
	defer b.mu.Unlock()
	if len(b.requests) == 0 {
		b.t.Error("no request was seen, want those of the page")
	}
	for _, request := range b.requests {
		if !strings.HasPrefix(request, url+"/") {
			b.t.Errorf("the page asked for %s, want requests to %s alone", request, url)
		}
	}
	for _, problem := range b.problems {
		b.t.Errorf("in the page: %s", problem)
	}
}
