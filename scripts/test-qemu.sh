#!/usr/bin/env bash
# Builds the tests for aarch64 once and runs them under QEMU on several cores:
# [LEAP_QEMU_CPUS="cortex-a53 max"] test-qemu.sh [CARGO-TEST-ARG...], such as `--lib kernels::`.
# shellcheck source=scripts/lib.sh
. "$(dirname "$0")/lib.sh"

# One core runs everything but doc tests, which show the library, not the machine. The others run
# what their instruction sets can change.
ALL=(--lib --bins --tests)
OF_KERNELS=(--lib --test golden --test no_alloc)

run_on() {
	export QEMU_CPU=$1 LEAP_TEST_QUICK=1
	shift
	musl aarch64 test --locked "$@"
}

begin_steps
need_tools qemu-aarch64-static:qemu-user-static cc:gcc
need_cargo
need_musl aarch64
[ $# -gt 0 ] && ALL=("$@") OF_KERNELS=("$@")
step "aarch64 tests: build" run_on max "${ALL[@]}" --no-run
parts=("${ALL[@]}")
for cpu in ${LEAP_QEMU_CPUS:-cortex-a53 cortex-a76 max}; do
	test_step "tests: aarch64, $cpu" run_on "$cpu" "${parts[@]}"
	parts=("${OF_KERNELS[@]}")
done
