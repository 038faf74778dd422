package emulator

import (
	"log/slog"
	"net/http"
	"net/http/httptest"
	"testing"
)

// TestARequestThatMeetsTheEndIsCutOff: the machine was killed between the look at its state and the request's arrival there.
func TestARequestThatMeetsTheEndIsCutOff(t *testing.T) {
	for name, arrive := range map[string]func(*machine, *proxyWriter) bool{
		"for the daemon": func(m *machine, w *proxyWriter) bool { return m.open(w) != nil },
		"for a port":     (*machine).enter,
	} {
		boxes := newMachines(slog.New(slog.DiscardHandler), "")
		m := boxes.start(machineSpec{id: "box.1"})
		if err := m.kill(); err != nil {
			t.Fatal(err)
		}
		reply := httptest.NewRecorder()
		w := &proxyWriter{ResponseWriter: reply, cancel: func() {}}
		if arrive(m, w) {
			t.Errorf("%s: let in", name)
		}
		w.finish()
		if reply.Code != http.StatusBadGateway || reply.Body.Len() > 0 {
			t.Errorf("%s: got %d %q, want 502 without a body", name, reply.Code, reply.Body)
		}
		if err := boxes.close(); err != nil {
			t.Error(err)
		}
	}
}
