package script

import (
	"fmt"
	"strings"
	"time"
	"unicode/utf8"
)

// Journal writes the scripts of one command that keeps its own record in the sandbox. Each script is the input of the
// shell that POST /process/execute starts, in any of sh, dash, bash, zsh and busybox, and prints one frame: see [ReadFrame].
//
// The journal is a set of files in a private directory, $TMPDIR/.leasehold-<uid>, or /tmp/.leasehold-<uid> where TMPDIR is
// not absolute, or holds a newline:
//
//	<id>    the record. Creating it exclusively (noclobber is open with O_EXCL) is the once-only guard: whoever creates
//	        it starts the command, everybody else observes it. Then it takes lines, each written at once, through a
//	        descriptor that the command itself does not get. First comes an empty one, which reserves the block that all
//	        fit into, so that a disk which is full by the time the command ends does not cost its exit. The others are:
//	          pid <process> <start time>  of the command. If it has a wrapper, there are two: the first is of the shell around that
//	          wrapped, stale              the wrapper let the command begin, or there is none, see [Bwrap]
//	          started, nodir              the command takes over, or its directory could not be entered
//	          exit <code>
//	          empty o, cut o, copied o    the end of standard output; of standard error, with an e
//	<id>.o  standard output, byte for byte, and then the end mark, unless the record says "empty o"
//	<id>.e  standard error, likewise
//	<id>.*  what else is needed
//
// When the result was taken all is removed but the record, which is emptied: a copy of the dispatch that arrives late
// still finds it. Such tombstones are swept after an hour.
type Journal struct {
	ID   string // unguessable; [A-Za-z0-9-]+
	Mark string // sets the frame apart from what the command prints: unguessable, [A-Za-z0-9]+
}

// End returns the mark that ends both streams of the command in their files: see [stream.End]. Scripts carry it in their
// input, and so it is in no process's arguments or environment.
func (j Journal) End() string { return "\x17" + j.Mark }

// Start is a dispatch.
type Start struct {
	Login Login
	Stdin []byte // the whole input of the command, or
	Feed  bool   // it comes later: see [Journal.Feed]
	Wait  Wait
	// Drop are the ids of journals whose results were taken. They are removed in the background.
	Drop []string
	// Sweep removes, in the background, what other hosts left behind.
	Sweep bool
}

// Wait says how long a script waits for news before it prints its frame. The end of the command ends the wait within two
// [Tick].
type Wait struct {
	Limit time.Duration
	// Output makes bytes beyond the offsets end the wait, too.
	Output         bool
	Stdout, Stderr int64 // offsets in the files; [Done]: the stream has ended
	Inline         int   // how much of each stream the frame carries
	// Ends is for an exit that is known while the end of a stream is not: the exit does not end the wait.
	Ends bool
	// Lost is the number of earlier scripts of this command whose replies were lost, and which may still be waiting.
	Lost int
}

// Done is the offset of a stream of which nothing more is wanted.
const Done = -1

// Tick is how often a waiting script looks.
const Tick = 50 * time.Millisecond

// Inline is how much of each stream a frame carries at first, and InlineMore how much while more is awaited: output that
// is not text takes up to six times the room in a reply, and is read again.
const (
	Inline     = 64 << 10
	InlineMore = 4 << 10
)

// KeepTombstones and KeepJournals are how long what nobody removed stays: records of commands whose results were taken,
// and journals of hosts that died. Journals of commands that still run stay.
const (
	KeepTombstones = time.Hour
	KeepJournals   = 24 * time.Hour
)

// MaxArguments is how much the arguments and the environment of one command may take together. Linux allows a quarter of
// the stack's limit, 2 MiB by default, for all that a process is started with; the rest is for the daemon's environment.
const MaxArguments = 3 << 19

