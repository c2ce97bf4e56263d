#!/usr/bin/env bash
# Runs `cross build` for every target of Cross.toml in podman, needs root: test-cross.sh [TRIPLE...]
# shellcheck source=scripts/lib.sh
. "$(dirname "$0")/lib.sh"

CROSS_VERSION=0.2.5
BASE=docker.io/library/debian:bookworm-slim
LAB=$(mkdir -p "$TARGET_DIR/cross-lab" && realpath "$TARGET_DIR/cross-lab")

# podman for sandboxes without cgroup delegation and without the right to raise limits: it would ask for
# more files than this.
configure_podman() {
	cat >"$LAB/containers.conf" <<-END
		[containers]
		default_ulimits=["nofile=$(ulimit -Hn):$(ulimit -Hn)","nproc=4096:4096"]
		[engine]
		cgroup_manager="cgroupfs"
		runtime="runc"
	END
	export CONTAINERS_CONF=$LAB/containers.conf BUILDAH_ISOLATION=chroot
	export CROSS_CONTAINER_ENGINE=podman CROSS_CONTAINER_OPTS="--network host" CROSS_BUILD_OPTS="--network host"
}

need_cross() {
	PATH=$LAB/bin:$PATH
	[ "$(cross --version 2>/dev/null | sed -n 's/^cross \([0-9.]*\).*/\1/p')" = "$CROSS_VERSION" ] ||
		cargo install cross --version "$CROSS_VERSION" --locked --root "$LAB"
}

# Where no registry can be reached, debootstrap makes what the Dockerfiles begin with.
need_base_image() {
	if podman image exists "$BASE" || podman pull --quiet "$BASE" 2>/dev/null; then
		return
	fi
	say "no container registry: $BASE is made by debootstrap"
	need_tools debootstrap:debootstrap
	[ -e "$LAB/root/etc/debian_version" ] || debootstrap --variant=minbase bookworm "$LAB/root" "$(mirror)"
	if has_target aarch64-unknown-linux-musl; then
		tar -C "$LAB/root" -c . | podman import - "$BASE"
	else
		add_rust
		# Where cargo is in the image, cross prefers it to the host's.
		tar -C "$LAB/root" -c . | podman import \
			--change 'ENV RUSTC_BOOTSTRAP=1' --change 'ENV CARGO_UNSTABLE_BUILD_STD=std,panic_abort' \
			--change "ENV $(linker_of aarch64)" --change "ENV $(linker_of x86_64)" \
			--change 'ENV CARGO_TARGET_AARCH64_UNKNOWN_LINUX_MUSL_RUSTFLAGS="-C link-self-contained=no"' \
			--change 'ENV CARGO_TARGET_X86_64_UNKNOWN_LINUX_MUSL_RUSTFLAGS="-C link-self-contained=no"' \
			- "$BASE"
	fi
}

# The mirror that apt uses here.
# shellcheck disable=SC2016 # apt expands the name.
mirror() { apt-get indextargets --format '$(REPO_URI)' 'Codename: bookworm' 'Created-By: Packages' | head -n1; }

linker_of() { printf 'CARGO_TARGET_%s_UNKNOWN_LINUX_MUSL_LINKER=/opt/zig/%s-musl' "${1^^}" "$1"; }

# A host without rustup's targets cannot lend them to the containers: then they get Debian's compiler,
# which builds the standard library, and zig as the linker of static programs.
add_rust() {
	local arch root=$LAB/root
	say "no rustup target for aarch64 here: the image gets Debian's compiler and zig"
	need_zig
	[ ! -e /etc/apt/sources.list.d/debian.sources ] || cp /etc/apt/sources.list.d/debian.sources "$root/etc/apt/sources.list.d/"
	chroot "$root" apt-get -qq update
	chroot "$root" env DEBIAN_FRONTEND=noninteractive apt-get -qq install -y --no-install-recommends \
		rustc-web cargo-web rust-web-src libstd-rust-web-dev
	mkdir -p "$root/opt/zig"
	cp -r "$ZIG_VENV"/lib/python3*/site-packages/ziglang/. "$ZIG_VENV/bin/cargo-zigbuild" "$root/opt/zig/"
	for arch in aarch64 x86_64; do
		cat >"$root/opt/zig/$arch-musl" <<-END
			#!/bin/sh
			export CARGO_ZIGBUILD_ZIG_PATH=/opt/zig/zig CARGO_ZIGBUILD_CACHE_DIR=/tmp/zigbuild ZIG_GLOBAL_CACHE_DIR=/tmp/zig ZIG_LOCAL_CACHE_DIR=/tmp/zig
			exec /opt/zig/cargo-zigbuild zig cc -- -target $arch-linux-musl "\$@"
		END
		chmod +x "$root/opt/zig/$arch-musl"
	done
}

# build TRIPLE: builds, and checks what came out.
build() {
	local program=$LAB/$1/$1/dist/leap kind
	# Each target has build scripts of its own container's making.
	CARGO_TARGET_DIR=$LAB/$1 cross build --profile dist --locked --target "$1"
	kind=$(file -b "$program")
	say "$1: $(stat -c %s "$program") bytes, $kind"
	case $1:$kind in
	*-musl:*statically\ linked* | *-gnu:*dynamically\ linked*) ;;
	*) die "$1: not what was asked for" ;;
	esac
	case $1 in
	aarch64-*-gnu) run_demo qemu-aarch64-static -L /usr/aarch64-linux-gnu "$program" ;;
	aarch64-*) run_demo qemu-aarch64-static "$program" ;;
	*) run_demo "$program" ;;
	esac
}

run_demo() {
	local story
	story=$("$@" run -n 16 --temp 0 </dev/null)
	say "$story"
	[ -n "$story" ] || die "$* printed nothing"
}

begin_steps
[ "$(id -u)" -eq 0 ] || die "run as root: containers need it here"
[ $# -gt 0 ] || set -- aarch64-unknown-linux-musl aarch64-unknown-linux-gnu x86_64-unknown-linux-musl
need_tools podman:podman buildah:buildah runc:runc fuse-overlayfs:fuse-overlayfs newuidmap:uidmap \
	/usr/lib/podman/netavark:netavark file:file qemu-aarch64-static:qemu-user-static \
	/usr/aarch64-linux-gnu/lib/ld-linux-aarch64.so.1:libc6-arm64-cross
need_cargo
step "cross $CROSS_VERSION" need_cross
configure_podman
step "base image" need_base_image
has_target aarch64-unknown-linux-musl || export CROSS_CUSTOM_TOOLCHAIN=1
for triple; do
	step "cross build: $triple" build "$triple"
done
