#!/bin/sh
# Tests the scripts that boards run, under BusyBox and on made-up system trees: test-init.sh [PROGRAM]
#
# With PROGRAM, a LEAP with its demo model, also what a board does that serves.
set -eu

LEAP=${1:+$(realpath "$1")}
cd "$(dirname "$0")/../images/common"
command -v busybox >/dev/null || { echo "${0##*/}: install the package busybox-static" >&2; exit 1; }
WORK=$(mktemp -d)
trap 'rm -rf "$WORK"' EXIT
failed=0

# check WHAT WANTED FOUND
check() {
	if [ "$2" = "$3" ]; then
		echo "test $1 ... ok"
	else
		printf 'test %s ... FAILED\n wanted: %s\n found:  %s\n' "$1" "$2" "$3"
		failed=1
	fi
}

put() { mkdir -p "$(dirname "$WORK/$1")" && printf '%s\n' "$2" >"$WORK/$1"; }

# leap-tune: every change can be taken back, and is, in the other order.

tune() { LEAP_SYS=$WORK/sys LEAP_PROC=$WORK/proc LEAP_TUNE_STATE=$WORK/run/tune busybox sh ./leap-tune "$@"; }
tree() { (cd "$WORK" && find sys proc -type f -exec sh -c 'for f; do echo "$f $(cat "$f")"; done' sh {} + | sort); }

put sys/devices/system/cpu/cpufreq/policy0/scaling_governor ondemand
put sys/devices/system/cpu/cpufreq/policy4/scaling_governor performance
put sys/class/devfreq/dmc/governor dmc_ondemand
for cpu in 0 1; do put sys/devices/system/cpu/cpu$cpu/cpu_capacity 530; done
for cpu in 2 3; do put sys/devices/system/cpu/cpu$cpu/cpu_capacity 1024; done
put sys/class/net/eth0/device/msi_irqs/77 msi
put sys/class/net/lo/type 772
put proc/irq/77/smp_affinity_list 0-3
put proc/interrupts ' 77: 1 2 3 4 GIC eth0'
put proc/sys/net/core/rmem_max 212992
put proc/sys/net/core/wmem_max 8388608
put sys/kernel/mm/transparent_hugepage/enabled 'always madvise [never]'
for policy in 0 4; do
	put sys/devices/system/cpu/cpufreq/policy$policy/cpuinfo_min_freq 408000
	put sys/devices/system/cpu/cpufreq/policy$policy/scaling_max_freq $((policy * 100000 + 1800000))
done
before=$(tree)
told=$(tune start)
value() { cat "$WORK/$1"; }
check "governors are set" "performance performance" \
	"$(value sys/devices/system/cpu/cpufreq/policy0/scaling_governor) $(value sys/class/devfreq/dmc/governor)"
check "interrupts go to the slow cores" 0,1 "$(value proc/irq/77/smp_affinity_list)"
check "buffers grow and never shrink" "4194304 8388608" \
	"$(value proc/sys/net/core/rmem_max) $(value proc/sys/net/core/wmem_max)"
check "huge pages are for those who ask" madvise "$(value sys/kernel/mm/transparent_hugepage/enabled)"
check "each change is shown" 5 "$(echo "$told" | grep -c -e '->')"
check "changes are listed" 5 "$(tune status | grep -c changed:)"
# The kernel's file shows all choices; here it holds the last one alone.
put sys/kernel/mm/transparent_hugepage/enabled 'always [madvise] never'
tune start >/dev/null
tune stop >/dev/null
check "huge pages are as before" never "$(value sys/kernel/mm/transparent_hugepage/enabled)"
put sys/kernel/mm/transparent_hugepage/enabled 'always madvise [never]'
check "everything is taken back, even after two starts" "$before" "$(tree)"
put sys/kernel/mm/transparent_hugepage/enabled 'always [madvise] never'
before=$(tree)
tune start --objective energy --max-khz 2000000 >/dev/null
check "for energy memory alone runs at full clock" "ondemand performance" \
	"$(value sys/devices/system/cpu/cpufreq/policy0/scaling_governor) $(value sys/class/devfreq/dmc/governor)"
check "cores have no clock above what was said" "1800000 2000000" \
	"$(value sys/devices/system/cpu/cpufreq/policy0/scaling_max_freq) $(value sys/devices/system/cpu/cpufreq/policy4/scaling_max_freq)"
