# shellcheck shell=bash
# shellcheck disable=SC2034 # What is set here is used by the scripts that source this.
# Sourced after lib.sh: what a board gets, and where it goes.

VERSION=$(sed -n 's/^version = "\(.*\)"/\1/p' Cargo.toml | head -n1)
OUT=${LEAP_OUT:-out}
# Programs of packages have everything, and the demo model, so that they print text at once.
PACKAGE_FEATURES=board,demo,gguf,pull
# Drivers of GPUs need the system's C library: programs that open them are for this version of glibc and later ones.
# Jetson's L4T r35 has it, Debian 11 and Ubuntu 20.04.
GLIBC_MIN=2.31
GPU_FEATURES=$PACKAGE_FEATURES,gpu
# Files of packages carry the last commit's date, so that the same source gives the same bytes.
SOURCE_DATE_EPOCH=${SOURCE_DATE_EPOCH:-$(git log -1 --format=%ct 2>/dev/null || echo 0)}

# machine_of ARCH: what Debian and containers call ARCH, as targets call it.
machine_of() {
	case $1 in
	arm64) echo aarch64 ;;
	amd64) echo x86_64 ;;
	*) die "$1 is neither arm64 nor amd64" ;;
	esac
}

# read_board BOARD: sets TRIPLE, FEATURES, CPU and INIT from cross/BOARD/board.conf.
read_board() {
	local conf=cross/$1/board.conf name value
	[ -r "$conf" ] || die "$1 is no board; there are: $(board_names)"
	TRIPLE='' FEATURES='' CPU='' INIT=systemd
	while IFS='=' read -r name value; do
		case $name in
		TRIPLE) TRIPLE=$value ;;
		FEATURES) FEATURES=$value ;;
		CPU) CPU=$value ;;
		INIT) INIT=$value ;;
		'' | '#'*) ;;
		*) die "$conf: $name is no setting" ;;
		esac
	done <"$conf"
	[ -n "$TRIPLE" ] || die "$conf: TRIPLE is missing"
}

