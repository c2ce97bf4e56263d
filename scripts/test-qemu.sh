#!/usr/bin/env bash
# Builds the tests for aarch64 once and runs them under QEMU on several cores:
# [LEAP_QEMU_CPUS="cortex-a53 max"] test-qemu.sh [CARGO-TEST-ARG...], such as `--lib kernels::`.
# shellcheck source=scripts/lib.sh
. "$(dirname "$0")/lib.sh"

# One core runs the tests of things that another machine can change: the library's own tests and whole models. Files,
# allocations, plans, simulations, fetched layers and the order of answers are the same everywhere, where bits are the same
# so is their quality, and rings and teams compute as one board does: `test-qemu.sh --tests` runs these tests, too. Emulated
# boards (test-boot.sh, test-kmod.sh) run programs and a ring of them. The other cores run the tests of things that their
# instruction sets can change: modules with kernels or that use them, whole models.
SAME_EVERYWHERE=(--skip judging:: --skip quantised_families --skip export:: --skip tokenizer:: --skip plan:: --skip pages::
	--skip forms:: --skip responses:: --skip prefixes:: --skip serve::tools:: --skip simulation:: --skip fetch::
	--skip floods_of_greetings --skip files_of_llama_cpps --skip ring:: --skip team:: --skip device:: --skip fleet::)
ALL=(--lib --test bits -- "${SAME_EVERYWHERE[@]}")
MODULES=(--lib -- kernels:: model:: "${SAME_EVERYWHERE[@]}")
MODELS=(--test bits -- golden:: "${SAME_EVERYWHERE[@]}" --skip as_the_reference --skip a_stream_behind_its_window
	--skip do_not_depend_on_batches)

run_on() {
	export QEMU_CPU=$1 LEAP_TEST_QUICK=1
	shift
	musl aarch64 test --locked "$@"
}

run_kernels_on() {
	run_on "$1" "${MODULES[@]}"
	run_on "$1" "${MODELS[@]}"
}

begin_steps
need_tools qemu-aarch64-static:qemu-user-static cc:gcc
need_cargo
need_musl aarch64
# Some tests wait, so more of them than processors run at the same time.
export RUST_TEST_THREADS=${RUST_TEST_THREADS:-$((2 * $(nproc)))}
asked=("$@")
[ $# -gt 0 ] || asked=("${ALL[@]}")
read -ra cpus <<<"${LEAP_QEMU_CPUS:-cortex-a53 cortex-a76 max}"
step "aarch64 tests: build" run_on max --no-run "${asked[@]}"
for cpu in "${cpus[@]}"; do
	run=(run_on "$cpu" "${asked[@]}")
	[ $# -gt 0 ] || [ "$cpu" = "${cpus[0]}" ] || run=(run_kernels_on "$cpu")
	test_step "tests: aarch64, $cpu" "${run[@]}"
done
