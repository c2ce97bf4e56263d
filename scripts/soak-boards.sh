#!/usr/bin/env bash
# Six boards with a key and nothing else, in network namespaces with wires of 1 Gbit/s each: what comes over the wires until a
# text is there and after a restart, how quick layers come beside a bare TCP stream, and power cuts while they come. By hand, as
# root; minutes. Usage: [LEAP_CUTS=100] soak-boards.sh MODEL [LEAP]
# shellcheck source=scripts/lib.sh
. "$(dirname "$0")/lib.sh"

if [ $# -lt 1 ] || [ $# -gt 2 ]; then die "usage: ${0##*/} MODEL [LEAP]"; fi
MODEL=$(realpath "$1")
CUTS=${LEAP_CUTS:-100}
WORKERS=(one two three four five)
RATE=1gbit
BRIDGE="ls$$b"
PROMPT=(-p "Once upon a time" -n 16 --temp 0 --ctx 256)
work=$(mktemp -d)

clean_up() {
	local name
	pkill -KILL -f -- "--key $work/key" || true
	wait 2>/dev/null || true
	for name in desk "${WORKERS[@]}"; do
		ip netns delete "$(space "$name")" 2>/dev/null || true
	done
	ip link delete "$BRIDGE" 2>/dev/null || true
	rm -rf "$work"
}

space() { say "leap-$$-$1"; }

on() {
	local name=$1
	shift
	ip netns exec "$(space "$name")" env XDG_CACHE_HOME="$work/$name" "$@"
}

# make_board NAME INDEX: its namespace, at 10.214.7.INDEX, and both ends of its wire no faster than a port.
make_board() {
	local wire="ls$$v$2"
	ip netns add "$(space "$1")"
	ip link add "$wire" type veth peer name eth0 netns "$(space "$1")"
	ip link set "$wire" master "$BRIDGE" up
	on "$1" ip address add "10.214.7.$2/24" dev eth0
	on "$1" ip link set eth0 up
	on "$1" ip link set lo up
	tc qdisc add dev "$wire" root tbf rate "$RATE" burst 128kb latency 20ms
	on "$1" tc qdisc add dev eth0 root tbf rate "$RATE" burst 128kb latency 20ms
	mkdir "$work/$1"
}

# received NAME: bytes that have come in over its wire.
received() { on "$1" cat /sys/class/net/eth0/statistics/rx_bytes; }

# begin_board NAME: it has a key and nothing else.
begin_board() { on "$1" "$leap" worker --key "$work/key" --node "$1" --threads 1 2>>"$work/$1.log" & }

end_boards() {
	pkill -TERM -f -- "worker --key $work/key" || true
	wait
}

# text: what the boards say together.
text() {
	on desk "$leap" master "$MODEL" --key "$work/key" --boards auto --objective memory --node desk --threads 1 --quiet "${PROMPT[@]}" \
		</dev/null 2>>"$work/desk.log" || die "the master failed: $(tail -n 3 "$work/desk.log")"
}

# start WHAT: all boards start and say the text; `came` is what came to each.
declare -A came
start() {
	local name begin
	for name in "${WORKERS[@]}"; do
		came[$name]=$(received "$name")
		begin_board "$name"
	done
	begin=$(date +%s%3N)
	text >"$work/text"
	say "    $1: text after $(($(date +%s%3N) - begin)) ms"
	cmp "$work/wanted" "$work/text"
	for name in "${WORKERS[@]}"; do
		came[$name]=$(($(received "$name") - came[$name]))
	done
	end_boards
}

# Boards get their layers and little more, once. Measuring and the text come with each start.
check_starts() {
	local name file bytes more
	declare -A first
	start "first start"
	for name in "${WORKERS[@]}"; do first[$name]=${came[$name]}; done
	start "second start"
	for name in "${WORKERS[@]}"; do
		file=$(find "$work/$name/leap/layers" -name '*.bin')
		bytes=$(stat -c %s "$file") more=$((first[$name] - came[$name]))
		say "    $name: layers of $bytes bytes; $more more came in at the first start than the ${came[$name]} at the second"
		[ $((more * 100)) -le $((bytes * 101)) ] || die "more than 1.01 of its layers' bytes came to $name"
		[ "${came[$name]}" -le 8000000 ] || die "layers came to $name again"
	done
}

# pull NAME: all layers of the model come to it.
pull() { on "$1" "$leap" worker --fetch 10.214.7.1 --ring "$work/ring" --node two --key "$work/key" --threads 1 2>>"$work/$1.log"; }

# has_file NAME: what it pulls is there.
has_file() { [ -n "$(find "$work/$1/leap/layers" -name '*.bin' 2>/dev/null)" ]; }

# forget NAME: what it has pulled is gone.
forget() { rm -rf "$work/$1/leap/layers"; }

kill_pull() {
	pkill -KILL -f -- "worker --fetch .*--key $work/key" || true
	wait "$1" 2>/dev/null || true
}

# Layers beside a bare TCP stream of as many bytes, in turn.
check_rate() {
	local round begin pid bytes
	for round in 1 2 3; do
		forget two
		begin=$(date +%s%3N)
		pull two &
		pid=$!
		until has_file two; do sleep 0.01; done
		bytes=$(stat -c %s "$work/two"/leap/layers/*.bin)
		say "    round $round: layers $((bytes / ($(date +%s%3N) - begin))) kB/s"
		kill_pull "$pid"
		on two python3 -c 'import socket, sys
s = socket.create_server(("10.214.7.3", 9000)).accept()[0]
n = 0
while piece := s.recv(1 << 18): n += len(piece)' &
		pid=$!
		sleep 0.3
		begin=$(date +%s%3N)
		on desk python3 -c 'import socket, sys
s = socket.create_connection(("10.214.7.3", 9000))
s.sendfile(open(sys.argv[1], "rb"), 0, int(sys.argv[2]))' "$MODEL" "$bytes"
		wait "$pid"
		say "    round $round: bare TCP $((bytes / ($(date +%s%3N) - begin))) kB/s"
	done
}

# The board dies at random moments while its layers come; every third time its disk has also lost the end of what it wrote.
check_cuts() {
	local cut pid before bytes got part
	bytes=$(stat -c %s "$work/two"/leap/layers/*.bin)
	cp "$work/two"/leap/layers/*.bin "$work/whole"
	forget two
	before=$(received two)
	for ((cut = 0; cut < CUTS; cut++)); do
		pull two &
		pid=$!
		# Shorter than all of it takes, so that most cuts come in its midst.
		sleep "$(awk -v r="$RANDOM" -v b="$bytes" -v c="$CUTS" 'BEGIN { print 0.05 + r / 32768 * b / 110e6 * 3 / c }')"
		kill_pull "$pid"
		has_file two && say "    all of it was there after $cut cuts" && break
		part=$(find "$work/two/leap/layers" -name '*.part' 2>/dev/null)
		[ $((cut % 3)) -ne 0 ] || [ -z "$part" ] || [ "$(stat -c %s "$part")" -lt 9999 ] || truncate -s -9999 "$part"
	done
	pull two &
	pid=$!
	until has_file two; do sleep 0.01; done
	kill_pull "$pid"
	cmp "$work/whole" "$work/two"/leap/layers/*.bin
	got=$(($(received two) - before))
	say "    $cut cuts: $got bytes came in for $bytes, $(((got - bytes) / (cut + 1))) more for each start"
	[ "$got" -le $((bytes + bytes / 100 + (cut + 1) * 1310720)) ] || die "more than 1 MiB was sent twice for each cut"
}

[ "$(id -u)" -eq 0 ] || die "network namespaces are for root"
begin_steps
trap 'STATUS=$?; clean_up; end_steps "$STATUS"' EXIT
need_tools cmp:diffutils pgrep:procps ip:iproute2 python3
if [ $# -eq 2 ]; then
	leap=$(realpath "$2")
else
	need_cargo
	step "binary" cargo build --locked --release --bin leap
	leap=$(realpath "$TARGET_DIR/release/leap")
fi
head -c 32 /dev/urandom >"$work/key"
ip link add "$BRIDGE" type bridge
ip link set "$BRIDGE" up
index=1
for name in desk "${WORKERS[@]}"; do
	make_board "$name" "$index"
	index=$((index + 1))
done
"$leap" run "$MODEL" --quiet --draft=off "${PROMPT[@]}" </dev/null >"$work/wanted" 2>"$work/alone.log"
step "two starts" check_starts
# All layers but one go to the board that pulls.
layers=$("$leap" info "$MODEL" | awk '$1 == "n_layers" { print $2 }')
printf 'desk 10.214.7.1 0..1\ntwo 10.214.7.3 1..%s\n' "$layers" >"$work/ring"
on desk "$leap" serve "$MODEL" --give auto --ring "$work/ring" --listen 127.0.0.1:8080 --key "$work/key" 2>>"$work/desk.log" &
sleep 1
step "layers beside a bare TCP stream" check_rate
step "power cuts" check_cuts
