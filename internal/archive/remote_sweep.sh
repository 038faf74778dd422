# sweep DIRECTORY: removes scratch that transfers of a host that died left there. Who made an archive that nobody fetches has
# long ended; else nobody can tell it from a slow one for a day.
sweep() {
  for old in "$1"/.leasehold-xfer-*; do
    [ -d "$old" ] || continue
    case ${old##*/} in "$mark"*) continue ;; esac
    age=1440
    [ ! -f "$old/ended" ] || age=60
    find "$old" -prune -mmin +$age -exec rm -rf {} + 2>/dev/null
  done
  return 0
}