board_names() {
	local conf
	for conf in cross/*/board.conf; do
		conf=${conf#cross/}
		printf '%s ' "${conf%/board.conf}"
	done
}

# build_program TRIPLE FEATURES CPU: the static binary, by cross if LEAP_CROSS is set; PROGRAM is
# where it lies.
build_program() {
	local triple=$1 arch=${1%%-*} arguments=(--no-default-features)
	[ -z "$2" ] || arguments+=(--features "$2")
	[ -z "$3" ] || arguments+=(--config "target.$triple.rustflags=['-C','target-cpu=$3']")
	PROGRAM=$(static_program "$arch")
	if [ -n "${LEAP_CROSS:-}" ]; then
		cross rustc --target "$triple" --profile "$(profile_of "$arch")" --locked -p leap-lm --bin leap "${arguments[@]}" -- -C opt-level=3
	else
		need_musl "$arch"
		musl_program "$arch" "${arguments[@]}"
	fi
	case $(file -b "$PROGRAM") in
	*statically\ linked*) ;;
	*) die "$PROGRAM is not linked statically" ;;
	esac
}

# build_gpu_program MACHINE: the program that can use a GPU; PROGRAM is where it lies.
build_gpu_program() {
	local triple=$1-unknown-linux-gnu newest arguments=(--locked --profile dist --bin leap --no-default-features)
	arguments+=(--features "$GPU_FEATURES" --config "target.$triple.rustflags=[$(remapped_paths "$triple")]")
	need_zig
	PROGRAM=$TARGET_DIR/$triple/dist/leap
	if has_std "$triple"; then
		PATH=$(realpath "$ZIG_VENV")/bin:$PATH cargo zigbuild --target "$triple.$GLIBC_MIN" "${arguments[@]}"
	else
		need_debian_rust
		build_std "$triple" zigbuild --target "$triple.$GLIBC_MIN" "${arguments[@]}"
	fi
	newest=$(readelf --wide --version-info "$PROGRAM" | grep -o 'GLIBC_[0-9.]*' | sort -Vu | tail -n 1)
	[ "$(printf '%s\n' "$newest" "GLIBC_$GLIBC_MIN" | sort -V | tail -n 1)" = "GLIBC_$GLIBC_MIN" ] ||
		die "$PROGRAM needs $newest"
	say "$PROGRAM: $(stat -c %s "$PROGRAM") bytes, for $newest and later"
}

# stage ROOT: every file of LEAP but the program and the kernel module, where a system has it.
stage() {
	local common=images/common
	install -d "$1/etc/leap" "$1/usr/bin"
	install -D -m 644 -t "$1/etc/leap" "$common/leap.conf" "$common/ring.conf"
	install -D -m 755 -t "$1/usr/lib/leap" "$common/leap-node"
	install -D -m 755 -t "$1/usr/sbin" "$common/leap-tune"
	install -D -m 644 "$common/tmpfiles.conf" "$1/usr/lib/tmpfiles.d/leap.conf"
	install -D -m 644 "$common/power.rules" "$1/lib/udev/rules.d/70-leap-power.rules"
	install -D -m 644 README.md "$1/usr/share/doc/leap/README.md"
}

# stage_licences ROOT TRIPLE FEATURES [PACKAGE]: what the program is made of besides LEAP, with the licences' texts.
stage_licences() {
	scripts/third-party.py "$2" "$3" | gzip -9n |
		install -D -m 644 /dev/stdin "$1/usr/share/doc/${4:-leap}/third-party.gz"
}

# stage_systemd ROOT: under /lib, where systems with one folder for both find it too.
stage_systemd() { install -D -m 644 -t "$1/lib/systemd/system" images/common/systemd/*; }

# stage_sysv ROOT NAME: the init script under the name that the system's order needs.
stage_sysv() { install -D -m 755 images/common/init/leap "$1/etc/init.d/$2"; }

# stage_kmod ROOT: the module's source where DKMS looks for it, its device's rule and its settings.
stage_kmod() {
	local to=$1/usr/src/leap-transport-$VERSION
	install -d "$to/compat"
	install -m 644 -t "$to" kmod/Kbuild kmod/Makefile kmod/*.[ch] kmod/dkms.conf
	install -m 644 -t "$to/compat" kmod/compat/*.c
	install -D -m 644 -t "$1/lib/udev/rules.d" kmod/dist/*.rules
	install -D -m 644 kmod/dist/leap-load.conf "$1/usr/lib/modules-load.d/leap.conf"
	install -D -m 644 kmod/dist/leap.conf "$1/lib/modprobe.d/leap.conf"
}

# write_tarball PROGRAM NATIVE ARCH FEATURES FOLDER: FOLDER/leap-VERSION-ARCH.tar.gz, which install.sh unpacks. NATIVE is
# the same program for this machine. The same files give the same bytes.
write_tarball() {
	local name=leap-$VERSION-$3 work
	work=$(mktemp -d -p "$5")
	install -D -m 755 "$1" "$work/$name/leap"
	install -m 644 -t "$work/$name" LICENSE-MIT LICENSE-APACHE README.md
	scripts/third-party.py "$3-unknown-linux-musl" "$4" >"$work/$name/third-party.txt"
	"$2" help --man >"$work/$name/leap.1"
	"$2" completions bash >"$work/$name/leap.bash"
	"$2" completions zsh >"$work/$name/_leap"
	"$2" completions fish >"$work/$name/leap.fish"
	chmod -R u=rwX,go=rX "$work/$name"
	tar -C "$work" --sort=name --mtime="@$SOURCE_DATE_EPOCH" --owner=0 --group=0 --numeric-owner --format=ustar -c "$name" |
		gzip -9n >"$5/$name.tar.gz"
	rm -rf "$work"
}

# write_installer FOLDER [ADDRESS [KEY]]: FOLDER/install.sh, which knows its release's address, version and key.
write_installer() {
	sed "s,^RELEASES=$,RELEASES=${2:-},; s,^VERSION=$,VERSION=$VERSION,; s,^PUBLIC_KEY=$,PUBLIC_KEY=${3:-}," \
		scripts/install.sh >"$1/install.sh"
	chmod 755 "$1/install.sh"
}

# write_sums FOLDER: its files' checksums.
write_sums() { (cd "$1" && find . -type f ! -name 'SHA256SUMS*' -printf '%P\n' | LC_ALL=C sort | xargs -d '\n' sha256sum >SHA256SUMS); }
