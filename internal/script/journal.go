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
// The journal is a set of files in a private directory, $TMPDIR/.leasehold-<uid>:
//
//	<id>    the record. Creating it exclusively (noclobber is open with O_EXCL) is the once-only guard: whoever creates
//	        it starts the command, everybody else observes it. Then it takes lines, each written at once:
//	        "pid <process> <start time>", "started" or "nodir", "exit <code>". They fit into the block that the first
//	        of them reserves, so that a disk which is full by the time the command ends does not cost its exit code
//	<id>.o  standard output, byte for byte
//	<id>.e  standard error
//	<id>.*  what else is needed, see the fields
//
// When the result was taken all is removed but the record, which is emptied: a copy of the dispatch that arrives late
// still finds it. Such tombstones are swept after an hour.
type Journal struct {
	ID   string // unguessable; [A-Za-z0-9-]+
	Mark string // sets the frame apart from what the command prints: unguessable, [A-Za-z0-9]+
}

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

// Wait says how long a script waits for news before it prints its frame. An exit ends the wait within [Tick].
type Wait struct {
	Limit time.Duration
	// Output makes bytes beyond the offsets end the wait, too.
	Output         bool
	Stdout, Stderr int64 // offsets
	Inline         int   // how much of each stream the frame carries
	// Lost is the number of earlier scripts of this command whose replies were lost, and which may still be waiting.
	Lost int
}

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

// prelude finds the directory and defines what all scripts use.
//
// All variables begin with an underscore: a variable that the daemon's environment exports is not theirs to change.
//
//	F state   prints the frame
//	X         reads the record into _g (process), _z (its start time), _x (exit); true after the exit
//	A         is true while the process exists
//	G         is true if there is output beyond the offsets. A growing file is recognised without a process: it is not
//	          older than the reference file $_t, which is touched before the sizes are read, first of all once
//	V         waits for $_K ticks at most, each of which T waits for; T is true at the exit, at which it may return early
const prelude = `exec 2>/dev/null
if [ "${ZSH_VERSION-}" ]; then emulate sh; fi
case ${TMPDIR-} in /*) _p=${TMPDIR%%/};; *) _p=/tmp;; esac
_u=${UID:-$(id -u)}
_p=$_p/.leasehold-$_u _i=%s _w= _n= _g= _z= _x=
_r=$_p/$_i _o=$_p/$_i.o _e=$_p/$_i.e _h=/dev/shm/.leasehold-$_u-$_i
F() {
printf '\n%%s %%s %%s\n' "$_m" "$1" "$_p"
while read -r _l; do printf '%%s\n' "$_l"; done <"$_r"
printf '%%s o\n' "$_m"; D "$_o" $_O; printf '\n%%s e %%s\n' "$_m" $?; D "$_e" $_E; printf '\n%%s . %%s\n' "$_m" $?
}
D() {
[ -s "$1" ] || return 0
{ if [ $2 -gt 0 ]; then dd bs=1 skip=$2 count=0; fi; dd bs=$_I count=1; } <"$1"
}
X() {
while read -r _a _b _c; do case $_a in pid) _g=$_b _z=$_c;; exit) _x=$_b;; esac; done <"$_r"
[ "$_x" ]
}
A() {
kill -0 $_g || return
[ "$_z" ] || return 0
read -r _l <"/proc/$_g/stat" || return
_l=${_l##*) }
set -- $_l
[ "$1" != Z ] && [ "${20}" = "$_z" ]
}
`

// waiting is the rest of it, for scripts that wait.
const waiting = `_I=%[7]d _t=$_r.t%[1]d _O=%[2]d _E=%[3]d _Q=%[4]d _B=%[5]d _K=%[6]d _v= _d=
G() {
if [ $_O = 0 ] && [ $_E = 0 ]; then [ -s "$_o" ] || [ -s "$_e" ]; return; fi
if [ "$_d" ] && [ "$_t" -nt "$_o" ] && [ "$_t" -nt "$_e" ]; then return 1; fi
_d=1
true >"$_t"
set -- $(wc -c <"$_o"; wc -c <"$_e")
[ $1 -gt $_O ] || [ $2 -gt $_E ]
}
V() {
_k=0
while ! X && [ $_k -lt $_K ]; do
_k=$((_k+1))
if [ ! -e "$_r" ]; then return; fi
if [ $_Q = 1 ] && [ $_k -gt $_B ] && G; then return; fi
if [ "$_g" ] && ! A; then
for _j in 1 2 3 4 5 6 7 8 9 10 11 12 13 14 15 16 17 18 19 20; do X && return; sleep 0.05; done
X || _v=1
return
fi
if T; then return; fi
done
}
`

// claim makes the directory if need be and tries to create the record. Afterwards _w is set if it did. A disk without room
// for that leaves a mark in memory, for copies of the script that find room later: each side first leaves its own mark
// and then looks for the other's, so at least one sees both.
const claim = `if [ ! -d "$_p" ]; then (umask 077; mkdir "$_p") && _n=-new; fi
set -C
if [ -O "$_p" ] && [ ! -L "$_p" ] && true >"$_r"; then _w=1; elif [ ! -e "$_r" ]; then true >"$_h"; fi
set +C
if [ -e "$_h" ]; then F full; exit; fi
if [ ! -e "$_r" ]; then F unwritable; exit; fi
`