tune stop >/dev/null
tune start --max-khz 1 >/dev/null
check "no core is slower than it can be" 408000 "$(value sys/devices/system/cpu/cpufreq/policy4/scaling_max_freq)"
tune stop >/dev/null
check "what was set for energy is taken back" "$before" "$(tree)"
for wrong in '' 'start --objective speed' 'start --max-khz 1GHz' 'start --max-khz' 'stop now' 'mend'; do
	# shellcheck disable=SC2086 # Words.
	check "leap-tune $wrong says how it is used" 2 "$(tune $wrong >/dev/null 2>&1 && echo 0 || echo $?)"
done
check "nothing is left to take back" 3 "$(tune status >/dev/null && echo 0 || echo $?)"
rm -rf "$WORK/sys" "$WORK/proc"
check "a machine without any of this is left alone" 0 "$(tune start >/dev/null && tune stop >/dev/null && echo $?)"

# leap-node: settings are data.

node() {
	LEAP_CONF=$WORK/leap.conf LEAP_RUN_DIR=$WORK LEAP_PROGRAM=${PROGRAM:-/bin/echo} busybox sh ./leap-node "$@" 2>&1
}

code() { node "$@" >/dev/null && echo 0 || echo $?; }

# shellcheck disable=SC2016 # That is what must not be run.
printf 'ROLE=worker\nNODE="pi"\nMODEL=/m.bin\nOPTIONS=--ctx 64\nMASTER_OPTIONS=--temp 0 -n 9\nWATTS=3,9\nPROMPT=$(touch %s/hacked); `touch %s/hacked`\n' "$WORK" "$WORK" >"$WORK/leap.conf"
check "a worker's command, without what is the master's" \
	"worker /m.bin --boards /etc/leap/ring.conf --cache /var/cache/leap --node pi --transport auto --watts 3,9 --ctx 64" "$(node run worker)"
printf 'KEY=/k\nOPTIONS=*\n' >>"$WORK/leap.conf"
check "a master's command, with a prompt that is only text" \
	"master /m.bin --boards /etc/leap/ring.conf --cache /var/cache/leap --node pi --transport auto --key /k --control $WORK/ring-master.sock --watts 3,9 * --temp 0 -n 9 --prompt \$(touch $WORK/hacked); \`touch $WORK/hacked\`" \
	"$(node run master)"
printf 'ROLE=worker\nNODE=pi\nMODEL=fetch\nRING=\nKEY=/k\nCACHE=/c\n' >"$WORK/told.conf"
check "a worker that is told what to do" "worker --cache /c --node pi --transport auto --key /k" \
	"$(LEAP_CONF=$WORK/told.conf LEAP_PROGRAM=/bin/echo busybox sh ./leap-node run worker)"
printf 'ROLE=worker\nNODE=pi\nMODEL=\nRING=\nKEY=/k\nCACHE=/c\nWATTS=3,9\nOPTIONS=--draft-model /d.bin\n' >"$WORK/draft.conf"
check "a worker that guesses" "worker --cache /c --key /k --draft-model /d.bin" \
	"$(LEAP_CONF=$WORK/draft.conf LEAP_PROGRAM=/bin/echo busybox sh ./leap-node run worker)"
printf 'ROLE=serve\nMODEL=/m.bin\nLISTEN=0.0.0.0:80 /run/leap/*\nAPI_KEYS=/k\nOPTIONS=--ctx 64\nMASTER_OPTIONS=-n 9\nSERVE_OPTIONS=--streams 2\nPOWER_CMD="meter --all"\nTUNE_OPTIONS=--objective energy *\n' >"$WORK/serve.conf"
serve_node() { LEAP_CONF=$WORK/serve.conf LEAP_PROGRAM=/bin/echo busybox sh ./leap-node run serve; }
printf 'ROLE=worker\nNODE=pi\nMODEL=/m.bin\nTEAM=/t\nKEY=/k\nCACHE=/c\n' >"$WORK/team.conf"
check "the command of a team's board" "worker /m.bin --boards /t --cache /c --node pi --transport auto --key /k" \
	"$(LEAP_CONF=$WORK/team.conf LEAP_PROGRAM=/bin/echo busybox sh ./leap-node run worker)"
