# Lists a directory. Arguments: directory, scratch name, "times" or "digests", the lease's own directory. The list is
# <directory>/<scratch>/list: an entry with "=" and where the lease's own directory lies, if it does so in this one; for each
# entry mode in hex, bytes, time in seconds and path, ended by "//"; an entry with the path "="; the output of sha256sum for the
# regular files, if wanted; and that entry again. The last line of output is "<scratch name> <word> [<bytes>]".
set -u
umask 077
LC_ALL=C
export LC_ALL
dest=${1%/} mark=$2 how=$3 own=$4
s=$dest/$mark
say() { printf '\n%s %s\n' "$mark" "$*"; exit 0; }
fail() { rm -rf "$s"; say "$1"; }
[ -d "$dest/" ] || say nosource
enter "$dest" || say nolist
[ "$inner" != . ] || say reserved
stat -c %f . >/dev/null 2>&1 || say nolist
[ "$how" = times ] || sha256sum </dev/null >/dev/null 2>&1 || say nolist
mkdir "$s" 2>/dev/null || [ -d "$s" ] || { [ -w "$dest/" ] && say nospace; say nolist; }
echo $$ >"$s/pid" 2>/dev/null
t=$s/list.$$
(
  [ -z "$inner" ] || printf '0 0 0 =%s//\n' "$inner" || exit 2
  find . -exec stat -c '%f %s %Y %n//' {} + || exit 2
  echo '0 0 0 =//' || exit 2
  [ "$how" = times ] || find . -name '.leasehold*' -prune -o -type f -exec sha256sum {} + || exit 2
  echo '0 0 0 =//' || exit 2
) >"$t" 2>/dev/null || { dd if=/dev/zero of="$s/probe" bs=65536 count=2 2>/dev/null || fail nospace; fail nolist; }
mv -f "$t" "$s/list" 2>/dev/null || fail nospace
n=$(wc -c <"$s/list") || fail nospace
[ "$(cat "$s/pid" 2>/dev/null)" != $$ ] || rm -f "$s/pid"
say ok $((n))
