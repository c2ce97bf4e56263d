# The drivers of Rockchip's Ethernet, where the kernel has them as modules.
RRECOMMENDS:${PN}:append:rockchip = " kernel-module-dwmac-rk"