check "the command of a team's server" \
	"serve /m.bin --cache /c --control /run/leap/ring-serve.sock --boards /t --node pi --key /k --listen 127.0.0.1:8080" \
	"$(LEAP_CONF=$WORK/team.conf LEAP_PROGRAM=/bin/echo busybox sh ./leap-node run serve)"
printf 'desk 10.0.0.1\npi 10.0.0.2 # 3\n' >"$WORK/equal"
printf 'ROLE=worker\nNODE=pi\nMODEL=/m.bin\nTEAM=%s\nCACHE=/c\n' "$WORK/equal" >"$WORK/equal.conf"
equal_node() { LEAP_CONF=$WORK/equal.conf LEAP_PROGRAM=/bin/echo busybox sh ./leap-node run worker; }
check "a team's file without shares stays one" "worker /m.bin --team $WORK/equal --cache /c --node pi --transport auto" "$(equal_node)"
printf 'desk 10.0.0.1\npi 10.0.0.2 3\n' >"$WORK/equal"
check "a team's file with shares" "worker /m.bin --boards $WORK/equal --cache /c --node pi --transport auto" "$(equal_node)"
printf 'ROLE=worker\nNODE=pi\nMODEL=fetch\nRING=ring.conf\nCACHE=/c\nKEY=/k\n' >"$WORK/fetch.conf"
fetch_node() { LEAP_CONF=$WORK/fetch.conf LEAP_PROGRAM=/bin/echo busybox sh ./leap-node run worker; }
check "a worker that gets its layers" "worker --boards ./ring.conf --cache /c --node pi --transport auto --key /k" "$(fetch_node)"
echo 'KEY=' >>"$WORK/fetch.conf"
check "a worker without a model needs a key" "leap-node: $WORK/fetch.conf: MODEL=fetch needs KEY" "$(fetch_node 2>&1)"
check "a server's command, without what is a ring's" \
	"serve /m.bin --cache /var/cache/leap --api-key-file /k --power-cmd meter --all --listen 0.0.0.0:80 --listen /run/leap/* --ctx 64 --streams 2" "$(serve_node)"
check "sockets that systemd has opened are the addresses" \
	"serve /m.bin --cache /var/cache/leap --api-key-file /k --power-cmd meter --all --ctx 64 --streams 2" "$(LISTEN_FDS=1 serve_node)"
printf 'ROLE=worker\nMODEL=/m.bin\nHUGE=off\nBUSY_POLL=7\n' >"$WORK/set.conf"
# shellcheck disable=SC2016 # The program expands it.
printf '#!/bin/sh\necho "$LEAP_HUGE $LEAP_BUSY_POLL $XDG_CACHE_HOME"\n' >"$WORK/show" && chmod +x "$WORK/show"
check "settings of the machine are variables" "off 7 /var/cache" \
	"$(LEAP_CONF=$WORK/set.conf LEAP_PROGRAM=$WORK/show busybox sh ./leap-node run worker)"
for cache in /c/leap /c off; do
	printf 'ROLE=worker\nMODEL=/m.gguf\nCACHE=%s\n' "$cache" >"$WORK/set.conf"
	LEAP_CONF=$WORK/set.conf LEAP_PROGRAM=$WORK/show busybox sh ./leap-node run worker
done >"$WORK/caches"
check "converted models are kept with the packed weights" "/c /c /var/cache" "$(xargs <"$WORK/caches")"
check "how the board is set up" "start --objective energy * stop" \
	"$(for command in start stop; do LEAP_CONF=$WORK/serve.conf LEAP_TUNE=/bin/echo busybox sh ./leap-node tune $command; done | xargs echo)"
check "settings are not run" "" "$(find "$WORK" -name hacked)"
check "the board's role" "0 1" "$(code has-role worker) $(code has-role master)"
echo 'rm -rf /' >>"$WORK/leap.conf"
check "a line that is no setting is an error" "2 255" "$(code run worker) $(code has-role worker)"
printf 'ROLE=king' >"$WORK/leap.conf"
check "a role that is none is an error" 2 "$(code run worker)"
rm "$WORK/leap.conf"
check "settings that are not there are an error" 2 "$(code run worker)"
check "the settings that are shipped are good" 1 \
	"$(LEAP_CONF=leap.conf busybox sh ./leap-node has-role worker && echo 0 || echo $?)"

# keep: a LEAP that fails is started again; one that is told to stop takes its child along.

