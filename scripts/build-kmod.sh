#!/usr/bin/env bash
# Builds the kernel module for Debian's kernels: build-kmod.sh [RELEASE-ARCH...], e.g. bookworm-arm64; default all.
# shellcheck source=scripts/lib.sh
. "$(dirname "$0")/lib.sh"
# shellcheck source=scripts/kernels.sh
. scripts/kernels.sh

[ $# -gt 0 ] || set -- {bullseye,bookworm,trixie,sid}-{amd64,arm64}
for target; do
	[[ $target =~ ^(bullseye|bookworm|trixie|sid)-(amd64|arm64)$ ]] || die "usage: ${0##*/} [bullseye|bookworm|trixie|sid]-[amd64|arm64]..."
done

begin_steps
need_tools dpkg-deb:dpkg unshare:util-linux
for target; do
	step "module: $target" build_module "${target%-*}" "${target#*-}"
done
