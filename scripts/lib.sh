# shellcheck shell=bash
# Shared by the bash scripts here, which source it: steps, packages, toolchains.

set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

# Where a user's PATH lacks the system's tools, they are found all the same.
PATH=$PATH:/usr/sbin:/sbin
TARGET_DIR=${CARGO_TARGET_DIR:-target}
ZIG_VENV=$TARGET_DIR/zig-venv
ZIG_VERSION=0.13.0
ZIGBUILD_VERSION=0.24.0
# Oldest compiler that builds LEAP: rust-version in Cargo.toml.
RUST_MIN=1.$(sed -n 's/^rust-version = "1\.\([0-9]*\).*/\1/p' Cargo.toml)
# Debian's current compiler, its linter and the source of its standard library.
DEBIAN_RUST=(rustc-web cargo-web rust-web-src rust-web-clippy rustfmt-web libstd-rust-web-dev)

say() { printf '%s\n' "$*"; }
die() { printf '%s: %s\n' "${0##*/}" "$*" >&2; exit 1; }

## Steps

# step NAME COMMAND...: announces the step, runs it, says how long it took.
step() {
	local start=$SECONDS
	STEP=$1
	shift
	say "==> $STEP"
	"$@"
	say "    $STEP: $((SECONDS - start)) s"
	STEP=
}

# beside NAME COMMAND...: starts a step that runs beside those that follow, until `join_step`.
beside() {
	BESIDE=$1
	BESIDE_LOG=$(mktemp "$LEAP_TEST_LOG.XXXXXX")
	# A process group of its own, so that all of it can be ended.
	set -m
	(LEAP_TEST_LOG=$BESIDE_LOG.tests step "$@") </dev/null >"$BESIDE_LOG" 2>&1 &
	set +m
	BESIDE_PID=$!
}

# Waits for the step that runs beside, and shows what it printed.
join_step() {
	local code=0
	wait "$BESIDE_PID" || code=$?
	BESIDE_PID=
	cat "$BESIDE_LOG"
	cat "$BESIDE_LOG.tests" >>"$LEAP_TEST_LOG" 2>/dev/null || true
	[ "$code" -eq 0 ] || STEP=$BESIDE
	return "$code"
}

# test_step NAME COMMAND...: a step whose output cargo's `test result` lines are counted from.
test_step() {
	local name=$1
	shift
	say "==> $name" >>"$LEAP_TEST_LOG"
	step "$name" tee_log "$@"
}

tee_log() { CARGO_TERM_COLOR=never "$@" 2>&1 | tee -a "$LEAP_TEST_LOG"; }

# Every script that runs steps calls this first. The outermost one sums up at its end; those it
# calls find LEAP_TEST_LOG set and leave that to it.
begin_steps() {
	STEP=
	trap 'end_steps $?' EXIT
	[ -z "${LEAP_TEST_LOG:-}" ] || return 0
	OUTERMOST=1
	mkdir -p "$TARGET_DIR"
	LEAP_TEST_LOG=$(mktemp "$(realpath "$TARGET_DIR")/test-log.XXXXXX")
	export LEAP_TEST_LOG
}

end_steps() {
	[ -z "${BESIDE_PID:-}" ] || kill -- "-$BESIDE_PID" 2>/dev/null || true
	[ "$1" -eq 0 ] || [ -z "$STEP" ] || printf '%s: failed at: %s\n' "${0##*/}" "$STEP" >&2
	[ -n "${OUTERMOST:-}" ] || return 0
	say "total: $SECONDS s"
	if [ "$1" -ne 0 ] || [ -s "$LEAP_TEST_LOG" ]; then
		sum_up "$1"
	fi
	rm -f "$LEAP_TEST_LOG"*
}

# sum_up STATUS: cargo's result lines by run, then the sum. A run that failed without a count, as
# when a test is killed by a signal, counts as one failure.
sum_up() {
	awk -v status="$1" '
		/^==> / { title = $0 }
		/^test result: / {
			if (title != "") print title
			title = ""
			print
			for (i = 2; i <= NF; i++) {
				if ($i == "passed;") passed += $(i - 1)
				if ($i == "failed;") failed += $(i - 1)
			}
		}
		END {
			if (status != 0 && failed == 0) failed = 1
			printf "%d passed, %d failed\n", passed, failed
		}' "$LEAP_TEST_LOG"
}

