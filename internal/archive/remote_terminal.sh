# Sends an archive through a raw terminal. Bash; arguments: a mark, the size of a chunk in bytes, the seconds that it waits
# for each request, "strict" or "live", the kind of source, the lease's own directory, and then what to archive,
# see remote_source.sh.
# It writes nothing but to the terminal.
#
# It says "<mark> ready", a line with a byte of each value, and "<mark> probed", and is told "raw" or "base64". To each line "next <number>",
# from 0 on, it answers with a chunk and a newline: a chunk has the full size, base64 text may be shorter at the end. Behind
# the last one it says "<mark> skip <path>" for each socket and "<mark> ok <sha256>", or "<mark> <why not>" at any time.
# It ends with the next line.
set -u
exec 2>/dev/null
export LC_ALL=C COPYFILE_DISABLE=1
unset TAR_OPTIONS
mark=$1 size=$2 patience=$3 mood=$4 kind=$5 own=$6
shift 6

say() { printf '%s %s\n' "$mark" "$*"; }
# hear: the host's next line. It is told apart from silence, after which nobody is there any more.
hear() { IFS=' ' read -r -t "$patience" word number; }
quit() { say "$@"; hear; exit 0; }

gnu=1 record=$((size/512))
refuse() { quit "$@"; }
begin() { ( feed "$@" ); }
survey "$@"

# A pipe without a name: what tar and the digest say of their end.
exec 6<> <(:)
archive() {
  local log rc
  { log=$(pack "$@" 2>&1 >&7 7>&-; rc=$?; printf '\n%s' "$index"; exit $rc); rc=$?; } 7>&1
  if [ "$kind" = dir ]; then
    printf '%s\n' "$log" | sed -n 's/^[^ ]*tar: \(.*\): socket ignored$/skip \1/p' | head -c 32768 | sed -n '/./p' >&6
  fi
  judge $rc "$log" "${log##*$'\n'}"
  echo "end $word" >&6
}
say ready
for ((i = 0; i < 256; i++)); do
  printf -v octal %03o $i
  printf "\\$octal"
done
printf '\n'
say probed
hear || exit 0
# Records of tar are as large as chunks, so that all are full; what a tar that died leaves is filled up. A chunk goes out in
# blocks, or tar and those behind it would stand still while all of it is gathered, and again while it is sent.
full= block=$((size/8))
case $word in
  raw)
    full=conv=sync
    exec 5< <(archive "$@" | tee >(sha256sum >&6))
    ;;
  *) exec 5< <(archive "$@" | tee >(sha256sum >&6) | base64 -w 0) ;;
esac
expected=0
while hear && [ "$word" = next ] && [ "$number" = "$expected" ]; do
  { count=$(dd bs=$block count=8 iflag=fullblock $full 2>&1 >&7 <&5); } 7>&1
  case $count in
    0+0*) ;;
    *)
      case $full:${count%% *} in :*|*:8+0) ;; *) dd if=/dev/zero bs=$block count=$((8-(${count%% *}))) ;; esac
      printf '\n'
      expected=$((expected+1))
      continue
      ;;
  esac
  end= sum=
  while [ -z "$end" ] || [ -z "$sum" ]; do
    IFS=' ' read -r -t "$patience" -u 6 key rest || quit gone
    case $key in
      skip) say skip "$rest" ;;
      end) end=$rest ;;
      *) sum=$key ;;
    esac
  done
  [ "$end" != ok ] || end="ok $sum"
  quit $end
done
