# The static program that `scripts/build-board.sh ${LEAP_BOARD}` has put into out/.
require leap.inc

LEAP_BOARD ?= "qemu-virt"
LEAP_BOARD:x86-64 ?= "x86_64"
LEAP_BOARD:tegra234 ?= "jetson-orin"
LEAP_BOARD:rk3588 ?= "rk3588"
LEAP_BOARD:rk3588s ?= "rk3588"
LEAP_BOARD:rk3576 ?= "rk3576"
LEAP_BOARD:raspberrypi5 ?= "raspberrypi5"

FILESEXTRAPATHS:prepend := "${LEAP_TREE}/out/${LEAP_BOARD}:"
SRC_URI += "file://leap;subdir=${BP}"

do_configure[noexec] = "1"
do_compile[noexec] = "1"

do_install() {
    install -d ${D}${bindir}
    install -m 0755 ${S}/leap ${D}${bindir}/leap
    leap_install_files
}

RPROVIDES:${PN} = "leap"
RCONFLICTS:${PN} = "leap"
# Release builds are stripped by the compiler.
INSANE_SKIP:${PN} += "already-stripped"
# It was linked by rustc for any distribution, without this one's flags.
INSANE_SKIP:${PN} += "ldflags"
