# Removes a scratch directory, and ends what still works in it. Arguments: the directory, seconds to look once more.
# The last line of output is "<name> ok" or "<name> left".
set -u
s=$1 again=$2
mark=${s##*/}

scrap() {
  [ -d "$s" ] || return 0
  # Once the gate is made, the import cannot begin to publish. If it was there, publishing is going on: a matter of renames.
  if ! mkdir "$s/gate" 2>/dev/null && [ -d "$s/gate" ]; then
    n=0
    while [ -d "$s" ] && [ $n -lt 5 ]; do sleep 1; n=$((n+1)); done
  fi
  [ -s "$s/run/tar" ] && kill "$(cat "$s/run/tar")" 2>/dev/null
  n=0
  until rm -rf "$s" 2>/dev/null; do
    find "$s" -type d -exec chmod u+rwx {} \; 2>/dev/null
    n=$((n+1)); [ $n -lt 5 ] || return 1
    sleep 1
  done
}

scrap && { [ "$again" -eq 0 ] || { sleep "$again"; scrap; }; } && { printf '\n%s ok\n' "$mark"; exit 0; }
printf '\n%s left\n' "$mark"
