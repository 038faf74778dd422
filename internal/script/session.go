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
	markAccepted = "a" // both: the session's shell took this dispatch, and no other of the same command
	markShell    = "p" // stdout: followed by a colon and the process of the session's shell
	markProcess  = "g" // stdout: followed by a colon, the command's process, a colon and its start time, if that is known
	markNoRoom   = "n" // stdout: there was no room for the command's files: it was not started
	markFree     = "f" // stdout: nothing that the command has left behind holds its output
	markRefused  = "r" // both: this dispatch was a copy of an earlier one, or came too late: nothing was started
	markStarted  = "s" // stdout: the command takes over now
	markWrapped  = "w" // stdout: the command's wrapper let it begin
	markStale    = "l" // stdout: the command has no wrapper because the list of writable directories has changed
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
	ID    string // names the command in the session's list, and its files: unguessable; [A-Za-z0-9-]+
	Fence uint64 // larger than that of every earlier dispatch to this session, and greater than 0
	Login Login  // its Mark is set from the field below
	Mark  Mark
	Stdin []byte // the whole input of the command, which fits into a pipe, or
	Feed  bool   // it comes later: see [Session.Files] and [Journal.Feed]
}

// ownGroup runs its arguments in a process group of their own, as far as the shell that runs it controls jobs without a
// terminal: bash does, dash does not. A shell that still controlled jobs would not wait for the end of one that is stopped.
const ownGroup = `set -m; "$@" <&4 2>&3 3>&- 4<&- & set +m; exec 3>&- 4<&-; wait $!`

// RefusedStatus is the exit status of a dispatch that was refused, and of a command that was not started. A command may end with
// it too: only the marks tell.
const RefusedStatus = 255

// Files reports that the command needs files in the sandbox: a FIFO for an input that comes later, or room for a script
// that is too long for an argument of a process. They are those of a journal without the output, and stay until
// [Session.Remove]. Without room for them the command is not started, and the log says so.
func (s Session) Files() bool {
	return s.Feed || s.Login.longScript() || len(s.command()) > maxText
}

// Remove returns a script that removes the command's files, and lets go who waits at them.
func (s Session) Remove() Script {
	j := Journal{ID: s.ID}
	return j.script(j.open(Wait{}, 0) + `if [ -p "$_record.in" ] && ! exited; then
echo 'exit 137' >>"$_record"
echo 1<>"$_record.k"
true <>"$_record.in"
sleep 0.1
fi
erase "$_record"
`)
}

// command returns the script of the command's shell, whose argument is the path of its files, or empty. Its process is told
// at once, so that what stays in its group can be ended even when the process itself is gone.
func (s Session) command() string {
	login := s.Login
	login.Mark = s.Mark
	if login.longScript() {
		login.file = `"$_leasehold_r.s"`
	}
	return s.tell() + login.Text()
}

// tell returns lines that tell the shell's process, and drop the parameters.
func (s Session) tell() string {
	return `_leasehold_r=$1
if { read -r _leasehold_z </proc/self/stat; } 2>/dev/null; then
_leasehold_p=${_leasehold_z%% *}
set -- ${_leasehold_z##*) }
_leasehold_z=${20}
else
_leasehold_p=$$ _leasehold_z=
fi
set --
if [ "$_leasehold_r" ]; then echo "pid $_leasehold_p $_leasehold_z" >>"$_leasehold_r"; fi
printf '%s:%s:%s\n' ` + s.Mark.word(markProcess) + ` $_leasehold_p "$_leasehold_z"
`
}

// files returns a command substitution that makes the command's files and yields their path, or nothing.
func (s Session) files(command string) string {
	j := Journal{ID: s.ID}
	var b strings.Builder
	b.WriteString("$(\n" + j.open(Wait{}, 0))
	b.WriteString("(umask 077; mkdir \"$_dir\")\nset -C\nif [ -O \"$_dir\" ] && [ ! -L \"$_dir\" ] && true >\"$_record\"; then\nset +C\nif echo >>\"$_record\"")
	if s.Feed {
		b.WriteString(" && " + hold)
	}
	if s.Login.longScript() {
		b.WriteString(" && " + emit(s.Login.Script) + " >\"$_record.s\"")
	}
	if len(command) > maxText {
		b.WriteString(" && " + emit(command) + " >\"$_record.c\"")
	}
	b.WriteString("; then printf %s \"$_record\"; else rm -f \"$_record\" \"$_record\".*; fi\nfi\n)")
	return b.String()
}

