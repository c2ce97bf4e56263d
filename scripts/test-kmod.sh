#!/usr/bin/env bash
# Tests the kernel module in emulated boards, alone and under rings: test-kmod.sh [--quick] [RELEASE-ARCH...]
#
# RELEASE-ARCH  bookworm-arm64 and so on: see build-kmod.sh; debug-amd64 is a kernel that checks itself, built
#               here, which takes long. Without one: bookworm-amd64.
# --quick       one board alone and one wire with rings and a team, fewer cycles of loading and fewer random calls.
# LEAP_KMOD_PARTS="selftest noipv6 fuzz wire ring team bench": the parts; bench measures links, and is not among them by
# default. LEAP_KMOD_SEED: what random calls begin with.
# LEAP_PROGRAM: the boards' static leap. LEAP_NIC: their network device.
# shellcheck source=scripts/lib.sh
. "$(dirname "$0")/lib.sh"
# shellcheck source=scripts/kernels.sh
. scripts/kernels.sh

PARTS="selftest noipv6 fuzz wire ring team"
CYCLES=200
CALLS=1000000
SEED=${LEAP_KMOD_SEED:-1}
NIC=${LEAP_NIC:-virtio-net-pci}
LEAP=
BOARDS=()
# Other runs on this machine have wires of their own.
WIRE_PORT=$((20000 + $$ % 20000))

# One board alone.
test_selftest() { on_a_wire "$1" selftest; }

# One board whose kernel does without IPv6.
test_noipv6() { on_a_wire "$1" noipv6; }

# One board whose users call the module in all wrong ways.
test_fuzz() { BOARD_SECONDS=3600 on_a_wire "$1" fuzz; }

# Two boards that talk and one that attacks them.
test_wire() { on_a_wire "$1" wire1 wire2 wire3; }

# Two boards with nodes of three rings, and one that attacks them.
test_ring() { on_a_wire "$1" ring1 ring2 ring3; }

# A team of three boards.
test_team() { on_a_wire "$1" team1 team2 team3; }

# Two boards with one core each, as two cores here are all there may be.
test_bench() { on_a_wire "$1" bench1 bench2; }

# on_a_wire TARGET SCENARIO...: boards on one wire, the first of which says when the test is over.
on_a_wire() {
	local target=$1 logs=$TARGET_DIR/kmod/log-$1 i=0 scenario words options pids=()
	for scenario in "${@:2}"; do
		i=$((i + 1))
		words="leap=$scenario leaploss=5 leapcycles=$CYCLES leapcalls=$CALLS leapseed=$SEED"
		options=(-netdev "socket,id=wire,mcast=230.77.0.1:$WIRE_PORT,localaddr=127.0.0.1"
			-device "$NIC,netdev=wire,mac=52:54:00:00:00:0$i,romfile=")
		[[ $scenario != bench* ]] || options+=(-smp 1)
		[ "$scenario" != noipv6 ] || words+=" ipv6.disable=1"
		# Checks of its memory that any kernel has.
		[ "$scenario" != fuzz ] || words+=" slub_debug=FZPU page_poison=1"
		[[ $target != debug-* ]] || words+=" leapdebug=1"
		boot "${target%-*}" "${target#*-}" "$logs/$scenario" "$words" "${options[@]}" &
		pids+=($!)
	done
	BOARDS+=("${pids[@]}")
	wait_for "$logs" "${pids[0]}" "${@:2}"
	kill "${pids[@]:1}" 2>/dev/null || true
	for scenario in "${@:3}"; do
		! grep -aq 'board failed' "$logs/$scenario" || { tail -n 50 "$logs/$scenario"; die "a board failed, see $logs"; }
		grep -a '^memory' "$logs/$scenario" || true
	done
}

# wait_for LOGS PID SCENARIO...: waits for the first scenario's board and shows what it said; if it failed, what all did.
wait_for() {
	wait "$2" || true
	grep -aE '^(test |ping|memory|bench|kernel (ring|team)|fuzz)' "$1/$3" || true
	grep -aq '^board passed' "$1/$3" || { (cd "$1" && tail -n 50 "${@:3}"); die "the board failed, see $1/$3"; }
}

# leap_for ARCH: the program for the boards.
leap_for() {
	local -A machine=([amd64]=x86_64 [arm64]=aarch64)
	LEAP=${LEAP_PROGRAM:-}
	[ -z "$LEAP" ] || return 0
	LEAP=$(static_program "${machine[$1]}")
	scripts/build-static.sh "${machine[$1]}" --no-default-features
}

usage() { die "usage: ${0##*/} [--quick] [bullseye|bookworm|trixie|sid|debug]-[amd64|arm64]..."; }

if [ "${1:-}" = --quick ]; then
	shift
	PARTS="selftest noipv6 fuzz ring team" CYCLES=20 CALLS=50000
fi
PARTS=${LEAP_KMOD_PARTS:-$PARTS}
[ $# -gt 0 ] || set -- bookworm-amd64
for target; do
	[[ $target =~ ^((bullseye|bookworm|trixie|sid)-(amd64|arm64)|debug-amd64)$ ]] || usage
done

begin_steps
trap '[ ${#BOARDS[@]} -eq 0 ] || kill "${BOARDS[@]}" 2>/dev/null; end_steps $?' EXIT
need_tools dpkg-deb:dpkg unshare:util-linux cpio:cpio depmod:kmod xz:xz-utils
for target; do
	need_emulator "${target#*-}"
	mkdir -p "$TARGET_DIR/kmod/log-$target"
	step "module: $target" build_module "${target%-*}" "${target#*-}"
	step "foreign module: $target" build_foreign_module "${target%-*}" "${target#*-}"
	[[ $PARTS != *@(ring|team|bench)* ]] || step "program: ${target#*-}" leap_for "${target#*-}"
	step "board: $target" build_board "${target%-*}" "${target#*-}" ${LEAP:+"$LEAP"}
	for part in $PARTS; do
		test_step "boards: $target, $part" "test_$part" "$target"
	done
done
