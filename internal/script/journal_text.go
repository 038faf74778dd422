package script

import (
	"regexp"
	"strings"
)

// The texts that the scripts of a [Journal] are put together from. Before them stand their settings:
//
//	_id                         of the journal
//	_stdout_from, _stderr_from  where the pieces of the frame begin; -1: the stream is of no interest any more
//	_inline                     how much of each stream a frame carries
//	_limit                      how many ticks the script waits at most
//	_output                     1: more output ends the wait, once _patience ticks are over
//	_ends                       1: the exit is known, and does not end the wait
//	_reference                  a file of this script's own
//	_mark, _end                 Journal.Mark, Journal.End
//
// All variables begin with an underscore: a variable that the daemon's environment exports is not theirs to change.

// code returns a text without its comments, which are for the reader of this file.
func code(text string) string {
	return comment.ReplaceAllString(strings.TrimLeft(text, "\n"), "")
}

var comment = regexp.MustCompile(`(?m)^(# .*)?\n`)

// programs are those that scripts use, and what shells have built in.
const programs = "'[' alias base64 cat cd cksum command dd echo env exec exit false find id kill mkdir mkfifo printf read rm set setsid sh sleep test trap true umask unalias wait wc"

// setup finds the directory and defines what all scripts use. _rich is set where the shell has process substitution, and a
// read that takes single bytes and waits for a limited time; bash in its POSIX mode had no process substitution before 5.1.
//
// What the shell's own start-up files did to it, or functions in the daemon's environment, is not to change the meaning of
// the rest.
var setup = code(`exec 2>/dev/null
unset -f `+programs+`
if [ "${ZSH_VERSION-}" ]; then emulate sh; fi
set +fuvxC
unset IFS
trap '' XFSZ
case ${TMPDIR-} in
*'
'*) _dir=/tmp;;
/*) _dir=${TMPDIR%/};;
*) _dir=/tmp;;
esac
_user=${UID-}
if [ ! "$_user" ]; then
while read -r _word _user _rest; do [ "$_word" != Uid: ] || break; done </proc/self/status
if [ "$_word" != Uid: ]; then _user=$(id -u); fi
fi
_dir=$_dir/.leasehold-$_user
_record=$_dir/$_id _stdout=$_dir/$_id.o _stderr=$_dir/$_id.e
_memory=/dev/shm/.leasehold-$_user
_refusal=$_memory-$_id
_rich=${ZSH_VERSION-}${BASH_VERSION-}
case :${SHELLOPTS-}: in *:posix:*) _rich=;; esac
_won= _new= _birth= _launcher= _process=$_known_process

# Removes all that belongs to the record, and then the files $@, at best with one process: what there is of them may be more
# than fits into its arguments.
erase() {
rm -f "$_record".* "$@" || { find "$_dir" -name "${_record##*/}.*" -exec rm -f {} +; [ $# = 0 ] || rm -f "$@"; }
}

# Prints the frame with this state.
frame() {
_born=
read -r _born <"$_dir/born"
printf '\n%s %s %s %s\n' "$_mark" "$1" "${_born:--}" "$_dir"
if [ "$_process" ]; then printf 'pid %s %s\n' $_process $_birth; fi
if [ -f "$_record" ]; then while read -r _line; do printf '%s\n' "$_line"; done <"$_record"; fi
printf '%s o\n' "$_mark"
piece "$_stdout" $_stdout_from
printf '\n%s e %s\n' "$_mark" $?
piece "$_stderr" $_stderr_from
printf '\n%s . %s\n' "$_mark" $?
}

# Prints the beginning of file $1 from offset $2 on. The status 4 says that there is no such file.
piece() {
[ -f "$1" ] || return 4
[ -s "$1" ] && [ $2 -ge 0 ] || return 0
{ if [ $2 -gt 0 ]; then dd bs=1 skip=$2 count=0; fi; dd bs=$_inline count=1; } <"$1"
}

# Reads the record: the command's process, its start time, that it took over, its exit, and which of its streams have ended.
consult() {
_started= _exit= _stdout_ended= _stderr_ended= _launcher=
[ -f "$_record" ] || return
while read -r _word _value _rest; do
case $_word:$_value in
pid:*)
if [ ! "$_launcher" ]; then _launcher=$_value _launched=$_rest; fi
_process=$_value _birth=$_rest;;
started:*) _started=1;;
exit:*) _exit=$_value;;
empty:o|copied:o) _stdout_ended=1;;
empty:e|copied:e) _stderr_ended=1;;
esac
done <"$_record"
}

# Names the note that there was this directory.
remember() {
set -- $(printf %s "$_dir" | cksum)
_memory=$_memory-$1
}

exited() {
consult
[ "$_exit" ]
}

# Keeps whoever has the record from beginning the command, and is true if that is certain: it writes down its process first,
# and looks for this note then.
forestall() {
true >"$_record.z" && ! exited && [ ! "$_process" ]
}

# True while the command's process exists, or that of the shell around its wrapper, which learns of its exit.
alive() {
exists $_process $_birth || { [ "$_launcher" ] && [ $_launcher != $_process ] && exists $_launcher $_launched; }
}

# True while there is the process $1, which started at $2 if that is known. That the user may not signal it proves nothing.
exists() {
if [ ! -e /proc/self/stat ]; then kill -0 $1; return; fi
describe $1 || return
_since=${2-}
set -- ${_line##*) }
! ended "$@" && { [ ! "$_since" ] || [ "${20}" = "$_since" ]; }
}
`) + describe

