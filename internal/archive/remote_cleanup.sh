# Removes scratch directories, those that an import is about to remove (-gone) too, and ends what still works in them. Arguments: seconds to look once more, the directories, the
# operation's own first. The last line of output is "<name> ok" or "<name> left".
set -u
again=$1 top=$2
mark=${top##*/}
shift

stop() {
  n=
  [ -d "$top" ] || return 0
  # Once the gate is made, the import cannot begin to publish. If it was there, publishing may be going on: it takes as long as
  # there are names to give, and cut off would leave half of a tree. After five minutes its number is taken to be another's.
  mkdir "$top/gate" 2>/dev/null || n=0
  for tar in "$top/run/tar" "$top/tar"; do
    [ -s "$tar" ] && kill "$(cat "$tar")" 2>/dev/null
  done
  [ -n "$n" ] || return 0
  waited=0
  while [ -d "$top/gate" ] && [ $waited -lt 300 ]; do
    waited=$((waited+1))
    if [ -s "$top/run/pid" ]; then kill -0 "$(cat "$top/run/pid" 2>/dev/null)" 2>/dev/null || break
    else n=$((n+1)); [ $n -lt 5 ] || break
    fi
    sleep 1
  done
  return 0
}
scrap() {
  stop
  for s; do
    n=0
    until rm -rf "$s" "$s-gone" 2>/dev/null; do
      find "$s" "$s-gone" -type d -exec chmod u+rwx {} \; 2>/dev/null
      n=$((n+1)); [ $n -lt 5 ] || return 1
      sleep 1
    done
  done
}

scrap "$@" && { [ "$again" -eq 0 ] || { sleep "$again"; scrap "$@"; }; } && { printf '\n%s ok\n' "$mark"; exit 0; }
printf '\n%s left\n' "$mark"
