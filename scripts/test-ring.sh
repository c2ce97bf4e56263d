#!/usr/bin/env bash
# Rings of real processes: loss, death and return, in network namespaces where those are allowed, else on loopback.
# Usage: [LEAP_RING_DEATHS=20] test-ring.sh [LEAP]
# shellcheck source=scripts/lib.sh
. "$(dirname "$0")/lib.sh"

[ $# -le 1 ] || die "usage: ${0##*/} [LEAP]"

# How often each node is killed.
DEATHS=${LEAP_RING_DEATHS:-1}
# Percent of datagrams that are lost in namespaces.
LOSS=5
NODES=(desk pi orange)
LAYERS=(0..1 1..4 4..6)
MODEL=models/demo.bin
PROMPT="Once upon a time"
# A text that does not end early.
SAMPLING=(--temp 1.5 --top-p 1 --seed 2)
N_PREDICT=200
# One during which something changes.
N_PREDICT_LONG=480
# Seconds in which any answer is complete and any program has ended, on a busy machine too.
PATIENCE=300
# TCP waits long for what was lost.
N_PREDICT_TCP=30
# A checkpoint that is exported in the nodes' parts.
CHECKPOINT=tests/golden/llama3-tiny
PART_LAYERS=(0..1 1..3 3..4)
N_PREDICT_PARTS=60
# Other runs on this machine have wires, names and ports of their own.
BRIDGE="lt$$b"
PORT=$((21000 + $$ % 1100 * 10))
GIVE_PORT=$((PORT + 5))
JOIN_PORT=$((PORT + 6))

work=$(mktemp -d)
has_namespaces=
has_parts=
declare -A pids=()

clean_up() {
	local pid
	for pid in $(pgrep -f -- "^${leap:-leap} .*$work/"); do
		kill -KILL "$pid" 2>/dev/null || true
	done
	wait 2>/dev/null || true
	remove_namespaces
	rm -rf "$work"
}

# space NODE: its namespace.
space() { say "leap-$$-$1"; }

# wire NODE: its end on the bridge.
wire() {
	local index
	for index in "${!NODES[@]}"; do
		[ "${NODES[$index]}" != "$1" ] || say "lt$$v$index"
	done
}

# address NODE [MOVES]: where it is, after so many moves.
address() {
	local index
	for index in "${!NODES[@]}"; do
		[ "${NODES[$index]}" != "$1" ] || say "10.213.7.$((index + 1 + ${2:-0} * 10))"
	done
}

remove_namespaces() {
	local name
	[ -n "$has_namespaces" ] || return 0
	for name in "${NODES[@]}"; do
		as_root ip netns delete "$(space "$name")" 2>/dev/null || true
	done
	as_root ip link delete "$BRIDGE" 2>/dev/null || true
	has_namespaces=
}

# One namespace a node, on a bridge; each drops datagrams that come in.
make_namespaces() {
	local name
	as_root ip link add "$BRIDGE" type bridge && as_root ip link set "$BRIDGE" up || return
	has_namespaces=1
	for name in "${NODES[@]}"; do
		as_root ip netns add "$(space "$name")" &&
			as_root ip link add "$(wire "$name")" type veth peer name eth0 netns "$(space "$name")" &&
			as_root ip link set "$(wire "$name")" master "$BRIDGE" up &&
			on "$name" ip address add "$(address "$name")/24" dev eth0 &&
			on "$name" ip link set eth0 up &&
			on "$name" ip link set lo up &&
			set_loss "$name" "$LOSS" || return
	done
}

# set_loss NODE PERCENT: what it loses of what comes in.
set_loss() {
	on "$1" nft -f - <<-NFT
		table inet leap
		delete table inet leap
		table inet leap {
			chain in { type filter hook input priority 0; iif eth0 numgen random mod 100 < $2 drop; }
		}
	NFT
}

can_use_namespaces() {
	has_root && command -v ip >/dev/null && command -v nft >/dev/null && make_namespaces >"$work/namespaces" 2>&1
}

write_ring() {
	local index
	for index in "${!NODES[@]}"; do
		if [ -n "$has_namespaces" ]; then
			say "${NODES[$index]} $(address "${NODES[$index]}") ${LAYERS[$index]}"
		else
			say "${NODES[$index]} 127.0.0.1:$((PORT + index)) ${LAYERS[$index]}"
		fi
	done >"$work/ring"
}

# on NODE COMMAND...: where the node lives.
on() {
	local name=$1
	shift
	if [ -n "$has_namespaces" ]; then
		as_root ip netns exec "$(space "$name")" "$@"
	else
		"$@"
	fi
}

# model_of NODE: the file it runs.
model_of() { if [ -n "$has_parts" ]; then say "$work/$1.bin"; else say "$MODEL"; fi; }

# start_worker NODE OPTION...
start_worker() {
	local name=$1
	shift
	on "$name" "$leap" worker "$(model_of "$name")" --ring "$work/ring" --node "$name" --threads 1 "$@" 2>>"$work/$name.log" &
	pids[$name]=$!
}

start_workers() {
	local name
	for name in "${NODES[@]:1}"; do
		start_worker "$name" "$@"
	done
}

# end NODE: a SIGTERM ends it, cleanly.
end() {
	local name=$1
	kill -TERM "$(leap_pid "$name")"
	await_end "$name"
	wait "${pids[$name]}" || die "$name ended with status $? after a SIGTERM: $(tail -n 3 "$work/$name.log")"
	unset "pids[$name]"
}

# await_end NODE: its program has ended.
await_end() {
	local start=$SECONDS
	while kill -0 "${pids[$1]}" 2>/dev/null; do
		sleep 0.01
		[ $((SECONDS - start)) -lt "$PATIENCE" ] || die "$1 does not end: $(tail -n 5 "$work/$1.log")"
	done
}

end_workers() {
	local name
	for name in "${NODES[@]:1}"; do
		end "$name"
	done
}

# master N OPTION...: an answer of N tokens goes to stdout.
master() {
	local n=$1
	shift
	on desk timeout "$PATIENCE" "$leap" master "$(model_of desk)" --ring "$work/ring" --threads 1 -p "$PROMPT" -n "$n" \
		"${SAMPLING[@]}" --ctx 512 --ring-timeout 30 "$@" </dev/null 2>>"$work/desk.log"
}

# alone N: the answer of one node.
alone() {
	"$leap" run "$MODEL" -p "$PROMPT" -n "$1" "${SAMPLING[@]}" --ctx 512 </dev/null 2>/dev/null >"$work/wanted-$1"
}

# same N WHAT: the answer is that of one node.
same() {
	cmp -s "$work/wanted-$1" "$work/text" ||
		die "another text $2: $(diff "$work/wanted-$1" "$work/text" | head -n 4; tail -n 5 "$work/desk.log")"
}

# check_text N OPTION...: two masters after each other, as workers outlive theirs.
check_text() {
	local n=$1 count
	shift
	start_workers "$@"
	for count in first second; do
		master "$n" "$@" >"$work/text" || die "the $count master failed ($*): $(tail -n 3 "$work/desk.log")"
		same "$n" "of the $count master with $*"
	done
	end_workers
}

# export_model OUT OPTION...
export_model() {
	"$leap" export "$1" --meta-llama "$CHECKPOINT" "${@:2}" 2>"$work/export.log" ||
		die "export: $(tail -n 1 "$work/export.log")"
}

# Nodes that each have a file of their own layers alone give the text of the whole model, and a
# node refuses the file of another.
check_parts() {
	local index error code=0
	export_model "$work/whole.bin"
	MODEL=$work/whole.bin
	LAYERS=("${PART_LAYERS[@]}")
	write_ring
	alone "$N_PREDICT_PARTS"
	for index in "${!NODES[@]}"; do
		export_model "$work/${NODES[$index]}.bin" --layers "${LAYERS[$index]}"
	done
	rm "$MODEL"
	has_parts=1
	check_text "$N_PREDICT_PARTS"
	error=$("$leap" worker "$work/pi.bin" --ring "$work/ring" --node orange 2>&1) || code=$?
	if [ "$code" -ne 3 ] || [[ $error != *"holds layers 1..3 of 4, and orange has 3..4"* ]]; then
		die "another node's part: exit code $code, $error"
	fi
}

# Starts a master in the background and waits until it has begun to answer.
begin_answer() {
	: >"$work/text"
	master "${n_predict:-$N_PREDICT}" "$@" >"$work/text" &
	pids[desk]=$!
	local tries=0
	while [ "$(stat -c %s "$work/text")" -lt 100 ]; do
		sleep 0.01
		tries=$((tries + 1))
		[ "$tries" -lt 3000 ] || die "the master does not begin: $(tail -n 3 "$work/desk.log")"
	done
}

end_answer() {
	wait "${pids[desk]}" || die "the master failed $1: $(tail -n 5 "$work/desk.log")"
	unset "pids[desk]"
	same "${n_predict:-$N_PREDICT}" "$1"
}

# leap_pid NODE: of the program itself, which the shell's own process waits for.
leap_pid() {
	case $1 in
	desk) pgrep -o -f -- "^$leap master .*$work/ring" ;;
	*) pgrep -o -f -- "^$leap worker .*$work/.* --node $1 " ;;
	esac
}

