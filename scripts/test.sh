#!/usr/bin/env bash
# The tests of this machine: check.sh without lints, the installer; tests with many cases take a sample of them.
# --all: lints, all cases and everything else, so also models and tokenizers that other people published (test-real.sh),
# the tests for aarch64 under QEMU, the static binaries, and emulated boards: a ring of two from power-on, the kernel
# module. Usage: test.sh [--all]
# shellcheck source=scripts/lib.sh
. "$(dirname "$0")/lib.sh"
# shellcheck source=scripts/kernels.sh
. scripts/kernels.sh

case "$*" in
'') all= ;;
--all) all=1 ;;
*) die "usage: ${0##*/} [--all]" ;;
esac

# Budget of what boards get: aarch64, with everything but the demo model. With forms alone, as programs that convert nothing
# have them, it is 5.25 MiB, with a server alone 3 MiB: build-static.sh says what a build takes.
BOARD_FEATURES=board
BOARD_MAX_BYTES=$((5500 << 10))
STATIC_AARCH64=$(static_program aarch64)
STATIC_X86_64=$(static_program x86_64)

check_board_size() {
	local bytes
	bytes=$(stat -c %s "$STATIC_AARCH64")
	say "board build: $bytes of $BOARD_MAX_BYTES bytes"
	[ "$bytes" -le "$BOARD_MAX_BYTES" ] || die "$STATIC_AARCH64 is larger than the board budget"
}

# tells_a_story COMMAND...: `leap run` prints text.
tells_a_story() {
	local story
	story=$("$@" --n-predict 16 --seed 1 </dev/null)
	say "$story"
	[ -n "$story" ] || die "$* printed nothing"
}

# refuses_pytorch PROGRAM: a program without the reader of PyTorch's files says what to do.
refuses_pytorch() {
	local folder refusal
	for folder in mistral-tiny pytorch/meta3; do
		! refusal=$("$1" info "tests/golden/$folder" 2>&1) || die "$1 reads PyTorch's files"
		say "$refusal"
		[[ $refusal == *safetensors*"--features pickle"* ]] || die "$1 does not say what to do"
	done
	"$1" info tests/golden/llama3-tiny >/dev/null
}

# Where boards cannot be emulated their tests are left out, but not in CI.
emulated_boards() {
	local reason
	reason=$(lacking_for_boards)
	if [ -n "$reason" ]; then
		[ -z "${CI:-}" ] || die "no boards can be emulated: $reason"
		say "no boards are emulated: $reason"
		return
	fi
	scripts/test-boot.sh kernel
	LEAP_PROGRAM=$STATIC_AARCH64 scripts/test-kmod.sh --quick bookworm-arm64
}

static_binaries() {
	scripts/build-static.sh aarch64 --no-default-features --features "$BOARD_FEATURES"
	check_board_size
	scripts/test-program.py qemu-aarch64-static -cpu cortex-a53 "$STATIC_AARCH64"
	tells_a_story qemu-aarch64-static -cpu cortex-a53 "$STATIC_AARCH64" run models/demo.bin
	emulated_boards
	# How well it is optimised the other one shows.
	CARGO_PROFILE_DIST_LTO=off CARGO_PROFILE_DIST_CODEGEN_UNITS=16 CARGO_PROFILE_DIST_OPT_LEVEL=1 \
		scripts/build-static.sh x86_64 --no-default-features --features serve,forms,manual,demo,gguf,pull
	[ "$(uname -m)" = x86_64 ] || return 0
	tells_a_story "$STATIC_X86_64" run
	refuses_pytorch "$STATIC_X86_64"
}

# The crates as a registry would get them: what they need is in them, also without any feature.
packed_crates() {
	local to=$TARGET_DIR/packed crate
	cargo package --quiet --locked --allow-dirty --no-verify --target-dir "$to"
	for crate in leap-lm leap-lm-kernels; do
		rm -rf "${to:?}/$crate"
		mkdir "$to/$crate"
		tar -xzf "$to/package/$crate-$(crate_version).crate" -C "$to/$crate" --strip-components 1
	done
	# The crates that they depend on are checked already.
	clippy --quiet --all-targets --no-default-features --manifest-path "$to/leap-lm/Cargo.toml" --target-dir "$TARGET_DIR" \
		--config "patch.crates-io.leap-lm-kernels.path='$(realpath "$to/leap-lm-kernels")'" -- -D warnings
}

crate_version() { sed -n 's/^version = "\(.*\)"/\1/p' Cargo.toml | head -n1; }

# Targets of the fuzzer compile. They are not linked, so libFuzzer is not needed.
fuzz_targets() {
	CUSTOM_LIBFUZZER_PATH=none/libfuzzer.a RUSTFLAGS="--cfg fuzzing" cargo check --quiet --locked \
		--manifest-path tests/fuzz/Cargo.toml --target-dir "$TARGET_DIR/fuzz-check"
}

# Tests on other machines: on three emulated cores, and on emulated boards.
other_machines() {
	# The compiler builds a static binary on one core for the most part, and emulated boards wait.
	beside "static binaries, boards" static_binaries
	step "lints: aarch64" clippy_musl aarch64 --locked --lib --bins -- -D warnings
	scripts/test-qemu.sh
	join_step
}

begin_steps
tools=(cc:gcc /usr/include/stdlib.h:libc6-dev pgrep:procps ip:iproute2 nft:nftables)
[ -z "$all" ] || tools+=(shellcheck:shellcheck npm:npm readelf:binutils file:file qemu-aarch64-static:qemu-user-static
	cmp:diffutils cpio:cpio depmod:kmod xz:xz-utils mke2fs:e2fsprogs fakeroot:fakeroot)
need_tools "${tools[@]}"
need_cargo
[ -z "$all" ] || step "toolchain for aarch64" need_musl aarch64

[ -n "$all" ] || export LEAP_TEST_QUICK=1
scripts/check.sh
# With the program that the tests have built.
step "installer" scripts/test-install.sh "$TARGET_DIR/debug/leap"
if [ -n "$all" ]; then
	scripts/test-real.sh "$TARGET_DIR/debug/leap"
	step "packed crates, linted without default features" packed_crates
	step "fuzz targets" fuzz_targets
	step "lints: without PyTorch's files" clippy --locked --lib --bins --no-default-features --features tools -- -D warnings
	other_machines
fi
