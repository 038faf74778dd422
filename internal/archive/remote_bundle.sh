# Tells whether a bundle is the one that was imported. Arguments: mark, directory, digest, marker.
# The last line of output is "<mark> ok" or "<mark> changed".
set -u
LC_ALL=C
export LC_ALL
if [ -d "$2" ] && [ ! -h "$2" ] && l=$(look "$2") && [ "$(cat "$4" 2>/dev/null)" = "$3
$l" ]; then printf '\n%s ok\n' "$1"
else printf '\n%s changed\n' "$1"
fi
