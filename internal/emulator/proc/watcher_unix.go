//go:build unix

package proc

import (
	"fmt"
	"os"
	"os/exec"
	"strings"
)

// watcherScript runs in /bin/sh with the mark of the supervisor as its first parameter. It reads what the host tells it:
//
//	dir PATH   remove this directory at the end; bytes other than letters, digits and / are written \0ooo
//	group N    a process group to kill, where processes are not found by their environment
//	done       the host has cleaned up: exit
//
// End of file without "done" is the death of the host. The host may have died between fork and exec, and a process may
// fork and exit while the script looks, so it looks until nothing has turned up ten times in a row.
const watcherScript = `
trap '' HUP INT QUIT TERM
mark=$1
shift
groups=
while IFS= read -r line; do
	case $line in
	done) exit 0 ;;
	group\ *) groups="$groups ${line#group }" ;;
	dir\ *)
		dir=$(printf '%bx' "${line#dir }")
		set -- "$@" "${dir%x}"
		;;
	esac
done

# Each one is stopped as soon as it is seen, before it can fork and exit.
at_once=
if echo x | grep --line-buffered x >/dev/null 2>&1; then at_once=--line-buffered; fi

# A process whose main thread has ended looks like a zombie, but for its other threads, which have its environment.
find_marked() {
	threads=$(cat /proc/[0-9]*/status 2>/dev/null | awk '
		/^State:/ { state = $2 }
		/^Pid:/ { pid = $2 }
		/^Threads:/ { if (state == "Z" && $2 > 1) print "/proc/" pid "/task/[0-9]*/environ" }')
	found=$(grep $at_once -lsF -e "$mark" /proc/[0-9]*/environ $threads | while IFS= read -r path; do
		pid=${path#/proc/}
		pid=${pid%%/*}
		kill -STOP "$pid"
		printf '%s ' "$pid"
	done)
	[ -n "$found" ] || return 0
	cat /proc/[0-9]*/status 2>/dev/null | awk -v found="$found" '
		/^State:/ { state = $2 }
		/^Pid:/ { pid = $2; sid = 0 }
		/^PPid:/ { ppid = $2 }
		/^NSsid:/ { sid = $2 }
		/^Threads:/ { if (state != "X" && (state != "Z" || $2 > 1)) { parent[pid] = ppid; session[pid] = sid } }
		END {
			n = split(found, list, " ")
			for (i = 1; i <= n; i++) if (list[i] in parent) in_tree[list[i]] = 1
			do {
				grown = 0
				for (p in in_tree) if (session[p] > 0) ours[session[p]] = 1
				for (p in parent) if (!(p in in_tree) && ((parent[p] in in_tree) || (session[p] in ours))) {
					in_tree[p] = 1
					grown = 1
				}
			} while (grown)
			for (p in in_tree) print p
		}'
}

find_groups() {
	ps -A -o pid=,ppid=,pgid=,stat= | awk -v groups="$groups" '
		BEGIN { n = split(groups, list, " "); for (i = 1; i <= n; i++) wanted[list[i]] = 1 }
		$4 !~ /^Z/ { parent[$1] = $2; if ($3 in wanted) in_tree[$1] = 1 }
		END {
			do {
				grown = 0
				for (p in parent) if (!(p in in_tree) && (parent[p] in in_tree)) { in_tree[p] = 1; grown = 1 }
			} while (grown)
			for (p in in_tree) print p
		}'
}

find_all() {
	if [ -r /proc/self/environ ]; then find_marked; elif [ -n "$groups" ]; then find_groups; fi
}

clean=0
round=0
while [ "$round" -lt 200 ] && [ "$clean" -lt 10 ]; do
	round=$((round + 1))
	pids=$(find_all)
	if [ -z "$pids" ]; then
		clean=$((clean + 1))
	else
		clean=0
		kill -STOP $pids
		kill -KILL $pids $(find_all)
	fi
	sleep 0.03 || sleep 1
done
if [ "$#" -gt 0 ]; then
	rm -rf -- "$@" || { chmod -R u+rwx -- "$@"; rm -rf -- "$@"; }
fi
`

// A watcher is the process that outlives the host for a moment.
type watcher struct {
	pipe *os.File      // held by the host alone: its end is the host's end
	done chan struct{} // closed when the process has ended
}

// startWatcher starts the watcher in a session of its own, so that a signal to the host's terminal does not reach it.
// Its environment holds no mark of this supervisor, else it would find itself.
func startWatcher(mark, outer string) (*watcher, error) {
	read, write, err := os.Pipe()
	if err != nil {
		return nil, err
	}
	defer read.Close()
	cmd := exec.Command("/bin/sh", "-c", watcherScript, "sh", mark)
	cmd.Dir = "/"
	cmd.Stdin = read
	cmd.Env = []string{"PATH=/usr/bin:/bin:/usr/sbin:/sbin:" + os.Getenv("PATH"), "LC_ALL=C", Variable + "=" + outer}
	setSession(cmd)
	if err := cmd.Start(); err != nil {
		write.Close()
		return nil, fmt.Errorf("proc: start the watcher: %w", err)
	}
	w := &watcher{pipe: write, done: make(chan struct{})}
	go func() {
		defer close(w.done)
		_ = cmd.Wait()
		write.Close()
	}()
	return w, nil
}

func (w *watcher) remove(dir string) {
	var b strings.Builder
	for i := range len(dir) {
		switch c := dir[i]; {
		case c == '/', '0' <= c && c <= '9', 'A' <= c && c <= 'Z', 'a' <= c && c <= 'z':
			b.WriteByte(c)
		default:
			fmt.Fprintf(&b, `\0%03o`, c)
		}
	}
	w.tell("dir " + b.String())
}

// tell sends one line. A watcher that has gone does not hear it; the next process gets a new one.
func (w *watcher) tell(line string) { _, _ = w.pipe.WriteString(line + "\n") }

func (w *watcher) gone() bool {
	select {
	case <-w.done:
		return true
	default:
		return false
	}
}

// dismiss ends the watcher and waits for it.
func (w *watcher) dismiss() {
	w.tell("done")
	w.pipe.Close()
	<-w.done
}
