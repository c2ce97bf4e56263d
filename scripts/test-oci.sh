#!/usr/bin/env bash
# Unpacks the image of out/oci and runs what compose.yaml and daemonset.yaml say, each container as its user in a root
# and a network namespace of its own: test-oci.sh [IMAGE]. By hand: it needs root, and scripts/build-oci.sh before it.
# shellcheck source=scripts/lib.sh
. "$(dirname "$0")/lib.sh"
# shellcheck source=scripts/boards.sh
. scripts/boards.sh

[ $# -le 1 ] || die "usage: ${0##*/} [IMAGE]"
IMAGE=$(realpath "${1:-$OUT/oci/leap-$VERSION.tar}")
USER_ID=65532
# Containers of both files, and whoever asks.
CONTAINERS=(leap master worker1 worker2 worker3 daemonset client)
KEY=a-key-of-a-client
WORK=$(mktemp -d)

# words FILE CONTAINER: the words of its command, one a line, as they are without variables.
words() {
	/usr/bin/python3 - "$1" "$2" <<-'END'
		import re, sys, yaml
		text = re.sub(r"\$\{\w+:-([^}]*)\}", r"\1", open(sys.argv[1]).read())
		first = next(yaml.safe_load_all(text))
		if sys.argv[2] == "daemonset":
		    container = first["spec"]["template"]["spec"]["containers"][0]
		    command = container["args"]
		else:
		    container = first["services"][sys.argv[2]]
		    command = container["command"]
		assert container["image"].startswith("localhost/leap:"), container["image"]
		print("\n".join(command))
	END
}

space() { say "leap-oci-$$-$1"; }

# A namespace for each container, on a bridge; in all of them the names are known, as an engine's name server has it.
make_network() {
	local index=0 name
	ip link add "lo$$b" type bridge
	ip link set "lo$$b" up
	for name in "${CONTAINERS[@]}"; do
		index=$((index + 1))
		ip netns add "$(space "$name")"
		ip link add "lo$$v$index" type veth peer name eth0 netns "$(space "$name")"
		ip link set "lo$$v$index" master "lo$$b" up
		ip -n "$(space "$name")" addr add "10.214.7.$index/24" dev eth0
		ip -n "$(space "$name")" link set eth0 up
		ip -n "$(space "$name")" link set lo up
		say "10.214.7.$index $name" >>"$WORK/hosts"
	done
}

# make_root CONTAINER: the image's files, with what the engine mounts into it.
make_root() {
	local root=$WORK/$1
	cp -a "$WORK/bundle/rootfs" "$root"
	cp models/demo.bin "$root/models/model.gguf"
	cp models/demo.tokenizer.bin "$root/models/model.tokenizer.bin"
	cp "$WORK/hosts" "$root/etc/hosts"
	install -d "$root/proc" "$root/run/secrets/leap"
	say "$KEY" | tee "$root/run/secrets/leap-keys" >"$root/run/secrets/leap/keys"
	cp "$WORK/ring-key" "$root/run/secrets/ring-key"
	chmod 400 "$root"/run/secrets/*-key* "$root/run/secrets/leap/keys"
	chown "$USER_ID:$USER_ID" "$root"/run/secrets/*-key* "$root/run/secrets/leap/keys"
}

# inside CONTAINER COMMAND...: as the image's configuration says. The namespace's host name is the container's. A ring
# of little memory has layers on all boards, however small the model is.
inside() {
	local name=$1
	shift
	# shellcheck disable=SC2016 # That shell expands its own arguments.
	ip netns exec "$(space "$name")" unshare --uts --mount \
		sh -c 'hostname "$0" && mount -t proc proc "$1/proc" && shift && exec "$@"' "$name" "$WORK/$name" \
		env -i PATH=/ HOME=/cache XDG_CACHE_HOME=/cache LEAP_OBJECTIVE=memory /usr/sbin/chroot --userspec="$USER_ID:$USER_ID" "$WORK/$name" "$@"
}

# start FILE CONTAINER: its command, until the test ends.
start() {
	local command
	mapfile -t command < <(words "$1" "$2")
	inside "$2" /leap "${command[@]}" >"$WORK/$2.log" 2>&1 &
}

# healthy CONTAINER: waits until its health check passes.
healthy() {
	local _
	for _ in $(seq 120); do
		! inside "$1" /leap self-check --server 127.0.0.1:8080 >/dev/null 2>&1 || return 0
		sleep 0.5
	done
	cat "$WORK"/*.log
	die "$1 is not healthy"
}

# ask CONTAINER [CURL-ARG...]: the text that it gives.
ask() {
	local name=$1
	shift
	ip netns exec "$(space client)" curl -sS "$@" --resolve "$name:8080:$(awk -v name="$name" '$2 == name { print $1 }' "$WORK/hosts")" \
		"http://$name:8080/v1/completions" -d '{"prompt": "Once upon a time", "max_tokens": 20, "temperature": 0}' |
		/usr/bin/python3 -c 'import json, sys; a = json.load(sys.stdin); print(a["choices"][0]["text"] if "choices" in a else a["error"]["message"])'
}

leave() {
	local name
	for name in "${CONTAINERS[@]}"; do
		ip netns pids "$(space "$name")" 2>/dev/null | xargs -r kill
	done
	wait 2>/dev/null || true
	for name in "${CONTAINERS[@]}"; do ip netns delete "$(space "$name")" 2>/dev/null || true; done
	ip link delete "lo$$b" 2>/dev/null || true
	rm -rf "$WORK"
}

[ "$(id -u)" -eq 0 ] || die "run as root: it makes network namespaces and changes roots"
need_tools skopeo:skopeo umoci:umoci ip:iproute2 curl:curl /usr/lib/python3/dist-packages/yaml:python3-yaml
trap leave EXIT
chmod 755 "$WORK"
head -c 32 /dev/urandom >"$WORK/ring-key"

architecture() { skopeo inspect --override-arch "$1" "oci-archive:$IMAGE" | sed -n 's/^ *"Architecture": "\(.*\)",/\1/p'; }
for arch in amd64 arm64; do
	[ "$(architecture "$arch")" = "$arch" ] || die "$IMAGE has no image for $arch"
done
skopeo copy --quiet "oci-archive:$IMAGE" "oci:$WORK/layout:leap"
umoci unpack --image "$WORK/layout:leap" "$WORK/bundle"
skopeo copy --quiet --override-arch arm64 "oci-archive:$IMAGE" "oci:$WORK/layout-arm64:leap"
umoci unpack --image "$WORK/layout-arm64:leap" "$WORK/bundle-arm64"
! has_tool qemu-aarch64-static || qemu-aarch64-static "$WORK/bundle-arm64/rootfs/leap" --version

make_network
for name in "${CONTAINERS[@]}"; do make_root "$name"; done
inside leap /leap --version
inside leap /leap self-check
wanted=$(inside leap /leap run /models/model.gguf -p "Once upon a time" -n 20 --temp 0 -q)
wanted=${wanted#Once upon a time}

# Without a key the image's own command ends, and says why.
rm "$WORK/client/run/secrets/leap-keys"
! inside client /leap serve --listen 0.0.0.0:8080 --api-key-file /run/secrets/leap-keys 2>"$WORK/said" || die "it serves without keys"
cat "$WORK/said"

compose=images/compose/compose.yaml
start "$compose" leap
start images/k3s/daemonset.yaml daemonset
for name in worker1 worker2 worker3 master; do start "$compose" "$name"; done
for name in leap daemonset master; do
	healthy "$name"
	[[ $(ask "$name") == "a key is needed"* ]] || die "$name answers without a key"
	text=$(ask "$name" -H "Authorization: Bearer $KEY")
	[ "$text" = "$wanted" ] || die "$name says $text, wanted $wanted"
	say "$name:$text"
done
for name in worker1 worker2 worker3; do
	grep -q 'a master opened the ring' "$WORK/$name.log" || { cat "$WORK"/*.log; die "$name is not in the ring"; }
done
grep -A4 '^board' "$WORK/master.log"
say "unpacked, served alone and as a ring"
