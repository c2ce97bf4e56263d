#!/usr/bin/env bash
# Builds everything that a release has into out/release: tarballs of the static programs, packages, the container image,
# install.sh, checksums, and a signature if MINISIGN_KEY is a file with minisign's secret key: release.sh
#
# LEAP_RELEASES is the address where this folder will be published. The same source and compiler give the same bytes,
# but for the signature.
# shellcheck source=scripts/lib.sh
. "$(dirname "$0")/lib.sh"
# shellcheck source=scripts/boards.sh
. scripts/boards.sh

RELEASE=$OUT/release

# No file of the tree names another version.
check_versions() {
	local file
	for file in images/compose/compose.yaml images/k3s/daemonset.yaml; do
		grep -q "localhost/leap:.*$VERSION" "$file" || die "$file does not name version $VERSION"
	done
}

tarballs() {
	local native arch
	build_program "$(uname -m)-unknown-linux-musl" "$PACKAGE_FEATURES" ''
	native=$PROGRAM
	for arch in x86_64 aarch64; do
		build_program "$arch-unknown-linux-musl" "$PACKAGE_FEATURES" ''
		names_no_folder "$PROGRAM"
		write_tarball "$PROGRAM" "$native" "$arch" "$PACKAGE_FEATURES" "$RELEASE"
	done
}

# Two machines can only make the same program if it names none of their folders.
names_no_folder() {
	local folder
	for folder in "$PWD" "$(realpath "$TARGET_DIR")" "${CARGO_HOME:-$HOME/.cargo}"; do
		! grep -aqF "$folder/" "$1" || die "$1 names $folder"
	done
}

packages() {
	LEAP_OUT=$RELEASE scripts/build-deb.sh
	mv "$RELEASE"/deb/*.deb "$RELEASE"
	rm -r "$RELEASE/deb"
}

image() {
	LEAP_OUT=$RELEASE scripts/build-oci.sh
	mv "$RELEASE"/oci/*.tar "$RELEASE/leap-$VERSION-oci.tar"
	rmdir "$RELEASE/oci"
	install -D -m 644 -t "$RELEASE" images/compose/compose.yaml images/k3s/daemonset.yaml
}

# The public key of MINISIGN_KEY.
public_key() {
	minisign -R -s "$MINISIGN_KEY" -p "$RELEASE/leap.pub" >&2 || die "$MINISIGN_KEY is no secret key of minisign"
	tail -n 1 "$RELEASE/leap.pub"
}

sign() {
	local key=''
	[ -z "${MINISIGN_KEY:-}" ] || key=$(public_key)
	write_installer "$RELEASE" "${LEAP_RELEASES:-}" "$key"
	write_sums "$RELEASE"
	if [ -z "$key" ]; then
		say "not signed: MINISIGN_KEY is not set"
		return
	fi
	minisign -S -s "$MINISIGN_KEY" -m "$RELEASE/SHA256SUMS" -t "leap $VERSION" -x "$RELEASE/SHA256SUMS.minisig" >&2
	minisign -Vqm "$RELEASE/SHA256SUMS" -P "$key"
}

begin_steps
[ $# -eq 0 ] || die "usage: ${0##*/}"
[ -z "$(git status --porcelain 2>/dev/null)" ] || say "warning: there are changes that are not committed"
need_tools cc:gcc file:file python3:python3 dpkg-deb:dpkg lintian:lintian
[ -z "${MINISIGN_KEY:-}" ] || need_tools minisign:minisign
need_cargo
check_versions
umask 022
rm -rf "$RELEASE"
mkdir -p "$RELEASE"
step "tarballs" tarballs
step "packages" packages
step "container image" image
step "checksums, signature" sign
say "$RELEASE:"
cat "$RELEASE/SHA256SUMS"