// claim makes the directory if need be and tries to create the record. Afterwards _won is set if it did. A disk without room
// for that leaves a mark in memory, for copies of the script that find room later: each side first leaves its own mark
// and then looks for the other's, so at least one sees both.
//
// Whoever created the record, and has looked before there was the mark, has begun. So the mark of somebody else proves
// nothing while there is a record: it is awaited that who created it writes there which process it began, or into the mark
// that it does not begin. A pipe in its place, which only the command's user can have put there, would keep who opens it.
//
// That there ever was a directory is noted in memory, too, and in the directory which journal brought it about: a directory
// that was removed, or removed and made again, proves nothing about what there was before, and neither does one that can no
// longer be searched: it may hold the record.
var claim = code(`if [ ! -d "$_dir" ] && (umask 077; mkdir "$_dir"); then
_new=-new
remember
if [ -e "$_memory" ]; then _new=-again; fi
true >"$_memory"
echo $_id >"$_dir/born"
fi
set -C
if [ -O "$_dir" ] && [ ! -L "$_dir" ] && [ ! -p "$_record" ] && true >"$_record"; then _won=1; elif [ ! -e "$_record" ]; then true >"$_refusal"; fi
set +C
if [ -e "$_refusal" ]; then
if [ ! -O "$_dir" ] || [ -L "$_dir" ] || [ ! -d "$_dir" ] || [ ! -x "$_dir" ]; then
remember
if [ -e "$_memory" ]; then frame none-again; else frame full; fi
exit
fi
if [ "$_won" ]; then ` + full + `fi
for _try in 1 2 3 4 5 6 7 8 9 10 11 12 13 14 15 16 17 18 19 20; do
if [ -s "$_refusal" ] || [ ! -e "$_record" ]; then frame full; exit; fi
if exited || [ "$_process" ]; then break; fi
sleep 0.05
done
if [ ! "$_exit" ] && [ ! "$_process" ]; then frame unwritable; exit; fi
fi
if [ ! -f "$_record" ]; then frame unwritable; exit; fi
`)

// full is where the winner finds that there is no room for the journal: it gives back what it took, but for the emptied record.
const full = `{ echo >"$_refusal"; erase; true >"$_record"; frame full; exit; }
`

