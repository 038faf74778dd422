package script

import "fmt"

// stopGroup defines K, which ends the process $_g with its process group, its session and all descendants, and is true once
// none of them is left: it asks (SIGTERM), kills after 2 s, and gives up after 3 s. An orphan that stayed in the group or
// the session belongs to it, a daemon that has left both and its ancestors does not. $_z is the start time of the process, if
// that is known: a process of the same number that started at another time is a stranger, and while a group of that
// number exists the system gives the number to nobody else, so then the group is empty.
//
// P collects, in _d, what belongs to it. _q is what the process table says of the processes that run:
// pid:parent:group:session. _f are those to be ended, and _c those of them outside the group.
const stopGroup = `P() {
_q=
for _f in /proc/[0-9]*/stat; do
read -r _a <"$_f" || continue
_b=${_a%% *} _a=${_a##*) }
set -- $_a
if [ $_b = $_g ] && [ "$_z" ] && [ "${20}" != "$_z" ]; then return 1; fi
[ "$1" = Z ] || _q="$_q $_b:$2:$3:$4"
done
_n=
while [ "$_d" != "$_n" ]; do
_n=$_d
for _a in $_q; do
_b=${_a%%:*} _a=${_a#*:}
_c=${_a%%:*} _a=${_a#*:}
case $_d in *" $_b "*) continue;; *" $_c "*) _d="$_d$_b "; continue;; esac
case $_a in $_g:*|*:$_g) _d="$_d$_b ";; esac
done
done
_f= _c=
for _a in $_q; do
_b=${_a%%:*} _a=${_a#*:*:}
case $_d in *" $_b "*) _f="$_f $_b"; [ ${_a%%:*} = $_g ] || _c="$_c $_b";; esac
done
if [ ! -e /proc/self/stat ] && kill -0 -$_g; then _f=-$_g; fi
[ "$_f" ]
}
K() {
_d=" $_g "
_k=0
while P; do
if [ $_k = 0 ]; then kill -TERM -$_g; if [ "$_c" ]; then kill -TERM $_c; fi; fi
if [ $_k -ge 40 ]; then kill -KILL -$_g; kill -KILL $_f; fi
if [ $_k -ge 60 ]; then return 1; fi
_k=$((_k+1))
sleep 0.05
done
true
}
`

// StopGroup returns a script that ends a process with its group, its session and its descendants, and prints [LookGone] once
// none of them is left, else [LookAlive]. Start is the process's start time as /proc says it, empty if that is not known.
func StopGroup(process int, start string) Script {
	return Journal{}.script(fmt.Sprintf("exec 2>/dev/null\nif [ \"${ZSH_VERSION-}\" ]; then emulate sh; fi\n_g=%d _z=%s\n%sif K; then echo gone; else echo alive; fi\n", process, start, stopGroup))
}
