# shellcheck shell=bash
# Kernels for the module's builds and tests, and boards that run them, sourced after lib.sh. Nothing is
# installed: packages are unpacked below target/kernels, each release in folders of its own.
#
# root-RELEASE-ARCH holds a build system for ARCH that runs on amd64 (compiler, sparse, kernel headers),
# image-RELEASE-ARCH a kernel with its modules, as the packages have them, and emulator-ARCH QEMU where
# this machine has none.
#
# Debian's bullseye has Linux 5.10, bookworm 6.1, trixie 6.12, sid whatever is newest; Ubuntu's jammy
# has 5.15 and noble 6.8, for builds on amd64 only. "debug" is built from bookworm's source: it checks
# itself while it runs.

KERNELS=$(realpath -m "$TARGET_DIR")/kernels
BUILD_PACKAGES=(bash dash coreutils findutils grep sed mawk make gcc libc6-dev sparse)
UBUNTU_MIRROR=${LEAP_UBUNTU_MIRROR:-http://archive.ubuntu.com/ubuntu}

# debian_mirror: the mirror that apt takes Debian from.
debian_mirror() {
	# shellcheck disable=SC2016 # For apt to expand.
	apt-get indextargets --format '$(LABEL) $(SITE)' 'Created-By: Packages' |
		awk '$1 == "Debian" { print $2; exit }'
}

is_ubuntu() { [ "$1" = jammy ] || [ "$1" = noble ]; }

# sources_of RELEASE: apt's line for it.
sources_of() {
	local mirror keyring=usr/share/keyrings/ubuntu-archive-keyring.gpg
	if is_ubuntu "$1"; then
		[ -e "$KERNELS/$keyring" ] || fetch trixie "$KERNELS" ubuntu-keyring
		printf 'deb [arch=amd64 signed-by=%s] %s %s main universe\n' "$KERNELS/$keyring" "$UBUNTU_MIRROR" "$1"
		return
	fi
	mirror=$(debian_mirror)
	[ -n "$mirror" ] || die "apt's sources here name no Debian mirror"
	printf 'deb [signed-by=/usr/share/keyrings/debian-archive-keyring.gpg] %s %s main\n' "$mirror" "$1"
}

# Prints the tools that this machine lacks to build and emulate boards; nothing if it can.
lacking_for_boards() {
	if ! has_tool apt-get; then
		say "the kernels come from Debian's packages, and here is no apt-get"
	elif [ "$(uname -m)" != x86_64 ]; then
		say "the compilers for its kernels run on x86_64"
	elif ! has_root; then
		say "it needs root"
	elif ! unshare --mount true 2>/dev/null; then
		say "mounts are not allowed here"
	elif ! (need_release bookworm) >/dev/null 2>&1; then
		say "no Debian mirror answers"
	fi
}

# need_release RELEASE: an apt state for it, apart from this system's.
need_release() {
	local apt=$KERNELS/apt-$1
	[ ! -e "$apt/ready" ] || return 0
	has_tool apt-get || die "the kernels come from Debian's packages, and here is no apt-get"
	mkdir -p "$apt/state/lists/partial" "$apt/cache/archives/partial"
	: >"$apt/status"
	sources_of "$1" >"$apt/sources.list"
	cat >"$apt/apt.conf" <<-END
		Dir::State "$apt/state";
		Dir::State::status "$apt/status";
		Dir::Cache "$apt/cache";
		Dir::Etc::sourcelist "$apt/sources.list";
		Dir::Etc::sourceparts "-";
		APT::Architecture "amd64";
		APT::Architectures { "amd64"; "arm64"; };
		APT::Install-Recommends "false";
		APT::Sandbox::User "root";
		APT::Update::Post-Invoke-Success "";
		Acquire::Languages "none";
		Acquire::IndexTargets::deb::DEP-11::DefaultEnabled "false";
	END
	apt_of "$1" apt-get -qq update
	touch "$apt/ready"
}

# apt_of RELEASE COMMAND...: an apt command with the state of RELEASE.
apt_of() { APT_CONFIG=$KERNELS/apt-$1/apt.conf "${@:2}"; }

# abi_of RELEASE: the kernel's version as Debian's packages and modules have it, without the flavour.
abi_of() {
	apt_of "$1" apt-cache depends linux-image-amd64 |
		sed -n 's/.*Depends: linux-image-\(.*\)-amd64$/\1/p' | head -n1
}

# kernel_of RELEASE ARCH: the kernel's version, whole.
kernel_of() {
	if is_ubuntu "$1"; then
		apt_of "$1" apt-cache depends linux-image-generic |
			sed -n 's/.*Depends: linux-image-\([0-9].*-generic\)$/\1/p' | head -n1
	else
		printf '%s-%s\n' "$(abi_of "$1")" "$2"
	fi
}

# need_build_root RELEASE ARCH: unpacks the build system.
need_build_root() {
	local root=$KERNELS/root-$1-$2 packages=("${BUILD_PACKAGES[@]}")
	[ ! -e "$root/ready" ] || return 0
	need_release "$1"
	say "unpacking compiler and kernel headers of $1 for $2"
	[ "$2" = amd64 ] || packages+=(gcc-aarch64-linux-gnu libc6-dev-arm64-cross)
	# Ubuntu's headers bring checkpatch.pl, which needs these.
	! is_ubuntu "$1" || packages+=(perl diffutils)
	# Headers for arm64 need what those for amd64 do, and would bring compilers that run on arm64 alone.
	fetch_whole "$1" "$root" "${packages[@]}" "linux-headers-$(kernel_of "$1" amd64)"
	[ "$2" = amd64 ] || fetch "$1" "$root" "linux-headers-$(kernel_of "$1" "$2"):$2"
	ln -sf mawk "$root/usr/bin/awk"
	[ -e "$root/bin/sh" ] || ln -sf dash "$root/bin/sh"
	mkdir -p "$root/leap" "$root/dev" "$root/tmp" "$root/proc"
	touch "$root/ready"
}

# fetch RELEASE FOLDER PACKAGE: unpacks a package alone.
fetch() {
	local work
	work=$(mktemp -d "$KERNELS/fetch.XXXXXX")
	need_release "$1"
	(cd "$work" && apt_of "$1" apt-get -qq download "$3")
	unpack "$2" "$work"/*.deb
	rm -rf "$work"
}

# fetch_whole RELEASE FOLDER PACKAGE...: unpacks packages with all that they need.
fetch_whole() {
	local archives=$KERNELS/apt-$1/cache/archives
	need_release "$1"
	apt_of "$1" apt-get -qq -y --download-only install base-files "${@:3}"
	# First what says whether /bin is a link to /usr/bin.
	unpack "$2" "$archives"/base-files_*.deb "$archives"/*.deb
	rm -f -- "$archives"/*.deb
}

# unpack FOLDER PACKAGE...
unpack() {
	local folder=$1 package
	shift
	mkdir -p "$folder"
	for package in "$@"; do
		dpkg-deb -x "$package" "$folder"
	done
}

# in_build_root RELEASE ARCH FOLDER COMMAND...: runs it in the build system, with FOLDER as /leap. The
# mounts are gone with the command.
in_build_root() {
	local root=$KERNELS/root-$1-$2 folder=$3 user=()
	shift 3
	[ "$(id -u)" -eq 0 ] || user=(--map-root-user)
	# shellcheck disable=SC2016 # Expanded by the inner shell.
	unshare "${user[@]}" --mount sh -c '
		mount --rbind /dev "$1/dev" && mount --rbind /proc "$1/proc" && mount --bind "$2" "$1/leap" && root=$1 && shift 2 &&
		exec chroot "$root" /usr/bin/env -i PATH=/usr/bin:/bin:/usr/sbin HOME=/ LC_ALL=C "$@"' sh "$root" "$folder" "$@"
}

# build_module RELEASE ARCH: builds the kernel module for amd64 or arm64, with all warnings as errors
# and checked by sparse, as target/kmod/RELEASE-ARCH/leap_transport.ko.
build_module() {
	local folder
	folder=$(realpath -m "$TARGET_DIR/kmod/$1-$2")
	rm -rf "$folder"
	mkdir -p "$folder"
	cp -r kmod/. "$folder"
	make_module "$1" "$2" "$folder"
	say "built ${folder#"$PWD"/}/leap_transport.ko for Linux $(modinfo -F vermagic "$folder/leap_transport.ko" | cut -d' ' -f1)"
}

# make_module RELEASE ARCH FOLDER [VARIABLE=VALUE...]: builds the module that is in FOLDER.
make_module() {
	local variables=("${@:4}")
	if [ "$1" = debug ]; then
		need_image "$1" "$2"
		make -s -C "$3" "KERNEL_SRC=$KERNELS/debug" C=0 "${variables[@]}" check
		return
	fi
	need_build_root "$1" "$2"
	[ "$2" = amd64 ] || variables+=(CROSS_COMPILE=aarch64-linux-gnu-)
	# The newest headers lack a script that their rules for sparse call.
	[ "$1" != sid ] || variables+=(C=0)
	in_build_root "$1" "$2" "$3" make -s -C /leap "KERNEL_SRC=/usr/src/linux-headers-$(kernel_of "$1" "$2")" \
		"ARCH=${2/#amd64/x86}" "${variables[@]}" check
}

# build_without_ipv6 RELEASE ARCH: the module as for a kernel that has no IPv6, only to see that it needs none.
build_without_ipv6() {
	local folder
	folder=$(realpath -m "$TARGET_DIR/kmod/$1-$2-noipv6")
	rm -rf "$folder"
	cp -r kmod "$folder"
	make_module "$1" "$2" "$folder" "CHECK_CFLAGS=-include /leap/test/without_ipv6.h"
	! nm -u "$folder/leap_transport.ko" | grep -E ' (ipv6_|ip6_(dst|route|output))' || die "the module needs IPv6"
	rm -rf "$folder"
}

# build_foreign_module RELEASE ARCH: the module once more, with the next version of its interface, beside the
# first as leap_foreign.ko.
build_foreign_module() {
	local folder version
	folder=$(realpath -m "$TARGET_DIR/kmod/$1-$2")
	version=$(sed -n 's/^#define LEAP_API_VERSION[[:space:]]*//p' kmod/leap_uapi.h)
	cp -r "$folder" "$folder-foreign"
	sed -i "s/^\(#define LEAP_API_VERSION[[:space:]]*\).*/\1$((version + 1))/" "$folder-foreign/leap_uapi.h"
	make_module "$1" "$2" "$folder-foreign"
	mv "$folder-foreign/leap_transport.ko" "$folder/leap_foreign.ko"
	rm -rf "$folder-foreign"
}

# need_image RELEASE ARCH: unpacks the kernel for amd64 or arm64, or builds it.
need_image() {
	local image=$KERNELS/image-$1-$2 kernel part
	[ ! -e "$image/ready" ] || return 0
	if [ "$1" = debug ]; then
		build_debug_kernel "$image"
	else
		need_release "$1"
		kernel=$(kernel_of "$1" "$2")
		say "unpacking the kernel of $1 for $2"
		fetch "$1" "$image" "linux-image-$kernel:$2"
		# Newer releases have some of it in packages of their own.
		for part in base binary modules; do
			! apt_of "$1" apt-cache show "linux-$part-$kernel:$2" >/dev/null 2>&1 ||
				fetch "$1" "$image" "linux-$part-$kernel:$2"
		done
		[ -e "$image/boot/vmlinuz-$kernel" ] ||
			install -D "$image/usr/lib/modules/$kernel/vmlinuz" "$image/boot/vmlinuz-$kernel"
	fi
	touch "$image/ready"
}

# build_debug_kernel IMAGE: as kmod/test/debug.config says, by this machine's compiler. Takes long.
build_debug_kernel() {
	local tree=$KERNELS/debug
	need_tools make:make gcc:gcc flex:flex bison:bison bc:bc xz:xz-utils perl:perl /usr/include/stdlib.h:libc6-dev \
		/usr/include/libelf.h:libelf-dev
	say "building the kernel of kmod/test/debug.config"
	mkdir -p "$tree"
	rm -rf "${tree:?}"/*
	fetch bookworm "$tree/source" linux-source-6.1
	tar -xf "$tree/source/usr/src/linux-source-6.1.tar.xz" -C "$tree" --strip-components 1
	rm -rf "$tree/source"
	cp kmod/test/debug.config "$tree/kernel/configs/leap.config"
	make -s -C "$tree" tinyconfig leap.config
	make -s -C "$tree" "-j$(nproc)" bzImage modules
	mkdir -p "$1/boot"
	cp "$tree/arch/x86/boot/bzImage" "$1/boot/vmlinuz-debug"
}

## Emulated boards

# Modules of Debian's kernels that the boards need.
BOARD_MODULES=(virtio_pci virtio_net e1000e sch_netem af_packet)

# need_emulator ARCH: qemu-system for boards of amd64 or arm64. Where there is none it is unpacked, as
# installed packages of another release of QEMU can forbid its installation.
need_emulator() {
	local root=$KERNELS/emulator-$1 program package
	case $1 in
	amd64) program=qemu-system-x86_64 package=qemu-system-x86 ;;
	arm64) program=qemu-system-aarch64 package=qemu-system-arm ;;
	esac
	! has_tool "$program" || return 0
	if [ ! -e "$root/ready" ]; then
		say "unpacking $program"
		fetch_whole bookworm "$root" "$package"
		write_emulator_script "$root/$program"
		touch "$root/ready"
	fi
	PATH=$PATH:$root
}

# write_emulator_script FILE: runs the program of that name with the C library and the data unpacked beside it.
write_emulator_script() {
	cat >"$1" <<-'END'
		#!/bin/sh
		root=${0%/*}
		lib=lib/x86_64-linux-gnu
		export QEMU_MODULE_DIR="$root/usr/$lib/qemu"
		exec "$root/lib64/ld-linux-x86-64.so.2" --library-path "$root/$lib:$root/usr/$lib" "$root/usr/bin/${0##*/}" \
			-L "$root/usr/share/qemu" -L "$root/usr/share/seabios" "$@"
	END
	chmod +x "$1"
}

