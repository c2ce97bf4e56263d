# shellcheck shell=bash
# shellcheck disable=SC2034 # What is set here is used by the scripts that source this.
# Sourced after lib.sh: what a board gets, and where it goes.

VERSION=$(sed -n 's/^version = "\(.*\)"/\1/p' Cargo.toml | head -n1)
OUT=${LEAP_OUT:-out}

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
	local triple=$1 arguments=(--no-default-features)
	[ -z "$2" ] || arguments+=(--features "$2")
	[ -z "$3" ] || arguments+=(--config "target.$triple.rustflags=['-C','target-cpu=$3']")
	PROGRAM=$TARGET_DIR/$triple/dist/leap
	if [ -n "${LEAP_CROSS:-}" ]; then
		cross build --target "$triple" --profile dist --locked --bin leap "${arguments[@]}"
	else
		need_musl "${triple%%-*}"
		musl_program "${triple%%-*}" "${arguments[@]}"
	fi
	case $(file -b "$PROGRAM") in
	*statically\ linked*) ;;
	*) die "$PROGRAM is not linked statically" ;;
	esac
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

# stage_licences ROOT TRIPLE FEATURES: what the program is made of besides LEAP, with the licences' texts.
stage_licences() {
	scripts/third-party.py "$2" "$3" | gzip -9n | install -D -m 644 /dev/stdin "$1/usr/share/doc/leap/third-party.gz"
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
