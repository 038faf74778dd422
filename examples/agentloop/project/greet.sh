# Says hello to whoever is named.
echo "helo, ${1:-world}"