# is_mended NODE: the master had to open the ring again. Without loss an answer may be too quick for that.
is_mended() {
	mended=$((mended + 1))
	if [ "$(grep -c "the ring is complete again" "$work/desk.log")" -lt "$mended" ]; then
		[ -z "$has_namespaces" ] || die "the answer was over before $1 died"
		mended=$((mended - 1))
		say "the answer was over before $1 died"
	fi
}

check_deaths() {
	local round name mended=0
	start_workers
	for ((round = 0; round < DEATHS; round++)); do
		for name in "${NODES[@]:1}"; do
			begin_answer
			kill -KILL "$(leap_pid "$name")"
			wait "${pids[$name]}" 2>/dev/null || true
			start_worker "$name"
			end_answer "after the death of $name"
			is_mended "$name"
		done
		begin_answer
		kill -KILL "$(leap_pid desk)"
		wait "${pids[desk]}" 2>/dev/null || true
		unset "pids[desk]"
		begin_answer
		end_answer "of the master after one that was killed"
	done
}

check_pause() {
	begin_answer
	local pid
	pid=$(leap_pid desk)
	kill -STOP "$pid"
	sleep 2
	kill -CONT "$pid"
	end_answer "after a pause of the master"
	end_workers
}

# longest_stall: milliseconds of the longest time that was seen without new text, until the answer is over.
longest_stall() {
	local last now size new longest=0
	last=$(date +%s%3N) size=$(stat -c %s "$work/text")
	while kill -0 "${pids[desk]}" 2>/dev/null; do
		new=$(stat -c %s "$work/text") now=$(date +%s%3N)
		if [ "$new" -ne "$size" ]; then
			[ $((now - last)) -le "$longest" ] || longest=$((now - last))
			size=$new last=$now
		fi
	done
	say "$longest"
}

