# What to archive, for either way of an export. $kind is "dir", with a directory and arguments for GNU tar, or "files", with
# the workspace and groups of files: how many, their directory, and their names. $own is the lease's own directory, which is
# never archived. Whoever includes this defines "refuse", which says why there is no archive, and "begin", which runs "feed" in a
# shell of its own, and sets $gnu and $record, the blocks of GNU tar's records.

# inside DIRECTORY: whether the present directory is in the workspace, if its path says so. The system says where it is.
inside() {
  case $1/ in "$root"/*) ;; *) return 0 ;; esac
  here=$(pwd -P && echo .) && real=$(cd -P "$root/" && pwd -P && echo .) || return 1
  here=${here%??} real=${real%??}
  case ${here%/}/ in "${real%/}"/*) ;; *) return 1 ;; esac
}

# missing PATH [N]: refuses what cannot be seen. It is proved to be missing only where the directory above it may be searched.
missing() {
  above=$1
  until [ -d "$above" ]; do
    case $above in
      */*) above=${above%/*}; above=${above:-/} ;;
      *) above=. ;;
    esac
  done
  [ -x "$above" ] || refuse denied ${2-}
  refuse nosource ${2-}
}

# survey: says at once what cannot be archived.
survey() {
  if [ "$kind" = dir ]; then
    [ -d "$1" ] || { [ -e "$1" ] && refuse notdir; missing "$1"; }
    [ -r "$1" ] && [ -x "$1" ] || refuse denied
    return 0
  fi
  root=${1%/} n=0
  shift
  while [ $# -gt 0 ]; do
    count=$1 dir=${2%/}
    shift 2
    ( cd -P "$dir/" 2>/dev/null && ! inside "$dir" ) && refuse outside $n
    while [ $count -gt 0 ]; do
      [ ! -h "$dir/$1" ] || refuse symlink $n
      [ -e "$dir/$1" ] || missing "$dir/$1" $n
      [ -f "$dir/$1" ] || refuse notfile $n
      [ -r "$dir/$1" ] || refuse denied $n
      shift
      count=$((count-1)) n=$((n+1))
    done
  done
}

# feed COUNT DIRECTORY ARGUMENTS...: runs tar in a directory that was entered, and then found to be in the workspace: nobody
# can lead it elsewhere any more. It archives the last COUNT arguments, which are names there, or all of it. GNU tar does
# not follow a link that takes a file's place; what is not a file is refused by the host. The host leaves out the lease's own
# directory where the paths tell where it is; where links lead there, only GNU tar can.
feed() {
  count=$1 dir=$2
  shift 2
  enter "$dir" || exit 66
  [ "$inner" != . ] || exit 67
  if [ "$kind" = dir ]; then
    if [ -z "$gnu" ]; then
      [ -z "$inner" ] || [ "$own" = "${dir%/}/$inner" ] || exit 67
      set -- # other tars have other patterns; the host applies them all
    elif [ -n "$inner" ]; then set -- "$@" --anchored --no-wildcards --exclude="./$inner"
    fi
    set -- "$@" .
  else
    inside "${dir%/}" || exit 65
    shift $(($#-count))
    [ -z "$gnu" ] || set -- --no-recursion --hard-dereference "$@"
  fi
  [ -z "$gnu" ] || set -- -b "$record" --sparse "$@"
  exec tar -c -f - "$@"
}

# pack: has archives made, one after another: of the directory, or of the files of each group. Files that changed end it, unless
# that is allowed. $index is the number of the first file of the last group.
pack() {
  index=0
  if [ "$kind" = dir ]; then begin 0 "$@"; return; fi
  shift
  left=$# changed=0
  while [ $left -gt 0 ]; do
    count=$1 dir=$2 n=0
    shift 2
    left=$((left-2-count))
    while [ $n -lt $count ]; do
      set -- "$@" "./$1"
      shift
      n=$((n+1))
    done
    begin $count "$dir" "$@" || {
      changed=$?
      [ "$changed,$gnu,$mood" = 1,1,live ] || return $changed
    }
    index=$((index+count))
  done
  return $changed
}

# judge STATUS TEXT INDEX: sets $word to what the end of tar means, "ok" for a whole archive.
judge() {
  case $1,$gnu in
    0,*) word=ok ;;
    # GNU tar: a file that changed, shrank or vanished while it was read. The archive itself is whole.
    1,?*) if [ "$mood" = live ]; then word=ok; else word=changed; fi ;;
    65,*) word="outside ${3:-0}" ;;
    66,*) word=changed ;; # it was there
    67,*) word="reserved ${3:-0}" ;;
    127,*) word=notar ;;
    *)
      case $2 in
        *[Dd]enied* | *permitted*) word=denied ;;
        *'ame too long'*) word=toolong ;;
        *) word=archive ;;
      esac
      ;;
  esac
}