# need_busybox ARCH: a static busybox for the boards' initramfs, as busybox-ARCH.
need_busybox() {
	[ ! -e "$KERNELS/busybox-$1" ] || return 0
	fetch bookworm "$KERNELS/busybox-static-$1" "busybox-static:$1"
	mv "$KERNELS/busybox-static-$1/bin/busybox" "$KERNELS/busybox-$1"
}

# image_lib RELEASE ARCH: below what an unpacked image has lib/modules; older ones have no usr.
image_lib() {
	local image=$KERNELS/image-$1-$2
	[ -d "$image/lib/modules" ] && printf '%s\n' "$image" || printf '%s\n' "$image/usr"
}

# copy_modules RELEASE ARCH FOLDER: BOARD_MODULES and what they depend on, and the order to load them.
copy_modules() {
	local kernel lib module file
	mkdir -p "$3"
	: >"$3/order"
	# All built in.
	[ "$1" != debug ] || return 0
	kernel=$(kernel_of "$1" "$2")
	lib=$(image_lib "$1" "$2")
	[ -e "$lib/lib/modules/$kernel/modules.builtin.bin" ] || depmod -b "$lib" "$kernel"
	for module in "${BOARD_MODULES[@]}"; do
		modprobe -d "$lib" -S "$kernel" --show-depends "$module" | awk '$1 == "insmod" { print $2 }'
	done | awk '!seen[$0]++' | while read -r file; do
		case $file in
		*.xz) xz -dc "$file" >"$3/$(basename "$file" .xz)" ;;
		*) cp "$file" "$3" ;;
		esac
		basename "$file" .xz
	done >"$3/order"
}

