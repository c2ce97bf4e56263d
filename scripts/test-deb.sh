#!/usr/bin/env bash
# Installs, starts, upgrades and purges the packages of out/deb in a Debian of each architecture, needs
# root: test-deb.sh [amd64|arm64|dkms|image...]. By hand: it takes minutes, and scripts/build-deb.sh before it.
#
# amd64, arm64  in a systemd of its own (systemd-nspawn), arm64 under QEMU's user emulation
# dkms          builds the kernel module from leap-dkms for Debian's amd64 kernel
# image         scripts/install-image.sh into a card's image like Raspberry Pi OS's
# shellcheck source=scripts/lib.sh
. "$(dirname "$0")/lib.sh"
# shellcheck source=scripts/boards.sh
. scripts/boards.sh
# shellcheck source=scripts/kernels.sh
. scripts/kernels.sh

LAB=$(mkdir -p "$TARGET_DIR/deb-lab" && realpath "$TARGET_DIR/deb-lab")
BINFMT=/proc/sys/fs/binfmt_misc

in_tree() { chroot "$TREE" env DEBIAN_FRONTEND=noninteractive LC_ALL=C "$@"; }

# need_base ARCH: a Debian as boards have it, made once.
need_base() {
	[ ! -e "$LAB/base-$1/ready" ] || return 0
	rm -rf "$LAB/base-$1"
	debootstrap --variant=minbase --arch="$1" --include=systemd,systemd-sysv,dbus,udev,adduser,kmod,procps \
		bookworm "$LAB/base-$1" "$(debian_mirror)"
	touch "$LAB/base-$1/ready"
}

