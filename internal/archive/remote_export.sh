# Makes an archive. Arguments: scratch directory, "dir" or "file", source, "strict" or "live", then arguments for GNU tar.
# The archive is <scratch>/tree. The last lines of output are "<scratch name> skip <path>" for each socket,
# and "<scratch name> <word> [<bytes>]".
set -u
umask 077
LC_ALL=C COPYFILE_DISABLE=1
export LC_ALL COPYFILE_DISABLE
s=$1 kind=$2 src=$3 mood=$4
mark=${s##*/}
shift 4

say() { printf '\n%s %s\n' "$mark" "$*"; }
fail() { rm -rf "$s" 2>/dev/null; say "$1"; exit 0; }

base=${s%/*}
mkdir -p "$base" 2>/dev/null
# What a host that died left here long ago.
find "$base" -name '.leasehold-xfer-*' -mmin +1440 -prune -exec rm -rf {} + 2>/dev/null

# The request may be delivered twice. The first delivery works; another one repeats its answer.
if ! mkdir "$s" 2>/dev/null; then
  [ -d "$s" ] || { say nospace; exit 0; }
  n=0
  while [ -d "$s" ] && [ ! -f "$s/answer" ]; do
    if [ -s "$s/pid" ]; then kill -0 "$(cat "$s/pid" 2>/dev/null)" 2>/dev/null || break
    else n=$((n+1)); [ $n -lt 5 ] || break
    fi
    sleep 1
  done
  cat "$s/answer" 2>/dev/null || say gone
  exit 0
fi
mkdir "$s/run" 2>/dev/null
echo $$ >"$s/pid" 2>/dev/null

gnu=
case $(tar --version 2>/dev/null </dev/null) in *'GNU tar'*) gnu=1 ;; esac
if [ "$kind" = dir ]; then
  [ -d "$src" ] || { [ -e "$src" ] && fail notdir; fail nosource; }
  [ -r "$src" ] && [ -x "$src" ] || fail denied
  [ -n "$gnu" ] || set --
  ( cd "$src" && exec tar -c -f - "$@" . ) >"$s/tree" 2>"$s/log" &
else
  [ -h "$src" ] && fail symlink
  [ -e "$src" ] || fail nosource
  [ -f "$src" ] || fail notfile
  [ -r "$src" ] || fail denied
  ( cd "${src%/*}/" && exec tar -c -f - "./${src##*/}" ) >"$s/tree" 2>"$s/log" &
fi
child=$!
echo $child >"$s/run/tar" 2>/dev/null
wait $child
rc=$?
rm -f "$s/run/tar"
case $rc in
  0) ;;
  127) fail notar ;;
  *)
    dd if=/dev/zero of="$s/probe" bs=65536 count=2 2>/dev/null || fail nospace
    grep -q -i -e 'no space' -e 'quota' -e 'too large' "$s/log" 2>/dev/null && fail nospace
    # GNU tar: 1 is a file that changed, shrank or vanished while it was read. The archive itself is whole.
    if [ $rc -ne 1 ] || [ -z "$gnu" ]; then
      grep -q -i -e 'denied' -e 'permitted' "$s/log" 2>/dev/null && fail denied
      fail archive
    fi
    [ "$mood" = live ] || fail changed
    ;;
esac
have=$(wc -c <"$s/tree") || fail gone
{
  # Sockets cannot be archived; tar leaves them out. Whoever reads this wants to know.
  [ "$kind" != dir ] || ( cd "$src" && find . -type s -print 2>/dev/null ) | while IFS= read -r name; do say skip "$name"; done
  say ok "$((have))"
} >"$s/answer.new" 2>/dev/null && mv "$s/answer.new" "$s/answer" && cat "$s/answer" || fail nospace