# build_board RELEASE ARCH [FILE...]: an initramfs with the modules, the test program and these files.
build_board() {
	local built=$TARGET_DIR/kmod/$1-$2 folder=$TARGET_DIR/kmod/board-$1-$2
	local -A compiler=([amd64]=gcc [arm64]=aarch64-linux-gnu-gcc)
	need_image "$1" "$2"
	need_busybox "$2"
	need_build_root bookworm "$2"
	rm -rf "$folder"
	mkdir -p "$folder"/{bin,dev,proc,sys,tmp,modules}
	cp kmod/test/init models/demo.bin models/demo.tokenizer.bin "$built"/leap_{transport,foreign}.ko "$folder"
	cp "$KERNELS/busybox-$2" "$folder/bin/busybox"
	[ $# -lt 3 ] || cp "${@:3}" "$folder/bin"
	in_build_root bookworm "$2" "$PWD/kmod" "${compiler[$2]}" -O2 -Wall -Wextra -Werror -static -pthread -o /tmp/board \
		/leap/test/{board,selftest,packets,network,fuzz,fuzz_args}.c
	cp "$KERNELS/root-bookworm-$2/tmp/board" "$folder/bin"
	in_build_root bookworm "$2" "$(realpath "$folder")" "${compiler[$2]/%gcc/strip}" -g /leap/leap_{transport,foreign}.ko
	copy_modules "$1" "$2" "$folder/modules"
	(cd "$folder" && find . | cpio --quiet -o -H newc | gzip -1) >"$folder.gz"
}

# boot RELEASE ARCH LOG WORDS [OPTION...]: becomes an emulated board, so call it in the background, with these words on the kernel's command line.
# Machines that run this may pause for long: that is no lockup.
boot() {
	local machine console memory=512 seconds=${BOARD_SECONDS:-600}
	# The record of what was freed, shadows of all memory, and the time it takes.
	[ "$1" != debug ] || memory=1536 seconds=${BOARD_SECONDS:-1800}
	case $2 in
	amd64) machine=(qemu-system-x86_64 -cpu max) console=ttyS0 ;;
	arm64) machine=(qemu-system-aarch64 -M virt -cpu cortex-a76) console=ttyAMA0 ;;
	esac
	exec timeout "$seconds" "${machine[@]}" -smp 2 -m "$memory" -display none -monitor none -serial stdio -no-reboot \
		-kernel "$(echo "$KERNELS/image-$1-$2"/boot/vmlinuz-*)" -initrd "$TARGET_DIR/kmod/board-$1-$2.gz" \
		-append "console=$console panic=-1 quiet no_timer_check rcupdate.rcu_cpu_stall_timeout=300 watchdog_thresh=60 $4" "${@:5}" </dev/null >"$3" 2>&1
}