// waiting is for scripts that wait: news does so for $_limit ticks at most, each of which tick waits for. Tick is true when
// something happened, and may be so early.
var waiting = code(`_lost= _late= _looked= _told=0

# True when there is nothing more to wait for but output: the exit is recorded, and the streams have ended or a tick is over.
settled() {
exited || return
if [ "$_stdout_ended" ] && [ "$_stderr_ended" ]; then return; fi
[ "$_late" ] && [ $_ends = 0 ]
}

# True if there is output beyond the offsets. A growing file is recognised without a process: it is not older than the
# reference file, which is touched before the sizes are read, first of all once.
more() {
if [ $_stdout_from -le 0 ] && [ $_stderr_from -le 0 ]; then
{ [ $_stdout_from = 0 ] && [ -s "$_stdout" ]; } || { [ $_stderr_from = 0 ] && [ -s "$_stderr" ]; }
return
fi
if [ "$_looked" ] && [ "$_reference" -nt "$_stdout" ] && [ "$_reference" -nt "$_stderr" ]; then return 1; fi
_looked=1
true >"$_reference"
set -- $(wc -c <"$_stdout"; wc -c <"$_stderr")
{ [ $_stdout_from -ge 0 ] && [ $1 -gt $_stdout_from ]; } || { [ $_stderr_from -ge 0 ] && [ $2 -gt $_stderr_from ]; }
}

news() {
_ticks=0
while ! settled && [ $_ticks -lt $_limit ]; do
_ticks=$((_ticks+1))
if [ ! -f "$_record" ]; then return; fi
if [ $_output = 1 ] && [ $_ticks -gt $_patience ] && more; then return; fi
if [ "$_process" ] && [ ! "$_exit" ] && ! alive; then
for _try in 1 2 3 4 5 6 7 8 9 10 11 12 13 14 15 16 17 18 19 20; do
if exited; then break; fi
sleep 0.05
done
if [ ! "$_exit" ]; then _lost=1; return; fi
fi
if ! tick; then _late=$_exit; fi
done
}

# A command that nobody has begun within a minute has nobody left to begin it: there was no room for one more process.
watch() {
news
if [ ! "$_process$_exit" ] && [ -s "$_record" ] && [ "$(find "$_record" -mmin +1)" ] && forestall; then _lost=1; fi
if [ "$_lost" ]; then frame lost; else frame run; fi
}
`)

// ticks lets a script that runs nothing wait. Its tick waits at a pipe into which nobody writes, which costs no process.
var ticks = code(`if [ $_limit -gt 0 ] && [ "$_rich" ]; then
[ -p "$_dir/idle" ] || mkfifo "$_dir/idle"
exec 3<>"$_dir/idle"
tick() { read -t 0.05 -r _line <&3; }
else
tick() { sleep 0.05; false; }
fi
`)

// observe waits for news.
var observe = ticks + "watch\n"

// meanwhile runs runner in the background and watch, which prints the frame, in the foreground. The runner holds neither the
// output nor the input of the request, and goes on when watch has ended. The last of the $_tells lines of its output ends a
// tick: before it, there is little to look for. Where read cannot wait for a limited time, a background loop writes an empty
// line for each tick.
var meanwhile = code(`tick() {
while hear; do
_told=$((_told+1))
if [ $_told = $_tells ]; then return; fi
done
if [ $_told -gt 0 ]; then exited; fi
false
}
if [ "$_rich" ]; then
hear() { read -t 0.05 -r _line <&3; }
eval 'exec 3< <(runner </dev/null)'
watch
else
hear() { read -r _line <&3 && [ "$_line" ]; }
metronome() { while sleep 0.05; do echo; done; }
{ metronome & runner </dev/null; } | { exec 3<&0; watch; kill -9 $$; }
fi
`)

