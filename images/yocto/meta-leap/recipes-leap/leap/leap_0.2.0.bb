# From source, offline: every crate is named in leap-crates.inc and fetched beforehand.
require leap.inc
require leap-crates.inc

SRC_URI += "\
    file://Cargo.toml;subdir=${BP} \
    file://Cargo.lock;subdir=${BP} \
    file://src;subdir=${BP} \
    file://crates;subdir=${BP} \
    file://benches;subdir=${BP} \
    file://images/common/leap-tune;subdir=${BP} \
"

inherit cargo

# All but the demo model.
CARGO_BUILD_FLAGS += "--no-default-features --features board --bin leap"
# As the profile `dist` of Cargo.toml has it; the class builds `release`.
export CARGO_PROFILE_RELEASE_LTO = "fat"
export CARGO_PROFILE_RELEASE_CODEGEN_UNITS = "1"

do_install:append() {
    leap_install_files
}

RCONFLICTS:${PN} = "leap-bin"
