#!/usr/bin/env bash
# Boots two emulated boards from the qemu-virt image; their init scripts alone join them to a ring:
# test-boot.sh [udp|kernel|cuts [N]]
#
# udp, kernel  the master's console prints the demo model's text; the worker loses power in the middle and
#              gets it back, and the text goes on
# cuts         pulls the plug N times (10) at random moments of a first start; the board starts each time
# shellcheck source=scripts/lib.sh
. "$(dirname "$0")/lib.sh"
# shellcheck source=scripts/boards.sh
. scripts/boards.sh
# shellcheck source=scripts/kernels.sh
. scripts/kernels.sh
# shellcheck source=scripts/qemu-virt.sh
. scripts/qemu-virt.sh

PROMPT='Once upon a time'
TOKENS=${LEAP_BOOT_TOKENS:-200}
# Emulated boards are slow, and slower still where others compute.
PATIENCE=${LEAP_BOOT_PATIENCE:-240}

# disk NAME ROLE TRANSPORT ADDRESS: the image with this board's settings.
disk() {
	local root=$WORK/$1
	cp -r "$WORK/image" "$root"
	cat >"$root/etc/leap/ring.conf" <<-END
		first   10.0.0.1   0..$SPLIT
		second  10.0.0.2   $SPLIT..$LAYERS
	END
	sed -i "s|^ROLE=.*|ROLE=$2|; s|^NODE=.*|NODE=$1|; s|^TRANSPORT=.*|TRANSPORT=$3|" "$root/etc/leap/leap.conf"
	# The master's settings stand in the workers' settings too, which ignore them.
	sed -i "s|^MASTER_OPTIONS=.*|MASTER_OPTIONS=--temp 0 -n $TOKENS|; s|^PROMPT=.*|PROMPT=$PROMPT|" "$root/etc/leap/leap.conf"
	sed -i 's|^LOG=.*|LOG=/dev/console|' "$root/etc/leap/leap.conf"
	echo "$4" >"$root/etc/address"
	echo "$1" >"$root/etc/hostname"
	build_disk "$root" "$WORK/$1.ext4"
	rm -rf "$root"
}

# wait_until WHAT NAME COMMAND...: until COMMAND succeeds; the board must not end meanwhile.
wait_until() {
	local what=$1 name=$2 end=$((SECONDS + PATIENCE))
	shift 2
	until "$@"; do
		kill -0 "${BOARD_PID[$name]}" 2>/dev/null || fail "$name ended before $what"
		[ "$SECONDS" -lt "$end" ] || fail "$what: not within $PATIENCE s"
		sleep 0.2
	done
}

fail() {
	tail -n 40 "$WORK"/*.log >&2
	die "$*"
}

says() { grep -aq -e "$2" "$WORK/$1.log"; }

# The characters of the story that the first board has printed so far.
told() { tr -d '\r\n' <"$WORK/first.log" | sed -n "s/.*\($PROMPT.*\)/\1/p" | wc -c; }

has_told() { [ "$(told)" -ge "$1" ]; }

# story: what one board alone tells.
story() {
	qemu-aarch64-static "$OUT/qemu-virt/leap" run models/demo.bin -q -p "$PROMPT" -n "$TOKENS" --temp 0 </dev/null
}

test_ring() {
	local start=$EPOCHREALTIME wanted
	board first
	board second
	wait_until "the first token" first has_told $((${#PROMPT} + 2))
	say "power-on to first token: $(awk -v a="$start" -v b="$EPOCHREALTIME" 'BEGIN { printf "%.1f", b - a }') s, $1"
	if [ "$1" = kernel ]; then
		says first '(kernel)' || fail "the links are not the kernel module's"
	fi
	wait_until "a part of the story" first has_told $((${#PROMPT} + 60))
	power_off second
	say "second board: power off after $(told) characters"
	wait_until "the first board notices" first says first 'nothing is heard of'
	board second
	wait_until "the ring heals" first says first 'complete again'
	wait_until "the story ends" first says first "tokens/s"
	wanted=$(story)
	tr -d '\r' <"$WORK/first.log" >"$WORK/first.txt"
	printf '%s' "$wanted" >"$WORK/wanted.txt"
	python3 - "$WORK/first.txt" "$WORK/wanted.txt" <<-'END' || fail "the story is not the one that a board alone tells"
		import re, sys
		said, wanted = (open(path, errors="replace").read() for path in sys.argv[1:])
		# Notices of LEAP about the ring stand between, in lines of its own.
		said = re.sub(r"\n?leap: [^\n]*\n", "", said)
		squeeze = lambda text: re.sub(r"\s+", "", text)
		sys.exit(squeeze(wanted) not in squeeze(said))
	END
	say "the story is the one that a board alone tells: ${wanted:0:60}..."
}

# start_first: until the first board listens; says how many seconds that took.
start_first() {
	local start=$EPOCHREALTIME
	: >"$WORK/first.log"
	board first
	wait_until "the start $1" first says first 'listens on'
	TOOK=$(awk -v a="$start" -v b="$EPOCHREALTIME" 'BEGIN { printf "%.1f", b - a }')
	power_off first
}

# One board alone, whose cache of packed weights is on the disk: the plug is pulled at random while the
# board starts for the first time.
test_cuts() {
	local i delay first_took
	cp "$WORK/fresh.ext4" "$WORK/first.ext4"
	start_first "without a cut"
	first_took=$TOOK
	for i in $(seq "$1"); do
		cp "$WORK/fresh.ext4" "$WORK/first.ext4"
		delay=$(awk -v seed="$RANDOM" -v took="$first_took" 'BEGIN { srand(seed); printf "%.2f", rand() * took }')
		board first
		sleep "$delay"
		power_off first
		start_first "after a cut at $delay s"
		say "cut $i after $delay of $first_took s: starts in $TOOK s"
	done
}

begin_steps
need_image_tools
need_tools python3:python3
need_emulator arm64
[ $# -gt 0 ] || set -- udp
WORK=$(mktemp -d)
WIRE_PORT=$((20000 + $$ % 20000))
trap 'for name in "${!BOARD_PID[@]}"; do power_off "$name"; done; rm -rf "$WORK"; end_steps $?' EXIT

step "board build: qemu-virt" scripts/build-board.sh qemu-virt
step "boot files" build_boot_files "$OUT/qemu-virt"
mkdir "$WORK/image"
step "image" stage_image "$WORK/image"
LAYERS=$(qemu-aarch64-static "$OUT/qemu-virt/leap" info models/demo.bin --json | sed -n 's/.*"n_layers": \([0-9]*\).*/\1/p')
SPLIT=$((LAYERS / 2))
case $1 in
udp | kernel)
	step "disk: first" disk first master "$1" 10.0.0.1/24
	step "disk: second" disk second worker "$1" 10.0.0.2/24
	step "boards: ring, $1" test_ring "$1"
	;;
cuts)
	step "disk" disk first master udp 10.0.0.1/24
	mv "$WORK/first.ext4" "$WORK/fresh.ext4"
	step "boards: power cuts" test_cuts "${2:-10}"
	;;
*) die "usage: ${0##*/} [udp|kernel|cuts [N]]" ;;
esac
