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
const keeper = `exec 5<>"$_r.k" 6<>"$_r.in" 4>"$_r.in" 6>&-
{ read _l <&5; } </dev/null >/dev/null &
exec 4>&- 5>&-
`

// feed writes a chunk, once: whoever creates its file does. The file gets a line when that is done, which a command that
// does not read delays. The last chunk lets the keeper go.
const feed = `_n=$_r.n%[1]d
Y() {
_k=0
while [ ! -s "$_n" ] && ! X && [ $_k -lt $_K ]; do
_k=$((_k+1))
T
done
_l=
read -r _l <"$_n"
case $_l in
f) F fed;;
c) F closed;;
*) if X; then true <>"$_r.in"; F closed; else F run; fi;;
esac
}
R() {
if ! X && %[2]s; then _l=f; else _l=c; fi
%[3]s
echo $_l >>"$_n"
echo e
}
set -C
if true >"$_n"; then
set +C
%[4]selif [ -e "$_n" ]; then
set +C
%[5]sY
else F full
fi
`

// Feed returns a script that writes chunk n of the input, counted from 0, and waits until it is written. A copy of it, or
// one of the same number without the data, only waits. Chunks must be fed one after another.
func (j Journal) Feed(n int, data []byte, end bool, w Wait) Script {
	write, release := "true", ":"
	if len(data) > 0 {
		write = "printf %s " + base64.StdEncoding.EncodeToString(data) + ` | base64 -d >"$_r.in"`
	}
	if end {
		release = `echo 1<>"$_r.k"`
	}
	w.Output = false
	return j.script(j.prelude() + w.prelude(0) + "if [ ! -p \"$_r.in\" ]; then F gone; exit; fi\n" + fmt.Sprintf(feed, n, write, release, meanwhile, ticks))
}
