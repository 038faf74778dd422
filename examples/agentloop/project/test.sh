got=$(sh greet.sh gopher)
[ "$got" = "hello, gopher" ] || { echo "got \"$got\", want \"hello, gopher\"" >&2; exit 1; }
echo ok
