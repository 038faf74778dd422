package script

import (
	"fmt"
	"strconv"
	"time"
)

// ProbeBwrap returns a command substitution of a POSIX shell that finds out whether commands can be wrapped, in the
// directory that the variable workspace holds. It is one word, followed by a space and the user's name if that is known:
//
//	ok                       a command can be wrapped, or can with
//	shared-proc, shared-tmp  [Bwrap.SharedProc], or [Bwrap.SharedTmp]
//	root, no-user            the user is root, or has no name
//	no-bwrap, no-su          there is no such program, or su refuses
//	no-sudo-rule             there is no sudo, or no rule for bwrap
//	namespaces-refused       bwrap cannot mount anything
//	workspace-not-bindable   the workspace is not writable in the wrapper
//	timed-out, other         something hung, or failed otherwise
//
// It ends after limit, and up to four seconds in which what hangs is ended. Sudo and what it runs are root's, and beyond
// the user, but not beyond their own alarm clock, which Perl can set. Where nothing is installed no process is started.
func ProbeBwrap(workspace string, limit time.Duration) string {
	seconds := strconv.FormatFloat(limit.Seconds(), 'f', 3, 64)
	alarm := max(1, int(limit.Seconds())-1)
	return fmt.Sprintf(`$(
_word=
{ while read -r _word _user _rest; do [ "$_word" != Uid: ] || break; done </proc/self/status; } 2>/dev/null
if [ "$_word:$_user" = Uid:0 ]; then echo root
elif ! command -v bwrap >/dev/null; then echo no-bwrap
elif ! command -v sudo >/dev/null; then echo no-sudo-rule
elif ! command -v su >/dev/null; then echo no-su
else exec /bin/sh -c %s sh "$%s" %s %d 2>/dev/null </dev/null
fi
)`, Quote(probe), workspace, seconds, alarm)
}

// alarmed runs a command that gets SIGALRM after $alarm seconds. Sudo passes that on, and then ends what it runs.
var alarmed = code(`alarmed() {
if command -v perl >/dev/null; then perl -e 'alarm shift; exec @ARGV or exit 127' $alarm "$@"; else "$@"; fi
}
`)

// probe is run with the workspace, the limit in seconds, and that of a single call of sudo. What hangs ends the probe.
var probe = describe + stopGroup + alarmed + code(`workspace=$1 limit=$2 alarm=$3
say() { printf '%s %s\n' $1 "$user"; exit; }
works() {
"$@" >/dev/null
status=$?
[ $status -lt 128 ] || say timed-out
[ $status = 0 ]
}
launch() {
`+carrier+`='[ -w "$_leasehold_workspace" ] && [ -w /tmp ]'
export `+carrier+`
works /bin/sh -c "$1" sh "$workspace" "$user" $alarm
}
bwrap() { works alarmed sudo -n bwrap "$@"; }
probe() {
user=
user=$(id -un) || say no-user
case $user in ''|-*) user= ; say no-user;; esac
if launch `+probeLauncher(Bwrap{})+`; then say ok; fi
bwrap --version || say no-sudo-rule
if launch `+probeLauncher(Bwrap{SharedProc: true})+`; then say shared-proc; fi
if launch `+probeLauncher(Bwrap{SharedTmp: true})+`; then say shared-tmp; fi
bwrap --ro-bind / / --dev /dev --tmpfs /tmp -- true || say namespaces-refused
bwrap --ro-bind / / --dev /dev --tmpfs /tmp -- su -s /bin/sh "$user" -c true || say no-su
bwrap --ro-bind / / --dev /dev --tmpfs /tmp --bind-try "$workspace" "$workspace" -- su -s /bin/sh "$user" -c '[ -w "$0" ]' "$workspace" || say workspace-not-bindable
say other
}
probe &
_process=$! _birth=
{
trap 'kill $sleeping; exit' TERM
sleep $limit &
sleeping=$!
wait $sleeping
end_group
} >/dev/null &
watch=$!
wait $_process
if [ $? -lt 128 ]; then kill $watch; wait $watch; else wait $watch; echo timed-out; fi
`)

// probeLauncher returns a launcher, see [Bwrap.launcher], as a shell word. Its command never runs outside the wrapper.
func probeLauncher(b Bwrap) string {
	return Quote("_leasehold_record= _leasehold_shell=/bin/sh _leasehold_workspace=$1 _leasehold_user=$2 alarm=$3\nexport _leasehold_workspace\n" + alarmed +
		around("alarmed "+b.line([]string{`"$_leasehold_workspace"`}, `"$_leasehold_user"`, handOver), ":") + "exit 1\n")
}