# Lets this machine run aarch64 programs, also inside other roots, until the end of the test.
need_emulation() {
	[ "$(uname -m)" != aarch64 ] || return 0
	[ -e "$BINFMT/register" ] || mount -t binfmt_misc binfmt_misc "$BINFMT"
	! ls "$BINFMT"/*aarch64* >/dev/null 2>&1 || return 0
	printf '%s' ':leap-aarch64:M::\x7fELF\x02\x01\x01\x00\x00\x00\x00\x00\x00\x00\x00\x00\x02\x00\xb7\x00:\xff\xff\xff\xff\xff\xff\xff\x00\xff\xff\xff\xff\xff\xff\xff\xff\xfe\xff\xff\xff:/usr/bin/qemu-aarch64-static:F' >"$BINFMT/register"
	REGISTERED=1
}

files() { (cd "$TREE" && find . -xdev \( -path ./var/log -o -path ./var/cache -o -path ./var/tmp -o -path ./var/lib/dpkg -o -path ./run -o -path ./tmp -o -path ./proc -o -path ./sys -o -path ./dev \) -prune -o -print | LC_ALL=C sort); }

# boot: a systemd of its own in TREE that runs SCRIPT as a service, and what that says.
boot() {
	cp "$1" "$TREE/selftest.sh"
	cat >"$TREE/etc/systemd/system/selftest.service" <<-'END'
		[Unit]
		After=multi-user.target leap-worker.service
		[Service]
		Type=oneshot
		ExecStart=/bin/sh -c 'sh /selftest.sh >/selftest.log 2>&1; echo "ended with $?" >>/selftest.log; systemctl poweroff'
		[Install]
		WantedBy=graphical.target
	END
	in_tree systemctl --quiet enable selftest.service
	in_tree systemctl --quiet set-default graphical.target
	timeout 500 systemd-nspawn --quiet --register=no --keep-unit --private-network -D "$TREE" --boot >"$LAB/console.log" 2>&1 </dev/null || true
	in_tree systemctl --quiet disable selftest.service
	rm -f "$TREE/etc/systemd/system/selftest.service" "$TREE/etc/systemd/system/default.target" "$TREE/selftest.sh"
	cat "$TREE/selftest.log" || { tail -n 40 "$LAB/console.log"; die "systemd did not get to the test"; }
	grep -q '^ended with 0$' "$TREE/selftest.log" || die "a check failed"
	rm -f "$TREE/selftest.log"
}

# Checks inside the system, by a script that stops at the first failure.
write_selftest() {
	cat >"$LAB/selftest.sh" <<-'END'
		set -eux
		await() { for _ in $(seq 120); do ! "$@" || return 0; sleep 0.5; done; echo "never: $*"; journalctl -b --no-pager | tail -n 50; return 1; }
		main() { systemctl show -P MainPID leap-worker; }
		restarted() { [ "$(main)" != "$1" ] && [ "$(main)" != 0 ] && systemctl --quiet is-active leap-worker; }

		await systemctl --quiet is-active leap-worker
		systemctl status --no-pager leap-worker leap-master leap-tune || true
		systemctl --quiet is-active leap-tune
		systemd-analyze verify /lib/systemd/system/leap-*.service
		for unit in leap-worker leap-master leap-serve leap-tune; do
			systemd-analyze security --no-pager --threshold=30 "$unit.service" | tail -n 1
		done
		[ "$(systemctl show -P Type leap-worker)" = notify ]
		[ "$(ps -o user= -p "$(main)")" = leap ]
		# The other role's unit skips itself without failing.
		! systemctl --quiet is-active leap-master leap-serve
		! systemctl --quiet is-failed leap-master leap-serve

		# The service is a node of a ring: the text is what one board alone tells.
		runuser -u leap -- leap run -q -p 'Once upon a time' -n 16 --temp 0 >/alone </dev/null
		leap master --ring /etc/leap/ring.conf --node first -q -p 'Once upon a time' -n 16 --temp 0 >/ring </dev/null
		cat /ring
		cmp /alone /ring
		rm /alone /ring

		# It comes back when it crashes, and when it hangs.
		pid=$(main)
		kill -9 "$pid"
		await restarted "$pid"
		pid=$(main)
		kill -STOP "$pid"
		await restarted "$pid"

		# The next version takes its place, and leaves the settings.
		pid=$(main)
		dpkg --install /next.deb
		await restarted "$pid"
		grep -q '^ROLE=worker$' /etc/leap/leap.conf
		systemctl stop leap-worker
		[ "$(systemctl show -P Result leap-worker)" = success ]
		# Bad settings are an error that is seen.
		echo nonsense >>/etc/leap/leap.conf
		! systemctl start leap-worker
		[ "$(systemctl show -P Result leap-worker)" = exit-code ]
	END
}

test_package() {
	local arch=$1 deb=$OUT/deb/leap_${VERSION}_$1.deb
	[ -f "$deb" ] || die "there is no $deb; scripts/build-deb.sh $1 makes it"
	need_base "$arch"
	TREE=$LAB/tree-$arch
	rm -rf "$TREE"
	cp -a "$LAB/base-$arch" "$TREE"
	files >"$LAB/before"

	cp "$deb" "$TREE/leap.deb"
	in_tree dpkg --install /leap.deb
	in_tree leap --version
	if [ "$arch" = arm64 ]; then
		scripts/test-program.py qemu-aarch64-static "$TREE/usr/bin/leap"
	else
		scripts/test-program.py "$TREE/usr/bin/leap"
	fi
	in_tree bash -c '. /usr/share/bash-completion/completions/leap && complete -p leap'
	[ "$(in_tree systemctl is-enabled leap-worker)" = enabled ] || die "leap-worker is not enabled"
	[ "$(stat -c %U:%G "$TREE/var/lib/leap")" != root:root ] || die "/var/lib/leap is root's"
	printf 'first 127.0.0.1:9990 0..3\nsecond 127.0.0.1:9991 3..6\n' >"$TREE/etc/leap/ring.conf"
	sed -i 's/^ROLE=.*/ROLE=worker/; s/^NODE=.*/NODE=second/; s/^MODEL=.*/MODEL=/; s/^TRANSPORT=.*/TRANSPORT=udp/' "$TREE/etc/leap/leap.conf"

	# The next version is this one under a higher number.
	rm -rf "$LAB/next"
	dpkg-deb -R "$deb" "$LAB/next"
	sed -i "s/^Version: .*/Version: $VERSION+1/" "$LAB/next/DEBIAN/control"
	dpkg-deb --root-owner-group -Zgzip --build "$LAB/next" "$TREE/next.deb" >/dev/null
	# A patience that tests have, too.
	mkdir -p "$TREE/etc/systemd/system/leap-worker.service.d"
	printf '[Service]\nWatchdogSec=5\n' >"$TREE/etc/systemd/system/leap-worker.service.d/test.conf"
	write_selftest
	boot "$LAB/selftest.sh"

	rm -rf "$TREE/etc/systemd/system/leap-worker.service.d" "$TREE"/*.deb
	in_tree dpkg --purge leap
	files >"$LAB/after"
	! in_tree getent passwd leap || die "the user leap is left"
	# Files made by the first boot of any Debian are not LEAP's.
	if comm -13 "$LAB/before" "$LAB/after" | grep -i leap; then
		die "purging left these files"
	fi
	say "$arch: installed, started, upgraded, purged"
}

test_dkms() {
	need_base amd64
	TREE=$LAB/tree-dkms
	rm -rf "$TREE"
	cp -a "$LAB/base-amd64" "$TREE"
	# dkms reads both.
	mount -t proc proc "$TREE/proc"
	mount --bind /dev "$TREE/dev"
	in_tree apt-get -qq update
	in_tree apt-get -qq install -y --no-install-recommends dkms linux-headers-amd64
	cp "$OUT/deb/leap-dkms_${VERSION}_all.deb" "$TREE/leap-dkms.deb"
	in_tree dpkg --install /leap-dkms.deb
	in_tree dkms status
	[ -n "$(find "$TREE/lib/modules" -name 'leap_transport.ko*')" ] || die "no module was built"
	in_tree dpkg --purge leap-dkms
	[ -z "$(find "$TREE" -xdev \( -path "$TREE/proc" -o -path "$TREE/dev" -o -path "$TREE/var/log" \) -prune -o -name 'leap[-_]t*' -print)" ] || die "purging left files"
	say "leap-dkms: built for $(find "$TREE"/lib/modules -mindepth 1 -maxdepth 1 -printf '%f '), purged"
}

# card IMAGE: boot files on the first partition, Debian on the second.
card() {
	rm -f "$LAB/root.ext4"
	mke2fs -q -t ext4 -d "$LAB/base-arm64" "$LAB/root.ext4" 900M
	truncate -s 1G "$1"
	printf 'start=8192, size=131072, type=c\nstart=139264, type=83\n' | sfdisk -q "$1"
	dd if="$LAB/root.ext4" of="$1" bs=512 seek=139264 conv=notrunc,sparse status=none
}

test_image() {
	local image=$LAB/card.img ring=$LAB/ring.conf loop
	need_base arm64
	rm -f "$image"
	card "$image"
	printf 'first 10.0.0.1 0..3\nsecond 10.0.0.2 3..6\n' >"$ring"
	scripts/install-image.sh raspberrypi5 "$image" --role worker --node second --ring "$ring" --model models/demo.bin
	! losetup -j "$image" | grep . || die "install-image.sh left its loop device"

	TREE=$LAB/tree-image
	mkdir -p "$TREE"
	loop=$(losetup --find --show --offset $((139264 * 512)) "$image")
	mount -o ro "$loop" "$TREE"
	losetup -d "$loop"
	in_tree leap --version
	cmp "$ring" "$TREE/etc/leap/ring.conf"
	cmp models/demo.bin "$TREE/var/lib/leap/model.bin"
	cmp models/demo.tokenizer.bin "$TREE/var/lib/leap/tokenizer.bin"
	[ "$(grep -E '^(ROLE|NODE)=' "$TREE/etc/leap/leap.conf" | tr '\n' ' ')" = "ROLE=worker NODE=second " ] || die "leap.conf is not set"
	[ "$(in_tree systemctl is-enabled leap-worker)" = enabled ] || die "leap-worker is not enabled"
	[ -f "$TREE/var/lib/leap/leap-dkms_${VERSION}_all.deb" ] || die "the module's package is not there"
	[ -z "$(ls -A "$TREE/var/tmp")$(ls -A "$TREE/proc")" ] || die "install-image.sh left files"
	umount "$TREE"

	# A file that is no such image is refused, and stays as it is.
	truncate -s 1M "$LAB/nothing.img"
	! scripts/install-image.sh raspberrypi5 "$LAB/nothing.img" || die "an empty image was taken"
	! losetup -j "$LAB/nothing.img" | grep . || die "install-image.sh left its loop device"
	say "card: installed, as set"
}

leave() {
	umount "$LAB/tree-image" 2>/dev/null || true
	umount "$LAB/tree-dkms/proc" "$LAB/tree-dkms/dev" 2>/dev/null || true
	[ -z "${REGISTERED:-}" ] || echo -1 >"$BINFMT/leap-aarch64"
	end_steps "$1"
}

begin_steps
trap 'leave $?' EXIT
[ "$(id -u)" -eq 0 ] || die "run as root: it makes root file systems and boots them"
[ $# -gt 0 ] || set -- amd64 arm64 dkms image
need_tools debootstrap:debootstrap systemd-nspawn:systemd-container qemu-aarch64-static:qemu-user-static dpkg-deb:dpkg \
	mke2fs:e2fsprogs sfdisk:fdisk losetup:mount
for what; do
	case $what in
	amd64) step "package: amd64" test_package amd64 ;;
	arm64)
		need_emulation
		step "package: arm64" test_package arm64
		;;
	dkms) step "package: leap-dkms" test_dkms ;;
	image)
		need_emulation
		step "image" test_image
		;;
	*) die "usage: ${0##*/} [amd64|arm64|dkms|image...]" ;;
	esac
done
