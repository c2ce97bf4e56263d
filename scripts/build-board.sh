#!/usr/bin/env bash
# Builds what one board needs into out/BOARD: [LEAP_CROSS=1] build-board.sh BOARD
#
# out/BOARD/leap        static program
# out/BOARD/rootfs/     the same with configuration, init files and the module's source, to be copied
#                       over a root file system
# out/BOARD/SHA256SUMS  of all of it
# shellcheck source=scripts/lib.sh
. "$(dirname "$0")/lib.sh"
# shellcheck source=scripts/boards.sh
. scripts/boards.sh

[ $# -eq 1 ] || die "usage: ${0##*/} BOARD, one of $(board_names)"
read_board "$1"
to=$OUT/$1

need_tools cc:gcc file:file python3:python3 sha256sum:coreutils
need_cargo
build_program "$TRIPLE" "$FEATURES" "$CPU"

# Made beside and renamed, so that a build that fails leaves the last one.
rm -rf "$to.new"
mkdir -p "$to.new/rootfs"
install -m 755 "$PROGRAM" "$to.new/leap"
stage "$to.new/rootfs"
stage_licences "$to.new/rootfs" "$TRIPLE" "$FEATURES"
ln "$to.new/leap" "$to.new/rootfs/usr/bin/leap"
case $INIT in
systemd)
	stage_systemd "$to.new/rootfs"
	install -D -m 644 images/common/sysusers.conf "$to.new/rootfs/usr/lib/sysusers.d/leap.conf"
	;;
busybox) stage_sysv "$to.new/rootfs" S60leap ;;
*) die "cross/$1/board.conf: INIT is $INIT, wanted systemd or busybox" ;;
esac
stage_kmod "$to.new/rootfs"
sums=$(cd "$to.new" && find . -type f -print0 | LC_ALL=C sort -z | xargs -0 sha256sum)
printf '%s\n' "$sums" >"$to.new/SHA256SUMS"
rm -rf "$to"
mv "$to.new" "$to"
say "$to: $(stat -c %s "$to/leap") bytes of program, $(wc -l <"$to/SHA256SUMS") files; copy $to/rootfs onto the board"
