//! The sensors that LEAP knows, and which of them a machine has.

use super::pmic::Pmic;
use super::rails::{self, Rails};
use super::rapl::{self, Rapl};
use super::totals::{Sample, WATTS_MAX};
use crate::sys::tree::Tree;

/// A sensor of the machine.
pub struct Sensor {
    name: String,
    kind: SensorKind,
}

enum SensorKind {
    Rails(Rails),
    Pmic(Pmic),
    Rapl(Rapl),
}

/// A sensor that this user may not read.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LockedSensor {
    /// The sensor's name, and the users that may read it.
    pub text: String,
    /// The command that lets this user read it.
    pub mend: String,
}

impl Sensor {
    /// The sensor that sees most of the machine below `tree`, if there is one that answers.
    pub fn find(tree: &Tree) -> Option<Sensor> {
        let rails = |(name, rails): (String, Rails)| (name, SensorKind::Rails(rails));
        let ina3221 = || rails::ina3221(tree).map(rails);
        let pmic = || {
            Pmic::find(tree)
                .map(|pmic| ("Raspberry Pi 5's PMIC".to_owned(), SensorKind::Pmic(pmic)))
        };
        let rapl = || Rapl::find(tree).map(|(name, rapl)| (name, SensorKind::Rapl(rapl)));
        let hwmon = || rails::hwmon(tree).map(rails);
        let kinds: [&dyn Fn() -> Option<(String, SensorKind)>; 4] =
            [&ina3221, &pmic, &rapl, &hwmon];
        kinds.iter().find_map(|kind| {
            let (name, kind) = kind()?;
            let mut sensor = Sensor { name, kind };
            sensor.sample().map(|_| sensor)
        })
    }

    /// The measured part of the machine, in a few words.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Whether the sensor counts energy by itself.
    pub(super) fn is_counter(&self) -> bool {
        matches!(self.kind, SensorKind::Rapl(_))
    }

    /// The reading; `None` if the sensor is gone, or gives an impossible value.
    pub(super) fn sample(&mut self) -> Option<Sample> {
        let watts = match &mut self.kind {
            SensorKind::Rapl(rapl) => return rapl.joules().map(Sample::Joules),
            SensorKind::Rails(rails) => rails.watts()?,
            SensorKind::Pmic(pmic) => pmic.watts()?,
        };
        (0.0..=WATTS_MAX).contains(&watts).then_some(Sample::Watts(watts))
    }
}

/// A sensor below `tree` that only other users may read.
pub fn locked(tree: &Tree) -> Option<LockedSensor> {
    if Pmic::is_locked(tree) {
        return Some(LockedSensor {
            text: "the PMIC tells watts to the group video alone".to_owned(),
            mend: "sudo usermod -aG video $USER  # and log in again".to_owned(),
        });
    }
    let file = rapl::locked_file(tree)?;
    Some(LockedSensor {
        text: "RAPL counts energy for root alone".to_owned(),
        mend: format!(
            "sudo chgrp leap /{file} && sudo chmod g+r /{file}  # at each start: 70-leap-power.rules of \
             LEAP's package"
        ),
    })
}
