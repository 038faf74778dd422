//go:build unix

package toolbox

import (
	"net/http"
	"syscall"
	"testing"
)

func TestNamedPipesDoNotBlock(t *testing.T) {
	w := serve(t)
	if err := syscall.Mkfifo(w.at("pipe"), 0o600); err != nil {
		skip(t, "no named pipes: "+err.Error())
	}
	if r := w.do("GET", query("/files/download", "path", "pipe"), nil); r.status < 400 {
		t.Errorf("download of a pipe = %d, want an error", r.status)
	}
	r := w.postForm(query("/files/upload", "path", "pipe"), field{"file", "f", "content"})
	r.wantEmpty(t, http.StatusBadRequest)
}
