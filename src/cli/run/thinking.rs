//! A model's thoughts (`--think`): whether it has any, and whether they are shown.

use std::io::{self, IsTerminal};

use crate::cli::Failure;
use crate::tokenizer::{Part, ThoughtFilter, Thoughts};

/// Display of a model's thoughts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Think {
    /// Thoughts are shown, dimmed on a terminal.
    On,
    /// The model is to have none.
    Off,
    /// The model thinks, and its thoughts are not shown.
    Hide,
}

pub(super) fn parse(text: &str) -> Result<Think, String> {
    match text {
        "on" => Ok(Think::On),
        "off" => Ok(Think::Off),
        "hide" => Ok(Think::Hide),
        _ => Err("wanted on, off or hide".to_owned()),
    }
}

/// The meaning of `wanted` for a model that marks its thoughts so, if it has any. It may have at most that many `tokens`
/// of thoughts.
///
/// # Errors
/// If the model cannot do that.
pub(super) fn choose(
    (wanted, tokens): (Option<Think>, Option<usize>),
    thoughts: Option<Thoughts>,
) -> Result<Think, Failure> {
    let usage = |what: &str| Err(Failure::Usage(what.to_owned()));
    match (thoughts, wanted) {
        (None, _) if tokens.is_some() => {
            usage("--think-tokens: this model's template knows no thoughts")
        }
        (None, Some(_)) => usage("--think: this model's template knows no thoughts"),
        (Some(Thoughts::Channels), Some(Think::Off)) => {
            usage("--think off: this model always thinks; hide does not show it")
        }
        (_, Some(think)) => Ok(think),
        (Some(Thoughts::Channels), None) => Ok(Think::Hide),
        (_, None) => Ok(Think::On),
    }
}

/// Shows an answer as it comes, and keeps it without thoughts.
pub(super) struct Shown {
    filter: Option<ThoughtFilter>,
    shows_thoughts: bool,
    is_terminal: bool,
    is_silent: bool,
    /// The answer so far.
    pub(super) text: String,
}

impl Shown {
    /// Shows the answer of a model without thoughts; nothing if `is_silent`, where the answer goes into an object.
    pub(super) fn new(is_silent: bool) -> Shown {
        Shown {
            filter: None,
            shows_thoughts: false,
            is_terminal: io::stdout().is_terminal(),
            is_silent,
            text: String::new(),
        }
    }

    /// Separates thoughts from the answer.
    pub(super) fn with_thoughts(self, filter: Option<ThoughtFilter>, think: Think) -> Shown {
        Shown { filter, shows_thoughts: think == Think::On, ..self }
    }

    /// Adds text.
    pub(super) fn push(&mut self, text: &str, show: &dyn Fn(&str)) {
        let mut filter = self.filter.take();
        match &mut filter {
            Some(filter) => filter.push(text, &mut |part, text| self.take(part, text, show)),
            None => self.take(Part::Answer, text, show),
        }
        self.filter = filter;
    }

    /// Ends the text.
    pub(super) fn end(&mut self, show: &dyn Fn(&str)) {
        if let Some(mut filter) = self.filter.take() {
            filter.flush(&mut |part, text| self.take(part, text, show));
        }
    }

    fn take(&mut self, part: Part, text: &str, show: &dyn Fn(&str)) {
        match part {
            Part::Answer => self.text.push_str(text),
            Part::Thought | Part::Tag if self.shows_thoughts => {}
            _ => return,
        }
        match part {
            _ if self.is_silent => {}
            Part::Thought | Part::Tag if self.is_terminal => {
                show(&format!("\x1b[2m{text}\x1b[22m"))
            }
            _ => show(text),
        }
    }
}
