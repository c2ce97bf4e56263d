#!/usr/bin/env bash
# Three boards in network namespaces whose wires lose datagrams: layers move at random moments while answers are written, and
# workers are killed meanwhile. Every text is compared with that of one board, and how long answers pause is told. By hand, as
# root; minutes. Usage: [LEAP_MOVES=100] [LEAP_LOSS_PER_MILLE=10] soak-live.sh MODEL [LEAP]
# shellcheck source=scripts/lib.sh
. "$(dirname "$0")/lib.sh"

if [ $# -lt 1 ] || [ $# -gt 2 ]; then die "usage: ${0##*/} MODEL [LEAP]"; fi
MODEL=$(realpath "$1")
BOARDS=(desk pi orange)
BRIDGE="ll$$b"
work=$(mktemp -d)

space() { say "leap-live-$$-$1"; }

clean_up() {
	local name
	pkill -KILL -f -- "--key $work/key" || true
	for name in "${BOARDS[@]}"; do ip netns delete "$(space "$name")" 2>/dev/null || true; done
	ip link delete "$BRIDGE" 2>/dev/null || true
	rm -rf "$work"
}

# make_board NAME INDEX: its namespace, at 10.214.8.INDEX, with a wire of 1 Gbit/s that loses datagrams.
make_board() {
	local wire="ll$$v$2" in
	in="ip netns exec $(space "$1")"
	ip netns add "$(space "$1")"
	ip link add "$wire" type veth peer name eth0 netns "$(space "$1")"
	ip link set "$wire" master "$BRIDGE" up
	$in ip address add "10.214.8.$2/24" dev eth0
	$in ip link set eth0 up
	$in ip link set lo up
	tc qdisc add dev "$wire" root tbf rate 1gbit burst 128kb latency 20ms
	$in tc qdisc add dev eth0 root tbf rate 1gbit burst 128kb latency 20ms
	$in nft -f - <<-END
		table inet loss {
			chain in {
				type filter hook input priority 0
				meta l4proto udp numgen random mod 1000 < ${LEAP_LOSS_PER_MILLE:-10} drop
			}
		}
	END
}

need_tools pkill:procps ip:iproute2 nft:nftables python3:python3
trap clean_up EXIT
leap=$(realpath "${2:-target/release/leap}")
(umask 077 && head -c 32 /dev/urandom >"$work/key")
ip link add "$BRIDGE" type bridge
ip link set "$BRIDGE" up
index=1
for name in "${BOARDS[@]}"; do
	make_board "$name" $((index++))
done
python3 "$(dirname "$0")/soak-live.py" "$leap" "$MODEL" "$work" "leap-live-$$-" "${LEAP_MOVES:-100}"
