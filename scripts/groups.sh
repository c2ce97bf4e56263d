# shellcheck shell=bash
# shellcheck disable=SC2154 # The script that sources this sets work.
# Sourced after lib.sh: processes of this machine as boards of their own, each with a part of a core and of the memory, by
# control groups. The script that sources it sets $work, a folder with one named as each board.

# Where a group's processes are named: all of them, or with the older kind of groups each of their threads.
members() { if [ "$GROUPS_KIND" = 2 ]; then say cgroup.procs; else say tasks; fi; }

# group NAME [CONTROLLER]: the folder of a board's group.
group() {
	if [ "$GROUPS_KIND" = 2 ]; then
		say "/sys/fs/cgroup/leap-$$-$1"
	else
		say "/sys/fs/cgroup/${2:-cpu}/leap-$$-$1"
	fi
}

# make_groups NAME…: a group for each board.
make_groups() {
	local name
	if [ -d /sys/fs/cgroup/cpu ]; then GROUPS_KIND=1; else GROUPS_KIND=2; fi
	for name in "$@"; do mkdir -p "$(group "$name" cpu)" "$(group "$name" memory)"; done
}

remove_groups() {
	local name
	for name in "$@"; do rmdir "$(group "$name" cpu)" "$(group "$name" memory)" 2>/dev/null || true; done
}

# limit NAME QUOTA_US PERIOD_US: how long the board may compute in each period from now on; as long as that lasts if that is all
# of it.
limit() {
	local group
	group=$(group "$1" cpu)
	[ "$2" -lt "$3" ] || set -- "$1" -1 "$3"
	if [ "$GROUPS_KIND" = 2 ]; then
		say "${2/#-1/max} $3" >"$group/cpu.max"
	else
		say -1 >"$group/cpu.cfs_quota_us"
		say "$3" >"$group/cpu.cfs_period_us"
		say "$2" >"$group/cpu.cfs_quota_us"
	fi
}

# limit_memory NAME MB
limit_memory() {
	local group
	group=$(group "$1" memory)
	if [ "$GROUPS_KIND" = 2 ]; then
		say "${2}M" >"$group/memory.max"
	else
		say "${2}M" >"$group/memory.limit_in_bytes"
	fi
}

# on NAME COMMAND…: runs it as that board, in the background; what it says goes to $work/NAME.log.
on() {
	local name=$1
	shift
	(
		for controller in cpu memory; do say "$BASHPID" >"$(group "$name" $controller)/$(members)"; done
		export XDG_CACHE_HOME="$work/$name" XDG_RUNTIME_DIR="$work/$name"
		exec "$@"
	) >"$work/$name.log" 2>&1 </dev/null &
}
