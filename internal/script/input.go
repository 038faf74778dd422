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
)

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

// feed writes a chunk, once: whoever creates its file does. The file gets a line when that is done, which a command that
// does not read delays. A command that ends lets its writer go, which tells nevertheless what became of the chunk: the
// command may have ended because of it. The last chunk lets the keeper go. Each of the two may come when the record was
// emptied or removed, and with it these files: what it has made of them itself is then left to nobody else.
const feed = `_chunk=$_record.n%[1]d _tells=1
tidy() { [ -s "$_record" ] || rm -f "$_record".*; }
watch() {
_ticks=0 _over=0
while [ ! -s "$_chunk" ] && [ $_ticks -lt $_limit ] && [ $_over -lt 10 ]; do
_ticks=$((_ticks+1))
if exited; then _over=$((_over+1)); true <>"$_record.in"; fi
tick
done
_line=
read -r _line <"$_chunk"
tidy
case $_line in
fed|closed) frame $_line;;
*) if [ "$_exit" ]; then frame closed; else frame run; fi;;
esac
}
runner() {
if ! exited && %[2]s; then _line=fed; else _line=closed; fi
echo $_line >>"$_chunk"
%[3]s
tidy
echo written
}
set -C
if true >"$_chunk"; then
set +C
%[4]selif [ -e "$_chunk" ]; then
set +C
%[5]swatch
else frame full
fi
`

// Feed returns a script that writes chunk n of the input, counted from 0, and waits until it is written. A copy of it, or
// one of the same number without the data, only waits. Chunks must be fed one after another.
func (j Journal) Feed(n int, data []byte, end bool, w Wait) Script {
	write, release := "true", ":"
	if len(data) > 0 {
		write = "printf %s " + base64.StdEncoding.EncodeToString(data) + ` | base64 -d >"$_record.in"`
	}
	if end {
		release = `echo 1<>"$_record.k"`
	}
	w.Output, w.Stdout, w.Stderr = false, Done, Done
	return j.script(j.open(w, 0) + waiting + "if [ ! -p \"$_record.in\" ]; then frame gone; exit; fi\n" + fmt.Sprintf(feed, n, write, release, meanwhile, ticks))
}
