//go:build unix

package toolbox

import (
	"fmt"
	"io"
	"net/http"
	"os"
	"slices"
	"sync"
	"testing"
	"time"
)

func TestDeleteSession(t *testing.T) {
	needs(t, "setsid")
	t.Run("ends what descends from the shell", func(t *testing.T) {
		t.Parallel()
		w := serve(t, func(o *Options) { o.Quirks.ExitCodeWindow = -1 })
		w.createSession("s")
		w.output("s", "echo done")
		id := w.start("s", `
sh -c 'echo $$ >background; exec sleep 1000' &
setsid sh -c 'echo $$ >session; exec sleep 1000' &
setsid -f sh -c 'cd /; echo $$ >"$0/daemon"; exec sleep 1000' "$PWD" >/dev/null 2>&1
sh -c 'echo $$ >foreground; exec sleep 1000'`)
		names := []string{"background", "session", "daemon", "foreground"}
		until(t, "all run", func() bool { return !slices.ContainsFunc(names, func(n string) bool { return !w.exists(n) }) })
		start := time.Now()
		w.do("DELETE", sessionPath("s"), nil).wantEmpty(t, http.StatusNoContent)
		if took := time.Since(start); took < 100*time.Millisecond {
			t.Errorf("took %v, want at least 100ms", took)
		}
		for _, name := range names {
			if got, want := w.alive(name), name == "daemon"; got != want {
				t.Errorf("the %s process is alive: %v, want %v", name, got, want)
			}
		}
		w.do("GET", commandPath("s", id)+"/logs", nil).want(t, http.StatusNotFound)
		if _, err := os.Stat(w.at(".daytona/sessions/s")); err == nil {
			t.Error("the logs are still there")
		}
		w.createSession("s")
		if got := decode[sessionView](t, w.do("GET", sessionPath("s"), nil)); len(got.Commands) > 0 {
			t.Errorf("the new session has commands: %v", got.Commands)
		}
	})
	t.Run("waits five seconds for one that ignores SIGTERM", func(t *testing.T) {
		t.Parallel()
		w := serve(t)
		w.createSession("s")
		w.start("s", `sh -c 'trap "" TERM; echo $$ >stubborn; while :; do sleep 1000; done'`)
		until(t, "it runs", func() bool { return w.exists("stubborn") })
		start := time.Now()
		second := make(chan reply)
		go func() { second <- w.do("DELETE", sessionPath("s"), nil) }()
		first := w.do("DELETE", sessionPath("s"), nil)
		if took := time.Since(start); took < 5*time.Second {
			t.Errorf("took %v, want at least 5s", took)
		}
		got := []int{first.status, (<-second).status}
		slices.Sort(got)
		if want := []int{http.StatusNoContent, http.StatusNotFound}; !slices.Equal(got, want) {
			t.Errorf("statuses of two deletions at once = %v, want %v", got, want)
		}
		if w.alive("stubborn") {
			t.Error("it survived")
		}
	})
	t.Run("frees a synchronous command", func(t *testing.T) {
		w := serve(t, swift)
		w.createSession("s")
		answered := make(chan reply)
		go func() { answered <- w.submit("s", "echo >running; sleep 1000") }()
		until(t, "it runs", func() bool { return w.exists("running") })
		w.do("DELETE", sessionPath("s"), nil).want(t, http.StatusNoContent)
		wantUnmapped(t, <-answered, "failed to execute command: session cancelled")
	})
}

func TestManySessionsAtOnce(t *testing.T) {
	w := serve(t, swift)
	var wg sync.WaitGroup
	for i := range 64 {
		wg.Go(func() {
			id := fmt.Sprint("s", i)
			w.createSession(id)
			for j := range 3 {
				if got, want := w.output(id, fmt.Sprintf("echo %d-%d; echo e >&2", i, j)), fmt.Sprintf("%s%d-%d\n%se\n", out, i, j, err); inOrder(got) != want {
					t.Errorf("log = %q, want %q", got, want)
				}
			}
			if i%2 == 0 {
				w.do("DELETE", sessionPath(id), nil).wantEmpty(t, http.StatusNoContent)
			}
		})
	}
	wg.Wait()
	if got := len(decode[[]sessionView](t, w.do("GET", sessions, nil))); got != 32 {
		t.Errorf("%d sessions left, want 32", got)
	}
}

func TestCloseEndsSessions(t *testing.T) {
	w := serve(t)
	w.createSession("s")
	id := w.start("s", "echo $$ >shell; sleep 1000")
	follower := w.follow("s", id)
	until(t, "the command runs", func() bool { return w.exists("shell") })
	start := time.Now()
	w.toolbox.Close()
	if took := time.Since(start); took > patience/2 {
		t.Errorf("Close took %v", took)
	}
	if w.alive("shell") {
		t.Error("the shell is alive after Close")
	}
	if end := <-follower.ended; end != io.ErrUnexpectedEOF {
		t.Errorf("end of the socket = %v, want no close frame", end)
	}
}
