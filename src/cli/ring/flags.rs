//! Values of options that concern the boards of a ring or a team.

use std::path::PathBuf;
use std::time::Duration;

use crate::fleet::settings::ControlPlace;
use crate::transport::carrier::Carrier;
use crate::wire::Dtype;

/// `auto`, `kernel`, `udp` or `tcp`.
pub(in crate::cli) fn transport(value: &str) -> Result<Carrier, String> {
    match value {
        "auto" => Ok(Carrier::Auto),
        "kernel" => Ok(Carrier::Kernel),
        "udp" => Ok(Carrier::Udp),
        "tcp" => Ok(Carrier::Tcp),
        _ => Err(format!("{value:?} is none of auto, kernel, udp and tcp")),
    }
}

/// `f16` or `f32`.
pub(in crate::cli) fn wire(value: &str) -> Result<Dtype, String> {
    match value {
        "f16" => Ok(Dtype::F16),
        "f32" => Ok(Dtype::F32),
        _ => Err(format!("{value:?} is neither f16 nor f32")),
    }
}

/// `auto`, `off` or a path.
pub(in crate::cli) fn control(value: &str) -> Result<ControlPlace, String> {
    match value {
        "" => Err("wanted a path, auto or off".to_owned()),
        "auto" => Ok(ControlPlace::Auto),
        "off" => Ok(ControlPlace::Off),
        path => Ok(ControlPlace::At(PathBuf::from(path))),
    }
}

/// Time for which a called board may be away before the others take its part: `off`, `None`, or seconds.
pub(in crate::cli) type RebalanceAfter = Option<Duration>;

/// `off`, or seconds.
pub(in crate::cli) fn rebalance_after(value: &str) -> Result<RebalanceAfter, String> {
    match (value, value.parse()) {
        ("off", _) => Ok(None),
        (_, Ok(seconds @ 1..=86400)) => Ok(Some(Duration::from_secs(seconds))),
        _ => Err(format!("{value:?} is neither off nor a number of seconds from 1 to 86400")),
    }
}

/// Time for which a master waits for progress: the given seconds, else the `usual` time. 0 seconds give `None`: for ever.
pub(in crate::cli) fn timeout(seconds: Option<u64>, usual: Option<Duration>) -> Option<Duration> {
    match seconds {
        Some(0) => None,
        Some(seconds) => Some(Duration::from_secs(seconds)),
        None => usual,
    }
}
