################################################################################
#
# leap-kmod
#
################################################################################

LEAP_KMOD_VERSION = 0.2.0
LEAP_KMOD_SITE = $(BR2_EXTERNAL_LEAP_PATH)/../../kmod
LEAP_KMOD_SITE_METHOD = local
LEAP_KMOD_LICENSE = GPL-2.0

define LEAP_KMOD_INSTALL_TARGET_CMDS
	$(INSTALL) -D -m 0644 -t $(TARGET_DIR)/usr/lib/udev/rules.d $(@D)/dist/*.rules
	$(INSTALL) -D -m 0644 $(@D)/dist/leap.conf $(TARGET_DIR)/etc/modprobe.d/leap.conf
endef

$(eval $(kernel-module))
$(eval $(generic-package))