## Packages

# need_tools TOOL:PACKAGE...: installs the packages whose tool is missing. A TOOL that starts
# with a slash is a file, any other a command.
need_tools() {
	local pair missing=()
	tell_packages "${@##*:}"
	for pair in "$@"; do
		has_tool "${pair%%:*}" || missing+=("${pair##*:}")
	done
	[ ${#missing[@]} -eq 0 ] || install_packages "${missing[@]}"
}

# Names packages; the scripts that are called do not repeat them.
tell_packages() {
	local package news=()
	for package in "$@"; do
		[[ " ${LEAP_PACKAGES_TOLD:-} " == *" $package "* ]] || news+=("$package")
	done
	[ ${#news[@]} -gt 0 ] || return 0
	say "Debian packages used: ${news[*]}"
	export LEAP_PACKAGES_TOLD="${LEAP_PACKAGES_TOLD:-} ${news[*]}"
}

has_tool() {
	case $1 in
	/*) [ -e "$1" ] ;;
	*) command -v "$1" >/dev/null ;;
	esac
}

install_packages() {
	local command="apt-get install -y --no-install-recommends --no-remove"
	has_tool apt-get || die "install what these Debian packages hold: $*"
	has_root || die "run as root: $command $*"
	say "installing Debian packages: $*"
	if [ -z "${LEAP_APT_UPDATED:-}" ]; then
		as_root apt-get -qq update
		export LEAP_APT_UPDATED=1
	fi
	# shellcheck disable=SC2086 # The command's words are meant to split.
	as_root env DEBIAN_FRONTEND=noninteractive $command -qq -o DPkg::Lock::Timeout=300 "$@" ||
		die "apt-get could not install: $*"
}

has_root() { [ "$(id -u)" -eq 0 ] || sudo -n true 2>/dev/null; }

as_root() { if [ "$(id -u)" -eq 0 ]; then "$@"; else sudo -n "$@"; fi; }

# need_venv FOLDER: makes a virtual environment of Python there if there is none that works. One that was moved does
# not: its programs name the folder that it was made in.
need_venv() {
	local python=python3
	! "$1/bin/pip" --version >/dev/null 2>&1 || return 0
	need_tools python3:python3
	if ! python3 -c 'import venv, ensurepip' 2>/dev/null; then
		install_packages python3-venv
		python=/usr/bin/python3
	fi
	"$python" -m venv --clear "$1"
}

## Toolchains

# Debian's compiler, which may use unstable cargo options here: it builds the standard library.
DEBIAN_ENV=(env -u RUSTUP_TOOLCHAIN CARGO=/usr/bin/cargo RUSTC=/usr/bin/rustc RUSTDOC=/usr/bin/rustdoc
	RUSTFMT=/usr/bin/rustfmt RUSTC_BOOTSTRAP=1)
# RUSTFLAGS would replace the flags in .cargo/config.toml. Symbols and incremental state are of no
# use to static builds.
MUSL_ENV=(env -u RUSTFLAGS -u CARGO_ENCODED_RUSTFLAGS CARGO_INCREMENTAL=0 CARGO_PROFILE_TEST_DEBUG=0)

# Puts the user's own cargo first, so that a Debian cargo installed later never shadows it.
# Where there is none, Debian's builds everything.
need_cargo() {
	local cargo
	cargo=$(command -v cargo || true)
	case $cargo in
	'' | /usr/bin/cargo | /bin/cargo)
		[ ! -x "${CARGO_HOME:-${HOME:-}/.cargo}/bin/cargo" ] || cargo=${CARGO_HOME:-${HOME:-}/.cargo}/bin/cargo
		;;
	esac
	if [ -z "$cargo" ]; then
		need_debian_rust
	elif [ "${cargo%/*}" != /usr/bin ] && [ "${cargo%/*}" != /bin ]; then
		PATH=${cargo%/*}:$PATH
	fi
	is_recent rustc || die "$(command -v rustc) is older than Rust $RUST_MIN; update it (rustup update)"
}

# is_recent RUSTC: whether this compiler builds LEAP.
is_recent() {
	local version
	version=$("$1" -V 2>/dev/null | cut -d' ' -f2) || return 1
	[ "$(printf '%s\n' "$RUST_MIN" "$version" | sort -V | head -n1)" = "$RUST_MIN" ]
}

# cc_of TRIPLE: a C compiler for this target, which the cipher code of downloads needs (feature `pull`, and tests).
cc_of() {
	local variable=CC_${1//-/_} cc=clang
	[[ $1 != x86_64-*-musl ]] || cc=musl-gcc
	command -v "${!variable:-$cc}"
}

# has_target TRIPLE: whether the active toolchain holds this target's library, and there are a linker and a C compiler
# for it.
has_target() {
	local sysroot host
	sysroot=$(rustc --print sysroot)
	host=$(rustc -vV | sed -n 's/^host: //p')
	has_std "$1" && [ -x "$sysroot/lib/rustlib/$host/bin/rust-lld" ] &&
		cc_of "$1" >/dev/null
}

# has_std TRIPLE: whether the active toolchain holds this target's library.
has_std() {
	local library
	library=$(rustc --print target-libdir --target "$1" 2>/dev/null) || return 1
	compgen -G "$library/libstd-*.rlib" >/dev/null
}

need_debian_rust() {
	if ! has_debian_rust; then
		install_packages "${DEBIAN_RUST[@]}"
		has_debian_rust || die "Debian's rustc is older than Rust $RUST_MIN; is the security suite in apt's sources?"
	fi
}

has_debian_rust() {
	local file
	for file in /usr/bin/{rustc,cargo,cargo-clippy,clippy-driver,cargo-fmt} /usr/lib/rustlib/src/rust/library/Cargo.toml; do
		[ -e "$file" ] || return 1
	done
	is_recent /usr/bin/rustc
}

# Installs the linker for builds with Debian's compiler: zig, and cargo's way to call it. They
# live in an environment of their own, as Debian's python keeps pip out of the system.
need_zig() {
	if ! has_zig; then
		rm -rf "$ZIG_VENV"
		need_venv "$ZIG_VENV"
		"$ZIG_VENV/bin/pip" install --quiet --disable-pip-version-check \
			"ziglang==$ZIG_VERSION" "cargo-zigbuild==$ZIGBUILD_VERSION"
	fi
}

has_zig() {
	[ "$("$ZIG_VENV/bin/python3" -m ziglang version 2>/dev/null)" = "$ZIG_VERSION" ] &&
		[ "$("$ZIG_VENV/bin/cargo-zigbuild" -V 2>/dev/null)" = "cargo-zigbuild $ZIGBUILD_VERSION" ]
}

# need_musl ARCH: makes `musl ARCH` work, and says by which toolchain.
need_musl() {
	local target=$1-unknown-linux-musl
	if has_target "$target"; then
		say "$target: rustup's target of $(rustc -V), linked by rust-lld"
	else
		tell_packages "${DEBIAN_RUST[@]}"
		need_debian_rust
		need_zig
		say "$target: not in $(rustc -V); taking Debian's $(/usr/bin/rustc -V | cut -d' ' -f1,2) with its library source, linked by zig $ZIG_VERSION"
	fi
}

# by_rustup TRIPLE SUBCOMMAND [ARG...]: cargo for a static target that the active toolchain holds.
by_rustup() {
	local target=$1 subcommand=$2 cc
	cc=$(cc_of "$target")
	shift 2
	"${MUSL_ENV[@]}" "CC_${target//-/_}=$cc" cargo "$subcommand" --target "$target" "$@"
}

# musl ARCH build|test [ARG...]: cargo for the static target of ARCH.
musl() {
	local target=$1-unknown-linux-musl subcommand=$2
	shift 2
	if has_target "$target"; then
		by_rustup "$target" "$subcommand" "$@"
	else
		build_std "$target" "${subcommand/#build/zigbuild}" "$@"
	fi
}

# profile_of ARCH: the profile of Cargo.toml that programs are built in. Boards have ARM cores; PCs have room, and at the
# level of size their prompts take 3 to 8 % longer.
profile_of() { case $1 in aarch64) echo board ;; *) echo dist ;; esac; }

# static_program ARCH: where the static program lies.
static_program() { echo "$TARGET_DIR/$1-unknown-linux-musl/$(profile_of "$1")/leap"; }

# few_copies ARCH: flags for fewer copies of functions in their callers than by the compiler's 275, which programs get
# smaller by: with 50 boards' programs by 0.4 MB. Kernels take as many instructions as before, within 0.6 %.
few_copies() { case $1 in aarch64) echo "-C llvm-args=-inline-threshold=50" ;; *) echo "-C llvm-args=-inline-threshold=100" ;; esac; }

# musl_program ARCH [ARG...]: builds the program as boards get it. A panic ends it, and it has no symbols:
# tables that unwind the stack, and the code that reads them, would be a tenth of it and of no use. Of the
# standard library it has the smaller ways to sort and the like, 0.1 MB less. It names no folder of this machine,
# so that the same compiler and source give the same bytes anywhere.
musl_program() {
	local target=$1-unknown-linux-musl flags paths profile copies
	flags=$(rustflags_of "$target")
	profile=$(profile_of "$1")
	copies=$(few_copies "$1")
	paths=(--config "target.$target.rustflags=[$(remapped_paths "$target")]")
	shift
	export "$flags=-C force-unwind-tables=no $copies"
	if has_target "$target"; then
		by_rustup "$target" rustc --locked --profile "$profile" -p leap-lm --bin leap "${paths[@]}" "$@" -- -C opt-level=3
	else
		build_std "$target" rustc --locked --profile "$profile" -p leap-lm --bin leap -Z build-std-features=optimize_for_size \
			"${paths[@]}" "$@" -- -C opt-level=3
	fi
	unset "$flags"
}

# remapped_paths TRIPLE: the compiler's flags, as TOML, that replace the folders of sources in panics' messages. The name
# of a registry's folder depends on how cargo reaches it: it must be there before.
remapped_paths() {
	local home=${CARGO_HOME:-${HOME:-}/.cargo} registry
	compgen -G "$home/registry/src/*/" >/dev/null || cargo fetch --quiet --locked --target "$1" >&2
	printf "'--remap-path-prefix=%s=/leap'," "$PWD" "$(realpath -m "$TARGET_DIR")"
	for registry in "$home"/registry/src/*/; do
		printf "'--remap-path-prefix=%s=/crates'," "${registry%/}"
	done
}

# rustflags_of TRIPLE: the variable with more flags of this target's compiler.
rustflags_of() {
	local name=CARGO_TARGET_${1^^}_RUSTFLAGS
	echo "${name//-/_}"
}

# build_std TRIPLE SUBCOMMAND [ARG...]: cargo-zigbuild by Debian's compiler, with the standard
# library built from source; zig brings libc and its start files. cargo looks for its subcommands
# in PATH, but before that in its home if PATH lacks it: Debian's must come first.
build_std() {
	local target=$1 subcommand=$2 flags path
	flags=$(rustflags_of "$target")
	path="$(realpath "$ZIG_VENV")/bin:/usr/bin:$PATH:${CARGO_HOME:-${HOME:-}/.cargo}/bin"
	shift 2
	"${MUSL_ENV[@]}" "${DEBIAN_ENV[@]}" "$flags=-C link-self-contained=no ${!flags-}" PATH="$path" \
		cargo-zigbuild "$subcommand" -Z build-std=std,panic_abort --target "$target" "$@"
}

# The linter and the formatter must be the active toolchain's own; where it has none, Debian's
# compiler comes with both.

has_clippy() { [ "$(clippy-driver --rustc -V 2>/dev/null)" = "$(rustc -V)" ]; }

has_rustfmt() { rustfmt -V >/dev/null 2>&1; }

# clippy [ARG...]: lints for this machine.
clippy() {
	if has_clippy; then
		cargo clippy "$@"
	else
		need_debian_rust
		"${DEBIAN_ENV[@]}" /usr/bin/cargo-clippy clippy "$@"
	fi
}

# clippy_musl ARCH [ARG...]: lints for the static target of ARCH. The standard library built from
# source for it serves the tests too, as it has their profile.
clippy_musl() {
	local target=$1-unknown-linux-musl
	shift
	if has_clippy && has_target "$target"; then
		by_rustup "$target" clippy --profile test "$@"
	else
		need_debian_rust
		need_zig
		build_std "$target" clippy --profile test "$@"
	fi
}

format() {
	if has_rustfmt; then
		cargo fmt "$@"
	else
		need_debian_rust
		"${DEBIAN_ENV[@]}" /usr/bin/cargo-fmt fmt "$@"
	fi
}
