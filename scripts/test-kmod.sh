#!/usr/bin/env bash
# Tests the kernel module in emulated boards: test-kmod.sh [RELEASE-ARCH...], e.g. bookworm-arm64; default bookworm-amd64.
# shellcheck source=scripts/lib.sh
. "$(dirname "$0")/lib.sh"
# shellcheck source=scripts/kernels.sh
. scripts/kernels.sh

[ $# -gt 0 ] || set -- bookworm-amd64
for target; do
	[[ $target =~ ^(bullseye|bookworm|trixie)-(amd64|arm64)$ ]] || die "usage: ${0##*/} [bullseye|bookworm|trixie]-[amd64|arm64]..."
done

# One board alone, and three on one wire: two that talk and one that attacks them.
test_boards() {
	local release=${1%-*} arch=${1#*-} logs=$TARGET_DIR/kmod/log-$1
	mkdir -p "$logs"
	boot "$release" "$arch" "$logs/selftest" leap=selftest &
	wait_for "$logs/selftest" $!
	boards_on_a_wire "$release" "$arch" "$logs"
}

boards_on_a_wire() {
	local i pids=()
	for i in 2 3 1; do
		boot "$1" "$2" "$3/board-$i" "leap=$i leaploss=5" \
			-netdev "socket,id=wire,mcast=230.77.0.1:$WIRE_PORT,localaddr=127.0.0.1" \
			-device "virtio-net-pci,netdev=wire,mac=52:54:00:00:00:0$i" &
		pids+=($!)
	done
	BOARDS+=("${pids[@]}")
	wait_for "$3/board-1" "${pids[2]}"
	kill "${pids[@]:0:2}" 2>/dev/null || true
	grep -q 'board failed' "$3/board-2" "$3/board-3" && die "a board failed, see $3"
	return 0
}

# wait_for LOG PID: waits for a board and shows what it said.
wait_for() {
	wait "$2" || true
	grep -aE '^(test |ping|slab)' "$1" || true
	grep -aq '^board passed' "$1" || { tail -n 50 "$1"; die "the board failed, see $1"; }
}

BOARDS=()
# Other runs on this machine have wires of their own.
WIRE_PORT=$((20000 + $$ % 20000))
begin_steps
trap '[ ${#BOARDS[@]} -eq 0 ] || kill "${BOARDS[@]}" 2>/dev/null; end_steps $?' EXIT
need_tools dpkg-deb:dpkg unshare:util-linux cpio:cpio depmod:kmod xz:xz-utils qemu-system-x86_64:qemu-system-x86 \
	qemu-system-aarch64:qemu-system-arm
for target; do
	step "module: $target" build_module "${target%-*}" "${target#*-}"
	step "board: $target" build_board "${target%-*}" "${target#*-}"
	test_step "boards: $target" test_boards "$target"
done
