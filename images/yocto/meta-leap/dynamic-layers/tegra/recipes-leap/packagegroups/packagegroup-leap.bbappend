# Power modes: `nvpmodel -m 0` switches all cores on.
RRECOMMENDS:${PN}:append:tegra = " tegra-nvpmodel"
