#!/usr/bin/env bash
# The checks of this machine alone: format, lints, scripts, tests. With LEAP_TEST_QUICK=1 tests take a sample of their
# cases, and nothing is linted. Usage: [LEAP_TEST_QUICK=1] check.sh
# shellcheck source=scripts/lib.sh
. "$(dirname "$0")/lib.sh"

[ $# -eq 0 ] || die "usage: ${0##*/}"

check_scripts() {
	local scripts
	mapfile -t scripts < <(find . \( -path ./.git -o -path ./target -o -path ./out \) -prune -o -type f -exec \
		awk 'FNR > 1 { nextfile } /^#!.*[\/ ](ba|da|)sh( |$)/ || FILENAME ~ /\.sh$/ { print FILENAME }' {} +)
	[ ${#scripts[@]} -gt 0 ] || die "found no scripts to check"
	shellcheck -x -P SCRIPTDIR "${scripts[@]}"
}

check_recipes() {
	scripts/update-recipes.sh --check
	scripts/check-recipes.py
}

# Programs, and rings and teams in one process and as processes. They wait for their clocks for the most part.
programs_and_boards() {
	local skipped=()
	[ "${LEAP_TEST_QUICK:-}" != 1 ] || skipped=(--skip live:: --skip ring_pages:: --skip rows:: --skip strays::)
	tee_log cargo test --locked --test program
	RUST_TEST_THREADS=$((3 * $(nproc))) tee_log cargo test --locked --test boards -- "${skipped[@]}"
	scripts/test-ring.sh "$TARGET_DIR/debug/leap"
}

begin_steps
need_tools busybox:busybox-static python3:python3 cc:gcc /usr/include/stdlib.h:libc6-dev make:make
[ "${LEAP_TEST_QUICK:-}" = 1 ] || need_tools shellcheck:shellcheck
# A Vulkan driver that is a program on the CPU. Tests of shaders pass without one, but not in CI.
[ -z "${CI:-}" ] || need_tools glslangValidator:glslang-tools \
	"/usr/share/vulkan/icd.d/lvp_icd.$(uname -m).json:mesa-vulkan-drivers" \
	"/usr/lib/$(uname -m)-linux-gnu/libvulkan.so.1:libvulkan1"
need_cargo
step "format" format --check
step "Yocto layer" check_recipes
step "picture of the README" scripts/draw-speed.py --check
step "pages" scripts/check-docs.py
[ -z "${CI:-}" ] || step "shaders" scripts/build-shaders.sh --check
step "licences of crates" scripts/third-party.py --check
if [ "${LEAP_TEST_QUICK:-}" != 1 ]; then
	step "scripts: shellcheck" check_scripts
	step "lints: this machine" clippy --locked --all-targets -- -D warnings
	step "lints: this machine, no default features" clippy --locked --all-targets --no-default-features -- -D warnings
fi
test_step "tests: kernel module, in user space" make -s -C kmod test OUT="$(realpath -m "$TARGET_DIR/kmod/test")"
step "tests: compiling" cargo test --quiet --locked --no-run
# Some tests wait, so more of them than processors run at the same time.
export RUST_TEST_THREADS=${RUST_TEST_THREADS:-$((2 * $(nproc)))}
beside "tests: programs, boards that work together" programs_and_boards
test_step "tests: this machine" cargo test --locked --lib --test bits --test layering --test library --test no_alloc
test_step "tests: examples in pages of the library" cargo test --locked --doc
join_step
# With the program that the tests have built.
step "page of all commands" scripts/write-cli.py "$TARGET_DIR/debug/leap" --check
step "scripts: what boards run" scripts/test-init.sh "$TARGET_DIR/debug/leap"
