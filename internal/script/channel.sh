# Connects a command's standard streams with the terminal that this runs on, which is raw: see package stream's Duplex for
# what it says, and [Channel] for what it is told. POSIX sh; arguments: 1 if standard error is wanted.
#
# The descriptors, in what is not a pipe between two neighbours:
#
#	3  the terminal, to write to. A write is not interrupted by another one's, so whatever is said is one write
#	4  a pipe: each line in it lets standard output go on by one round, and 5 standard error
#	7  a pipe: standard error
#	9  the terminal, to read from
#
# dd passes on what it reads at once, and says in the end how much that was.
trap : HUP
say() { printf '\026%s %s\n' "$_mark" "$*" >&3; }

# What the host sends, line by line. Data goes to the pump, whose pipe has room for it, or the host would not have sent it:
# whatever the command does, this goes on.
listen() {
  trap '' PIPE
  while IFS=' ' read -r _word _arg; do
    case $_word in
      data) dd bs="$_arg" count=1 iflag=fullblock ;;
      text) printf "$_arg" ;;
      end) exec >/dev/null ;;
      out) echo >&4 ;;
      err) echo >&5 ;;
      kill) kill -KILL "-$_arg" || kill -KILL "$_arg" ;;
      quit) break ;;
    esac
  done
  kill -KILL 0
}

# Holds input: there is no other way to make a pipe larger.
hold() { cat | cat | cat | cat | cat | cat | cat; }

# Gives the command its input, and says how much it took. It begins with its own process.
pump() {
  trap '' PIPE
  _said=
  read -r _said _ </proc/self/stat
  echo "$_said"
  exec 6>&1
  while _said=$(LC_ALL=C dd bs=32768 count=4 2>&1 >&6); do
    set -- ${_said##*out}
    [ "${1:-0}" -gt 0 ] || return
    say in "$1"
  done
  exec >/dev/null 6>&-
  say closed
  cat
}

# Runs the command. What it writes ends with a mark, and what its children write after that does not count. Nobody but the
# command may hold its input, or it would not be noticed that it reads no more: so it opens the pump's pipe by itself.
launch() {
  read -r _pump
  if [ "$_pump" ] && (: <"/proc/$_pump/fd/1"); then
    exec </dev/null
    ( _leasehold=$_command; export _leasehold; exec $_setsid /bin/sh -c "$_carried" <"/proc/$_pump/fd/1" 2>&7 7>&- )
  else
    ( _leasehold=$_command; export _leasehold; exec $_setsid /bin/sh -c "$_carried" 2>&7 7>&- )
  fi
  _code=$?
  trap '' PIPE
  say exit $_code
  printf '\027%s' "$_mark"
  printf '\027%s' "$_mark" >&7
}

# Standard output. The kernel hands a terminal's output on in pieces of 2 KiB, and the daemon drops a client for whom more
# than 256 of them wait: two rounds of this, and one of standard error, are fewer.
drain() {
  while read -r _ <&4; do
    _said=$(LC_ALL=C dd bs=32768 count=6 2>&1 >&3)
    set -- ${_said##*out}
    say out "${1:-0}"
    [ "${1:-0}" -gt 0 ] || return
  done
}

# Standard error, as base64: each piece is one write among those of standard output.
report() {
  while read -r _ <&5; do
    { printf '\026%s err ' "$_mark"; dd bs=49152 count=1 | base64 | tr -d '\n'; echo; } | dd obs=131072 >&3
  done
}

connect() {
  if [ "$_errors" ]; then
    { { listen 7>&- | hold 7>&- | pump 7>&- | launch | drain 7>&-; } 7>&1 1>&3 | report; }
  else
    { listen | hold | pump | launch | drain; } 7>/dev/null
  fi
}

# Says one thing until the host has heard it.
last() {
  say "$@"
  while read -r _word _arg; do [ "$_word" != quit ] || break; done
  exit 0
}

_errors=$1
exec 3>&1 9<&0 2>/dev/null
for _tool in stty dd base64 tr cat; do
  command -v $_tool >/dev/null || last missing $_tool
done
stty raw -echo || last missing stty
_said=$(LC_ALL=C dd bs=2 count=1 iflag=fullblock </dev/zero 2>&1 >/dev/null)
set -- ${_said##*out}
[ "$1" = 2 ] || last missing dd
_setsid=
if command -v setsid >/dev/null; then _setsid=setsid; fi
command cd -- "$_dir" || last nodir
if [ -e /proc/self/fd/0 ]; then
  # A pipe without a name.
  : | {
    exec 4<>/proc/self/fd/0
    : | {
      exec 5<>/proc/self/fd/0 <&9 9<&-
      connect
    }
  }
else
  _pipes=$(mktemp -d) && mkfifo "$_pipes/4" "$_pipes/5" && exec 4<>"$_pipes/4" 5<>"$_pipes/5" || last missing mkfifo
  rm -r "$_pipes"
  exec 9<&-
  connect
fi