// Start returns the script that starts the command, unless a copy of it has done so already, and waits.
func (j Journal) Start(s Start) Script {
	var b strings.Builder
	// A command that ends within a tick needs no second request, even if it prints.
	const patience = 1
	b.WriteString(j.open(s.Wait, patience) + claim)
	if len(s.Drop) > 0 || s.Sweep {
		b.WriteString(chores(s.Drop, s.Sweep) + " </dev/null >/dev/null &\n")
	}
	b.WriteString(waiting + "if [ \"$_won\" ]; then\n{ echo >>\"$_record\" && true >>\"$_stdout\" && true >>\"$_stderr\"")
	stdin := "/dev/null"
	if len(s.Stdin) > 0 {
		stdin = `"$_record.i"`
		b.WriteString(" && " + emit(string(s.Stdin)) + " >" + stdin)
	}
	if s.Feed {
		stdin = `"$_record.in"`
		b.WriteString(" && " + hold)
	}
	login := s.Login.recorded()
	if login.longScript() {
		b.WriteString(" && " + emit(login.Script) + ` >"$_record.s"`)
		login.file = `"$_leasehold_record.s"`
	}
	text := login.Text()
	if len(text) > maxText {
		b.WriteString(" && " + emit(text) + ` >"$_record.c"`)
	}
	b.WriteString("; } || " + full)
	if s.Feed {
		b.WriteString(keeper)
	}
	b.WriteString(launch(login, text, stdin))
	b.WriteString(run + "else\n" + observe + "fi\n")
	return j.script(b.String())
}

// launch returns the function of that name, which runs the command: on systems with /proc, a command that reads no
// profiles is what a subshell becomes; others get a shell of their own. Of the subshell alone are the streams: dash says
// "Killed" on the standard error of what waits for it.
func launch(login Login, text, stdin string) string {
	const process = "launch() {\n(\ntrap - XFSZ\n"
	streams := ") <" + stdin + " 2>&6 4>&- 5>&- 6>&- 7>&-\n}\n"
	var b strings.Builder
	b.WriteString("_setsid=setsid\nif [ \"${BASH_VERSION-}\" ]; then _setsid=; fi\n")
	inline := login.Bwrap == nil && login.Profiles == NoProfiles && len(text) <= MaxWord/4 && utf8.ValidString(text)
	if inline {
		b.WriteString("if [ -r /proc/self/stat ] && { [ ! \"$_setsid\" ] || command -v setsid >/dev/null; }; then\n")
		b.WriteString("_leasehold_record=$_record\n" + process + login.inline() + streams + "else\n")
	}
	b.WriteString(login.shell("_shell") + "\n")
	shell, carrying := `"$_shell" -c `+carried+` sh "$_record"`, carry("_text")+"\n"
	if len(text) <= maxText {
		b.WriteString("_text=" + quoteText(text) + "\n")
	} else {
		shell, carrying = `"$_shell" -c `+sourced+` sh "$_record"`, ""
	}
	if login.Bwrap != nil {
		b.WriteString("_around=" + Quote(login.Bwrap.launcher(recordProcess, "exec 9>>\"$_leasehold_record\"\necho wrapped >&9 || exit", "echo stale >&9")) + "\n")
		shell = `/bin/sh -c "$_around" sh "$_record" "$_shell"`
	}
	b.WriteString(process + carrying + `if [ ! "$_setsid" ] || command -v setsid >/dev/null; then exec $_setsid ` + shell + "; fi\n")
	b.WriteString(`exec "$_shell" -c ` + Quote(ownJob) + " " + shell + "\n" + streams)
	if inline {
		b.WriteString("fi\n")
	}
	return b.String()
}

// ownJob is how the shell $0 is started, with the arguments that follow, where there is no setsid: see ownGroup.
const ownJob = `set -m; "$0" "$@" & set +m; wait $!`

// Observe returns a script that waits for news of the command.
func (j Journal) Observe(w Wait) Script {
	return j.script(j.open(w, 0) + waiting + "if [ ! -f \"$_record\" ]; then frame gone; exit; fi\n" + observe)
}

// Settle returns a script that finds out whether the command was started, and makes sure that it will not be if it was
// not: it takes the record for itself.
func (j Journal) Settle(w Wait) Script {
	return j.script(j.open(w, 0) + waiting + claim + settle + observe)
}

const settle = `if [ "$_won" ]; then frame none$_new; exit; fi
`

