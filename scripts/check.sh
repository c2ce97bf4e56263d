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

# test_program NAME: the program of the tests in tests/NAME, which is compiled.
test_program() {
	local program
	program=$(CARGO_TERM_COLOR=never cargo test --locked --no-run --test "$1" 2>&1 | sed -n 's/^ *Executable .*(\(.*\))$/\1/p')
	[ -x "$program" ] || die "tests/$1 is not compiled"
	say "$program"
}

# programs_and_boards BOARDS PROGRAMS: rings and teams in one process and as processes, and programs. They wait for their
# clocks for the most part, so the other tests are compiled beside them; cargo would let them wait for that.
programs_and_boards() {
	local skipped=()
	[ "${LEAP_TEST_QUICK:-}" != 1 ] || skipped=(--skip live:: --skip ring_pages:: --skip rows:: --skip strays::)
	RUST_TEST_THREADS=$((3 * $(nproc))) tee_log "$1" "${skipped[@]}"
	tee_log "$2"
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
fi
test_step "tests: kernel module, in user space" make -s -C kmod test OUT="$(realpath -m "$TARGET_DIR/kmod/test")"
step "tests: compiling programs and boards" cargo test --quiet --locked --no-run --test program --test boards
boards=$(test_program boards)
programs=$(test_program program)
# Some tests wait, so more of them than processors run at the same time.
export RUST_TEST_THREADS=${RUST_TEST_THREADS:-$((2 * $(nproc)))}
beside "tests: programs, boards that work together" programs_and_boards "$boards" "$programs"
others=(--lib --test bits --test layering --test library --test no_alloc)
step "tests: compiling the others" cargo test --quiet --locked --no-run "${others[@]}"
test_step "tests: this machine" cargo test --locked "${others[@]}"
test_step "tests: examples in pages of the library" cargo test --locked --doc
join_step
# With the program that the tests have built.
step "page of all commands" scripts/write-cli.py "$TARGET_DIR/debug/leap" --check
step "scripts: what boards run" scripts/test-init.sh "$TARGET_DIR/debug/leap"
