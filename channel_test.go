//go:build unix

package leasehold

import (
	"bytes"
	"io"
	"math/rand/v2"
	"testing"

	"github.com/leasehold-go/leasehold/internal/emulator"
)

// allBytes returns n bytes, of every value, in no order.
func allBytes(n int) []byte {
	p := make([]byte, n)
	src := rand.NewChaCha8([32]byte{1})
	_, _ = src.Read(p)
	for i := range min(n, 256) {
		p[i] = byte(i)
	}
	return p
}

func TestChannelCarriesEveryByte(t *testing.T) {
	for _, shell := range []string{"bash", "zsh", "sh"} {
		t.Run(shell, func(t *testing.T) {
			r := newRig(t, Config{}, emulator.Options{Shell: shell})
			l := r.acquired(t)
			var stderr bytes.Buffer
			ch, err := l.OpenChannel(t.Context(), ChannelOptions{Args: []string{"sh", "-c", "cat; echo done >&2; exit 7"}, Stderr: &stderr})
			if err != nil {
				t.Fatal(err)
			}
			defer ch.Close()
			want := allBytes(3 << 20)
			go func() {
				if _, err := ch.Write(want); err != nil {
					t.Error(err)
				}
				if err := ch.CloseWrite(); err != nil {
					t.Error(err)
				}
			}()
			got, err := io.ReadAll(ch)
			if err != nil {
				t.Error(err)
			}
			if !bytes.Equal(got, want) {
				t.Errorf("%d bytes, want %d", len(got), len(want))
			}
			exit, err := ch.Wait(t.Context())
			if exit.Code != 7 || err != nil || stderr.String() != "done\n" {
				t.Errorf("Wait() = %+v, %v, stderr %q", exit, err, stderr.String())
			}
		})
	}
}
