//! Options with a newer form. They work as before; `leap help compatibility` lists them, and `--help` does
//! not.

/// An option that is not in the help of its command.
pub(super) struct Older {
    pub(super) option: &'static str,
    /// Its successor.
    pub(super) instead: &'static str,
}

const fn older(option: &'static str, instead: &'static str) -> Older {
    Older { option, instead }
}

/// Options that name boards, and what does so by now.
pub(super) const PLACES: &[Older] = &[
    older("--role", "leap master, leap worker"),
    older("--ring", "--boards FILE, whose lines have layers"),
    older("--split", "--boards FILE --node NAME"),
    older("--end", "--boards FILE --node NAME"),
    older("--next-host", "--boards FILE --node NAME"),
    older("--next-port", "--boards FILE --node NAME"),
    older("--give", "--boards, which gives layers to boards without a model file"),
    older("--fetch", "--boards FILE --node NAME --key KEY, without a model file"),
    older("--join", "leap worker --key KEY"),
];

/// An option that is a setting of the machine: a variable of the environment says it once for all runs.
pub(super) struct Setting {
    pub(super) option: &'static str,
    pub(super) variable: &'static str,
    /// Its meaning in a few words.
    pub(super) brief: &'static str,
    /// An option that sets the same in another way, or excludes it: if it is given, the variable does not
    /// count.
    pub(super) rival: &'static str,
}

const fn setting(
    (option, variable): (&'static str, &'static str),
    rival: &'static str,
    brief: &'static str,
) -> Setting {
    Setting { option, variable, brief, rival }
}

/// Options of `run` and `serve` that are settings. In /etc/leap/leap.conf they have the variable's name without `LEAP_`.
pub(super) const SETTINGS: &[Setting] = &[
    setting(
        ("--busy-poll", "LEAP_BUSY_POLL"),
        "",
        "microseconds to look for datagrams before sleeping (50)",
    ),
    setting(("--drain-s", "LEAP_DRAIN_S"), "", "serve: seconds for answers under way when it ends"),
    setting(("--huge", "LEAP_HUGE"), "", "weights in huge pages: auto, on or off"),
    setting(
        ("--objective", "LEAP_OBJECTIVE"),
        "--team",
        "latency, throughput, energy or memory (with --boards)",
    ),
    setting(
        ("--power-cmd", "LEAP_POWER_CMD"),
        "--watts",
        "command that prints the watts taken, a line each",
    ),
    setting(
        ("--ring-timeout", "LEAP_RING_TIMEOUT"),
        "",
        "seconds without progress of a ring (120; 0: any)",
    ),
    setting(
        ("--stall-ms", "LEAP_STALL_MS"),
        "",
        "serve: longest that a prompt holds up other answers",
    ),
    setting(
        ("--watts", "LEAP_WATTS"),
        "--power-cmd",
        "IDLE,BUSY: what the machine takes, unmeasured",
    ),
];

/// Whether the help of this command leaves the option out.
pub(super) fn is_older(command: &str, option: &str) -> bool {
    let is_place = PLACES.iter().any(|older| older.option == option);
    let is_setting = SETTINGS.iter().any(|setting| setting.option == option);
    matches!(command, "run" | "serve") && (is_place || is_setting)
}

/// Successor of `--team` with a file, which is no option of its own.
pub(super) const TEAM_FILE: Older = older("--team FILE", "--boards FILE, whose lines have shares");

/// How a file of boards is written.
pub(super) const BOARDS_FILE: &str = "A file of --boards has a line for each board, this one's master first: a name, an \
     address, and layers (`pi 10.0.0.2 6..12`: a ring), or a share (`pi 10.0.0.2 20`: a team), or neither \
     (`pi 10.0.0.2`: the boards are called, and the master finds out). A file's name has a / or a dot in it.";
