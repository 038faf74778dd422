package script

import "fmt"

// describe defines the function of that name, and ended.
var describe = code(`
# Reads what the system says of the process $1: all that follows its name is then behind the last ") " of _line. The name
# may hold anything, newlines included.
describe() {
_line=
while read -r _rest; do _line=$_rest; done <"/proc/$1/stat"
[ "$_line" ]
}

# True if that, as parameters, is what the system says of a process that has ended. One whose main thread has ended looks the
# same, but for the number of its threads.
ended() { [ "$1" = Z ] && [ "${18}" -le 1 ]; }
`)

// stopGroup, with describe, defines end_group, which ends the process $_process with its process group, its session and all
// descendants, and is true once none of them is left: it asks (SIGTERM), kills after 2 s, and gives up after 4 s. An orphan
// that stayed in the group or the session belongs to it, a daemon that has left both and its ancestors does not. $_birth is
// the start time of the process, if that is known: a process of the same number that started at another time is a stranger,
// and while a group of that number exists the system gives the number to nobody else, so then the group is empty.
//
// A look at the process table takes a while, and misses who is born meanwhile and whose parent ends before it is looked
// at. The system knows whether there is a group, and kills it all at once.
var stopGroup = code(`
# Collects in _family what belongs to the process. _table is what the process table says of those that run:
# pid:parent:group:session. _targets are those to be ended, and _others those of them outside the group.
find_family() {
_table= _stranger=
for _file in /proc/[0-9]*/stat; do
_pid=${_file#/proc/}
_pid=${_pid%/stat}
describe $_pid || continue
set -- ${_line##*) }
if [ $_pid = $_process ] && [ "$_birth" ] && [ "${20}" != "$_birth" ]; then _stranger=1; return 1; fi
ended "$@" || _table="$_table $_pid:$2:$3:$4"
done
_before=
while [ "$_family" != "$_before" ]; do
_before=$_family
for _line in $_table; do
_pid=${_line%%:*} _line=${_line#*:}
_ancestor=${_line%%:*} _line=${_line#*:}
case $_family in *" $_pid "*) continue;; *" $_ancestor "*) _family="$_family$_pid "; continue;; esac
case $_line in $_process:*|*:$_process) _family="$_family$_pid ";; esac
done
done
_targets= _others=
for _line in $_table; do
_pid=${_line%%:*} _line=${_line#*:*:}
case $_family in *" $_pid "*) _targets="$_targets $_pid"; [ ${_line%%:*} = $_process ] || _others="$_others $_pid";; esac
done
if [ ! -e /proc/self/stat ] && kill -0 -$_process; then _targets=-$_process; fi
[ "$_targets" ]
}

# True, up to twice, if there is a group although the look found nobody: of the dead, or of somebody whom the look missed.
# The second time it is killed.
unseen() {
[ ! "$_stranger" ] && [ $_unseen -lt 2 ] && kill -0 -$_process || return
_unseen=$((_unseen+1))
[ $_unseen = 1 ] || kill -KILL -$_process
}

# Sets _now to hundredths of seconds, where the system tells them.
clock() {
_now=
if read -r _now _idle </proc/uptime; then _now=$((${_now%%.*}*100+1${_now#*.}-100)); fi
}

# Each look reads the whole process table, so there are few, at first soon one after the other: eight in the two seconds before
# the kill, and eight in those after it. A busy machine takes its time for them, so the clock ends either sooner. There is a
# look after the kill in any case, and who is only dead by then does not make it fail.
end_group() {
[ $_process -gt 1 ] || return 1
_family=" $_process "
_tries=0 _unseen=0 _killed=
clock
_begun=${_now:-0}
while find_family || unseen; do
clock
_waited=$((${_now:-0}-_begun))
if [ $_tries = 0 ]; then kill -TERM -$_process; if [ "$_others" ]; then kill -TERM $_others; fi; fi
if [ "$_killed" ] && [ "$_targets" ] && { [ $_tries -ge 16 ] || [ $_waited -ge 400 ]; }; then return 1; fi
if [ $_tries -ge 8 ] || [ $_waited -ge 200 ]; then
kill -KILL -$_process
kill -KILL $_targets
_killed=1
fi
_tries=$((_tries+1))
case $_tries in
1|2) sleep 0.05;;
3) sleep 0.1;;
4) sleep 0.2;;
5|6|7|8) sleep 0.4;;
*) sleep 0.25;;
esac
done
true
}
`)

// StopGroup returns a script that ends a command's process with its group, its session and its descendants, and prints
// [LookGone] once none of them is left, else [LookAlive]. Start is the process's start time as /proc says it, empty if that is
// not known.
func (s Session) StopGroup(process int, start string) Script {
	j := Journal{ID: s.ID}
	return j.script(j.open(Wait{}, 0) + fmt.Sprintf("_process=%d _birth=%s\n", process, Quote(start)) + stopGroup +
		holdInput + "if end_group; then\n" + releaseInput + "echo gone\nelse echo alive; fi\n")
}
