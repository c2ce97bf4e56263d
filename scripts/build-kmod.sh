#!/usr/bin/env bash
# Builds the kernel module with all warnings and sparse, with IPv6 and without: build-kmod.sh [RELEASE-ARCH...], e.g. bookworm-arm64; default all.
# Linux 5.10 bullseye, 5.15 jammy, 6.1 bookworm, 6.8 noble, 6.12 trixie, Debian's newest sid; jammy and noble for amd64 alone,
# from LEAP_UBUNTU_MIRROR.
# shellcheck source=scripts/lib.sh
. "$(dirname "$0")/lib.sh"
# shellcheck source=scripts/kernels.sh
. scripts/kernels.sh

[ $# -gt 0 ] || set -- {bullseye,bookworm,trixie,sid}-{amd64,arm64} {jammy,noble}-amd64
for target; do
	[[ $target =~ ^((bullseye|bookworm|trixie|sid)-(amd64|arm64)|(jammy|noble)-amd64)$ ]] ||
		die "usage: ${0##*/} [bullseye|bookworm|trixie|sid]-[amd64|arm64]|[jammy|noble]-amd64..."
done

begin_steps
need_tools dpkg-deb:dpkg unshare:util-linux modinfo:kmod nm:binutils
for target; do
	step "module: $target" build_module "${target%-*}" "${target#*-}"
	step "module for a kernel without IPv6: $target" build_without_ipv6 "${target%-*}" "${target#*-}"
done
