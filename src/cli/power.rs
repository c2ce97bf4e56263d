//! Sources of power figures: a sensor of the machine, `--power-cmd` or `--watts`.

use std::path::Path;
use std::sync::Arc;

use super::{Failure, warn};
use crate::fleet::settings::KnownFigures;
use crate::sys::power::{Meter, PowerSource, Sensor, WATTS_MAX};
use crate::sys::tree::Tree;

/// The machine's power as stated by the user.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct StatedWatts {
    pub(super) idle: f64,
    pub(super) busy: f64,
}

/// Figures of a machine whose power the user may have stated.
pub(super) fn known(stated: Option<StatedWatts>) -> KnownFigures {
    let milliwatts =
        stated.map(|StatedWatts { idle, busy }| ((idle * 1e3) as u32, (busy * 1e3) as u32));
    KnownFigures { milliwatts, ..KnownFigures::default() }
}

/// Parses `IDLE,BUSY`.
pub(super) fn stated(value: &str) -> Result<StatedWatts, String> {
    let watts = |text: &str| {
        text.trim().parse::<f64>().ok().filter(|watts| (0.0..=WATTS_MAX).contains(watts))
    };
    let both = value.split_once(',');
    match both.and_then(|(idle, busy)| Some((watts(idle)?, watts(busy)?))) {
        Some((idle, busy)) if idle <= busy => Ok(StatedWatts { idle, busy }),
        _ => Err(format!("{value:?} is not watts without work and with it, as in 3.5,9")),
    }
}

/// The machine's files, or those below `LEAP_SYSFS`, which can imitate any board.
pub(super) fn board() -> Result<Tree, Failure> {
    let Some(root) = std::env::var_os("LEAP_SYSFS").filter(|root| !root.is_empty()) else {
        return Ok(Tree::new(Path::new("/")));
    };
    match Path::new(&root) {
        root if root.is_dir() => Ok(Tree::new(root)),
        root => Err(Failure::Usage(format!("LEAP_SYSFS: there is no folder {}", root.display()))),
    }
}

/// Starts to add up the machine's energy; `None` if nothing measures its power.
pub(super) fn meter(
    command: Option<&str>,
    stated: Option<StatedWatts>,
) -> Result<Option<Arc<Meter>>, Failure> {
    let source = match (command, stated) {
        (Some(_), Some(_)) => {
            return Err(Failure::Usage("give --power-cmd or --watts, not both".to_owned()));
        }
        (Some(command), None) => PowerSource::Command(command.to_owned()),
        (None, Some(StatedWatts { idle, busy })) => PowerSource::Stated { idle, busy },
        (None, None) => match Sensor::find(&board()?) {
            Some(sensor) => PowerSource::Sensor(sensor),
            None => return Ok(None),
        },
    };
    match Meter::start(source) {
        Ok(meter) => Ok(Some(Arc::new(meter))),
        Err(e) => {
            warn(&format!("no figures of energy: {e}"));
            Ok(None)
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn stated_watts_are_two_numbers_of_a_machine() {
        assert_eq!(stated("3.5, 9"), Ok(StatedWatts { idle: 3.5, busy: 9.0 }));
        for bad in ["", "3", "9,3", "-1,2", "1,inf", "nan,2", "1,99999", "1,2,3", "1W,2W"] {
            assert!(stated(bad).is_err(), "{bad}");
        }
    }
}
