#!/bin/sh
# Writes the crates of Cargo.lock into the Yocto layer: update-recipes.sh [--check]
#
# --check changes nothing, and fails if the file is not up to date.
set -eu

cd "$(dirname "$0")/.."
INC=images/yocto/meta-leap/recipes-leap/leap/leap-crates.inc

crates() {
	awk -F '"' '
		BEGIN { print "# Written by scripts/update-recipes.sh from Cargo.lock." }
		/^name = /     { name = $2 }
		/^version = /  { version = $2 }
		/^checksum = / {
			uris = uris "    crate://crates.io/" name "/" version " \\\n"
			sums = sums "SRC_URI[" name "-" version ".sha256sum] = \"" $2 "\"\n"
		}
		END { printf "SRC_URI += \"\\\n%s\"\n\n%s", uris, sums }' Cargo.lock
}

case ${1:-} in
--check)
	crates | cmp -s - "$INC" || { echo "$INC: out of date; run scripts/update-recipes.sh" >&2; exit 1; }
	;;
'')
	crates >"$INC.new"
	mv "$INC.new" "$INC"
	;;
*)
	echo "usage: ${0##*/} [--check]" >&2
	exit 2
	;;
esac
