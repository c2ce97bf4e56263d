#!/usr/bin/env bash
# Tests the kernel module in emulated boards, alone and under a ring: test-kmod.sh [RELEASE-ARCH...], e.g. bookworm-arm64.
# Without one: bookworm-amd64. LEAP_KMOD_PARTS="selftest wire ring": the parts; LEAP_PROGRAM: the boards' static leap.
# shellcheck source=scripts/lib.sh
. "$(dirname "$0")/lib.sh"
# shellcheck source=scripts/kernels.sh
. scripts/kernels.sh

[ $# -gt 0 ] || set -- bookworm-amd64
for target; do
	[[ $target =~ ^(bullseye|bookworm|trixie)-(amd64|arm64)$ ]] || die "usage: ${0##*/} [bullseye|bookworm|trixie]-[amd64|arm64]..."
done

# One board alone.
test_selftest() {
	local logs=$TARGET_DIR/kmod/log-$1
	boot "${1%-*}" "${1#*-}" "$logs/selftest" leap=selftest &
	BOARDS+=($!)
	wait_for "$logs/selftest" $!
}

# Two boards that talk and one that attacks them.
test_wire() { on_a_wire "$1" 1 2 3; }

# Two boards with nodes of two rings.
test_ring() { on_a_wire "$1" ring1 ring2; }

# on_a_wire TARGET SCENARIO...: boards on one wire, the first of which says when the test is over.
on_a_wire() {
	local target=$1 logs=$TARGET_DIR/kmod/log-$1 i=0 scenario pids=()
	for scenario in "${@:2}"; do
		i=$((i + 1))
		boot "${target%-*}" "${target#*-}" "$logs/$scenario" "leap=$scenario leaploss=5" \
			-netdev "socket,id=wire,mcast=230.77.0.1:$WIRE_PORT,localaddr=127.0.0.1" \
			-device "virtio-net-pci,netdev=wire,mac=52:54:00:00:00:0$i" &
		pids+=($!)
	done
	BOARDS+=("${pids[@]}")
	wait_for "$logs/$2" "${pids[0]}"
	kill "${pids[@]:1}" 2>/dev/null || true
	for scenario in "${@:3}"; do
		! grep -aq 'board failed' "$logs/$scenario" || { tail -n 50 "$logs/$scenario"; die "a board failed, see $logs"; }
	done
}

# wait_for LOG PID: waits for a board and shows what it said.
wait_for() {
	wait "$2" || true
	grep -aE '^(test |ping|slab|bench|kernel ring)' "$1" || true
	grep -aq '^board passed' "$1" || { tail -n 50 "$1"; die "the board failed, see $1"; }
}

# leap_for ARCH: the program for the boards.
leap_for() {
	local -A machine=([amd64]=x86_64 [arm64]=aarch64)
	LEAP=${LEAP_PROGRAM:-}
	[ -z "$LEAP" ] || return 0
	LEAP=$TARGET_DIR/${machine[$1]}-unknown-linux-musl/release/leap
	scripts/build-static.sh "${machine[$1]}" --no-default-features
}

PARTS=${LEAP_KMOD_PARTS:-selftest wire ring}
LEAP=
BOARDS=()
# Other runs on this machine have wires of their own.
WIRE_PORT=$((20000 + $$ % 20000))
begin_steps
trap '[ ${#BOARDS[@]} -eq 0 ] || kill "${BOARDS[@]}" 2>/dev/null; end_steps $?' EXIT
need_tools dpkg-deb:dpkg unshare:util-linux cpio:cpio depmod:kmod xz:xz-utils qemu-system-x86_64:qemu-system-x86 \
	qemu-system-aarch64:qemu-system-arm
for target; do
	mkdir -p "$TARGET_DIR/kmod/log-$target"
	step "module: $target" build_module "${target%-*}" "${target#*-}"
	[[ $PARTS != *ring* ]] || step "program: ${target#*-}" leap_for "${target#*-}"
	step "board: $target" build_board "${target%-*}" "${target#*-}" ${LEAP:+"$LEAP"}
	for part in $PARTS; do
		test_step "boards: $target, $part" "test_$part" "$target"
	done
done
