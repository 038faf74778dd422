//go:build unix

package toolbox

import (
	"net/http"
	"os"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"
)

func TestInput(t *testing.T) {
	w := serve(t, swift)
	w.createSession("s")
	input := func(id, data string) reply {
		return w.do("POST", commandPath("s", id)+"/input", asJSON(t, map[string]string{"data": data}))
	}
	t.Run("reaches the command, ends in a newline, and is echoed", func(t *testing.T) {
		id := w.start("s", `read a; read b; read c; echo "[$a][$b][$c]"`)
		until(t, "the command takes input", func() bool { return input(id, "one").status == http.StatusNoContent })
		input(id, "two\n").wantEmpty(t, http.StatusNoContent)
		w.exitCode("s", id)
		if got, want := w.log("s", id), out+"one\n"+out+"two\n\n"+out+"[one][two][]\n"; !sameLines(got, want) {
			t.Errorf("log = %q, want the lines of %q", got, want)
		}
		wantError(t, input(id, "late"), http.StatusGone, "GONE", "gone: ", commandPath("s", id)+"/input")
	})
	t.Run("is echoed if the command has ended by then", func(t *testing.T) {
		id := w.start("s", "echo done")
		w.exitCode("s", id)
		w.toolbox.sessions.get("s").command(id).append([]byte(out + "late\n"))
		if got, want := w.log("s", id), out+"done\n"+out+"late\n"; got != want {
			t.Errorf("log = %q, want %q", got, want)
		}
	})
	t.Run("is not echoed on request", func(t *testing.T) {
		id := w.start("s", `read a; echo "[$a]"`, "suppressInputEcho")
		until(t, "the command takes input", func() bool { return input(id, "secret").status == http.StatusNoContent })
		w.exitCode("s", id)
		if got, want := w.log("s", id), out+"[secret]\n"; got != want {
			t.Errorf("log = %q, want %q", got, want)
		}
	})
	t.Run("finds no pipe when nobody has read the exit code", func(t *testing.T) {
		id := w.start("s", "echo done >finished")
		until(t, "the exit is recorded", func() bool {
			content, _ := os.ReadFile(w.at(".daytona/sessions/s/" + id + "/exit_code"))
			return len(content) > 0
		})
		until(t, "the pipe is gone", func() bool { return input(id, "x").status == http.StatusInternalServerError })
		w.status("s", id)
		input(id, "x").want(t, http.StatusGone)
	})
	t.Run("of a synchronous command is at its end", func(t *testing.T) {
		r := w.whole(func() reply { return w.submit("s", "cat; echo end") })
		if got := *decode[sessionExecuteResponse](t, r).Stdout; got != "end\n" {
			t.Errorf("stdout = %q, want the end at once", got)
		}
	})
	t.Run("never ends of an asynchronous one", func(t *testing.T) {
		id := w.start("s", "echo >reading; read x; read y && echo more")
		until(t, "the command reads", func() bool { return w.exists("reading") })
		input(id, "x").want(t, http.StatusNoContent)
		if code := w.status("s", id); code != nil {
			t.Errorf("exit code = %d, want none while it reads", *code)
		}
		input(id, "y").want(t, http.StatusNoContent)
		w.exitCode("s", id)
	})
	t.Run("waits while the pipe is full", func(t *testing.T) {
		w.gate("gate")
		id := w.start("s", "echo >open; read x <gate")
		until(t, "the command runs", func() bool { return w.exists("open") })
		answered := make(chan reply)
		go func() { answered <- input(id, strings.Repeat("x", 200_000)) }()
		select {
		case r := <-answered:
			t.Errorf("answer while the pipe is full: %d %s", r.status, r.body)
		case <-time.After(100 * time.Millisecond):
		}
		w.open("gate")
		(<-answered).want(t, http.StatusInternalServerError)
		w.exitCode("s", id)
	})
	t.Run("is refused", func(t *testing.T) {
		id := w.start("s", "true")
		input(id, "").want(t, http.StatusBadRequest)
		input("missing", "x").want(t, http.StatusNotFound)
		w.do("POST", commandPath("missing", id)+"/input", asJSON(t, map[string]string{"data": "x"})).want(t, http.StatusNotFound)
	})
}

func sameLines(a, b string) bool {
	return cmp.Equal(slices.Collect(strings.Lines(a)), slices.Collect(strings.Lines(b)), cmpopts.SortSlices(strings.Compare))
}
