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

// BenchmarkChannel moves bytes through a channel. The floor is a socket pair of the same program, which is what a local host
// would use. The size counts one direction.
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
		b.Run(direction.name, func(b *testing.B) {
			channel := benchChannel(b)
			move := func(open func([]string) (duplexEnd, error)) func() {
				return func() {
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
			}
			c := contest{b: b}
			for b.Loop() {
				c.floor(move(socketPair))
				c.value(move(channel))
				b.StartTimer()
			}
			c.report(size)
		})
	}
}

// duplexEnd is one end of what carries two streams.
type duplexEnd interface {
	io.ReadWriteCloser
	CloseWrite() error
}

func benchChannel(b *testing.B) func([]string) (duplexEnd, error) {
	l := newBenchRig(b, "").lease
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