# How often a master had to open the ring again.
n_openings() { grep -c "the ring is complete again" "$work/desk.log" || true; }

# in_mid_text WHAT COMMAND...: a text during which a change happens is that of one node, and the ring stays as it is.
in_mid_text() {
	local what=$1 n_predict=$N_PREDICT_LONG opened stall
	shift
	opened=$(n_openings)
	begin_answer "${MASTER_OPTIONS[@]}"
	"$@"
	stall=$(longest_stall)
	end_answer "after $what"
	[ "$(n_openings)" -eq "$opened" ] || say "the ring was opened anew after $what"
	say "    $what: no text for $stall ms"
}

# prefer NODE MOVES: it sends from another address from now on, and has those before still.
prefer() {
	local new
	new=$(address "$1" "$2")
	on "$1" ip address add "$new/32" dev eth0
	on "$1" ip route replace 10.213.7.0/24 dev eth0 src "$new"
}

# swap NODE MOVES: the same, and the one before is gone.
swap() {
	prefer "$1" "$2"
	on "$1" ip address delete "$(address "$1" $(($2 - 1)))/32" dev eth0 2>/dev/null ||
		on "$1" ip address delete "$(address "$1" $(($2 - 1)))/24" dev eth0
	on "$1" ip route replace 10.213.7.0/24 dev eth0 src "$(address "$1" "$2")"
}

# move_home NODE: it is where the ring's file says.
move_home() {
	on "$1" ip address flush dev eth0
	on "$1" ip address add "$(address "$1")/24" dev eth0
}

check_moves() {
	local name
	# Nodes that send from whichever address the system prefers.
	MASTER_OPTIONS=(--host 0.0.0.0 "$@")
	start_workers --wire f32 "${MASTER_OPTIONS[@]}"
	in_mid_text "a second address of pi" prefer pi 1
	in_mid_text "a second address of desk" prefer desk 1
	# A connection ends with its address; datagrams find the way to another one.
	[[ $* == *tcp* ]] || in_mid_text "another address of orange" swap orange 1
	end_workers
	for name in "${NODES[@]}"; do
		move_home "$name"
	done
}

