# Takes in an upload. Arguments: scratch name, the lease's own directory, the bundle's name, its digest and its marker, each
# empty for none; how many lines there are for the lease's list of writable directories, and these; then for each stage:
# destination, bytes of the archive, bytes of the list of large files, bytes of the list of what is to be removed, 0 for none, and
# the lease's own directory as that list leaves it out, by its path in the destination.
# In <destination>/<scratch>, with -1, -2 and so on for further stages, lie the archive, tree.tar, and the large files:
# large/0, large/1 and so on, with the list, large/places. The last line of output is "<scratch> <word>".
set -u
umask 022
LC_ALL=C TZ=UTC0 EXTRACT_UNSAFE_SYMLINKS=1
export LC_ALL TZ EXTRACT_UNSAFE_SYMLINKS
mark=$1 own=$2 bundle=$3 digest=$4 marker=$5 lines=$6 record=
shift 6
while [ $lines -gt 0 ]; do
  record="$record$1
"
  shift
  lines=$((lines-1))
done

say() { printf '\n%s %s\n' "$mark" "$1"; }
# each STEP DESTINATION BYTES PLACES GONE SPARED...: takes the step for each stage.
each() {
  step=$1 at=
  shift
  while [ $# -gt 0 ]; do
    dest=$1 bytes=$2 places=$3 gone=$4 spared=$5 s=${1%/}/$mark$at
    dest=${dest%/}
    "$step" || return
    shift 5
    at=-$((${at#-}+1))
  done
}
# The directory goes at once: a delivery that comes meanwhile finds none, in place of one in which nobody works any more.
scrap() {
  mv "$s" "$s-gone" 2>/dev/null && s=$s-gone
  rm -rf "$s" 2>/dev/null && return
  find "$s" -type d -exec chmod u+rwx {} \; 2>/dev/null
  rm -rf "$s" 2>/dev/null
  return 0
}
# In the stages' own shells, a failure is a word on the output.
fail() { echo "$1"; exit 1; }
size() { n=$(wc -c <"$1") && echo $((n)); }

sweep "$own"
tidy() { sweep "$dest"; }
each tidy "$@"

# The request may be delivered twice. The first delivery works; another one waits for its end, and then knows nothing.
top=${1%/}/$mark
if ! mkdir "$top/run" 2>/dev/null; then
  if [ ! -d "$top/run" ] && [ -d "$top" ]; then each scrap "$@"; say nospace; exit 0; fi
  n=0
  while [ -d "$top/run" ]; do
    if [ -s "$top/run/pid" ]; then kill -0 "$(cat "$top/run/pid" 2>/dev/null)" 2>/dev/null || break
    else n=$((n+1)); [ $n -lt 5 ] || break
    fi
    sleep 1
  done
  say gone
  exit 0
fi
echo $$ >"$top/run/pid" 2>/dev/null

# put NUMBER NAME BYTES MODE TIME: gives a large file its place. The list calls it.
put() {
  [ "$(size "$s/apart/$1")" = "$3" ] || exit 3
  case $2 in */*) mkdir -p "./${2%/*}" || exit 1 ;; esac
  [ "$5" = - ] || touch -t "$5" "$s/apart/$1" || exit 1
  chmod "$4" "$s/apart/$1" && mv "$s/apart/$1" "./$2" || exit 1
}
# spread NUMBER BYTES SIZE OFFSET BLOCKS...: puts the data of a sparse file between its holes, in blocks of 4096 bytes.
spread() {
  f=$s/apart/$1
  [ "$(size "$f")" = "$2" ] || exit 3
  mv "$f" "$f.data" && dd if=/dev/null of="$f" bs=1 count=0 seek="$3" || exit 1
  shift 3
  n=0
  while [ $# -gt 0 ]; do
    dd if="$f.data" of="$f" bs=4096 skip=$n seek="$1" count="$2" conv=notrunc || exit 1
    n=$((n+$2))
    shift 2
  done
  rm "$f.data"
}
room() { dd if=/dev/zero of="$s/probe" bs=65536 count=2 2>/dev/null; }

# join SEGMENT PARENT NAME MODE PARENT-MODE PARENT-TIME: while it is looked for conflicts, says so if the destination has the
# directory of a segment, for none is merged that deep; when it is published, gives it its place. The list calls it.
join() {
  if [ "$step" = receive ]; then
    case $2 in ./.leasehold-xfer-deep/*) return ;; esac
    [ ! -e "$dest/$2$3" ] && [ ! -h "$dest/$2$3" ] || fail "deep $2$3"
    return
  fi
  chmod u+rwx "$1" "$2" && mv "$1" "$2$3" && chmod "$4" "$2$3" || exit 1
  [ "$6" = - ] || touch -t "$6" "$2" || exit 1
  [ "$5" = - ] || chmod "$5" "$2" || exit 1
}

receive() {
  # Renamed first: a late second delivery of the upload can then no longer cut the files that were measured.
  mv "$s/tree.tar" "$s/tree" 2>/dev/null || fail missing
  [ "$(size "$s/tree")" = "$bytes" ] || fail short
  if [ "$gone" -gt 0 ]; then
    mv "$s/gone" "$s/leave" 2>/dev/null || fail missing
    [ "$(size "$s/leave")" = "$gone" ] || fail short
  fi
  mkdir "$s/new" 2>/dev/null || fail nospace
  if [ "$places" -gt 0 ]; then
    mv "$s/large" "$s/apart" 2>/dev/null || fail missing
    [ "$(size "$s/apart/places")" = "$places" ] || fail short
    ( cd "$s/new" && . "$s/apart/places" ) >/dev/null 2>&1
    case $? in
      0) ;;
      3) fail short ;;
      *) room || fail nospace; fail extract ;;
    esac
  fi
  # Without a umask: busybox applies it to modes unless it runs as root, -p or not.
  ( umask 0; cd "$s/new" && exec tar -x -p -o -f - <"$s/tree" ) >/dev/null 2>"$s/log" &
  child=$!
  echo $child >"$top/run/tar" 2>/dev/null
  wait $child
  rc=$?
  rm -f "$top/run/tar"
  if [ $rc -ne 0 ]; then
    [ $rc -ne 127 ] || fail notar
    # Tools speak many languages and tell a full disk in many ways. Whether one more block fits is plain.
    room || fail nospace
    grep -q -i -e 'no space' -e 'quota' -e 'too large' "$s/log" 2>/dev/null && fail nospace
    fail extract
  fi
  rm -f "$s/tree"
  m=.leasehold-xfer-modes
  if [ -f "$s/new/$m" ]; then
    ( cd "$s/new" && sh "./$m" ) >/dev/null 2>&1 || fail extract
    rm -f "$s/new/$m"
  fi
  j=.leasehold-xfer-joins
  [ ! -f "$s/new/$j" ] || mv "$s/new/$j" "$s/joins" || fail extract
  met=0
  [ -n "$bundle" ] || meet "$s/new" "$dest" || met=$?
  # The lease's own directory is neither filled nor replaced nor removed, whatever the destination is called. What leads to it was
  # made accessible, and in it, "." is always there.
  enter "$dest"
  if [ -n "$inner" ]; then
    [ ! -e "$s/new/$inner" ] && [ ! -h "$s/new/$inner" ] || fail "reserved $dest/$bundle"
    case $inner in "$bundle"/*) fail "reserved $dest/$bundle" ;; esac
    [ "$gone" -eq 0 ] || [ "$inner" = "$spared" ] || fail "reserved $dest/"
  fi
  case $met in
    0) ;;
    2) fail extract ;;
    *) fail conflict ;;
  esac
  if [ -z "$bundle" ]; then
    [ ! -f "$s/joins" ] || . "$s/joins"
  elif [ -h "$dest/$bundle" ]; then fail conflict
  elif [ -e "$dest/$bundle" ] && [ ! -d "$dest/$bundle" ]; then fail conflict
  fi
}

# none NAME: whether it is a pattern that matched nothing. Anything else that does not seem to be there cannot be looked at, and
# whoever went on would lose it.
none() { case ${1##*/} in '*' | '.[!.]*' | '..?*') ;; *) return 1 ;; esac; }

# meet SRC DST: whether no directory meets something else; 2 if that cannot be told. Directories that both have are made
# accessible in SRC.
meet() {
  for e in "$1"/* "$1"/.[!.]* "$1"/..?*; do
    [ -e "$e" ] || [ -h "$e" ] || { none "$e" || return 2; continue; }
    t=$2/${e##*/}
    if [ -d "$e" ] && [ ! -h "$e" ]; then
      if [ -h "$t" ]; then return 1
      elif [ -d "$t" ]; then chmod u+rwx "$e" && meet "$e" "$t" || return
      elif [ -e "$t" ]; then return 1
      fi
    elif [ -d "$t" ] && [ ! -h "$t" ]; then return 1
    fi
  done
}

