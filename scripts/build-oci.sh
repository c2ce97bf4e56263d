#!/usr/bin/env bash
# Builds out/oci/leap-VERSION.tar, a container image of the static program, without a container engine:
# build-oci.sh [amd64|arm64...]. The same source and compiler give the same bytes.
# shellcheck source=scripts/lib.sh
. "$(dirname "$0")/lib.sh"
# shellcheck source=scripts/boards.sh
. scripts/boards.sh

# The name by which engines know the image.
NAME=localhost/leap:$VERSION

# stage_image ARCH ROOT: the files of one platform's image.
stage_image() {
	local triple
	triple=$(machine_of "$1")-unknown-linux-musl
	build_program "$triple" "$PACKAGE_FEATURES" ''
	install -D -m 755 "$PROGRAM" "$2/leap"
	install -D -m 644 -t "$2/usr/share/doc/leap" LICENSE-MIT LICENSE-APACHE
	stage_licences "$2" "$triple" "$PACKAGE_FEATURES"
}

[ $# -gt 0 ] || set -- amd64 arm64
need_tools cc:gcc file:file python3:python3
need_cargo
WORK=$(mktemp -d)
trap 'rm -rf "$WORK"' EXIT
umask 022
mkdir -p "$OUT/oci"
images=()
for arch; do
	machine_of "$arch" >/dev/null
	stage_image "$arch" "$WORK/$arch"
	images+=("$arch=$WORK/$arch")
done
scripts/write-oci.py "$OUT/oci/leap-$VERSION.tar" "$NAME" "$VERSION" "$SOURCE_DATE_EPOCH" "${images[@]}"
say "$OUT/oci/leap-$VERSION.tar: $NAME for $*, $(stat -c %s "$OUT/oci/leap-$VERSION.tar") bytes"
