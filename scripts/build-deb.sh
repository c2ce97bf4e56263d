#!/usr/bin/env bash
# Builds out/deb/leap_VERSION_{arm64,amd64}.deb, leap-gpu_VERSION_{arm64,amd64}.deb and leap-dkms_VERSION_all.deb:
# build-deb.sh [arm64|amd64|gpu-arm64|gpu-amd64...]
# shellcheck source=scripts/lib.sh
. "$(dirname "$0")/lib.sh"
# shellcheck source=scripts/boards.sh
. scripts/boards.sh

MAINTAINER="${DEBFULLNAME:-The LEAP developers} <${DEBEMAIL:-leap@leap.invalid}>"
DEBIAN=images/debian
# Everything, and the demo model, so that it prints text at once.
# Files carry the last commit's date, so that the same source gives the same package.
SOURCE_DATE_EPOCH=${SOURCE_DATE_EPOCH:-$(git log -1 --format=%ct 2>/dev/null || echo 0)}
# dpkg-deb reads it.
export SOURCE_DATE_EPOCH

build_leap() {
	local arch=$1 machine root=$WORK/leap-$1
	machine=$(machine_of "$arch")
	need_native
	# A packaged program runs on many boards, so it is tuned for none.
	build_program "$machine-unknown-linux-musl" "$PACKAGE_FEATURES" ''
	stage "$root"
	install -D -m 755 "$PROGRAM" "$root/usr/bin/leap"
	stage_systemd "$root"
	stage_licences "$root" "$machine-unknown-linux-musl" "$PACKAGE_FEATURES"
	install -D -m 644 "$DEBIAN/leap.lintian-overrides" "$root/usr/share/lintian/overrides/leap"
	documents "$root"
	pack leap "$arch" "$root"
}

# The packages' program for this machine, which tells what manual pages say: a board's may not run here.
need_native() {
	[ -z "${NATIVE:-}" ] || return 0
	build_program "$(uname -m)-unknown-linux-musl" "$PACKAGE_FEATURES" ''
	NATIVE=$PROGRAM
}

# The same program for glibc, which can open a GPU's driver. It stands beside the static one, or alone.
build_gpu() {
	local arch=$1 root=$WORK/leap-gpu-$1
	build_gpu_program "$(machine_of "$arch")"
	install -D -m 755 "$PROGRAM" "$root/usr/bin/leap-gpu"
	stage_licences "$root" "$(machine_of "$arch")-unknown-linux-gnu" "$GPU_FEATURES" leap-gpu
	sed "s/@VERSION@/$VERSION/" "$DEBIAN/leap-gpu.1" | manual_page "$root" leap-gpu.1
	pack leap-gpu "$arch" "$root"
}

build_dkms() {
	local root=$WORK/leap-dkms
	stage_kmod "$root"
	pack leap-dkms all "$root"
}

# documents ROOT: manual pages and what shells complete, as the program itself tells it.
documents() {
	local root=$1
	"$NATIVE" help --man | manual_page "$root" leap.1
	sed "s/@VERSION@/$VERSION/" "$DEBIAN/leap-tune.8" | manual_page "$root" leap-tune.8
	"$NATIVE" completions bash | put "$root/usr/share/bash-completion/completions/leap"
	"$NATIVE" completions zsh | put "$root/usr/share/zsh/vendor-completions/_leap"
	"$NATIVE" completions fish | put "$root/usr/share/fish/vendor_completions.d/leap.fish"
}

manual_page() { gzip -9n | put "$1/usr/share/man/man${2##*.}/$2.gz"; }

put() { install -D -m 644 /dev/stdin "$1"; }

# pack NAME ARCH ROOT: control files for what lies in ROOT, then the package.
pack() {
	local name=$1 arch=$2 root=$3 doc=$3/usr/share/doc/$1 script size
	install -D -m 644 "$DEBIAN/copyright" "$doc/copyright"
	changelog | gzip -9n >"$doc/changelog.gz"
	size=$(du -sk --apparent-size "$root" | cut -f1)
	mkdir "$root/DEBIAN"
	fill "$arch" "$size" <"$DEBIAN/$name.control" >"$root/DEBIAN/control"
	for script in preinst postinst prerm postrm; do
		[ ! -e "$DEBIAN/$name.$script" ] || fill "$arch" 0 <"$DEBIAN/$name.$script" >"$root/DEBIAN/$script"
		[ ! -e "$root/DEBIAN/$script" ] || chmod 755 "$root/DEBIAN/$script"
	done
	(cd "$root" && find etc -type f 2>/dev/null | sed 's,^,/,') >"$root/DEBIAN/conffiles" || true
	[ -s "$root/DEBIAN/conffiles" ] || rm "$root/DEBIAN/conffiles"
	(cd "$root" && find usr lib -type f -exec md5sum {} + 2>/dev/null | LC_ALL=C sort -k2) >"$root/DEBIAN/md5sums" || true
	find "$root" -newermt "@$SOURCE_DATE_EPOCH" -exec touch -h -d "@$SOURCE_DATE_EPOCH" {} +
	dpkg-deb --root-owner-group -Zxz --build "$root" "$OUT/deb/${name}_${VERSION}_$arch.deb"
}

fill() { sed "s/@VERSION@/$VERSION/; s/@ARCH@/$1/; s/@SIZE@/$2/; s/@MAINTAINER@/$MAINTAINER/"; }

changelog() {
	printf 'leap (%s) stable; urgency=medium\n\n  * Release %s.\n\n -- %s  %s\n' \
		"$VERSION" "$VERSION" "$MAINTAINER" "$(date -R -u -d "@$SOURCE_DATE_EPOCH")"
}

[ $# -gt 0 ] || set -- arm64 amd64 gpu-arm64 gpu-amd64
need_tools cc:gcc file:file readelf:binutils python3:python3 dpkg-deb:dpkg lintian:lintian
need_cargo
WORK=$(mktemp -d)
trap 'rm -rf "$WORK"' EXIT
chmod 755 "$WORK"
umask 022
mkdir -p "$OUT/deb"
for package; do
	case $package in
	gpu-*) build_gpu "${package#gpu-}" ;;
	*) build_leap "$package" ;;
	esac
done
build_dkms
lintian --allow-root --fail-on error,warning "$OUT"/deb/*_"${VERSION}"_*.deb
say "$OUT/deb:"
(cd "$OUT/deb" && sha256sum ./*.deb | tee SHA256SUMS)
