package script

import (
	"fmt"
	"strings"
)

// Bwrap is an advisory wrapper around a command, which sees the file system read-only, but for some directories.
//
// Real root makes the mounts (sudo), and su goes back to the user: outside and inside, a process and a file have the same
// owner. A user namespace (--unshare-user --uid --gid) would need no root, and must not come back: it maps one user only,
// so that files made outside of it belong to the overflow user 65534, and writes in the workspace fail with EACCES. Nor is
// there a namespace of processes: what a command leaves in the background outlives it, as without the wrapper.
//
// Sudo lets three descriptors through, clears the environment, and logs its arguments. So a shell around the wrapper, see
// [Bwrap.launcher], hands over the command, its environment and all else that may be secret. The arguments name nothing
// but directories, the user and a process.
type Bwrap struct {
	User     string   // the command's, who starts it
	Writable []string // directories, absolute
	// SharedProc keeps the sandbox's own /proc, read-only, where a fresh one cannot be mounted. SharedTmp keeps its /tmp and
	// /dev/shm, writable, where bwrap is older than 0.5 and makes none that the user can write to.
	SharedProc, SharedTmp bool
	// List is the file that names writable directories, and Lines how many lines it had when it was read. If it has more by
	// now Writable may lack a directory, and the command runs without the wrapper.
	List  string
	Lines int
}

// Line returns the shell line that runs a script, itself a shell word, as the user and in the wrapper. $1 is the path of
// the command's files, or empty.
//
// The order matters: later mounts cover earlier ones, and the fresh /tmp would hide what was bound before it. A writable
// directory that does not exist is no obstacle (--bind-try): one may be removed at any time. The session of its own is for
// an su that makes none.
func (b Bwrap) Line(script string) string {
	words := make([]string, len(b.Writable))
	for i, dir := range b.Writable {
		words[i] = Quote(dir)
	}
	return b.line(words, Quote(b.User), script)
}

// line is Line for other writable directories and another user, as shell words.
func (b Bwrap) line(writable []string, user, script string) string {
	line := []string{"sudo -n bwrap --ro-bind / / --dev /dev"}
	if !b.SharedProc {
		line = append(line, "--proc /proc")
	}
	if b.SharedTmp {
		line = append(line, "--bind-try /dev/shm /dev/shm --bind-try /tmp /tmp")
	} else { // for everybody, as they should be: root's own mode is 0755
		line = append(line, "--perms 1777 --tmpfs /dev/shm --perms 1777 --tmpfs /tmp")
	}
	for _, dir := range writable {
		line = append(line, "--bind-try", dir, dir)
	}
	line = append(line, `${1:+--bind "$1" "$1" --ro-bind-try "$1.s" "$1.s" --ro-bind-try "$1.c" "$1.c"}`,
		"--die-with-parent --new-session -- su -s /bin/sh", user, "-c", script)
	return strings.Join(line, " ")
}

// handOver is what su runs. All else comes from the launcher.
const handOver = `". /proc/$$/fd/5"`

// launcher returns the script of the shell that stands around the wrapper. It is run as /bin/sh -c <launcher> sh <files>
// <shell>, with the text for that shell in the environment variable [carrier] or, if it is too long, in the file <files>.c.
// Outside, begin is run first. Inside, wrapped is run before the text.
//
// The text is run once. The first thing inside is to tell this shell (SIGUSR1), which takes over itself only if the wrapper
// ended, of its own accord, without that. When this shell is ended its descriptors go with it, and nothing begins any more.
//
// The shell stays until the command has ended, since it is the user's own process: sudo, bwrap and su are root's. What they
// say on standard error is not the command's.
func (b Bwrap) launcher(begin, wrapped, stale string) string {
	fresh := ""
	if b.List != "" {
		fresh = fmt.Sprintf(`_leasehold_lines=0
{ while read -r _leasehold_line; do _leasehold_lines=$((_leasehold_lines+1)); done <%s; } 2>/dev/null
if [ $_leasehold_lines != %d ]; then
%s
%sfi
`, Quote(b.List), b.Lines, stale, takeOver)
	}
	return "_leasehold_record=$1 _leasehold_shell=$2\n" + begin + fresh + around(b.Line(handOver), wrapped) + "exec 5<&- 8>&-\n" + takeOver
}

// around returns the lines that run the wrapper, and end with the status of the command if that has begun.
func around(line, wrapped string) string {
	return "_leasehold_before=" + Quote(arrive) + "\n_leasehold_after=" + Quote(settleIn+wrapped+"\n"+lead+takeOver) + `
export _leasehold_record _leasehold_shell
_leasehold_environment=$(export -p)
_leasehold_begun=
trap '_leasehold_begun=1' USR1
exec 8>&2 5<<leasehold-end
_leasehold_launcher=$$
$_leasehold_before
$_leasehold_environment
umask $(umask)
$_leasehold_after
leasehold-end
set -- "$_leasehold_record"
` + line + ` 2>/dev/null
_leasehold_status=$?
trap - USR1
if [ "$_leasehold_begun" ] || [ $_leasehold_status -ge 128 ]; then exit $_leasehold_status; fi
`
}

// arrive takes the command's standard error back, says that the command has begun, and drops the environment that sudo, su
// and PAM made. A redirection that fails ends the shell. So does another user than the launcher's: that could only be root,
// by a name that is not the launcher's user's, or by an su that stayed what it was.
var arrive = code(`[ -O "/proc/$_leasehold_launcher" ] || exit
exec 2>>"/proc/$_leasehold_launcher/fd/8"
kill -USR1 $_leasehold_launcher || exit
_leasehold_home=$HOME _leasehold_user=$USER _leasehold_logname=$LOGNAME
set -f
IFS='
'
for _leasehold_name in $(export -p); do
case $_leasehold_name in "export "*) _leasehold_name=${_leasehold_name#export } _leasehold_name=${_leasehold_name%%=*};; *) continue;; esac
case $_leasehold_name in ''|[0-9]*|*[!A-Za-z0-9_]*) ;; *) unset "$_leasehold_name";; esac
done
set +f
unset IFS
`)

// settleIn completes the environment: where the daemon does not say who the user is, su does. A directory for temporary
// files that is read-only now is no use.
var settleIn = code(`: "${HOME=$_leasehold_home}" "${USER=$_leasehold_user}" "${LOGNAME=$_leasehold_logname}"
export HOME USER LOGNAME
if [ "${TMPDIR-}" ] && ! { [ -d "$TMPDIR" ] && [ -w "$TMPDIR" ]; }; then unset TMPDIR; fi
`)

// lead makes sure that what takes over leads a process group.
var lead = code(`_leasehold_setsid=
if { read -r _leasehold_stat </proc/self/stat; } 2>/dev/null; then
set -- ${_leasehold_stat##*) }
[ "$3" = $$ ] || _leasehold_setsid=setsid
fi
`)

// takeOver becomes the shell for the text.
var takeOver = code(`set -- "$_leasehold_record" "$_leasehold_shell"
unset _leasehold_record _leasehold_shell
if [ "${` + carrier + `+x}" ]; then exec ${_leasehold_setsid-} "$2" -c ` + carried + ` sh "$1"; fi
exec ${_leasehold_setsid-} "$2" -c ` + sourced + ` sh "$1"
`)