# move SRC DST: renames what is in SRC into DST, and goes down into the directories that both have.
# The names to move together are kept in $3 and on.
move() {
  [ -r "$1" ] || return 1 # another import made DST since it was looked for
  for e in "$1"/* "$1"/.[!.]* "$1"/..?*; do
    [ -e "$e" ] || [ -h "$e" ] || { none "$e" || return 1; continue; }
    if [ -d "$e" ] && [ ! -h "$e" ]; then
      if [ -d "$2/${e##*/}" ]; then move "$e" "$2/${e##*/}" || return 1; continue; fi
      if [ ! -w "$e" ]; then unseal "$e" "$2" || return 1; continue; fi
    fi
    set -- "$@" "$e"
    if [ $# -ge 66 ]; then flush "$@" || return 1; set -- "$1" "$2"; fi
  done
  flush "$@"
}
flush() {
  to=$2
  shift 2
  [ $# -eq 0 ] || mv -f -- "$@" "$to/"
}
# unseal DIR PARENT: moves a directory that its owner may not write. It cannot be renamed into another one as it is.
unseal() {
  chmod u+w "$1" || return 1
  mv -f -- "$1" "$2/" || { chmod u-w "$1"; return 1; }
  chmod u-w "$2/${1##*/}"
}

pass() { if [ -w "$1" ]; then mv -f -- "$1" "$2/"; else unseal "$1" "$2"; fi; }

publish() {
  # From here on a path may be too long to be named.
  if [ -f "$s/joins" ]; then
    ( cd "$s/new" && . "$s/joins" && rmdir .leasehold-xfer-deep ) >/dev/null 2>&1 || fail publish
  fi
  if [ -z "$bundle" ]; then
    # Where another import made a directory of the same name meanwhile, what is left goes into that one.
    n=0
    until move "$s/new" "$dest" 2>/dev/null; do
      n=$((n+1)); [ $n -lt 5 ] && meet "$s/new" "$dest" || fail publish
    done
  else
    rm -f "$marker" || fail publish
    mkdir "$s/old" || fail publish
    [ ! -d "$dest/$bundle" ] || pass "$dest/$bundle" "$s/old" || fail publish
    if ! pass "$s/new/$bundle" "$dest"; then
      [ ! -d "$s/old/$bundle" ] || pass "$s/old/$bundle" "$dest"
      fail publish
    fi
    # Without the marker the bundle is only sent again.
    l=$(look "$dest/$bundle") && mkdir -p "${marker%/*}" && printf '%s\n%s\n' "$digest" "$l" >"$s/marker" && mv -f "$s/marker" "$marker"
  fi 2>/dev/null
  [ "$gone" -eq 0 ] || ( cd "${dest:-/}" && . "$s/leave" ) >/dev/null 2>&1 || fail publish
}

# note adds the lines of the record to the list. A line that a full disk cut off does not spoil the next one.
note() {
  list=$own/writable
  mkdir -p "$own"
  printf %s "$record" | while IFS= read -r line; do
    grep -q -x -F -e "$line" "$list" || printf '\n%s\n' "$line" >>"$list" || exit 1
  done
} 2>/dev/null
# unnoted says why they could not be added.
unnoted() {
  s=$own
  [ ! -w "$own/" ] || room || word=nospace
  rm -f "$s/probe"
  fail ${word:-scratch}
}

word=
word=$(
  each receive "$@" || exit
  [ -z "$record" ] || note || unnoted
  # Whoever makes the gate decides: this script, to publish, or the caller's cleanup, to end it.
  mkdir "$top/gate" 2>/dev/null || fail canceled
  each publish "$@"
) && word=ok
each scrap "$@"
say "$word"