cat >"$WORK/leap" <<'END'
#!/bin/sh
echo started
[ ! -e "$0.fails" ] || exit 1
echo $$ >"$0.pid"
exec sleep 100
END
chmod +x "$WORK/leap"
: >"$WORK/leap.fails"
printf 'ROLE=worker\nNODE=pi\nLOG=%s/log\n' "$WORK" >"$WORK/leap.conf"
# Its own copy: the init script's `keep` starts itself by name.
cp leap-node "$WORK/leap-node"
LEAP_CONF=$WORK/leap.conf LEAP_RUN_DIR=$WORK LEAP_PROGRAM=$WORK/leap busybox sh "$WORK/leap-node" keep worker &
keep=$!
sleep 3
rm "$WORK/leap.fails"
sleep 3
starts=$(grep -c started "$WORK/log")
[ "$starts" -lt 2 ] || starts=several
check "a failed LEAP is started again" several "$starts"
kill "$keep"
wait "$keep" || true
check "stopping ends LEAP too" gone "$(kill -0 "$(cat "$WORK/leap.pid")" 2>/dev/null && echo runs || echo gone)"

# serve: the real program answers, and ends its answers before itself.

[ -n "$LEAP" ] || exit "$failed"
PORT=${LEAP_TEST_PORT:-18085}
printf 'ROLE=serve\nMODEL=\nCACHE=off\nLISTEN=127.0.0.1:%s\nSERVE_OPTIONS=--threads 1\nLOG=%s/serve.log\n' "$PORT" "$WORK" >"$WORK/leap.conf"
LEAP_CONF=$WORK/leap.conf LEAP_RUN_DIR=$WORK LEAP_PROGRAM=$LEAP busybox sh "$WORK/leap-node" keep serve &
keep=$!
post() { busybox wget -q -O - --post-data "$1" "http://127.0.0.1:$PORT/v1/completions"; }
await_server() {
	for _ in 1 2 3 4 5 6 7 8 9 10 11 12 13 14 15 16 17 18 19 20; do
		! busybox wget -q -O /dev/null "http://127.0.0.1:$PORT/health" 2>/dev/null || break
		sleep 1
	done
}
await_server
answered() { post '{"prompt": "Once upon a time", "max_tokens": 4, "temperature": 0}' | grep -c '"completion_tokens":4'; }
check "a request is answered" 1 "$(answered)"
# It is told once the answer is out.
told() { grep -c 'leap: .*POST /v1/completions 200 .* 127.0.0.1 ' "$WORK/serve.log"; }
for _ in 1 2 3 4 5 6 7 8 9 10; do
	[ "$(told)" -eq 0 ] || break
	sleep 1
done
check "the log tells of it, without its text" "1 0" \
	"$(told) $(grep -c 'Once upon' "$WORK/serve.log")"
# A text that goes on for a while, whatever it says.
post '{"prompt": "Once", "max_tokens": 900, "temperature": 0, "stop": ["\u0000"], "stream": true}' >"$WORK/stream" &
stream=$!
while [ ! -s "$WORK/stream" ] && kill -0 "$stream" 2>/dev/null; do :; done
kill "$keep"
wait "$keep" || true
wait "$stream" || true
check "an answer ends before LEAP does" "data: [DONE]" "$(grep DONE "$WORK/stream")"
check "then it is gone" gone "$(busybox wget -q -O /dev/null "http://127.0.0.1:$PORT/health" 2>/dev/null && echo runs || echo gone)"

# A GGUF file is a board's model too, for a service without a home.

python3 -c 'import sys; sys.path.insert(0, "../../scripts"); import small_gguf; small_gguf.write(sys.argv[1])' "$WORK/small.gguf"
sed -i "s|^MODEL=.*|MODEL=$WORK/small.gguf|; s|^CACHE=.*|CACHE=$WORK/cache/leap|" "$WORK/leap.conf"
LEAP_CONF=$WORK/leap.conf LEAP_RUN_DIR=$WORK LEAP_PROGRAM=$LEAP env -u HOME busybox sh "$WORK/leap-node" keep serve &
keep=$!
await_server
check "a GGUF file answers" 1 "$(answered)"
kill "$keep"
wait "$keep" || true
check "what was made of it is kept with the packed weights" 1 "$(find "$WORK/cache/leap" -name 'small-*.own.*bin' ! -name '*tokenizer*' | wc -l)"
exit "$failed"
