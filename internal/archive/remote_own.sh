# enter DIRECTORY: goes there, with all links resolved. $inner is where the lease's own directory, $own, then lies in it: "" if it
# does not, "." if the directory is the lease's own, or lies in that. The names by which they were reached do not matter.
enter() {
  mine= inner=
  ! cd -P "${own%/*}/" 2>/dev/null || mine=${PWD%/}/${own##*/}
  cd -P "$1/" 2>/dev/null || return 1
  here=${PWD%/}/
  [ -n "$mine" ] || return 0 # nobody can reach it
  case $here in "$mine"/*) inner=. ;; esac
  case $mine in "$here"*) inner=${mine#"$here"} ;; esac
}
