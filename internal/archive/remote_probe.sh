# Measures scratch directories, and what is left of those that an import removes (-gone). Arguments: mark, directories. The last line of output is "<mark> ok <number>".
mark=$1
shift
n=0
for s; do
  [ -d "$s" ] || s=$s-gone
  a=$(du -s "$s" 2>/dev/null) b=$(ls "$s/new" 2>/dev/null | wc -l)
  a=${a%%[!0-9]*}
  n=$((n+${a:-0}*1000+b))
  # A list of digests is written late. Whoever makes it is at work.
  [ -s "$s/pid" ] && kill -0 "$(cat "$s/pid")" 2>/dev/null && n=$((n+$(date +%s)))
done
printf '\n%s ok %s\n' "$mark" $n
