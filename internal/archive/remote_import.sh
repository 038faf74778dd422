# Takes in an upload. Arguments: destination, scratch name, bytes of the archive, the lease's own directory, bytes of the
# list of large files, 0 for none. In <destination>/<scratch> lie the archive, tree.tar, and the large files: large/0,
# large/1 and so on, with the list, large/places. The last line of output is "<scratch> <word>".
set -u
umask 022
LC_ALL=C TZ=UTC0 EXTRACT_UNSAFE_SYMLINKS=1
export LC_ALL TZ EXTRACT_UNSAFE_SYMLINKS
dest=$1 mark=$2 bytes=$3 own=$4 places=$5
[ "$dest" != / ] || dest=
s=$dest/$mark

say() { printf '\n%s %s\n' "$mark" "$1"; }
scrap() {
  rm -rf "$s" 2>/dev/null && return
  find "$s" -type d -exec chmod u+rwx {} \; 2>/dev/null
  rm -rf "$s" 2>/dev/null
}
fail() { scrap; say "$1"; exit 0; }
size() { n=$(wc -c <"$1") && echo $((n)); }

# What imports of a host that died left here long ago.
for old in "$dest"/.leasehold-xfer-*; do
  [ "$old" = "$s" ] || [ ! -d "$old" ] || find "$old" -prune -mmin +1440 -exec rm -rf {} + 2>/dev/null
done

# The request may be delivered twice. The first delivery works; another one waits for its end, and then knows nothing.
if ! mkdir "$s/run" 2>/dev/null; then
  [ -d "$s" ] && [ ! -d "$s/run" ] && fail nospace
  n=0
  while [ -d "$s/run" ]; do
    if [ -s "$s/run/pid" ]; then kill -0 "$(cat "$s/run/pid" 2>/dev/null)" 2>/dev/null || break
    else n=$((n+1)); [ $n -lt 5 ] || break
    fi
    sleep 1
  done
  say gone
  exit 0
fi
echo $$ >"$s/run/pid" 2>/dev/null

# Renamed first: a late second delivery of the upload can then no longer cut the files that were measured.
mv "$s/tree.tar" "$s/tree" 2>/dev/null || fail missing
[ "$(size "$s/tree")" = "$bytes" ] || fail short
mkdir "$s/new" 2>/dev/null || fail nospace

# put NUMBER NAME BYTES MODE TIME: gives a large file its place. The list calls it.
put() {
  [ "$(size "$s/apart/$1")" = "$3" ] || exit 3
  case $2 in */*) mkdir -p "./${2%/*}" || exit 1 ;; esac
  [ "$5" = - ] || touch -t "$5" "$s/apart/$1" || exit 1
  chmod "$4" "$s/apart/$1" && mv "$s/apart/$1" "./$2" || exit 1
}
if [ "$places" -gt 0 ]; then
  mv "$s/large" "$s/apart" 2>/dev/null || fail missing
  [ "$(size "$s/apart/places")" = "$places" ] || fail short
  ( cd "$s/new" && . "$s/apart/places" ) >/dev/null 2>&1
  case $? in
    0) ;;
    3) fail short ;;
    *) dd if=/dev/zero of="$s/probe" bs=65536 count=2 2>/dev/null || fail nospace; fail extract ;;
  esac
fi
# Without a umask: busybox applies it to modes unless it runs as root, -p or not.
( umask 0; cd "$s/new" && exec tar -x -p -o -f - <"$s/tree" ) >/dev/null 2>"$s/log" &
child=$!
echo $child >"$s/run/tar" 2>/dev/null
wait $child
rc=$?
rm -f "$s/run/tar"
if [ $rc -ne 0 ]; then
  [ $rc -ne 127 ] || fail notar
  # Tools speak many languages and tell a full disk in many ways. Whether one more block fits is plain.
  dd if=/dev/zero of="$s/probe" bs=65536 count=2 2>/dev/null || fail nospace
  grep -q -i -e 'no space' -e 'quota' -e 'too large' "$s/log" 2>/dev/null && fail nospace
  fail extract
fi
rm -f "$s/tree"
m=.leasehold-xfer-modes
if [ -f "$s/new/$m" ]; then
  ( cd "$s/new" && sh "./$m" ) >/dev/null 2>&1 || fail extract
  rm -f "$s/new/$m"
fi

# The lease's own directory is not to be replaced, under whatever name the destination was reached.
if [ -e "$s/new/${own##*/}" ]; then
  a=$(cd "${dest:-/}" && pwd -P) b=$(cd "${own%/*}/" 2>/dev/null && pwd -P) && [ "$a" = "$b" ] && fail reserved
fi

# check SRC DST: whether a directory would meet something else. Directories that both have are made accessible in SRC.
check() {
  for e in "$1"/* "$1"/.[!.]* "$1"/..?*; do
    [ -e "$e" ] || [ -h "$e" ] || continue
    t=$2/${e##*/}
    if [ -d "$e" ] && [ ! -h "$e" ]; then
      if [ -h "$t" ]; then return 1
      elif [ -d "$t" ]; then chmod u+rwx "$e" && check "$e" "$t" || return 1
      elif [ -e "$t" ]; then return 1
      fi
    elif [ -d "$t" ] && [ ! -h "$t" ]; then return 1
    fi
  done
}

# move SRC DST: renames what is in SRC into DST, and goes down into the directories that both have.
# The names to move together are kept in $3 and on.
move() {
  for e in "$1"/* "$1"/.[!.]* "$1"/..?*; do
    [ -e "$e" ] || [ -h "$e" ] || continue
    if [ -d "$e" ] && [ ! -h "$e" ]; then
      if [ -d "$2/${e##*/}" ]; then move "$e" "$2/${e##*/}" || return 1; continue; fi
      # A directory that its owner may not write cannot be renamed into another one.
      if [ ! -w "$e" ]; then
        t=$2/${e##*/}
        chmod u+w "$e" || return 1
        mv -f -- "$e" "$2/" || { chmod u-w "$e"; return 1; }
        chmod u-w "$t" || return 1
        continue
      fi
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

check "$s/new" "$dest" || fail conflict
# Whoever makes the gate decides: this script, to publish, or the caller's cleanup, to end it.
mkdir "$s/gate" 2>/dev/null || fail canceled
# Where another import made a directory of the same name meanwhile, what is left goes into that one.
n=0
until move "$s/new" "$dest" 2>/dev/null; do
  n=$((n+1)); [ $n -lt 5 ] && check "$s/new" "$dest" || fail publish
done
scrap
say ok
