//go:build unix

package pgstore

import (
	"bufio"
	"bytes"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"os/user"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"time"
)

// keeper is a shell that makes the server's files and starts it, and removes it and all it left when its input ends: so
// when the test's process does, in whatever way. It says when there are files. Each line of its input starts the server
// with these options, once the one before has ended.
const keeper = `
dir=$1 bin=$2 pid=
trap '' PIPE
trap 'rm -rf "$dir"' EXIT
"$bin/initdb" -D "$dir/data" -U postgres -A trust -E UTF8 --locale=C --no-sync >"$dir/log" 2>&1 || { cat "$dir/log" >&2; exit 1; }
echo ready
while read -r options; do
	[ -z "$pid" ] || wait "$pid"
	"$bin/postgres" -D "$dir/data" -k "$dir" -c listen_addresses= $options </dev/null >>"$dir/log" 2>&1 &
	pid=$!
done
[ -z "$pid" ] || { kill -QUIT "$pid"; wait "$pid"; }
exit 0
`

// settings make the server's start and every ordinary test fast. Its files are not to outlive the test.
const settings = "-c fsync=off -c full_page_writes=off -c shared_buffers=16MB -c max_connections=60 -c max_wal_size=64MB -c log_checkpoints=off -c log_min_messages=log -c log_min_error_statement=panic"

// server is a PostgreSQL of the tests' own, in a temporary directory, which only its user and root can reach.
type server struct {
	dir    string
	user   *syscall.Credential // nil: the current user
	keeper *exec.Cmd
	input  io.WriteCloser
}

// startServer starts one. It fails with errNoServer if the machine has no PostgreSQL.
func startServer() (_ *server, err error) {
	bin, err := binaries()
	if err != nil {
		return nil, err
	}
	s := &server{}
	if os.Getuid() == 0 { // as which it refuses to run
		if s.user, err = credential("postgres"); err != nil {
			return nil, err
		}
	}
	if s.dir, err = os.MkdirTemp("", "pgstore-"); err != nil {
		return nil, err
	}
	defer func() {
		if err != nil {
			_ = os.RemoveAll(s.dir)
		}
	}()
	if s.user != nil {
		if err := os.Chown(s.dir, int(s.user.Uid), int(s.user.Gid)); err != nil {
			return nil, err
		}
	}
	s.keeper = exec.Command("/bin/sh", "-c", keeper, "sh", s.dir, bin)
	s.keeper.Dir = s.dir
	s.keeper.SysProcAttr = &syscall.SysProcAttr{Setpgid: true, Credential: s.user} // out of reach of the terminal's signals
	var complaint strings.Builder
	s.keeper.Stderr = &complaint
	if s.input, err = s.keeper.StdinPipe(); err != nil {
		return nil, err
	}
	out, err := s.keeper.StdoutPipe()
	if err != nil {
		return nil, err
	}
	if err := s.keeper.Start(); err != nil {
		return nil, err
	}
	if line, _ := bufio.NewReader(out).ReadString('\n'); line != "ready\n" {
		return nil, fmt.Errorf("initdb: %w\n%s", s.keeper.Wait(), complaint.String())
	}
	return s, s.start("")
}

// start starts the server, after it was stopped or killed.
func (s *server) start(options string) error {
	_, err := fmt.Fprintln(s.input, settings, options)
	return err
}

// crash ends the server at once, without a checkpoint or a flush, and returns when it is gone.
func (s *server) crash() error {
	path := filepath.Join(s.dir, "data", "postmaster.pid")
	data, err := os.ReadFile(path)
	if err != nil {
		return err
	}
	pid, err := strconv.Atoi(string(data[:max(0, bytes.IndexByte(data, '\n'))]))
	if err != nil {
		return err
	}
	if err := syscall.Kill(pid, syscall.SIGQUIT); err != nil {
		return err
	}
	tick := time.NewTicker(5 * time.Millisecond)
	defer tick.Stop()
	for until := time.Now().Add(patience); time.Now().Before(until); <-tick.C {
		if _, err := os.Stat(path); errors.Is(err, os.ErrNotExist) {
			return nil
		}
	}
	return errors.New("the server did not end")
}

// dsn is for pgx.
func (s *server) dsn() string {
	return "host=" + s.dir + " user=postgres dbname=postgres sslmode=disable"
}

// log returns what the server wrote.
func (s *server) log() string {
	data, _ := os.ReadFile(filepath.Join(s.dir, "log"))
	return string(data)
}

// stop ends the server, removes its directory and returns when both are gone.
func (s *server) stop() error {
	if err := errors.Join(s.input.Close(), s.keeper.Wait()); err != nil {
		return err
	}
	if _, err := os.Stat(s.dir); !errors.Is(err, os.ErrNotExist) {
		return fmt.Errorf("the server's directory was left: %v", err)
	}
	return nil
}

// binaries returns the directory of the newest PostgreSQL: Debian has them beside the PATH.
func binaries() (string, error) {
	dirs, err := filepath.Glob("/usr/lib/postgresql/*/bin")
	if err != nil {
		return "", err
	}
	version := func(dir string) int {
		n, _ := strconv.Atoi(filepath.Base(filepath.Dir(dir)))
		return n
	}
	slices.SortFunc(dirs, func(a, b string) int { return version(b) - version(a) })
	dirs = append(dirs, strings.Split(os.Getenv("PATH"), string(os.PathListSeparator))...)
	for _, dir := range dirs {
		if _, err := exec.LookPath(filepath.Join(dir, "initdb")); err == nil {
			return dir, nil
		}
	}
	return "", fmt.Errorf("%w: there is no initdb in /usr/lib/postgresql/*/bin or the PATH", errNoServer)
}

func credential(name string) (*syscall.Credential, error) {
	u, err := user.Lookup(name)
	if err != nil {
		return nil, fmt.Errorf("%w: no user to run it as, and root may not: %w", errNoServer, err)
	}
	uid, err := strconv.ParseUint(u.Uid, 10, 32)
	if err != nil {
		return nil, err
	}
	gid, err := strconv.ParseUint(u.Gid, 10, 32)
	if err != nil {
		return nil, err
	}
	return &syscall.Credential{Uid: uint32(uid), Gid: uint32(gid)}, nil
}

// killProcess ends a process of the server's as if it had crashed.
func killProcess(pid int) error { return syscall.Kill(pid, syscall.SIGKILL) }
