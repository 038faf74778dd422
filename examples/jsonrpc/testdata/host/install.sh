#!/usr/bin/env bash
# Installs a published host's own code, and the Node that it needs, for the interoperability test, and prints where. What
# is there already is used as it is. An installation appears under its name only when it is whole.
set -euo pipefail
cd "$(dirname "$0")"

server=@paperclipai/server@2026.916.1
integrity=sha512-zRNWVpfhZUnV2nncNamp6lP5Y0W//y6iUA8eTYTL2QurIvBBuy178u7XTKkcjN5Z4hd6KNMVeFKyGh40jG4fVQ==

cache=${XDG_CACHE_HOME:-$HOME/.cache}
pinned=$(cat install.sh package.json package-lock.json | sha256sum | cut -c1-16)
installed=$cache/leasehold-host-$pinned
if [ ! -d "$installed" ]; then
	mkdir -p "$cache"
	work=$(mktemp -d "$cache/leasehold-host-new.XXXXXX")
	trap 'rm -rf "$work"' EXIT
	cp package.json package-lock.json "$work"
	{
		# Its bundled dependencies are incomplete: those of package.json take their place.
		npm pack --silent --pack-destination "$work" "$server"
		got=sha512-$(openssl dgst -sha512 -binary "$work"/*.tgz | base64 -w0)
		[ "$got" = "$integrity" ] || { echo "$server is not what it was: $got" && exit 1; }
		tar -xzf "$work"/*.tgz -C "$work" package/dist package/package.json
		rm "$work"/*.tgz
		# Not "npm ci": it takes what a dependency bundles for missing from the lock file. The lock file counts all the same.
		(cd "$work" && npm install --no-audit --no-fund --loglevel=error)
		"$work/node_modules/.bin/node" --version
	} >&2
	mv -T "$work" "$installed" || [ -d "$installed" ] # somebody else was faster
fi
echo "$installed"