// run starts the command, waits for it, and copies its output. The descriptors:
//
//	4, 5  the files of standard output and standard error
//	6     the pipe of the command's standard error; that of its standard output is 1
//	7     what runner's output was: lines of the exit, and of the end of each stream
//	9     the record
//
// The command's output are pipes, as everywhere: what opens /dev/stderr again does not cut off what is there. Behind each
// pipe stands a process that appends to the file, as long as somebody holds the pipe, and whether or not that works.
// Right after the command, the end mark is written to both. A pipe keeps the order, so what comes before it is
// the command's output, all of it, and what comes after it is not.
//
// Bash makes the command the leader of a process group; for other shells setsid does, at the cost of a process image.
// Whoever waits for the command to read its input is let go.
var run = code(`_tells=3
exec 4>>"$_stdout" 5>>"$_stderr" 9>>"$_record"

runner() {
trap - INT QUIT
exec 7>&1
if [ "$_rich" ]; then
eval 'exec > >(copy o 4); exec 6> >(copy e 5 >&7)'
supervise
else
{ supervise | copy o 4 >&7 6>&-; } 6>&1 | copy e 5
fi
}

supervise() {
if [ "${BASH_VERSION-}" ]; then set -m; fi
launch
_exit=$?
trap '' PIPE
printf 'exit %s\n' $_exit >&9
printf %s "$_end"
printf %s "$_end" >&6
exec >&7 6>&-
if [ -p "$_record.k" ]; then
[ -e "$_record.x" ] || echo 1<>"$_record.k"
true <>"$_record.in"
fi
echo exit
}

# Copies the stream named $1 to the descriptor $2. An empty stream costs no process, and a full disk the command nothing.
# That nobody listens any more is no reason to end: the command's children may write on.
copy() {
trap '' PIPE
_head= _format=%s
if [ "$_rich" ] && silent; then
printf 'empty %s\n' $1 >&9
echo empty
if take 1; then cat >/dev/null; fi
else
if [ "$_head" ] || [ "$_format" != %s ]; then
printf "$_format" "$_head" >"$_record.h$1" && cat "$_record.h$1" -
else cat
fi >&$2 || { [ $? -gt 125 ] || printf 'cut %s\n' $1 >&9; cat >/dev/null; }
printf 'copied %s\n' $1 >&9
echo copied
fi
}

# True if there is nothing but the end mark. Otherwise what was read must be printed first: _head, as _format says. Cat does
# that, from a file, so that nobody sees a first byte alone.
silent() {
LC_ALL=C IFS=
if [ "${ZSH_VERSION-}" ]; then setopt no_multibyte; fi
take 1 || return
_head=$_got
case $_end in
"${_head:-none}"*)
if take $((${#_end}-1)) && [ ${#_got} -lt $((${#_end}-1)) ]; then _format='%s\0'; fi
_head=$_head$_got
[ "$_head" = "$_end" ];;
*)
[ "$_head" ] || _format='%s\0'
false;;
esac
}

# Reads $1 bytes into _got. Bash leaves out a NUL, and stops there.
take() {
if [ "${ZSH_VERSION-}" ]; then read -r -u 0 -k $1 _got; else read -r -d '' -n $1 _got; fi
}
`) + meanwhile

// stop waits for the command's process to be known, and ends it, and what it left in the background if it has ended
// already. Then the command's end is being recorded. A command that has not begun within a second does not.
var stop = stopGroup + code(`for _try in 1 2 3 4 5 6 7 8 9 10 11 12 13 14 15 16 17 18 19 20; do
if exited || [ "$_process" ]; then break; fi
sleep 0.05
done
if [ ! "$_process$_exit" ] && ! forestall && [ ! "$_process" ]; then frame run; exit; fi
`) + holdInput + code(`if [ "$_process" ] && ! end_group; then frame alive; exit; fi
`) + releaseInput + code(`_tries=0
while [ -f "$_record" ] && [ $_tries -lt 10 ]; do
if exited && [ "$_stdout_ended" ] && [ "$_stderr_ended" ]; then break; fi
_tries=$((_tries+1))
sleep 0.02
done
frame stopped
`)

// signal sends the signal $_signal to the command's process group. One that comes while the profiles are read is kept for the
// command, for a second. It leads its group a moment after it said that it started.
var signal = code(`for _try in 1 2 3 4 5 6 7 8 9 10 11 12 13 14 15 16 17 18 19 20; do
if exited || [ "$_started" ]; then break; fi
sleep 0.05
done
for _try in 1 2 3 4 5; do
if exited || [ ! "$_process" ] || [ $_process -le 1 ] || ! alive; then frame run; exit; fi
if kill -$_signal -$_process; then frame sent; exit; fi
if ! exists $_process $_birth; then frame run; exit; fi
sleep 0.05
done
frame refused
`)

// leftovers empties journals whose results were taken: $_taken.
var leftovers = code(`cd "$_dir" || exit
_files=
for _record in $_taken; do
if [ -e $_record ]; then true >$_record; fi
_files="$_files $_record.*"
done
rm -f $_files || for _record in $_taken; do erase; done
`)

// sweep removes what other hosts left behind.
var sweep = code(`remember
true >"$_memory"
find . -type f ! -name '*.*' ! -name born -size 0 -mmin +$_tombstones -exec rm -f {} +
find /dev/shm -name ".leasehold-$_user-*" -mmin +$_tombstones -exec rm -f {} +
find . -type f ! -name '*.*' ! -name born -mmin +$_journals | while read -r _record; do
_process= _birth=
if exited || [ ! "$_process" ] || ! alive; then erase $_record; fi
done
`)
