# Makes an archive in pieces, of which few are on the disk at a time. Arguments: "make" or "take", the scratch directory,
# the number of the piece that is wanted; for "take" also the first piece that is still needed; for "make" the blocks of
# 64 KiB in a piece, how many pieces there may be, the seconds without a "take" after which nobody is taken to be interested
# any more, "strict" or "live", the kind of source, the lease's own directory, and then what to archive, see remote_source.sh.
#
# "make" begins, and goes on in the background if there is more than one piece; "take" removes those that are not needed
# any more, and says that somebody still is interested. Both wait until the wanted one is whole, and then say, each line after
# the scratch directory's name: "piece <number> <sum> <bytes>" for each one that is ("-" where there is no cksum), and, when nothing more will come,
# "skip <path>" for each socket and one last word: "ok <bytes>" or why there is no archive. "busy" means that nothing became
# whole for half a minute.
set -u
umask 077
LC_ALL=C COPYFILE_DISABLE=1
export LC_ALL COPYFILE_DISABLE
unset TAR_OPTIONS
verb=$1 s=$2 from=$3
mark=${s##*/}
shift 3

say() { printf '\n%s %s\n' "$mark" "$*"; }

# room STATUS TEXT: whether a command that failed to write found no room: a full disk, a quota, a limit of the file size.
room() {
  case $1 in 153|159) return 1 ;; esac # SIGXFSZ
  case $2 in
    *[Nn]'o space left'* | *[Qq]uota* | *'oo large'* | *'ize limit'* | *ENOSPC* | *EDQUOT* | *EFBIG*) return 1 ;;
    *'os error 28'* | *'os error 122'* | *'os error 27'* | *'rrno 28'* | *'rrno 122'* | *'rrno 27'*) return 1 ;;
  esac
  # Some tools speak in other languages whatever they are told. Whether one more block fits is plain.
  [ -d "$s" ] || return 0
  dd if=/dev/zero of="$s/probe" bs=65536 count=2 2>/dev/null || return 1
}

# answer: what is there from piece $from on.
answer() {
  n=0 lost=0 dot=
  until { read -r sum size dot <"$s/sum.$from"; } 2>/dev/null && [ "$dot" = . ] || [ -f "$s/ended" ]; do
    if { read -r maker <"$s/maker"; } 2>/dev/null && kill -0 "$maker" 2>/dev/null; then lost=0
    elif [ -s "$s/maker" ]; then lost=$((lost+50)) # it may have ended a moment ago
    else lost=$((lost+1)) # or not begun yet
    fi
    if [ $lost -gt 250 ] || [ ! -d "$s" ]; then
      room 0 '' || { say nospace; exit 0; }
      say gone
      exit 0
    fi
    [ $n -lt 1000 ] || { say busy; exit 0; }
    if [ $n -lt 50 ] && sleep 0.02 2>/dev/null; then n=$((n+1))
    elif sleep 0.2 2>/dev/null; then n=$((n+10))
    else sleep 1; n=$((n+50))
    fi
  done
  k=$from
  while { read -r sum size dot <"$s/sum.$k"; } 2>/dev/null && [ "$dot" = . ]; do
    say piece $k "$sum" "$size"
    k=$((k+1))
  done
  [ ! -f "$s/ended" ] || {
    # The pieces that became whole before the answer did.
    while { read -r sum size dot <"$s/sum.$k"; } 2>/dev/null; do say piece $k "$sum" "$size"; k=$((k+1)); done
    while IFS= read -r line; do printf '%s\n' "$line"; done <"$s/answer"
  }
  exit 0
}

if [ "$verb" = take ]; then
  k=$(($1-1))
  while [ $k -ge 0 ] && [ -f "$s/sum.$k" ]; do rm -f "$s/$k" "$s/sum.$k"; k=$((k-1)); done
  mv -f "$s/alone" "$s/asked" 2>/dev/null # a rename needs no room
  answer
fi

blocks=$1 ring=$2 patience=$3 mood=$4 kind=$5 own=$6
shift 6
# fail WORD: says why there is no archive. Nothing of it goes on, and nothing is left.
fail() {
  exec 3<&-
  [ ! -s "$s/tar" ] || kill "$(cat "$s/tar")" 2>/dev/null
  wait
  rm -rf "$s" 2>/dev/null
  say "$*"
  exit 0
}

