//go:build unix

package leasehold

import (
	"errors"
	"io"
	"net"
	"os"
	"os/exec"
	"strconv"
	"syscall"
	"testing"
)

// BenchmarkChannel moves bytes through a channel, and the same programs' through a socket pair, which is what a local host
// would use. The sizes count one direction.
func BenchmarkChannel(b *testing.B) {
	const size = 8 << 20
	for _, direction := range []struct {
		name    string
		args    []string
		in, out int64
	}{
		{"in", []string{"sh", "-c", "cat >/dev/null"}, size, 0},
		{"out", []string{"head", "-c", strconv.Itoa(size), "/dev/zero"}, 0, size},
		{"both", []string{"cat"}, size, size},
	} {
		for _, way := range []string{"channel", "socketpair"} {
			b.Run(direction.name+"/"+way, func(b *testing.B) {
				open := socketPair
				if way == "channel" {
					open = benchChannel(b)
				}
				b.SetBytes(size)
				for b.Loop() {
					end, err := open(direction.args)
					if err != nil {
						b.Fatal(err)
					}
					sent := make(chan error, 1)
					go func() {
						_, err := io.Copy(end, io.LimitReader(zeros{}, direction.in))
						sent <- errors.Join(err, end.CloseWrite())
					}()
					n, err := io.Copy(io.Discard, end)
					if err = errors.Join(err, <-sent, end.Close()); err != nil || n != direction.out {
						b.Fatalf("%d bytes, %v, want %d", n, err, direction.out)
					}
				}
			})
		}
	}
}

// duplexEnd is one end of what carries two streams.
type duplexEnd interface {
	io.ReadWriteCloser
	CloseWrite() error
}

func benchChannel(b *testing.B) func([]string) (duplexEnd, error) {
	l := newBenchRig(b).lease
	return func(args []string) (duplexEnd, error) { return l.OpenChannel(b.Context(), ChannelOptions{Args: args}) }
}

// localEnd is a local command with a socket pair.
type localEnd struct {
	*net.UnixConn
	cmd *exec.Cmd
}

func (e localEnd) Close() error { return errors.Join(e.UnixConn.Close(), e.cmd.Wait()) }

func socketPair(args []string) (duplexEnd, error) {
	fds, err := syscall.Socketpair(syscall.AF_UNIX, syscall.SOCK_STREAM, 0)
	if err != nil {
		return nil, err
	}
	ours, theirs := os.NewFile(uintptr(fds[0]), "ours"), os.NewFile(uintptr(fds[1]), "theirs")
	defer ours.Close()
	defer theirs.Close()
	cmd := exec.Command(args[0], args[1:]...)
	cmd.Stdin, cmd.Stdout = theirs, theirs
	if err := cmd.Start(); err != nil {
		return nil, err
	}
	conn, err := net.FileConn(ours)
	if err != nil {
		return nil, err
	}
	return localEnd{conn.(*net.UnixConn), cmd}, nil
}
