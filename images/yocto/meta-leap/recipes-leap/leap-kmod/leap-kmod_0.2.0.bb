SUMMARY = "LEAP activation transport"
DESCRIPTION = "Kernel module that receives activations of LEAP's rings and hands them over through shared memory."
SECTION = "kernel/modules"
LICENSE = "GPL-2.0-only"
LIC_FILES_CHKSUM = "file://LICENSE-GPL-2.0;md5=b234ee4d69f5fce4486a80fdaf4a4263"

FILESEXTRAPATHS:prepend := "${LEAP_TREE}:"
SRC_URI = "file://kmod"

S = "${LEAP_UNPACKDIR}/kmod"

inherit module

do_install:append() {
    install -d ${D}${nonarch_base_libdir}/udev/rules.d ${D}${sysconfdir}/modprobe.d
    install -m 0644 ${S}/dist/*.rules ${D}${nonarch_base_libdir}/udev/rules.d/
    install -m 0644 ${S}/dist/leap.conf ${D}${sysconfdir}/modprobe.d/
}

FILES:${PN} += "${nonarch_base_libdir}/udev/rules.d ${sysconfdir}/modprobe.d"
RPROVIDES:${PN} += "kernel-module-leap-transport"
KERNEL_MODULE_AUTOLOAD += "leap_transport"