# set_mtu BYTES END...: longest packet of a node's end of its wire (its name) or of the bridge's (+name).
set_mtu() {
	local bytes=$1 end
	shift
	for end; do
		case $end in
		+*) as_root ip link set "$(wire "${end#+}")" mtu "$bytes" ;;
		*) on "$end" ip link set eth0 mtu "$bytes" ;;
		esac
	done
}

# swallow BYTES NODE...: longer packets to and from these nodes vanish without an error.
swallow() {
	local bytes=$1 name
	shift
	for name; do
		on "$name" nft -f - <<-NFT
			table inet hole
			delete table inet hole
			table inet hole {
				chain in { type filter hook prerouting priority -500; iif eth0 meta length > $bytes drop; }
				chain out { type filter hook postrouting priority 500; oif eth0 meta length > $bytes drop; }
			}
		NFT
	done
}

# heal: the network is as it was.
heal() {
	local name
	for name in "${NODES[@]}"; do
		set_mtu 1500 "$name" "+$name"
		on "$name" nft delete table inet hole 2>/dev/null || true
	done
}

# while_narrow WHAT COMMAND...: the same in a ring that has seen no narrow path yet.
while_narrow() {
	start_workers --wire f32 "${MASTER_OPTIONS[@]}"
	in_mid_text "$@"
	end_workers
	heal
}

# fetch_workers WORD: workers without a model get their layers from desk, and say WORD of them.
fetch_workers() {
	local name from=127.0.0.1
	[ -z "$has_namespaces" ] || from=$(address desk)
	for name in "${NODES[@]:1}"; do
		: >"$work/$name.log"
		on "$name" env XDG_CACHE_HOME="$work/cache-$name" "$leap" worker --fetch "$from:$GIVE_PORT" --ring "$work/ring" \
			--node "$name" --key "$work/key" --threads 1 2>>"$work/$name.log" &
		pids[$name]=$!
	done
	master "$N_PREDICT" --key "$work/key" --give "$GIVE_PORT" >"$work/text" || die "master: $(tail -n 3 "$work/desk.log")"
	same "$N_PREDICT" "of nodes whose layers $1"
	for name in "${NODES[@]:1}"; do
		grep -q "layers .* $1" "$work/$name.log" || die "$name does not say that its layers $1: $(cat "$work/$name.log")"
	done
	end_workers
}

# Nodes without a model get their layers once.
check_fetch() {
	fetch_workers "came from"
	fetch_workers "were here already"
}

# Boards with a key alone are told what to do, once; one that starts again knows it.
check_boards() {
	local name index=0 host boards="" count
	for name in "${NODES[@]:1}"; do
		index=$((index + 1)) host=127.0.0.1
		[ -z "$has_namespaces" ] || host=$(address "$name")
		boards+="${boards:+,}$host:$(join_port "$index")"
		: >"$work/$name.log"
		start_board "$name" "$index"
	done
	refuse_stranger "$boards"
	for count in first second third; do
		# The third one finds them by itself.
		[ "$count" != third ] || [ -z "$has_namespaces" ] || boards=auto:$JOIN_PORT
		# By memory all of them have layers, however long they took to answer.
		on desk timeout "$PATIENCE" env XDG_CACHE_HOME="$work/cache-desk" "$leap" master "$MODEL" --key "$work/key" \
			--boards "$boards" --objective memory --give "$GIVE_PORT" --port "$PORT" --node desk --threads 1 -p "$PROMPT" -n "$N_PREDICT" \
			"${SAMPLING[@]}" --ctx 512 --ring-timeout 30 </dev/null 2>>"$work/desk.log" >"$work/text" ||
			die "the $count master: $(tail -n 3 "$work"/*.log)"
		same "$N_PREDICT" "of boards that were told what to do by the $count master"
		# The second master finds it killed, and started again.
		[ "$count" != first ] || { kill -KILL "$(leap_pid "$name")"; wait "${pids[$name]}" || true; start_board "$name" "$index"; }
	done
	for name in "${NODES[@]:1}"; do
		count=$(grep -c "layers .* came from" "$work/$name.log") || true
		[ "$count" = 1 ] || die "$name got its layers $count times: $(cat "$work/$name.log")"
	done
	end_workers
}