// full is where the winner finds that there is no room for the journal.
const full = `{ true >"$_h"; F full; exit; }
`

// run starts the command, C, and waits for it. Bash makes it the leader of a process group; for other shells setsid does,
// at the cost of a process image with all its locales. Whoever waits for the command to read its input is let go.
const run = `R() {
trap - INT QUIT
if [ "${BASH_VERSION-}" ]; then set -m; fi
C
printf 'exit %s\n' $? >>"$_r"
if [ -p "$_r.k" ]; then echo 1<>"$_r.k"; true <>"$_r.in"; fi
echo e
}
Y() {
V
if [ "$_v" ]; then F lost; else F run; fi
}
` + meanwhile

// meanwhile runs R in the background and Y, which prints the frame, in the foreground. R holds neither the output nor the
// input of the request, and goes on when Y has ended. Its last line ends T. Where read cannot wait for a limited time, a
// background loop writes an empty line for each tick.
const meanwhile = `if [ "${ZSH_VERSION-}${BASH_VERSION-}" ]; then
T() { read -t 0.05 _l <&3; }
eval 'exec 3< <(R </dev/null)'
Y
else
T() { read _l <&3; [ "$_l" ]; }
N() { while sleep 0.05; do echo; done; }
{ N & R </dev/null; } | { exec 3<&0; Y; kill -9 $$; }
fi
`

// observe waits for news.
const observe = ticks + `V
if [ "$_v" ]; then F lost; else F run; fi
`

// ticks makes T wait at a pipe into which nobody writes, which costs no process.
const ticks = `if [ $_K -gt 0 ] && [ "${ZSH_VERSION-}${BASH_VERSION-}" ]; then
[ -p "$_p/idle" ] || mkfifo "$_p/idle"
exec 3<>"$_p/idle"
T() { read -t 0.05 _l <&3; }
else
T() { sleep 0.05; false; }
fi
`

// stop waits for the command's process to be known, and ends it: see stopGroup.
const stop = stopGroup + `for _k in 1 2 3 4 5 6 7 8 9 10 11 12 13 14 15 16 17 18 19 20; do
if X || [ "$_g" ]; then break; fi
sleep 0.05
done
if [ "$_x" ]; then F stopped; exit; fi
if [ ! "$_g" ]; then F run; exit; fi
if ! K; then F alive; exit; fi
_k=0
while ! X && [ $_k -lt 10 ]; do _k=$((_k+1)); sleep 0.02; done
F stopped
`

// signal sends a signal to the command's process group.
const signal = `X
if [ ! "$_x" ] && [ "$_g" ] && A && kill -%[1]s -$_g; then F sent; else F run; fi
`

func (j Journal) prelude() string {
	return fmt.Sprintf(prelude, j.ID)
}

func (w Wait) prelude(patience int) string {
	output := 0
	if w.Output {
		output = 1
	}
	return fmt.Sprintf(waiting, w.Lost, w.Stdout, w.Stderr, output, patience, w.Limit/Tick, w.Inline)
}

// leftovers empties journals whose results were taken; sweep removes those of other hosts.
const leftovers = `(
cd "$_p" || exit
_d=
for _r in %[1]s; do
if [ -e $_r ]; then true >$_r; fi
_d="$_d $_r.*"
done
rm -f $_d
`

const sweep = `find . -type f ! -name '*.*' -size 0 -mmin +%[1]d -exec rm -f {} +
find /dev/shm -name ".leasehold-$_u-*" -mmin +%[1]d -exec rm -f {} +
find . -type f ! -name '*.*' -mmin +%[2]d | while read -r _r; do
_g= _z= _x=
if X || [ ! "$_g" ] || ! A; then rm -f $_r $_r.*; fi
done
`