// Process is a command's process. The zero value is one that is not known.
type Process struct {
	ID    int
	Birth string // its start time, as the system says it; empty: it does not
}

// Stop returns a script that ends the command, its session and all that descends from it: it asks (SIGTERM), and kills
// after two seconds. If its process is known, that works without the record. A command that was not started will not be,
// see [Journal.Settle]. The frame begins at the offsets of w.
func (j Journal) Stop(w Wait, known Process) Script {
	if known.ID != 0 {
		return j.script(j.openKnown(w, known) + stop)
	}
	return j.script(j.open(w, 0) + claim + settle + stop)
}

// Signals are those that [Journal.Signal] sends: all shells have the same names for them, but ABRT.
var Signals = strings.Fields("ABRT ALRM BUS CHLD CONT FPE HUP ILL INT KILL PIPE PROF QUIT SEGV STOP SYS TERM TRAP TSTP TTIN TTOU URG USR1 USR2 VTALRM WINCH XCPU XFSZ")

// Signal returns a script that sends one of [Signals] to the command's process group. If its process is known, that works
// without the record.
func (j Journal) Signal(name string, known Process) Script {
	if name == "ABRT" { // zsh calls it IOT; its number is POSIX's
		name = "6"
	}
	return j.script(j.openKnown(Wait{Stdout: Done, Stderr: Done}, known) + "_signal=" + name + "\n" + signal)
}

// Drop returns a script that removes journals whose results were taken.
func Drop(ids []string) Script {
	return Journal{}.script(Journal{}.open(Wait{}, 0) + chores(ids, false) + "\n")
}

// chores returns a subshell that removes journals whose results were taken, and sweeps.
func chores(ids []string, sweeping bool) string {
	text := "(\n_taken='" + strings.Join(ids, " ") + "'\n" + leftovers
	if sweeping {
		text += fmt.Sprintf("_tombstones=%d _journals=%d\n", int(KeepTombstones.Minutes()), int(KeepJournals.Minutes())) + sweep
	}
	return text + ")"
}

// open returns the settings, and what all scripts use.
func (j Journal) open(w Wait, patience int) string {
	flag := map[bool]int{true: 1}
	settings := fmt.Sprintf("_id=%s _stdout_from=%d _stderr_from=%d _inline=%d _limit=%d _patience=%d _output=%d _ends=%d\n",
		j.ID, w.Stdout, w.Stderr, w.Inline, w.Limit/Tick, patience, flag[w.Output], flag[w.Ends])
	return settings + setup + fmt.Sprintf("_reference=$_record.t%d\n", w.Lost)
}

// openKnown is open where the command's process may be known.
func (j Journal) openKnown(w Wait, known Process) string {
	text := j.open(w, 0)
	if known.ID != 0 {
		text = fmt.Sprintf("_known_process=%d\n%s_birth=%s\n", known.ID, text, Quote(known.Birth))
	}
	return text
}

// Script is what a request to execute carries: the input of a shell, and a variable of its environment.
type Script struct {
	Command string
	Env     map[string]string
}

// carrier is the variable that holds the text of a script. Zsh and bash read their input byte by byte, at half a
// millisecond for a thousand of them.
const carrier = "_leasehold"

// script makes text a script. Only the marks stay out of the environment, which other processes can read.
func (j Journal) script(text string) Script {
	mark := "unalias -a\nset +ae\n_mark=" + j.Mark + " _end=" + Quote(j.End()) + "\n"
	if len(text)+len(carrier)+1 <= MaxWord {
		return Script{mark + "_text=$" + carrier + "\nunset " + carrier + "\neval \"$_text\"\n", map[string]string{carrier: text}}
	}
	return Script{mark + "if [ \"${ZSH_VERSION-}${BASH_VERSION-}\" ]; then eval \"$(command cat)\"; exit; fi\n" + text, nil}
}

// emit returns a command that prints s, which may hold any bytes, and which itself is valid UTF-8.
func emit(s string) string {
	if utf8.ValidString(s) && strings.IndexByte(s, 0) < 0 {
		return "printf %s " + Quote(s)
	}
	return "printf " + Quote(octal(s))
}
