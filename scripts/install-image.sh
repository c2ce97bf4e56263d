#!/usr/bin/env bash
# Installs LEAP's packages into a stock image or a root file system, needs root:
# install-image.sh BOARD TARGET [--role ROLE] [--node NAME] [--ring FILE] [--model FILE]
#
# TARGET is a disk image, or the folder of a root file system. Packages come from out/deb
# (scripts/build-deb.sh). The board's role, name, ring and model may be given at once.
# shellcheck source=scripts/lib.sh
. "$(dirname "$0")/lib.sh"
# shellcheck source=scripts/boards.sh
. scripts/boards.sh

usage() { die "usage: ${0##*/} BOARD TARGET [--role ROLE] [--node NAME] [--ring FILE] [--model FILE]"; }

[ $# -ge 2 ] || usage
board=$1 target=$2 role='' node='' ring='' model=''
shift 2
while [ $# -gt 0 ]; do
	[ $# -ge 2 ] || usage
	case $1 in
	--role) role=$2 ;;
	--node) node=$2 ;;
	--ring) ring=$2 ;;
	--model) model=$2 ;;
	*) usage ;;
	esac
	shift 2
done

conf=images/$board/image.conf
[ -r "$conf" ] || die "there is no $conf"
PARTITION=$(sed -n 's/^PARTITION=//p' "$conf")
ARCH=$(sed -n 's/^ARCH=//p' "$conf")
deb=$OUT/deb/leap_${VERSION}_$ARCH.deb
dkms=$OUT/deb/leap-dkms_${VERSION}_all.deb
for file in "$deb" "$dkms" ${ring:+"$ring"} ${model:+"$model"}; do
	[ -f "$file" ] || die "there is no $file"
done
case $role in
'' | none | worker | master | serve) ;;
*) die "--role is $role, wanted none, worker, master or serve" ;;
esac
[ "$(id -u)" -eq 0 ] || die "run as root: it mounts, and changes to the image's root"

root='' mounted=''
leave() {
	[ -z "$root" ] || umount "$root/proc" "$root/dev" 2>/dev/null || true
	[ -z "$root" ] || rm -rf "$root/var/tmp/leap-install"
	[ -z "$mounted" ] || { umount "$root" 2>/dev/null; rmdir "$root"; } || true
}
trap leave EXIT

if [ -d "$target" ]; then
	root=$target
elif [ -f "$target" ]; then
	read -r start sectors < <(partx --show --noheadings --nr "$PARTITION" -o START,SECTORS "$target" 2>/dev/null) ||
		die "$target has no partition $PARTITION, as a stock image for $board has"
	root=$(mktemp -d)
	mounted=$root
	mount -o "loop,offset=$((start * 512)),sizelimit=$((sectors * 512))" "$target" "$root" ||
		die "partition $PARTITION of $target holds no file system that can be mounted here"
else
	die "$target is neither an image nor a folder"
fi
[ -x "$root/usr/bin/dpkg" ] || die "$target has no dpkg in it: not a Debian, Ubuntu or kin"

# Nothing of LEAP runs while it is installed: the image's services are not this machine's.
mkdir -p "$root/var/tmp/leap-install"
cp "$deb" "$dkms" "$root/var/tmp/leap-install/"
# dkms reads both.
mount -t proc proc "$root/proc"
mount --bind /dev "$root/dev"
in_root() { chroot "$root" env DEBIAN_FRONTEND=noninteractive LC_ALL=C "$@"; }
in_root /bin/true || die "cannot run $ARCH programs here: install qemu-user-static (and binfmt-support)"
in_root dpkg --install "/var/tmp/leap-install/${deb##*/}" || in_root apt-get --fix-broken install --yes
# The module is built where its tools and the kernel's headers are; otherwise UDP carries the links.
if in_root dpkg-query --show dkms >/dev/null 2>&1; then
	in_root dpkg --install "/var/tmp/leap-install/${dkms##*/}"
else
	install -D -m 644 "$dkms" "$root/var/lib/leap/${dkms##*/}"
	say "dkms is not in the image: on the board, apt install dkms /var/lib/leap/${dkms##*/}"
fi

set_conf() { [ -z "$2" ] || sed -i "s|^$1=.*|$1=$2|" "$root/etc/leap/leap.conf"; }
set_conf ROLE "$role"
set_conf NODE "$node"
[ -z "$ring" ] || install -m 644 "$ring" "$root/etc/leap/ring.conf"
if [ -n "$model" ]; then
	install -m 644 "$model" "$root/var/lib/leap/model.bin" || {
		rm -f "$root/var/lib/leap/model.bin"
		die "$model does not go into $target: enlarge its file system first, or copy the model to the board's /var/lib/leap/model.bin"
	}
	for tokenizer in "${model%.bin}.tokenizer.bin" "$(dirname "$model")/tokenizer.bin"; do
		[ ! -f "$tokenizer" ] || { install -m 644 "$tokenizer" "$root/var/lib/leap/tokenizer.bin" && break; }
	done
fi
sync
say "LEAP $VERSION is in $target"
