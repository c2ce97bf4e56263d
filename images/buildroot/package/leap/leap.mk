################################################################################
#
# leap
#
################################################################################

LEAP_VERSION = 0.2.0
# This tree stands inside LEAP's source.
LEAP_SITE = $(BR2_EXTERNAL_LEAP_PATH)/../common
LEAP_SITE_METHOD = local
LEAP_LICENSE = MIT or Apache-2.0

LEAP_PROGRAM = $(BR2_EXTERNAL_LEAP_PATH)/../../out/$(call qstrip,$(BR2_PACKAGE_LEAP_BOARD))/leap

define LEAP_INSTALL_TARGET_CMDS
	$(INSTALL) -D -m 0755 $(LEAP_PROGRAM) $(TARGET_DIR)/usr/bin/leap
	$(INSTALL) -D -m 0755 $(@D)/leap-node $(TARGET_DIR)/usr/lib/leap/leap-node
	$(INSTALL) -D -m 0755 $(@D)/leap-tune $(TARGET_DIR)/usr/sbin/leap-tune
	$(INSTALL) -D -m 0644 $(@D)/leap.conf $(TARGET_DIR)/etc/leap/leap.conf
	$(INSTALL) -D -m 0644 $(@D)/ring.conf $(TARGET_DIR)/etc/leap/ring.conf
	$(INSTALL) -D -m 0644 $(@D)/power.rules $(TARGET_DIR)/usr/lib/udev/rules.d/70-leap-power.rules
endef

define LEAP_INSTALL_INIT_SYSV
	$(INSTALL) -D -m 0755 $(@D)/init/leap $(TARGET_DIR)/etc/init.d/S60leap
endef

define LEAP_INSTALL_INIT_SYSTEMD
	$(INSTALL) -D -m 0644 -t $(TARGET_DIR)/usr/lib/systemd/system $(@D)/systemd/*
	$(INSTALL) -D -m 0644 $(@D)/tmpfiles.conf $(TARGET_DIR)/usr/lib/tmpfiles.d/leap.conf
endef

define LEAP_USERS
	leap -1 leap -1 * /var/lib/leap - - LEAP ring node
endef

$(eval $(generic-package))
