# shellcheck shell=bash
# The image for QEMU's virt machine, sourced after lib.sh, boards.sh and kernels.sh.

# Debian's release whose kernel and BusyBox are taken.
IMAGE_RELEASE=bookworm
# Room for a small model and its packed weights.
DISK_MIB=${LEAP_DISK_MIB:-64}

need_image_tools() {
	need_tools cc:gcc file:file dpkg-deb:dpkg unshare:util-linux cpio:cpio depmod:kmod xz:xz-utils \
		mke2fs:e2fsprogs fakeroot:fakeroot qemu-aarch64-static:qemu-user-static
	need_cargo
}

# build_boot_files FOLDER: kernel, and an initramfs with what it needs to reach its disk.
build_boot_files() {
	local root
	need_image "$IMAGE_RELEASE" arm64
	need_busybox arm64
	cp "$KERNELS/image-$IMAGE_RELEASE-arm64"/boot/vmlinuz-* "$1/vmlinuz"
	root=$(mktemp -d)
	mkdir -p "$root"/{bin,dev,proc,root}
	# shellcheck disable=SC2034 # Read by copy_modules.
	BOARD_MODULES=(virtio_pci virtio_blk crc32c_generic ext4 virtio_net)
	copy_modules "$IMAGE_RELEASE" arm64 "$root/modules"
	install_busybox "$root"
	install -m 755 images/qemu-virt/init "$root/init"
	(cd "$root" && find . | cpio --quiet -o -H newc | gzip -1) >"$1/initrd.gz"
	rm -rf "$root"
}

install_busybox() {
	local applet
	install -m 755 "$KERNELS/busybox-arm64" "$1/bin/busybox"
	for applet in $(qemu-aarch64-static "$KERNELS/busybox-arm64" --list); do
		[ "$applet" = busybox ] || ln -sf busybox "$1/bin/$applet"
	done
}

# stage_image ROOT: the files of the disk: BusyBox, the board's build, the kernel module, the demo model.
stage_image() {
	local abi modules module
	mkdir -p "$1"/{bin,dev,proc,sys,run,tmp,root,var/log,var/lib/leap,var/cache/leap,etc}
	install_busybox "$1"
	ln -s bin "$1/sbin"
	cp -r "$OUT/qemu-virt/rootfs/." images/qemu-virt/rootfs/. "$1"
	rm -rf "${1:?}/usr/src" "${1:?}/usr/share"
	install -m 644 models/demo.bin "$1/var/lib/leap/model.bin"
	install -m 644 models/demo.tokenizer.bin "$1/var/lib/leap/tokenizer.bin"
	printf 'root:x:0:0:root:/root:/bin/sh\nleap:x:999:999:LEAP ring node:/var/lib/leap:/bin/false\n' >"$1/etc/passwd"
	printf 'root:x:0:\nleap:x:999:\n' >"$1/etc/group"
	echo leap >"$1/etc/hostname"
	ln -s /proc/mounts "$1/etc/mtab"
	abi=$(abi_of "$IMAGE_RELEASE")-arm64
	modules=$1/lib/modules/$abi
	module=$TARGET_DIR/kmod/$IMAGE_RELEASE-arm64/leap_transport.ko
	if [ ! -e "$module" ] || [ -n "$(find kmod -type f -newer "$module")" ]; then
		build_module "$IMAGE_RELEASE" arm64
	fi
	install -D -m 644 "$module" "$modules/updates/leap_transport.ko"
	aarch64_strip "$modules/updates/leap_transport.ko"
	depmod -b "$1" "$abi" 2>/dev/null
}

# Debug sections of a module are many times its size.
aarch64_strip() {
	local folder
	folder=$(realpath "$(dirname "$1")")
	in_build_root "$IMAGE_RELEASE" arm64 "$folder" aarch64-linux-gnu-strip -g "/leap/$(basename "$1")"
}

# build_disk ROOT FILE: an ext4 disk with these files, all root's.
build_disk() {
	rm -f "$2"
	# shellcheck disable=SC2016 # Expanded by the inner shell.
	fakeroot sh -c 'chown -R 0:0 "$1" && mke2fs -q -t ext4 -L leap -d "$1" "$2" "$3M"' sh "$1" "$2" "$DISK_MIB"
}

# board NAME: starts the machine with disk NAME.ext4 in WORK; its console goes to NAME.log. The process
# is in BOARD_PID[NAME]. Boards of one WIRE_PORT are on one wire. They do not start from it: programs for that are in a
# package of their own.
declare -A BOARD_PID=()
board() {
	local mac
	mac=52:54:00:00:00:$(printf '%s' "$1" | cksum | awk '{ printf "%02x", $1 % 250 }')
	qemu-system-aarch64 -M virt -cpu cortex-a76 -smp 2 -m 512 -display none -monitor none -serial stdio -no-reboot \
		-kernel "$OUT/qemu-virt/vmlinuz" -initrd "$OUT/qemu-virt/initrd.gz" \
		-append "console=ttyAMA0 panic=-1 quiet" \
		-drive "file=$WORK/$1.ext4,format=raw,if=none,id=disk,cache=writeback" -device virtio-blk-pci,drive=disk \
		-netdev "socket,id=wire,mcast=230.77.0.2:$WIRE_PORT,localaddr=127.0.0.1" \
		-device "virtio-net-pci,netdev=wire,mac=$mac,romfile=" \
		</dev/null >>"$WORK/$1.log" 2>&1 &
	BOARD_PID[$1]=$!
}

# power_off NAME: as if the plug was pulled.
power_off() {
	kill -9 "${BOARD_PID[$1]}" 2>/dev/null || true
	wait "${BOARD_PID[$1]}" 2>/dev/null || true
	unset "BOARD_PID[$1]"
}
