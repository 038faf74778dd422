package archive

import (
	"os"
	"path/filepath"
	"testing"
)

// TestF2TwoPublishInOnePlace has several stages, all prepared while nothing was there, published at the same time.
func TestF2TwoPublishInOnePlace(t *testing.T) {
	for range 50 {
		dest := filepath.Join(t.TempDir(), "dest")
		const n = 4
		begin, done := make(chan struct{}), make(chan error, n)
		for range n {
			s, err := newStage(dest, true)
			if err != nil {
				t.Fatal(err)
			}
			root, err := s.makeDir()
			if err != nil {
				t.Fatal(err)
			}
			if err := root.WriteFile("f", []byte("x"), 0o644); err != nil {
				t.Fatal(err)
			}
			root.Close()
			go func() {
				defer s.close()
				<-begin
				_, err := s.publishDir(0)
				done <- err
			}()
		}
		close(begin)
		for range n {
			if err := <-done; err != nil {
				t.Errorf("publishDir() = %v", err)
			}
		}
		if got, err := os.ReadFile(filepath.Join(dest, "f")); err != nil || string(got) != "x" {
			t.Errorf("the destination holds %q, %v; want x", got, err)
		}
		left, err := os.ReadDir(filepath.Dir(dest))
		if err != nil || len(left) != 1 {
			t.Errorf("left beside the destination: %v, %v", left, err)
		}
	}
}
