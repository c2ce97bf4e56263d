include $(sort $(wildcard $(BR2_EXTERNAL_LEAP_PATH)/package/*/*.mk))
