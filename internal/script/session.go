package script

import (
	"fmt"
	"strings"
)

// Mark is the unguessable text that sets the wrapper's own lines apart from a command's output: see package stream, which
// reads them. Scripts hold it in two pieces, so that no listing of processes and no copy
// of a script contains it as a whole: a command that prints either does not end its own output.
type Mark string

// NewMark returns the mark made from random, which must match [A-Za-z0-9]{32,}.
func NewMark(random string) Mark { return Mark("~lh" + random) }

// The letters after a mark. Each mark is the last thing on its line.
const (
	markAccepted = "a" // stdout: the session's shell took this dispatch, and no other of the same command
	markShell    = "p" // stdout: followed by a colon and the process of the session's shell
	markRefused  = "r" // both: this dispatch was a copy of an earlier one, or came too late: nothing was started
	markStarted  = "s" // stdout: the command takes over now
	markNoDir    = "d" // stdout: the directory could not be entered: the command was not started
	markStdout   = "o" // stdout: the command's output ends here, without a newline; then, on a line of its own, "o:<exit code>"
	markStderr   = "e" // stderr: likewise
)

// word returns the mark followed by suffix as one shell word in pieces.
func (m Mark) word(suffix string) string {
	half := len(m) / 2
	return "'" + string(m[:half]) + "''" + string(m[half:]) + suffix + "'"
}

// print returns a shell command that prints the mark with one letter, on a line.
func (m Mark) print(letter string) string { return "printf '%s\\n' " + m.word(letter) }

// Session is one dispatch of a command to a persistent session's shell, which sources what it is sent, one after another.
type Session struct {
	ID    string // names the command in the session's list, unguessable; [A-Za-z0-9-]+
	Fence uint64 // larger than that of every earlier dispatch to this session, and greater than 0
	Login Login  // its Mark is set from the field below
	Mark  Mark
	// Stdin is a file to read from; empty: /dev/null. The file's directory, Scratch, is removed as soon as the file is
	// open and before the command starts.
	Stdin   string
	Scratch string
}

// ownGroup runs the script $1 with the shell $0 in a process group of its own, as far as the shell that runs it controls
// jobs without a terminal: bash does, dash does not.
const ownGroup = `set -m; "$0" -c "$1" sh <&4 2>&3 3>&- 4<&- & exec 3>&- 4<&-; wait $!`

// RefusedStatus is the exit status of a dispatch that was refused. A command may end with it too: only the marks tell.
const RefusedStatus = 255

// Text returns what is sent to the session, which is valid UTF-8 even if the command is not. Its status is the command's.
//
// The shell itself keeps the once-only promise: it runs a dispatch only if its fence is above the last one it ran, so
// that a request delivered twice, or late, is refused wherever it was duplicated. No file is needed for that.
//
// The command is a child process, in a session and process group of its own where setsid exists (else, with job control,
// in a group of its own), so that exit, exec, set -e, syntax errors, kill $$ and kill 0 end the command alone. The
// shell's own words about it ("Killed") go to /dev/null, the command's stderr does not.
//
// Afterwards both streams get their end mark, whoever still holds the pipes. The text works in sh, dash, bash and zsh.
func (s Session) Text() string {
	login := s.Login
	login.Mark = s.Mark
	stdin := "/dev/null"
	if s.Stdin != "" {
		stdin = s.Stdin
	}
	var b strings.Builder
	fmt.Fprintf(&b, ": %s\n", s.ID)
	fmt.Fprintf(&b, "if [ %d -gt \"${_leasehold_n:-0}\" ]; then\n", s.Fence)
	fmt.Fprintf(&b, "_leasehold_n=%d\n", s.Fence)
	b.WriteString(s.Mark.print(markAccepted) + "\n")
	b.WriteString("printf '%s:%s\\n' " + s.Mark.word(markShell) + " $$\n")
	b.WriteString(login.shell("_leasehold_sh") + "\n")
	b.WriteString("_leasehold_c=" + quoteText(login.Text()) + "\n")
	b.WriteString("_leasehold_rc=125\n") // if the redirection of stdin fails, the group below does not run
	b.WriteString("{\n")
	if s.Scratch != "" {
		b.WriteString("rm -rf -- " + Quote(s.Scratch) + "\n")
	}
	// In a subshell, because dash redirects in the parent, which then says "Killed" on the command's stderr.
	b.WriteString("if command -v setsid >/dev/null; then set +m; (exec setsid \"$_leasehold_sh\" -c \"$_leasehold_c\" sh 2>&3 3>&-)\n")
	b.WriteString("else \"$_leasehold_sh\" -c " + Quote(ownGroup) + " \"$_leasehold_sh\" \"$_leasehold_c\" 4<&0; fi\n")
	b.WriteString("_leasehold_rc=$?\n")
	b.WriteString("} <" + Quote(stdin) + " 3>&2 2>/dev/null\n")
	end := "printf '%s\\n%s:%s\\n' "
	b.WriteString(end + s.Mark.word(markStdout) + " " + s.Mark.word(markStdout) + " \"$_leasehold_rc\"\n")
	b.WriteString(end + s.Mark.word(markStderr) + " " + s.Mark.word(markStderr) + " \"$_leasehold_rc\" >&2\n")
	b.WriteString("else\n")
	b.WriteString(s.Mark.print(markRefused) + "\n")
	b.WriteString(s.Mark.print(markRefused) + " >&2\n")
	fmt.Fprintf(&b, "_leasehold_rc=%d\n", RefusedStatus)
	b.WriteString("fi\n")
	b.WriteString("unset _leasehold_c\n_leasehold_end() { return \"$1\"; }\n_leasehold_end \"$_leasehold_rc\"\n")
	return b.String()
}

// What [Look] prints.
const (
	LookAlive   = "alive"
	LookStopped = "stopped" // by a signal, until another one continues it
	LookGone    = "gone"
)

// Look returns a script that tells what became of a process. One that nobody waited for after its end is gone.
func Look(process int) string {
	return fmt.Sprintf(`if ! [ -r /proc/self/stat ]; then
if kill -0 %[1]d 2>/dev/null; then echo alive; else echo gone; fi
elif { read -r z </proc/%[1]d/stat; } 2>/dev/null; then
case ${z##*)} in " Z"*|" X"*) echo gone ;; " T"*|" t"*) echo stopped ;; *) echo alive ;; esac
else echo gone; fi
`, process)
}

// Fence returns a dispatch that starts nothing: once it has run, every dispatch with a smaller fence is refused for ever.
func Fence(id string, fence uint64) string {
	return fmt.Sprintf(": %s\nif [ %d -gt \"${_leasehold_n:-0}\" ]; then _leasehold_n=%d; fi\n", id, fence, fence)
}
