package emulator

import (
	"bytes"
	"io"
	"net"
	"testing"
	"testing/synctest"
)

// TestFaultySocketFindsFrames writes a handshake and frames of every length form, in pieces of several sizes.
func TestFaultySocketFindsFrames(t *testing.T) {
	head := "HTTP/1.1 101 Switching Protocols\r\nUpgrade: websocket\r\n\r\n"
	small := "\x82\x03abc"
	medium := "\x82\x7e\x01\x00" + string(bytes.Repeat([]byte("m"), 256))
	large := "\x82\x7f\x00\x00\x00\x00\x00\x01\x00\x00" + string(bytes.Repeat([]byte("l"), 65536))
	ping := "\x89\x00"
	closing := "\x88\x02\x03\xe8"
	all := small + medium + ping + large + closing
	for _, test := range []struct {
		name string
		hit  Fault
		head string
		want string
	}{
		{"nothing to do", Fault{Action: CloseSocket, Bytes: 1 << 30}, head, all},
		{"no handshake in the stream", Fault{Action: CloseSocket, Bytes: 1 << 30}, "", all},
		{"silent", Fault{Action: SilentSocket}, head, ""},
		{"silent after the first", Fault{Action: SilentSocket, Bytes: 3}, head, small},
		{"silent after the second", Fault{Action: SilentSocket, Bytes: 4}, head, small + medium},
		{"closed after the second", Fault{Action: CloseSocket, Bytes: 259, Code: 1011, Body: "no"}, head, small + medium + "\x88\x04\x03\xf3no"},
		{"dropped after the first", Fault{Action: CloseSocket, Bytes: 1}, head, small},
		{"replayed", Fault{Action: ReplayPrefix, Bytes: 4}, head, small + medium + small + medium + ping + large + closing},
	} {
		t.Run(test.name, func(t *testing.T) {
			for _, piece := range []int{1, 5, 1000, 1 << 20} {
				client, server := memoryPipe()
				socket := &faultySocket{Conn: server, hit: &faultHit{Fault: test.hit}}
				go func() {
					defer server.Close()
					for rest := []byte(test.head + all); len(rest) > 0; {
						n := min(piece, len(rest))
						if _, err := socket.Write(rest[:n]); err != nil {
							return
						}
						rest = rest[n:]
					}
				}()
				got, err := io.ReadAll(client)
				if want := test.head + test.want; err != nil || string(got) != want {
					t.Errorf("pieces of %d: got %d bytes (%.60q), %v; want %d (%.60q)", piece, len(got), got, err, len(want), want)
				}
			}
		})
	}
}

// TestFaultySocketClosesWhileAWriteBlocks, as kill does with a client that does not read.
func TestFaultySocketClosesWhileAWriteBlocks(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		client, server := net.Pipe()
		defer client.Close()
		socket := &faultySocket{Conn: server, hit: &faultHit{Fault: Fault{Action: SilentSocket, Bytes: 1 << 20}}}
		written := make(chan error, 1)
		go func() {
			_, err := socket.Write([]byte("\x82\x03abc"))
			written <- err
		}()
		synctest.Wait()
		if err := socket.Close(); err != nil {
			t.Errorf("Close() = %v", err)
		}
		if err := <-written; err == nil {
			t.Error("the write succeeded")
		}
	})
}
