SUMMARY = "A board that joins a LEAP ring at boot"
DESCRIPTION = "Set the role in /etc/leap/leap.conf and the boards in /etc/leap/ring.conf; the model goes to /var/lib/leap."
LICENSE = "MIT"

inherit core-image

IMAGE_FEATURES += "ssh-server-dropbear"
IMAGE_INSTALL += "packagegroup-leap"
# Room for a model of 1 B parameters and its packed weights, in KiB.
IMAGE_ROOTFS_EXTRA_SPACE:append = " + 3145728"
