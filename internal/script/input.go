package script

import (
	"encoding/base64"
	"fmt"
)

// MaxChunk is the largest piece of an input that a script carries.
const MaxChunk = 72 << 10

// What became of a chunk, unless it is still being written.
const (
	StateFed    State = "fed"    // it is in the command's input
	StateClosed State = "closed" // nobody reads it any more
	StateBroken State = "broken" // who wrote it failed or is gone: how much of it is in the input is not known
)

// hold makes the files of an input that is fed: its FIFO, the keeper's, and the note of its progress, which is only ever
// overwritten: its room is there even when the disk is full.
const hold = `mkfifo "$_record.in" "$_record.k" && echo none new none >"$_record.w"`

// keeper holds the command's input open, a FIFO, until a line arrives in another one. The command does not inherit either.
// Who waits for the command sends the line when it has ended, unless it is being stopped, which leaves a note: then the
// stop does, when nothing of the command is left that could take it for an end of the input.
const keeper = `exec 5<>"$_record.k" 6<>"$_record.in" 4>"$_record.in" 6>&-
{ read _line <&5; } </dev/null >/dev/null &
exec 4>&- 5>&-
`

// holdInput and releaseInput stand around what ends a command.
const (
	holdInput    = "if [ -p \"$_record.k\" ]; then true >\"$_record.x\"; fi\n"
	releaseInput = "if [ -p \"$_record.k\" ]; then echo 1<>\"$_record.k\"; fi\n"
)

// feed writes chunk $_n, once: whoever creates its file does, if the last one was $_previous, which proves that this one was
// not written before: the files of earlier chunks are removed. A command that does not read delays the writer. A command that
// ends lets it go, and it tells nevertheless what became of the chunk: the command may have ended because of it. The last
// chunk lets the keeper go. Each of the two may come when the record was emptied or removed, and with it these files: what it
// has made of them itself is then left to nobody else.
//
// A writer that finds no room for its note has written nothing, and gives the chunk back. One that is gone without a word is
// missed for a hundred ticks, in case it has not begun yet.
var feed = code(`_chunk=$_record.n$_n _tells=1
tidy() { [ -s "$_record" ] || erase; }

# Reads how far the input has come: chunk $_at, which process _writer writes, and if it is this one, what became of it. A note
# that is just being overwritten may be read as anything but a true one, which has its number twice.
progress() {
_at= _fate= _again= _writer=
read -r _at _fate _again _writer _signed <"$_record.w"
if [ "$_at" != "$_again" ]; then _at=; fi
if [ "$_at" != $_n ]; then _fate=; fi
case $_fate in fed|closed|broken) return;; esac
false
}
note() { echo "$_n $1 $_n ${2-} ${3-}" 1<>"$_record.w"; }
watch() {
_ticks=0 _over=0 _missed=0
while ! progress && [ -e "$_chunk" ] && [ $_ticks -lt $_limit ] && [ $_over -lt 10 ] && [ $_missed -lt 100 ]; do
_ticks=$((_ticks+1))
if exited; then _over=$((_over+1)); true <>"$_record.in"; fi
if [ "$_fate" ] && { [ ! "$_writer" ] || exists $_writer $_signed; }; then _missed=0; else _missed=$((_missed+1)); fi
tick
done
case $_fate in
fed|closed|broken) ;;
*) if exited; then _fate=closed
elif [ $_missed = 100 ]; then _fate=broken
elif [ "$_fate" ]; then _fate=run
elif [ -p "$_record.in" ]; then _fate=full
else _fate=gone
fi;;
esac
tidy
frame $_fate
}
runner() {
describe self
set -- "${_line%% *}" ${_line##*) }
if note by "$1" ${21}; then
forget
_fate=closed
if ! exited; then
deliver
_status=$?
if [ $_status = 0 ]; then _fate=fed
elif [ $_status -gt 125 ] && [ $_status != 141 ]; then _fate=broken
fi
fi
note $_fate
[ $_fate = broken ] || release
else rm -f "$_chunk"
fi
tidy
echo written
}
set -C
if true >"$_chunk"; then
set +C
progress
if [ "$_at" = "$_previous" ]; then
`) + meanwhile + code(`else
rm -f "$_chunk"
`) + ticks + code(`watch
fi
elif [ -e "$_chunk" ]; then
set +C
`) + ticks + code(`watch
else frame full
fi
`)

// forgetEvery is how many chunks' files are removed at a time.
const forgetEvery = 64

// Feed returns a script that writes chunk n of the input, counted from 0, and waits until it is written. A copy of it, or
// one of the same number without the data, only waits. Chunks must be fed one after another. [StateFull]: the chunk was not
// written yet, and is to be sent again with its data.
func (j Journal) Feed(n int, data []byte, end bool, w Wait) Script {
	deliver, release, forget, previous := "true", ":", ":", "none"
	if len(data) > 0 {
		deliver = "printf %s " + base64.StdEncoding.EncodeToString(data) + ` | base64 -d >"$_record.in"`
	}
	if end {
		release = `echo 1<>"$_record.k"`
	}
	if n > 0 {
		previous = fmt.Sprint(n - 1)
	}
	if n > 0 && n%forgetEvery == 0 {
		forget = "rm -f"
		for i := n - forgetEvery; i < n; i++ {
			forget += fmt.Sprintf(` "$_record.n%d"`, i)
		}
	}
	w.Output, w.Stdout, w.Stderr = false, Done, Done
	return j.script(j.open(w, 0) + waiting + "if [ ! -p \"$_record.in\" ]; then frame gone; exit; fi\n" +
		fmt.Sprintf("_n=%d _previous=%s\ndeliver() { %s; }\nrelease() { %s; }\nforget() { %s; }\n", n, previous, deliver, release, forget) + feed)
}