// free defines two functions for the session's shell. The first notes the processes there are; the second is true if no
// other one holds the shell's output, for whose end the daemon would wait before the next command. A new process that
// cannot be looked into may hold it; one that is gone may have left a child, so the look is repeated. No process is
// started for that. Of a process whose main thread has ended the other threads tell.
const free = `_leasehold_before() { set -- /proc/[0-9]*; _leasehold_q=" $* "; }
_leasehold_free() {
if [ "${ZSH_VERSION-}" ]; then emulate -L sh; fi
for _leasehold_k in 1 2 3 4 5 6 7 8 9; do
for _leasehold_d in /proc/[0-9]*; do
case $_leasehold_q in *" $_leasehold_d "*) continue ;; esac
set -- $_leasehold_d/fd/*
[ -e $1 ] || set -- $_leasehold_d/task/*/fd/*
for _leasehold_f in $*; do
if [ $_leasehold_f -ef /proc/self/fd/1 ] || [ $_leasehold_f -ef /proc/self/fd/2 ]; then return 1; fi
done
[ -d $_leasehold_d ] || continue 2
[ -r $_leasehold_d/fd ] || return 1
done
return 0
done
return 1
}
`

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
	command, files := s.command(), s.Files()
	var b strings.Builder
	fmt.Fprintf(&b, ": %s\n", s.ID)
	fmt.Fprintf(&b, "if [ %d -gt \"${_leasehold_n:-0}\" ]; then\n", s.Fence)
	fmt.Fprintf(&b, "_leasehold_n=%d\n", s.Fence)
	b.WriteString(s.Mark.print(markAccepted) + "\n")
	b.WriteString(s.Mark.print(markAccepted) + " >&2\n")
	b.WriteString("printf '%s:%s\\n' " + s.Mark.word(markShell) + " $$\n")
	b.WriteString(s.Login.shell("_leasehold_sh") + "\n")
	fmt.Fprintf(&b, "_leasehold_rc=%d _leasehold_r=\n", RefusedStatus) // if a redirection below fails, its group does not run
	argv, carrying := `"$_leasehold_sh" -c `+sourced+` sh "$_leasehold_r"`, ""
	if len(command) <= maxText {
		argv, carrying = `"$_leasehold_sh" -c `+carried+` sh "$_leasehold_r"`, carry("_leasehold_c")
		b.WriteString("_leasehold_c=" + quoteText(command) + "\n")
	}
	if s.Login.Bwrap != nil {
		b.WriteString("_leasehold_w=" + Quote(s.Login.Bwrap.launcher(s.tell(), s.Mark.print(markWrapped), s.Mark.print(markStale))) + "\n")
		argv = `/bin/sh -c "$_leasehold_w" sh "$_leasehold_r" "$_leasehold_sh"`
	}
	if files {
		b.WriteString("_leasehold_r=" + s.files(command) + "\nif [ \"$_leasehold_r\" ]; then\n")
	}
	b.WriteString(free + "if [ -r /proc/self/stat ]; then _leasehold_before; fi\n")
	stdin := "/dev/null"
	if s.Feed {
		stdin = `"$_leasehold_r.in"`
		b.WriteString("(_record=$_leasehold_r\n" + keeper + ") 2>/dev/null\n") // an orphan: the command has no child that it does not know
	}
	b.WriteString("{\n")
	if len(s.Stdin) > 0 {
		b.WriteString(emit(string(s.Stdin)) + " 3>&- | {\n")
	}
	// In a subshell, because dash redirects in the parent, which then says "Killed" on the command's stderr.
	b.WriteString("if command -v setsid >/dev/null; then set +m; (" + carrying + "exec setsid " + argv + " 2>&3 3>&-)\n")
	b.WriteString("else (" + carrying + "exec \"$_leasehold_sh\" -c " + Quote(ownGroup) + " sh " + argv + " 4<&0); fi\n")
	if len(s.Stdin) > 0 {
		b.WriteString("}\n")
	}
	b.WriteString("_leasehold_rc=$?\n")
	if files { // and nobody has removed them
		b.WriteString("if [ -s \"$_leasehold_r\" ]; then\necho \"exit $_leasehold_rc\" >>\"$_leasehold_r\"\n")
		if s.Feed {
			b.WriteString("[ -e \"$_leasehold_r.x\" ] || echo 1<>\"$_leasehold_r.k\"\ntrue <>\"$_leasehold_r.in\"\n")
		}
		b.WriteString("fi\n")
	}
	b.WriteString("} <" + stdin + " 3>&2 2>/dev/null\n")
	if files {
		b.WriteString("else " + s.Mark.print(markNoRoom) + "\nfi\n")
	}
	out, err := s.Mark.word(markStdout), s.Mark.word(markStderr)
	b.WriteString("printf '%s\\n%s:%s\\n' " + err + " " + err + " \"$_leasehold_rc\" >&2\n")
	b.WriteString("if [ \"${_leasehold_q-}\" ] && _leasehold_free; then printf '%s\\n%s\\n%s:%s\\n' " + out + " " + s.Mark.word(markFree) + " " + out + " \"$_leasehold_rc\"\n")
	b.WriteString("else printf '%s\\n%s:%s\\n' " + out + " " + out + " \"$_leasehold_rc\"; fi\n")
	b.WriteString("else\n")
	b.WriteString(s.Mark.print(markRefused) + "\n")
	b.WriteString(s.Mark.print(markRefused) + " >&2\n")
	fmt.Fprintf(&b, "_leasehold_rc=%d\n", RefusedStatus)
	b.WriteString("fi\n")
	b.WriteString("unset _leasehold_c _leasehold_q _leasehold_w\n_leasehold_end() { return \"$1\"; }\n_leasehold_end \"$_leasehold_rc\"\n")
	return b.String()
}

// What [Look] prints.
const (
	LookAlive   = "alive"
	LookStopped = "stopped" // by a signal, until another one continues it
	LookGone    = "gone"
)

// Look returns a script that tells what became of a process. One that nobody waited for after its end is gone. Start is its start
// time as /proc says it, empty if that is not known.
func Look(process int, start string) string {
	return "exec 2>/dev/null\nif [ \"${ZSH_VERSION-}\" ]; then emulate sh; fi\n" + describe + fmt.Sprintf(`if ! [ -r /proc/self/stat ]; then
if kill -0 %[1]d; then echo alive; else echo gone; fi
elif describe %[1]d && set -- ${_line##*) } && ! ended "$@" && case %[2]s in ''|${20}) ;; *) false ;; esac; then
case $1 in X) echo gone ;; T|t) echo stopped ;; *) echo alive ;; esac
else echo gone; fi
`, process, Quote(start))
}

// Fence returns a dispatch that starts nothing: once it has run, every dispatch with a smaller fence is refused for ever.
func Fence(id string, fence uint64) string {
	return fmt.Sprintf(": %s\nif [ %d -gt \"${_leasehold_n:-0}\" ]; then _leasehold_n=%d; fi\n", id, fence, fence)
}
