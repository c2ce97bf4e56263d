//! Energy of answers.

use crate::format::json::JsonObject;
use crate::sys::power::{Meter, PowerReading, Spent};

/// Reads the meter while answers are computed.
pub(super) struct EnergyWatch<'a> {
    meter: &'a Meter,
    begin: Option<PowerReading>,
    /// The reading when the first tokens appeared, and their number.
    first: Option<(Option<PowerReading>, usize)>,
}

/// Energy of answers; `None` where it is unknown.
#[derive(Clone, Copy, Default)]
pub(super) struct AnswerEnergy {
    /// Energy of prompts and answers.
    pub(super) all: Option<Spent>,
    /// Energy up to the first token.
    prompt: Option<Spent>,
    /// Energy after the first tokens, and the number of these.
    generated: Option<(Spent, usize)>,
}

impl<'a> EnergyWatch<'a> {
    pub(super) fn begin(meter: &'a Meter) -> EnergyWatch<'a> {
        meter.set_working(true);
        EnergyWatch { meter, begin: meter.read(), first: None }
    }

    /// True until a token has been seen.
    pub(super) fn awaits_tokens(&self) -> bool {
        self.first.is_none()
    }

    /// Notes the number of tokens so far; the first ones end the prompt's part.
    pub(super) fn see(&mut self, n_tokens: usize) {
        if n_tokens > 0 {
            self.first = Some((self.meter.read(), n_tokens));
        }
    }

    pub(super) fn end(self) -> AnswerEnergy {
        let end = self.meter.read();
        self.meter.set_working(false);
        let between = |from: Option<PowerReading>, to: Option<PowerReading>| to?.since(&from?);
        let first = self.first.and_then(|(reading, _)| reading);
        let n_first = self.first.map_or(0, |(_, n)| n);
        AnswerEnergy {
            all: between(self.begin, end),
            prompt: between(self.begin, first),
            generated: between(first, end).map(|spent| (spent, n_first)),
        }
    }
}

impl AnswerEnergy {
    /// Energy of each of an answer's `n` tokens, the first ones left out.
    fn joules_per_token(&self, n: usize) -> Option<f64> {
        let (spent, n_first) = self.generated?;
        let n = n.checked_sub(n_first).filter(|&n| n > 0)?;
        Some(spent.joules / n as f64)
    }

    /// Part of the line of figures of an answer of `n` tokens: `; 4.9 W, 0.310 J a token`.
    pub(super) fn words(&self, n: usize) -> String {
        let Some(spent) = self.generated.map(|(spent, _)| spent).or(self.all) else {
            return String::new();
        };
        let joules = self.joules_per_token(n);
        let joules =
            joules.map_or(String::new(), |joules| format!(", {} J a token", shown(joules)));
        format!("; {:.1} W{joules}", spent.watts())
    }

    /// Adds the energy to the figures of an answer of `n` tokens, with the name of the `sensor`.
    pub(super) fn add_to(&self, object: JsonObject, n: usize, sensor: &str) -> JsonObject {
        let Some(all) = self.all else { return object };
        let object = object.string("power_sensor", sensor).number("watts", all.watts());
        let object = object.number("joules", all.joules);
        let joules = |part: Option<Spent>| part.map_or(f64::NAN, |spent| spent.joules);
        object
            .number("prompt_joules", joules(self.prompt))
            .number("generated_joules", joules(self.generated.map(|(spent, _)| spent)))
            .number("joules_per_token", self.joules_per_token(n).unwrap_or(f64::NAN))
    }
}

/// A token's energy with about three significant digits.
pub(super) fn shown(joules: f64) -> String {
    match joules {
        10.0.. => format!("{joules:.1}"),
        0.1.. => format!("{joules:.3}"),
        _ => format!("{joules:.5}"),
    }
}
