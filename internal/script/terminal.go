package script

import (
	_ "embed"
	"fmt"
	"strings"
)

// Terminal writes what the login shell of a pseudo-terminal is told to become: a shell script that it reads from its
// environment, where it does not meet the limits and the echo of a terminal's input.
type Terminal struct {
	Mark  string // sets what the script says apart from everything else: unguessable, [A-Za-z0-9]+
	Login Login  // without Args it is the login shell itself. Script and Profiles do not matter: the login shell has read them
}

// TerminalLine is what is typed to a login shell whose environment holds [Terminal.Env] or [Terminal.Channel].
const TerminalLine = " eval \"$" + carrier + "\"\r"

// Say returns how a line begins that the script says: it ends with a newline, before which there may be a carriage return.
func (t Terminal) Say() string { return "\x16" + t.Mark }

// End returns the mark that ends the output of a channel's command, and its standard error: see [stream.End].
func (t Terminal) End() string { return "\x17" + t.Mark }

// Ack is what is typed once the exit of an interactive command has been seen. Before it the script does not end: the
// daemon loses the last output of some terminals that do.
func (t Terminal) Ack() string { return "\n" + t.Mark + "\n" }

// What the script of a terminal says.
const (
	SaysStarted = "started" // the command takes over. Channels add its process
	SaysNoDir   = "nodir"   // the directory cannot be entered
	SaysMissing = "missing" // followed by a tool that the sandbox lacks
	SaysExit    = "exit"    // followed by the exit code
)

// Env returns the environment in which a login shell runs the command interactively, on a terminal of the given size. An
// error says that the command is too long for that.
func (t Terminal) Env(cols, rows int) (map[string]string, error) {
	program := `"$_shell" -i -l`
	if len(t.Login.Args) > 0 {
		program = t.Login.program()
	}
	text := fmt.Sprintf("_mark=%s _size='rows %d cols %d' _dir=%s _shell=$1\n", t.Mark, rows, cols, Quote(t.Login.Dir)) +
		code(terminal) + "( " + t.Login.within("exec ") + program + " 2>&8 8>&- )\n_code=$?\nlast exit $_code\n"
	return t.carry(text, `"${0#-}"`)
}

// terminal is the script before the command. It repeats its last word every second, for a host that comes back, and gives
// up after ten minutes.
//
// Signals that keys send are for the command, which is in the same process group. A command that was killed may have left the
// terminal to a group of its own: then nothing can be read any more, and the host removes the terminal once it has heard.
const terminal = `trap : INT QUIT TSTP
exec 8>&2 2>/dev/null
say() { printf '\026%s %s\n' "$_mark" "$*"; }
last() {
trap '' INT QUIT TSTP TTIN TTOU
stty raw -echo
{ _n=0; while [ $_n -lt 600 ]; do say "$@"; sleep 1; _n=$((_n+1)); done; kill -KILL $$; } &
_heard=
while IFS= read -r _line; do case $_line in *"$_mark") _heard=1; break;; esac; done
[ "$_heard" ] || wait
kill $!
[ "$1" = exit ] || exit 125
exit $2
}
command -v "$_shell" >/dev/null || _shell=${SHELL:-/bin/sh}
stty sane $_size
command cd -- "$_dir" || last nodir
say started
`

//go:embed channel.sh
var channel string

// Channel returns the environment in which a login shell makes the terminal a channel to the command, which is not
// interactive: it has no terminal. An error says that the command is too long for that.
//
// The script is told lines, of which those with data are followed by it:
//
//	out, err     standard output, or error, may be sent for another round
//	data <n>     the next n bytes are input
//	text <s>     so is what printf makes of s
//	end          the input has ended
//	kill <pid>   the command is to be killed
//	quit         so is the script
func (t Terminal) Channel(stderr bool) (map[string]string, error) {
	errors := ""
	if stderr {
		errors = "1"
	}
	command := `printf '\026%s started %s\n' ` + t.Mark + " $$ >&3\nexec 3>&- 4>&- 5>&-\n" + t.Login.exec("exec ")
	text := "_mark=" + t.Mark + " _dir=" + Quote(t.Login.Dir) + "\n_command=" + quoteText(command) + "\n_carried=" + carried + "\n" + code(channel)
	return t.carry(text, errors)
}

// carry puts a script and its argument, a word, into the environment of a login shell.
func (t Terminal) carry(text, argument string) (map[string]string, error) {
	env := CarryTerminal("_text=" + quoteText(text) + "\nTERM=" + Quote(t.term()) + "\nexport TERM\n" + carry("_text") + "exec /bin/sh -c " + carried + " sh " + argument + "\n")
	if size := len(carrier) + 1 + len(env[carrier]); size > MaxWord {
		return nil, fmt.Errorf("it takes %d bytes of a terminal's environment, and may take %d", size, MaxWord)
	}
	return env, nil
}

// CarryTerminal returns the environment of a login shell that runs text when [TerminalLine] is typed. A dumb terminal keeps it
// from decorating its prompt, and no history is written.
func CarryTerminal(text string) map[string]string {
	return map[string]string{carrier: "unset " + carrier + " HISTFILE\n" + text, "TERM": "dumb", "HISTFILE": "/dev/null"}
}

// TerminalRows is how many rows a terminal has at first. So few keep zsh from asking a new user how to configure it.
const TerminalRows = 10

// CarriedMark returns the mark in a terminal's environment, or nothing if no script of a [Terminal] is there.
func CarriedMark(env map[string]string) string {
	_, rest, found := strings.Cut(env[carrier], "_mark=")
	mark, _, ended := strings.Cut(rest, " ")
	if !found || !ended {
		return ""
	}
	return mark
}

func (t Terminal) term() string {
	if term := t.Login.Env["TERM"]; term != "" {
		return term
	}
	return "xterm-256color"
}

// InputText returns the line that carries a short input without a process in the sandbox, or nothing where that would not
// be cheaper.
func InputText(p []byte) string {
	const most = 1024
	if len(p) > most {
		return ""
	}
	var b strings.Builder
	b.WriteString("text ")
	for i, c := range p {
		if c > ' ' && c < 0x7f && c != '\\' && c != '%' && (c != '-' || i > 0) {
			b.WriteByte(c)
		} else {
			fmt.Fprintf(&b, `\%03o`, c)
		}
		if b.Len() > most {
			return ""
		}
	}
	b.WriteByte('\n')
	return b.String()
}