// Start returns the script that starts the command, unless a copy of it has done so already, and waits.
func (j Journal) Start(s Start) Script {
	var b strings.Builder
	b.WriteString(j.prelude())
	// A command that ends within a tick needs no second request, even if it prints.
	const patience = 1
	b.WriteString(s.Wait.prelude(patience))
	b.WriteString(claim)
	if len(s.Drop) > 0 || s.Sweep {
		b.WriteString(leftover(s.Drop, s.Sweep) + " </dev/null >/dev/null &\n")
	}
	b.WriteString("if [ \"$_w\" ]; then\n{ echo >>\"$_r\"")
	stdin := "/dev/null"
	if len(s.Stdin) > 0 {
		stdin = `"$_r.i"`
		b.WriteString(" && " + emit(string(s.Stdin)) + " >" + stdin)
	}
	if s.Feed {
		stdin = `"$_r.in"`
		b.WriteString(" && mkfifo \"$_r.in\" \"$_r.k\"")
	}
	if s.Login.longScript() {
		b.WriteString(" && " + emit(s.Login.Script) + " >\"$_r.s\"")
	}
	// Of the subshell alone: dash says "Killed" on the stderr of what waits for it.
	streams := "<" + stdin + ` >>"$_o" 2>>"$_e"`
	text := s.Login.recording(`"$_leasehold_r"`).Text()
	argument := `-c "$_c" sh`
	if len(text) > MaxWord {
		argument = `"$_r.c"`
		b.WriteString(" && " + emit(text) + " >\"$_r.c\"")
	}
	b.WriteString("; } || " + full + "_y=setsid\nif [ \"${BASH_VERSION-}\" ]; then _y=; fi\n")
	if s.Feed {
		b.WriteString(keeper)
	}
	if s.Login.Profiles == NoProfiles && len(text) <= MaxWord/4 && utf8.ValidString(text) {
		b.WriteString("if [ -r /proc/self/stat ] && { [ ! \"$_y\" ] || command -v setsid >/dev/null; }; then C() {\n(\n")
		b.WriteString(s.Login.recording(`"$_r"`).inline())
		b.WriteString(") " + streams + "\n}\nelse\n")
	} else {
		b.WriteString("if :; then\n")
	}
	b.WriteString(s.Login.shell("_s") + "\n")
	if len(text) <= MaxWord {
		b.WriteString("_c=" + quoteText(text) + "\n")
	}
	fmt.Fprintf(&b, "C() {\n(\nif [ ! \"$_y\" ] || command -v setsid >/dev/null; then exec $_y \"$_s\" %[1]s \"$_r\"; fi\nexec \"$_s\" -c %[2]s \"$_s\" %[1]s \"$_r\"\n) %[3]s\n}\nfi\n", argument, Quote(ownJob), streams)
	b.WriteString(run)
	b.WriteString("else\n" + observe + "fi\n")
	return j.script(b.String())
}

// ownJob is how the shell $0 is started, with the arguments that follow, where there is no setsid: see ownGroup.
const ownJob = `set -m; "$0" "$@" & wait $!`

// Observe returns a script that waits for news of the command.
func (j Journal) Observe(w Wait) Script {
	return j.script(j.prelude() + w.prelude(0) + "if [ ! -e \"$_r\" ]; then F gone; exit; fi\n" + observe)
}

// Settle returns a script that finds out whether the command was started, and makes sure that it will not be if it was
// not: it takes the record for itself.
func (j Journal) Settle(w Wait) Script {
	return j.script(j.prelude() + w.prelude(0) + claim + "if [ \"$_w\" ]; then F none$_n; exit; fi\n" + observe)
}

// Stop returns a script that ends the command, its session and all that descends from it: it asks (SIGTERM), and kills
// after two seconds. A command that was not started will not be, see [Journal.Settle].
// The frame begins at the offsets of w.
func (j Journal) Stop(w Wait) Script {
	return j.script(j.prelude() + fmt.Sprintf("_I=%d _O=%d _E=%d\n", w.Inline, w.Stdout, w.Stderr) + claim + "if [ \"$_w\" ]; then F none$_n; exit; fi\n" + stop)
}

// Signal returns a script that sends a signal, such as "INT", to the command's process group.
func (j Journal) Signal(name string) Script {
	return j.script(j.prelude() + "_I=1 _O=0 _E=0\n" + fmt.Sprintf(signal, name))
}

// Drop returns a script that removes journals whose results were taken.
func Drop(ids []string) Script {
	return Journal{}.script(Journal{}.prelude() + leftover(ids, false) + "\n")
}

func leftover(ids []string, sweeping bool) string {
	text := fmt.Sprintf(leftovers, strings.Join(ids, " "))
	if sweeping {
		text += fmt.Sprintf(sweep, int(KeepTombstones.Minutes()), int(KeepJournals.Minutes()))
	}
	return text + ")"
}

// Script is what a request to execute carries: the input of a shell, and a variable of its environment.
type Script struct {
	Command string
	Env     map[string]string
}

// carrier is the variable that holds the text of a script. Zsh and bash read their input byte by byte, at half a
// millisecond for a thousand of them.
const carrier = "_leasehold"

// script makes text a script. Only the mark stays out of the environment, which other processes can read.
func (j Journal) script(text string) Script {
	mark := "_m=" + j.Mark + "\n"
	if len(text)+len(carrier)+1 <= MaxWord {
		return Script{mark + "_x=$" + carrier + "\nunset " + carrier + "\neval \"$_x\"\n", map[string]string{carrier: text}}
	}
	return Script{mark + "if [ \"${ZSH_VERSION-}${BASH_VERSION-}\" ]; then eval \"$(cat)\"; exit; fi\n" + text, nil}
}

// emit returns a command that prints s, which may hold any bytes, and which itself is valid UTF-8.
func emit(s string) string {
	if utf8.ValidString(s) && strings.IndexByte(s, 0) < 0 {
		return "printf %s " + Quote(s)
	}
	return "printf " + Quote(octal(s))
}
