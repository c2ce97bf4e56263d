SUMMARY = "What a board of a LEAP ring has"
DESCRIPTION = "Program, kernel module, and the tool that sets network devices for low latency."

# The program's package depends on the machine.
PACKAGE_ARCH = "${MACHINE_ARCH}"

inherit packagegroup

RDEPENDS:${PN} = " \
    ${VIRTUAL-RUNTIME_leap} \
    leap-kmod \
"
RRECOMMENDS:${PN} = "ethtool"
