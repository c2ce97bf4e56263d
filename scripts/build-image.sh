#!/usr/bin/env bash
# Builds a bootable image for QEMU's virt machine from Debian's arm64 kernel and BusyBox: build-image.sh
#
# out/qemu-virt/{vmlinuz,initrd.gz,rootfs.ext4}; scripts/test-boot.sh shows how they are started.
# shellcheck source=scripts/lib.sh
. "$(dirname "$0")/lib.sh"
# shellcheck source=scripts/boards.sh
. scripts/boards.sh
# shellcheck source=scripts/kernels.sh
. scripts/kernels.sh
# shellcheck source=scripts/qemu-virt.sh
. scripts/qemu-virt.sh

[ $# -eq 0 ] || die "usage: ${0##*/}"
need_image_tools
[ -e "$OUT/qemu-virt/leap" ] || scripts/build-board.sh qemu-virt
build_boot_files "$OUT/qemu-virt"
root=$(mktemp -d)
trap 'rm -rf "$root"' EXIT
stage_image "$root"
build_disk "$root" "$OUT/qemu-virt/rootfs.ext4"
say "$OUT/qemu-virt: vmlinuz, initrd.gz, rootfs.ext4"
