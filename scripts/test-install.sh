#!/usr/bin/env bash
# Installs from a release on this machine, and from releases that are damaged, cut or missing: test-install.sh PROGRAM
#
# PROGRAM is any build for this machine. Disks that are full or read-only need root; elsewhere they are left out.
# shellcheck source=scripts/lib.sh
. "$(dirname "$0")/lib.sh"
# shellcheck source=scripts/boards.sh
. scripts/boards.sh

[ $# -eq 1 ] || die "usage: ${0##*/} PROGRAM"
PROGRAM=$(realpath "$1")
ARCH=$(uname -m)
NAME=leap-$VERSION-$ARCH.tar.gz
WORK=$(mktemp -d)

# Answers with the files of a folder; below /slow/ with half of one, and then with nothing.
serve() {
	exec python3 - "$1" <<-'END'
		import http.server, os, sys, time
		class Handler(http.server.SimpleHTTPRequestHandler):
		    def do_GET(self):
		        if not self.path.startswith("/slow/") or self.path.endswith("SHA256SUMS"):
		            self.path = self.path.replace("/slow/", "/good/")
		            return super().do_GET()
		        content = open(self.path.replace("/slow/", "good/"), "rb").read()
		        self.send_response(200)
		        self.send_header("Content-Length", str(len(content)))
		        self.end_headers()
		        self.wfile.write(content[: len(content) // 2])
		        self.wfile.flush()
		        time.sleep(60)
		    def log_message(self, *_):
		        pass
		os.chdir(sys.argv[1])
		server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
		print(server.server_port, file=open("port.new", "w"), flush=True)
		os.rename("port.new", "port")
		server.serve_forever()
	END
}

# install_from FOLDER [ARG...]: the installer's last line, and its exit code in CODE.
install_from() {
	local folder=$1
	shift
	CODE=0
	SAID=$(LEAP_RELEASES=http://127.0.0.1:$PORT/$folder PREFIX=$PREFIX sh scripts/install.sh "$@" 2>&1) || CODE=$?
}

# refuses WHAT FOLDER: one line that says WHAT, and what was installed stays.
refuses() {
	local before
	before=$(listing)
	install_from "$2"
	[ "$CODE" -eq 1 ] || die "$2: ended with $CODE: $SAID"
	[[ $(tail -n 1 <<<"$SAID") == "install.sh: "*"$1"* ]] || die "$2: said $SAID; wanted $1"
	[ "$(grep -c '^install.sh: ' <<<"$SAID")" -eq 1 ] || die "$2: more than a line: $SAID"
	[ "$(listing)" = "$before" ] || die "$2: what was installed has changed"
	say "refused: ${SAID##*install.sh: }"
}

# Installed files with their sizes and times, and temporary files and folders.
listing() { { find "$PREFIX" -type f -printf '%p %s %T@\n' 2>/dev/null; find "$TMPDIR"; } | LC_ALL=C sort || true; }

# copy_of RELEASE: the good release under another name, to be spoilt.
copy_of() { cp -r "$WORK/www/good" "$WORK/www/$1"; }

# on_disk OPTIONS WHAT: refuses to install on a disk that is mounted so.
on_disk() {
	(
		PREFIX=$WORK/disk
		mkdir -p "$PREFIX"
		mount -t tmpfs -o "$1" tmpfs "$PREFIX"
		refuses "$2" good
		umount "$PREFIX"
	)
}

leave() {
	[ -z "${SERVER:-}" ] || kill "$SERVER" 2>/dev/null || true
	rm -rf "$WORK"
}

trap leave EXIT
need_tools python3:python3 curl:curl
mkdir -p "$WORK/www/good" "$WORK/tmp"
write_tarball "$PROGRAM" "$PROGRAM" "$ARCH" "$PACKAGE_FEATURES" "$WORK/www/good"
export TMPDIR=$WORK/tmp HOME=$WORK/home
PREFIX=$WORK/prefix
write_sums "$WORK/www/good"
serve "$WORK/www" &
SERVER=$!
until [ -e "$WORK/www/port" ]; do sleep 0.05; done
PORT=$(cat "$WORK/www/port")

install_from good
[ "$CODE" -eq 0 ] || die "$SAID"
say "$SAID"
[ "$("$PREFIX/bin/leap" --version)" = "leap $VERSION" ] || die "another program was installed"
bash -c ". $PREFIX/share/bash-completion/completions/leap && complete -p leap" >/dev/null
grep -q '^\.TH LEAP' "$PREFIX/share/man/man1/leap.1" || die "the manual page is missing"
[ "$(find "$PREFIX" -type f | wc -l)" -eq 5 ] || die "other files were installed"

# Downloads.
refuses "cannot download" nowhere
copy_of damaged
printf x | dd of="$WORK/www/damaged/$NAME" bs=1 seek=1000 conv=notrunc status=none
refuses "$NAME is damaged" damaged
copy_of cut
truncate -s -1000 "$WORK/www/cut/$NAME"
refuses "$NAME is damaged" cut
copy_of unnamed
echo "$(printf '%064d' 0)  leap-$VERSION-mips.tar.gz" >"$WORK/www/unnamed/SHA256SUMS"
refuses "holds no program for $ARCH" unnamed
copy_of several
sed "s/leap-$VERSION/leap-99.0.0/" "$WORK/www/good/SHA256SUMS" >>"$WORK/www/several/SHA256SUMS"
refuses "set LEAP_VERSION" several
copy_of liar
mkdir "$WORK/leap-$VERSION-$ARCH"
printf '#!/bin/sh\necho leap 99.0.0\n' >"$WORK/leap-$VERSION-$ARCH/leap"
touch "$WORK/leap-$VERSION-$ARCH/"{leap.1,leap.bash,_leap,leap.fish}
tar -C "$WORK" -czf "$WORK/www/liar/$NAME" "leap-$VERSION-$ARCH"
rm "$WORK/www/liar/SHA256SUMS"
write_sums "$WORK/www/liar"
refuses "the program does not run on this machine" liar
LEAP_VERSION=9.9.9 refuses "holds no leap-9.9.9-$ARCH.tar.gz" good

# Machines.
mkdir "$WORK/riscv"
cat >"$WORK/riscv/uname" <<-'END'
	#!/bin/sh
	case $1 in
	-s) echo Linux ;;
	*) echo riscv64 ;;
	esac
END
chmod +x "$WORK/riscv/uname"
PATH=$WORK/riscv:$PATH refuses "no program for riscv64" good
(unset LEAP_RELEASES; ! sh scripts/install.sh 2>"$WORK/said") || die "it needs no address"
grep -q '^install.sh: set LEAP_RELEASES' "$WORK/said" || die "$(cat "$WORK/said")"

# Disks.
(PREFIX=/dev/null/x refuses "cannot make /dev/null/x" good)
if [ "$(id -u)" -eq 0 ] && unshare -m true 2>/dev/null; then
	export -f on_disk refuses install_from listing die say
	export WORK PORT TMPDIR
	unshare -m bash -euc 'on_disk size=1m "cannot write"; on_disk ro "cannot make"'
else
	say "no disks are mounted: that needs root"
fi

# An installer that is ended leaves nothing; one that is cut itself does nothing.
before=$(listing)
set -m
LEAP_RELEASES=http://127.0.0.1:$PORT/slow PREFIX=$PREFIX sh scripts/install.sh >"$WORK/said" 2>&1 &
pid=$!
set +m
until compgen -G "$TMPDIR/*/$NAME" >/dev/null; do sleep 0.05; done
kill -TERM -- "-$pid"
code=0
wait "$pid" || code=$?
[ "$code" -ne 0 ] || die "it ended well: $(cat "$WORK/said")"
[ "$(listing)" = "$before" ] || die "an installer that was ended left: $(listing)"
bytes=$(stat -c %s scripts/install.sh)
for part in 10 30 50 70 90 99; do
	head -c $((bytes * part / 100)) scripts/install.sh |
		LEAP_RELEASES=http://127.0.0.1:$PORT/good PREFIX=$WORK/none sh >/dev/null 2>&1 || true
	[ ! -e "$WORK/none" ] || die "$part % of install.sh installed something"
done

# Signatures.
if has_tool minisign; then
	minisign -GW -p "$WORK/a.pub" -s "$WORK/a.key" >/dev/null
	minisign -GW -p "$WORK/b.pub" -s "$WORK/b.key" >/dev/null
	LEAP_PUBLIC_KEY=$(tail -n 1 "$WORK/a.pub") refuses "cannot download" good
	copy_of signed
	minisign -S -s "$WORK/a.key" -m "$WORK/www/signed/SHA256SUMS" >/dev/null
	LEAP_PUBLIC_KEY=$(tail -n 1 "$WORK/b.pub") refuses "is not signed by the key" signed
	LEAP_PUBLIC_KEY=$(tail -n 1 "$WORK/a.pub") install_from signed
	[[ $CODE = 0 && $SAID == "signed by the key"* ]] || die "$SAID"
else
	say "no signatures are made: minisign is not installed"
fi

# The release's own installer knows all it needs, and other shells run it.
write_installer "$WORK/www/good" "http://127.0.0.1:$PORT/good"
for shell in bash dash "busybox sh"; do
	has_tool "${shell%% *}" || continue
	rm -rf "$PREFIX"
	# shellcheck disable=SC2086 # A shell is a word or two.
	curl -fsSL "http://127.0.0.1:$PORT/good/install.sh" | PREFIX=$PREFIX $shell >/dev/null
	[ -x "$PREFIX/bin/leap" ] || die "$shell installed nothing"
done
install_from good --uninstall
[ "$CODE" -eq 0 ] || die "$SAID"
[ -z "$(find "$PREFIX" -type f)" ] || die "uninstalling left $(find "$PREFIX" -type f)"
install_from good --uninstall
[[ $CODE = 1 && $SAID == "install.sh: there is no $PREFIX/bin/leap" ]] || die "$SAID"
say "installed, refused, interrupted, removed"
