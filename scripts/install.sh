#!/bin/sh
# Installs LEAP's static program from a folder of releases: install.sh [--uninstall]
#
# LEAP_RELEASES    address of the folder that holds SHA256SUMS and leap-VERSION-ARCH.tar.gz
# LEAP_VERSION     which version (the folder's, if it holds one)
# LEAP_PUBLIC_KEY  minisign's public key: refuse what it has not signed
# PREFIX           where to: PREFIX/bin and PREFIX/share (~/.local, for root /usr/local)
#
# scripts/release.sh writes a copy that knows its release's address, version and key.
set -eu

RELEASES=
VERSION=
PUBLIC_KEY=

say() { printf '%s\n' "$*"; }
die() { printf 'install.sh: %s\n' "$*" >&2; exit 1; }

# The reason in what a command said: the end of its first line.
reason() { printf '%s\n' "$1" | sed 's/.*: //; q'; }

fetch() {
	if command -v curl >/dev/null; then
		why=$(curl -fsSL -o "$2" "$1" 2>&1) || die "cannot download $1: ${why#curl: }"
	elif command -v wget >/dev/null; then
		why=$(wget -q -O "$2" "$1" 2>&1) || die "cannot download $1: $(reason "$why")"
	else
		die "needs curl or wget"
	fi
}

machine() {
	[ "$(uname -s)" = Linux ] || die "LEAP runs on Linux, not on $(uname -s)"
	case $(uname -m) in
	x86_64 | amd64) echo x86_64 ;;
	aarch64 | arm64) echo aarch64 ;;
	*) die "there is no program for $(uname -m), only for x86_64 and aarch64" ;;
	esac
}

# check_signature: whether the key's owner has signed the checksums.
check_signature() {
	[ -n "$PUBLIC_KEY" ] || { say "no key is known: the signature is not checked"; return 0; }
	if ! command -v minisign >/dev/null; then
		[ -z "${LEAP_PUBLIC_KEY:-}" ] || die "LEAP_PUBLIC_KEY needs minisign, which is not installed"
		say "minisign is not installed: the signature is not checked"
		return 0
	fi
	fetch "$RELEASES/SHA256SUMS.minisig" "$WORK/SHA256SUMS.minisig"
	minisign -Vqm "$WORK/SHA256SUMS" -P "$PUBLIC_KEY" >/dev/null 2>&1 ||
		die "$RELEASES/SHA256SUMS is not signed by the key $PUBLIC_KEY"
	say "signed by the key $PUBLIC_KEY"
}

# The version that SHA256SUMS has for this machine.
version_of() {
	found=$(sed -n "s/^[0-9a-f]*  leap-\(.*\)-$1\.tar\.gz$/\1/p" "$WORK/SHA256SUMS")
	case $found in
	'') die "$RELEASES holds no program for $1" ;;
	*[!0-9A-Za-z.+~-]*) die "$RELEASES holds several versions; set LEAP_VERSION to one of: $(echo "$found" | tr '\n' ' ')" ;;
	esac
	echo "$found"
}

# check_sum FILE: compares it with its line of SHA256SUMS.
check_sum() {
	wanted=$(awk -v file="$1" '$2 == file { print $1 }' "$WORK/SHA256SUMS")
	[ -n "$wanted" ] || die "$RELEASES/SHA256SUMS does not name $1"
	sum=$(sha256sum "$WORK/$1") || die "needs sha256sum"
	[ "${sum%% *}" = "$wanted" ] || die "$1 is damaged: its checksum is ${sum%% *}, wanted $wanted"
}

# Files with their modes, and places below PREFIX.
FILES='leap 755 bin/leap
leap.1 644 share/man/man1/leap.1
leap.bash 644 share/bash-completion/completions/leap
_leap 644 share/zsh/site-functions/_leap
leap.fish 644 share/fish/vendor_completions.d/leap.fish'

# copy FOLDER: puts its files beside those that they will replace.
copy() {
	echo "$FILES" | while read -r from mode to; do
		to=$PREFIX/${to%/*}
		why=$(mkdir -p "$to" 2>&1) || die "cannot make $to: $(reason "$why")"
		why=$(cp "$1/$from" "$to/$NEW" 2>&1 && chmod "$mode" "$to/$NEW" 2>&1) ||
			die "cannot write $to: $(reason "$why")"
	done
}

# Gives all files their names.
rename() {
	echo "$FILES" | while read -r _ _ to; do
		why=$(mv -f "$PREFIX/${to%/*}/$NEW" "$PREFIX/$to" 2>&1) || die "cannot write $PREFIX/$to: $(reason "$why")"
	done
}

# remove NAME: removes what LEAP has in its folders, where a file's own name stands for NAME if it is empty.
remove() {
	echo "$FILES" | while read -r _ _ to; do
		rm -f "$PREFIX/${to%/*}/${1:-${to##*/}}"
	done
}

uninstall() {
	[ -e "$PREFIX/bin/leap" ] || die "there is no $PREFIX/bin/leap"
	why=$(remove '' 2>&1) || die "cannot remove $PREFIX/bin/leap: $(reason "$why")"
	say "removed $PREFIX/bin/leap; models that it packed are in ${XDG_CACHE_HOME:-~/.cache}/leap"
}

leave() {
	remove "$NEW" 2>/dev/null || true
	rm -rf "$WORK"
}

install() {
	RELEASES=${LEAP_RELEASES:-$RELEASES} VERSION=${LEAP_VERSION:-$VERSION} PUBLIC_KEY=${LEAP_PUBLIC_KEY:-$PUBLIC_KEY}
	RELEASES=${RELEASES%/}
	[ -n "$RELEASES" ] || die "set LEAP_RELEASES to the address of a folder of releases"
	arch=$(machine)
	WORK=$(mktemp -d) || die "cannot make a temporary folder"
	trap leave EXIT
	trap 'exit 130' INT
	trap 'exit 143' TERM HUP
	fetch "$RELEASES/SHA256SUMS" "$WORK/SHA256SUMS"
	check_signature
	[ -n "$VERSION" ] || VERSION=$(version_of "$arch")
	name=leap-$VERSION-$arch
	grep -q "  $name\.tar\.gz$" "$WORK/SHA256SUMS" || die "$RELEASES holds no $name.tar.gz"
	fetch "$RELEASES/$name.tar.gz" "$WORK/$name.tar.gz"
	check_sum "$name.tar.gz"
	why=$(tar -xzf "$WORK/$name.tar.gz" -C "$WORK" 2>&1) || die "cannot unpack $name.tar.gz: $(reason "$why")"
	copy "$WORK/$name"
	[ "$("$PREFIX/bin/$NEW" --version 2>&1)" = "leap $VERSION" ] || die "the program does not run on this machine"
	rename
	say "leap $VERSION is $PREFIX/bin/leap; \`leap self-check\` says whether it works here"
	case :$PATH: in
	*:"$PREFIX/bin":*) ;;
	*) say "$PREFIX/bin is not in PATH" ;;
	esac
}

# All of the script is read before anything is done, so that a download which was cut does nothing.
main() {
	WORK='' NEW=.leap.new.$$
	if [ -z "${PREFIX:-}" ]; then
		if [ "$(id -u)" -eq 0 ]; then PREFIX=/usr/local; else PREFIX=${HOME:?}/.local; fi
	fi
	case $* in
	'') install ;;
	--uninstall) uninstall ;;
	*) die "usage: install.sh [--uninstall]" ;;
	esac
}

main "$@"