# refuse_stranger BOARDS: they do not do what a master with another key says. Any peer can claim that keys differ, without
# proof: the master goes on asking, and is ended here.
refuse_stranger() {
	local start=$SECONDS
	on desk "$leap" master "$MODEL" --key "$work/other-key" --boards "$1" -p "$PROMPT" </dev/null \
		>"$work/stranger" 2>"$work/stranger.log" &
	pids[stranger]=$!
	until grep -q "another key" "$work/stranger.log"; do
		kill -0 "${pids[stranger]}" 2>/dev/null || die "a master with another key ends: $(cat "$work/stranger.log")"
		[ $((SECONDS - start)) -lt "$PATIENCE" ] || die "a master with another key: $(cat "$work/stranger.log")"
		sleep 0.1
	done
	kill -TERM "$(pgrep -o -f -- "^$leap master .*$work/other-key")"
	await_end stranger
	wait "${pids[stranger]}" && die "boards do what a master with another key says"
	unset "pids[stranger]"
	[ ! -s "$work/stranger" ] || die "a master with another key writes a text"
}

# join_port INDEX: where a node waits to be called: the same port, where each has its own.
join_port() { if [ -n "$has_namespaces" ]; then say "$JOIN_PORT"; else say $((JOIN_PORT + $1)); fi; }

# start_board NODE INDEX: a node that knows nothing but the key.
start_board() {
	on "$1" env XDG_CACHE_HOME="$work/cache-told-$1" "$leap" worker --key "$work/key" --node "$1" --threads 1 \
		--join "$(join_port "$2")" --port $((PORT + $2)) 2>>"$work/$1.log" &
	pids[$1]=$!
}

check_paths() {
	local bytes
	MASTER_OPTIONS=("$@")
	for bytes in 576 1280; do
		set_mtu "$bytes" desk
		swallow "$bytes" pi
		while_narrow "packets of $bytes bytes from the start" true
		while_narrow "packets of $bytes bytes, the sending end" set_mtu "$bytes" pi
		while_narrow "packets of $bytes bytes, the receiving end" set_mtu "$bytes" orange
		while_narrow "packets of $bytes bytes, both ends" set_mtu "$bytes" pi +pi
		while_narrow "longer packets than $bytes bytes vanish" swallow "$bytes" "${NODES[@]}"
	done
}

begin_steps
trap 'STATUS=$?; clean_up; end_steps "$STATUS"' EXIT
need_tools cc:gcc cmp:diffutils pgrep:procps ip:iproute2 nft:nftables
if [ $# -eq 1 ]; then
	leap=$(realpath "$1")
else
	need_cargo
	step "binary" cargo build --locked --bin leap
	leap=$(realpath "$TARGET_DIR/debug/leap")
fi
if can_use_namespaces; then
	say "nodes in network namespaces that lose $LOSS % of what comes in"
else
	# Some may have been made.
	remove_namespaces
	say "no network namespaces here ($(tail -n 1 "$work/namespaces" 2>/dev/null || say "no root, ip or nft")): processes on loopback, without loss"
fi
write_ring
: >"$work/desk.log"
head -c 32 /dev/urandom >"$work/key"
head -c 32 /dev/urandom >"$work/other-key"
alone "$N_PREDICT"
alone "$N_PREDICT_TCP"
alone "$N_PREDICT_LONG"
step "udp" check_text "$N_PREDICT" --transport udp
step "udp, sealed" check_text "$N_PREDICT" --transport udp --key "$work/key"
step "tcp" check_text "$N_PREDICT_TCP" --transport tcp
step "tcp, sealed" check_text "$N_PREDICT_TCP" --transport tcp --key "$work/key"
step "layers from another node" check_fetch
step "boards that are told what to do" check_boards
# Slow kernels, so that there is time to die: the bits are the same.
export LEAP_ISA=scalar
step "death of each node, $DEATHS times" check_deaths
step "pause of the master" check_pause
if [ -n "$has_namespaces" ]; then
	for name in "${NODES[@]}"; do
		set_loss "$name" 0
	done
	step "addresses that change, udp" check_moves --transport udp
	step "addresses that change, udp, sealed" check_moves --transport udp --key "$work/key"
	step "addresses that change, tcp" check_moves --transport tcp
	step "paths that narrow, udp" check_paths --transport udp
fi
step "a part of the model on each node" check_parts
