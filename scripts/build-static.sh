#!/usr/bin/env bash
# Builds the static release binary: build-static.sh x86_64|aarch64 [CARGO-ARG...], such as `--no-default-features`
# shellcheck source=scripts/lib.sh
. "$(dirname "$0")/lib.sh"

case ${1:-} in
x86_64 | aarch64) arch=$1 ;;
*) die "usage: ${0##*/} x86_64|aarch64 [CARGO-ARG...]" ;;
esac
shift

# A static program asks for no loader and no libraries.
check_static() {
	local headers
	headers=$(readelf --wide --program-headers --dynamic "$1")
	if grep -Eq 'INTERP|\(NEEDED\)' <<<"$headers"; then
		die "$1 is not statically linked"
	fi
}

need_tools cc:gcc /usr/include/stdlib.h:libc6-dev readelf:binutils file:file
need_cargo
need_musl "$arch"
musl_program "$arch" "$@"
binary=$(static_program "$arch")
check_static "$binary"
file --brief "$binary"
say "$binary: $(stat -c %s "$binary") bytes, statically linked"