base=${s%/*}
sweep "$base"

# The request may be delivered twice. The first delivery works; another one repeats its answer.
if ! err=$({ [ -d "$base" ] || mkdir -p "$base"; } 2>&1 && mkdir "$s" 2>&1); then
  [ ! -d "$s" ] || answer
  room 0 "$err" || fail nospace
  fail scratch
fi
err=$({ echo $$ >"$s/maker" && mkfifo "$s/pipe" "$s/end" && printf '' >"$s/log" && printf '' >"$s/alone"; } 2>&1) || {
  room 0 "$err" || fail nospace
  fail scratch
}

gnu= full=iflag=fullblock record=128
case $(tar --version 2>/dev/null </dev/null) in *'GNU tar'*) gnu=1 ;; esac
refuse() { fail "$@"; }
begin() {
  feed "$@" &
  echo $! >"$s/tar"
  wait $!
  rc=$?
  rm -f "$s/tar" # its number may be another's now
  return $rc
}
survey "$@"
[ "$kind" = files ] || src=$1
# How tar ended comes through a pipe, which needs no room. Opened for both, it never waits.
exec 4<>"$s/end"
{
  pack "$@"
  echo $? $index >&4
} >"$s/pipe" 2>"$s/log" &
exec 3<"$s/pipe"

# verdict: what the end of tar means, in $word.
verdict() {
  echo none >&4
  read -r rc index <&4
  judge "$rc" "$(cat "$s/log" 2>/dev/null)" "$index"
  [ "$word" != ok ] || word="ok $total"
}

# sockets: lists them. They cannot be archived, and whoever reads this wants to know. GNU tar says so by itself.
sockets() {
  [ "$kind" = dir ] || return
  if [ -z "$gnu" ]; then ( cd "$src" && find . -type s -print 2>/dev/null )
  elif [ -s "$s/log" ]; then sed -n 's/^[^ ]*tar: \(.*\): socket ignored$/\1/p' "$s/log"
  else return
  fi | while IFS= read -r name; do say skip "$name"; done
}

# quit: the last word, for whoever asks.
quit() { { sockets; say $word; } >"$s/answer" 2>/dev/null && printf '' >"$s/ended"; }

# piece: writes the next one, number $k. Not 0 when there is none: then it was the end, or the word is in $word.
piece() {
  err=$(dd bs=65536 count="$blocks" $full of="$s/$k" <&3 2>&1)
  rc=$?
  if [ $rc -ne 0 ] && [ -n "$full" ] && [ ! -s "$s/$k" ] && room $rc "$err"; then
    full= # an old dd, which took nothing yet
    err=$(dd bs=65536 count="$blocks" of="$s/$k" <&3 2>&1)
    rc=$?
  fi
  if [ $rc -ne 0 ]; then
    if room $rc "$err"; then word=scratch; else word=nospace; fi
    rm -f "$s/$k"
    return 1
  fi
  set -- $(cksum <"$s/$k" 2>/dev/null)
  [ $# -ge 2 ] || set -- - $(wc -c <"$s/$k")
  [ "$2" -gt 0 ] || return 1
  total=$((total+$2))
  echo "$1 $2 ." >"$s/sum.$k" || { word=nospace; return 1; }
  k=$((k+1))
  [ -z "$full" ] || [ "$2" -eq $((blocks*65536)) ] || return 1
}

k=0 total=0 word=
if piece; then
  # The rest is made while the host fetches what there is.
  (
    exec >/dev/null 2>&1
    while :; do
      n=0
      while [ -f "$s/sum.$((k-ring))" ]; do
        [ ! -f "$s/asked" ] || { mv -f "$s/asked" "$s/alone" && n=0; }
        n=$((n+1))
        [ $n -lt $((patience*20)) ] || { exec 3<&-; rm -rf "$s"; exit; }
        sleep 0.05 2>/dev/null || sleep 1
      done
      piece || break
    done
    [ -n "$word" ] || verdict
    exec 3<&-
    quit
  ) &
  echo $! >"$s/maker"
  answer
fi
[ -n "$word" ] || verdict
case $word in ok*) ;; *) fail "$word" ;; esac
quit || fail nospace
answer
