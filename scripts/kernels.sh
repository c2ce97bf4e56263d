# shellcheck shell=bash
# Debian's kernels for the module's builds and tests, sourced after lib.sh. Nothing is installed:
# packages are unpacked below target/kernels, each release in a folder of its own.
#
# root-RELEASE holds a build system (compilers, sparse, headers for amd64 and arm64), and
# image-RELEASE-ARCH a kernel with its modules, as the packages have them.

KERNELS=$(realpath -m "$TARGET_DIR")/kernels
# Releases and their kernels: bullseye 5.10, bookworm 6.1, trixie 6.12, sid whatever is newest.
BUILD_PACKAGES=(base-files bash dash coreutils findutils grep sed mawk make gcc libc6-dev
	gcc-aarch64-linux-gnu libc6-dev-arm64-cross sparse linux-headers-amd64)

# debian_mirror: the mirror that apt takes Debian from.
debian_mirror() {
	# shellcheck disable=SC2016 # For apt to expand.
	apt-get indextargets --format '$(LABEL) $(SITE)' 'Created-By: Packages' |
		awk '$1 == "Debian" { print $2; exit }'
}

# need_release RELEASE: an apt state for it, apart from this system's.
need_release() {
	local apt=$KERNELS/apt-$1 mirror
	[ ! -e "$apt/ready" ] || return 0
	has_tool apt-get || die "the kernels come from Debian's packages, and here is no apt-get"
	mirror=$(debian_mirror)
	[ -n "$mirror" ] || die "apt's sources here name no Debian mirror"
	mkdir -p "$apt/state/lists/partial" "$apt/cache/archives/partial"
	: >"$apt/status"
	printf 'deb [signed-by=/usr/share/keyrings/debian-archive-keyring.gpg] %s %s main\n' "$mirror" "$1" >"$apt/sources.list"
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

# abi_of RELEASE: the kernel's version as its packages and modules have it, without the flavour.
abi_of() {
	apt_of "$1" apt-cache depends linux-image-amd64 |
		sed -n 's/.*Depends: linux-image-\(.*\)-amd64$/\1/p' | head -n1
}

# need_build_root RELEASE: unpacks the build system.
need_build_root() {
	local root=$KERNELS/root-$1
	[ ! -e "$root/ready" ] || return 0
	need_release "$1"
	say "unpacking compilers and kernel headers of $1"
	(
		cd "$KERNELS/apt-$1/cache/archives" || exit
		apt_of "$1" apt-get -qq -y --download-only install "${BUILD_PACKAGES[@]}"
		apt_of "$1" apt-get -qq download "linux-headers-$(abi_of "$1")-arm64:arm64"
		# First what says whether /bin is a link to /usr/bin.
		unpack "$root" base-files_*.deb ./*.deb
		rm -f -- *.deb
	)
	ln -sf mawk "$root/usr/bin/awk"
	[ -e "$root/bin/sh" ] || ln -sf dash "$root/bin/sh"
	mkdir -p "$root/leap" "$root/dev" "$root/tmp" "$root/proc"
	touch "$root/ready"
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

# in_build_root RELEASE FOLDER COMMAND...: runs it in the build system, with FOLDER as /leap. The
# mounts are gone with the command.
in_build_root() {
	local root=$KERNELS/root-$1 folder=$2 user=()
	shift 2
	[ "$(id -u)" -eq 0 ] || user=(--map-root-user)
	# shellcheck disable=SC2016 # Expanded by the inner shell.
	unshare "${user[@]}" --mount sh -c '
		mount --rbind /dev "$1/dev" && mount --rbind /proc "$1/proc" && mount --bind "$2" "$1/leap" && root=$1 && shift 2 &&
		exec chroot "$root" /usr/bin/env -i PATH=/usr/bin:/bin:/usr/sbin LC_ALL=C "$@"' sh "$root" "$folder" "$@"
}

# build_module RELEASE ARCH: builds the kernel module for amd64 or arm64, with all warnings as errors and
# checked by sparse, as target/kmod/RELEASE-ARCH/leap_transport.ko.
build_module() {
	local folder headers variables=()
	folder=$(realpath -m "$TARGET_DIR/kmod/$1-$2")
	need_build_root "$1"
	headers=/usr/src/linux-headers-$(abi_of "$1")-$2
	rm -rf "$folder"
	mkdir -p "$folder"
	cp -r kmod/. "$folder"
	[ "$2" = amd64 ] || variables+=(CROSS_COMPILE=aarch64-linux-gnu-)
	# The newest headers lack a script that their rules for sparse call.
	[ "$1" != sid ] || variables+=(C=0)
	in_build_root "$1" "$folder" make -s -C /leap "KERNEL_SRC=$headers" "ARCH=${2/#amd64/x86}" "${variables[@]}" check
	say "built ${folder#"$PWD"/}/leap_transport.ko for Linux $(abi_of "$1")-$2"
}

# need_image RELEASE ARCH: unpacks the kernel for amd64 or arm64.
need_image() {
	local image=$KERNELS/image-$1-$2
	[ ! -e "$image/ready" ] || return 0
	need_release "$1"
	say "unpacking the kernel of $1 for $2"
	(
		cd "$KERNELS/apt-$1/cache/archives" || exit
		apt_of "$1" apt-get -qq download "linux-image-$(abi_of "$1")-$2:$2"
		unpack "$image" linux-image-*_"$2".deb
		# From 6.12 on the modules have a package of their own.
		if apt_of "$1" apt-cache show "linux-modules-$(abi_of "$1")-$2:$2" >/dev/null 2>&1; then
			apt_of "$1" apt-get -qq download "linux-modules-$(abi_of "$1")-$2:$2"
			unpack "$image" linux-modules-*_"$2".deb
		fi
		rm -f -- linux-*_"$2".deb
	)
	touch "$image/ready"
}

## Emulated boards

# Modules of Debian's kernels that the boards need.
BOARD_MODULES=(virtio_pci virtio_net sch_netem)

# need_busybox ARCH: a static busybox for the boards' initramfs, as busybox-ARCH.
need_busybox() {
	[ ! -e "$KERNELS/busybox-$1" ] || return 0
	need_release bookworm
	(
		cd "$KERNELS/apt-bookworm/cache/archives" || exit
		apt_of bookworm apt-get -qq download "busybox-static:$1"
		unpack "$KERNELS/busybox-static-$1" busybox-static_*_"$1".deb
		rm -f -- busybox-static_*_"$1".deb
	)
	mv "$KERNELS/busybox-static-$1/bin/busybox" "$KERNELS/busybox-$1"
}

# image_modules RELEASE: where an unpacked image has its modules; older ones below /lib.
image_lib() {
	local image=$KERNELS/image-$1-$2
	[ -d "$image/lib/modules" ] && printf '%s\n' "$image" || printf '%s\n' "$image/usr"
}

# copy_modules RELEASE ARCH FOLDER: BOARD_MODULES and what they depend on, and the order to load them.
copy_modules() {
	local abi lib module file
	abi=$(abi_of "$1")-$2
	lib=$(image_lib "$1" "$2")
	mkdir -p "$3"
	[ -e "$lib/lib/modules/$abi/modules.dep.bin" ] || depmod -b "$lib" "$abi"
	for module in "${BOARD_MODULES[@]}"; do
		modprobe -d "$lib" -S "$abi" --show-depends "$module" | awk '$1 == "insmod" { print $2 }'
	done | awk '!seen[$0]++' | while read -r file; do
		case $file in
		*.xz) xz -dc "$file" >"$3/$(basename "$file" .xz)" ;;
		*) cp "$file" "$3" ;;
		esac
		basename "$file" .xz
	done >"$3/order"
}

# build_board RELEASE ARCH [FILE...]: an initramfs with the module, the test program and these files.
build_board() {
	local target=$1-$2 folder=$TARGET_DIR/kmod/board-$1-$2
	local -A compiler=([amd64]=gcc [arm64]=aarch64-linux-gnu-gcc)
	need_image "$1" "$2"
	need_busybox "$2"
	need_build_root bookworm
	rm -rf "$folder"
	mkdir -p "$folder"/{bin,dev,proc,sys,tmp,modules}
	in_build_root bookworm "$PWD/kmod" "${compiler[$2]}" -O2 -Wall -Wextra -Werror -static -pthread -o /tmp/board \
		/leap/test/board.c /leap/test/selftest.c
	cp "$KERNELS/root-bookworm/tmp/board" "${@:3}" "$folder/bin"
	cp "$KERNELS/busybox-$2" "$folder/bin/busybox"
	cp kmod/test/init models/demo.bin models/demo.tokenizer.bin "$folder"
	cp "$TARGET_DIR/kmod/$target/leap_transport.ko" "$folder"
	in_build_root bookworm "$(realpath "$folder")" "${compiler[$2]/%gcc/strip}" -g /leap/leap_transport.ko
	copy_modules "$1" "$2" "$folder/modules"
	(cd "$folder" && find . | cpio --quiet -o -H newc | gzip -1) >"$folder.gz"
}

# boot RELEASE ARCH LOG WORDS [OPTION...]: becomes an emulated board, so call it in the background, with these words on the kernel's command line.
# Machines that run this may pause for long: that is no lockup.
boot() {
	local machine console
	case $2 in
	amd64) machine=(qemu-system-x86_64 -cpu max) console=ttyS0 ;;
	arm64) machine=(qemu-system-aarch64 -M virt -cpu cortex-a76) console=ttyAMA0 ;;
	esac
	exec timeout 600 "${machine[@]}" -smp 2 -m 512 -display none -monitor none -serial stdio -no-reboot \
		-kernel "$(echo "$KERNELS/image-$1-$2"/boot/vmlinuz-*)" -initrd "$TARGET_DIR/kmod/board-$1-$2.gz" \
		-append "console=$console panic=-1 quiet no_timer_check rcupdate.rcu_cpu_stall_timeout=300 watchdog_thresh=60 $4" "${@:5}" </dev/null >"$3" 2>&1
}
