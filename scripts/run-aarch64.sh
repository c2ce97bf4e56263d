#!/bin/sh
# Runs an aarch64 program here, under QEMU where needed: [QEMU_CPU=cortex-a53] run-aarch64.sh PROGRAM [ARG...]
set -eu

die() { printf '%s: %s\n' "${0##*/}" "$*" >&2; exit 1; }

[ $# -ge 1 ] || die "usage: ${0##*/} PROGRAM [ARG...]"

if [ -z "${QEMU_CPU:-}" ] && [ "$(uname -m)" = aarch64 ]; then
	exec "$@"
fi
for qemu in qemu-aarch64-static qemu-aarch64; do
	if command -v "$qemu" >/dev/null; then
		# Tests start LEAP themselves, as a program of its own: tests/common/mod.rs puts this before it.
		LEAP_TEST_RUNNER="${LEAP_TEST_RUNNER:-$qemu -cpu ${QEMU_CPU:-max}}"
		export LEAP_TEST_RUNNER
		exec "$qemu" -cpu "${QEMU_CPU:-max}" "$@"
	fi
done
die "no QEMU for aarch64 programs; install the package qemu-user-static"
