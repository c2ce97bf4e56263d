//! A running master's answers to `leap ring`.

use std::io::ErrorKind;

use super::events::layers as words;
use super::{status, team};
use crate::cli::{Failure, options, warn};
use crate::control::Refusal;
use crate::control::place::{self, SocketFile};
use crate::control::server::{self, Say, Service};
use crate::engine::Engine;
use crate::fleet::master::Led;
use crate::fleet::moves::Moves;
use crate::fleet::requests::{Part, Replanned};
use crate::fleet::settings::{ControlPlace, Settings};
use crate::ring::plan::Objective;

/// A master that can be asked, and looks after its boards by itself. Dropping it removes its socket.
pub(in crate::cli) struct Control {
    led: Led,
    _file: Option<SocketFile>,
}

impl Control {
    /// Lets users of this machine ask the master of these boards.
    pub(super) fn start(settings: &Settings, led: &Led) -> Result<Control, Failure> {
        let objective = settings.wishes.objective;
        let file = listen(settings, Answers { led: led.clone(), objective })?;
        Ok(Control { led: led.clone(), _file: file })
    }

    /// Does what clients ask for. The engine's thread calls this between two steps.
    pub(in crate::cli) fn visit(&self, engine: &mut Engine) {
        self.led.visit(engine);
    }
}

/// Answers at the socket that the settings name.
fn listen(settings: &Settings, answers: Answers) -> Result<Option<SocketFile>, Failure> {
    let path = match &settings.control {
        ControlPlace::Off => None,
        ControlPlace::At(path) => Some(path.clone()),
        ControlPlace::Auto => place::own(),
    };
    let Some(path) = path else { return Ok(None) };
    let started = place::listen(&path).and_then(|(listener, file)| {
        server::start(listener, answers)?;
        Ok(file)
    });
    let shown = path.display();
    let why = match started {
        Ok(file) => {
            log::debug!("leap ring asks at {shown}");
            return Ok(Some(file));
        }
        Err(e) if e.kind() == ErrorKind::AddrInUse => format!("{shown} is in use"),
        Err(e) => format!("cannot listen on {shown}: {e}"),
    };
    match settings.control {
        ControlPlace::At(_) => Err(Failure::Runtime(format!("--control: {why}"))),
        _ => {
            warn(&format!("`leap ring` will not reach this master: {why}"));
            Ok(None)
        }
    }
}

/// Answers requests.
struct Answers {
    led: Led,
    /// Objective of the ring, unless a request names another.
    objective: Objective,
}

impl Service for Answers {
    fn answer(&self, request: &str, say: Say<'_>) -> Result<String, Refusal> {
        let mut words = request.split(' ');
        match (words.next(), words.next(), words.next(), self.led.moves()) {
            (Some("status"), form, None, moves) => {
                let (status, is_json) = (self.led.status(), form == Some("json"));
                Ok(match (moves, is_json) {
                    (Some(_), true) => status::json(&status),
                    (Some(_), false) => status::text(&status),
                    (None, true) => team::json(&status),
                    (None, false) => team::text(&status),
                })
            }
            (.., None) => {
                let why = "this is the lead of a team, whose boards share every layer: it has no \
                           layers to move";
                Err(refusal(2, why.to_owned()))
            }
            (Some("resize"), Some(layers), None, Some(moves)) => resize(moves, layers, say),
            (Some("replan"), None, None, Some(moves)) => replan(moves, self.objective, say),
            (Some("replan"), Some(name), None, Some(moves)) => {
                let objective = options::objective(name).map_err(|why| refusal(2, why))?;
                replan(moves, objective, say)
            }
            _ => Err(refusal(2, "this master knows status, resize and replan".to_owned())),
        }
    }
}

fn refusal(code: u8, why: String) -> Refusal {
    Refusal { code, why }
}

/// Gives the nodes the layers that a request names.
fn resize(moves: &Moves, layers: &str, say: Say<'_>) -> Result<String, Refusal> {
    let given = layers.split(',').map(part).collect::<Result<Vec<_>, String>>();
    let given = given.map_err(|why| refusal(2, why))?;
    Ok(words(&moves.resize(&given, say)?) + "\n")
}

/// Gives the nodes the layers that are best for `objective`.
fn replan(moves: &Moves, objective: Objective, say: Say<'_>) -> Result<String, Refusal> {
    Ok(match moves.replan(objective, say)? {
        Replanned::Stays(parts) => format!("nothing moves: {}\n", words(&parts)),
        Replanned::Moved(gain, parts) if gain.is_finite() => {
            format!("{:.0} % better: {}\n", (gain - 1.0) * 1e2, words(&parts))
        }
        Replanned::Moved(_, parts) => words(&parts) + "\n",
    })
}

/// Parses a node's name and layers, as in `desk=0..10`.
fn part(text: &str) -> Result<Part, String> {
    let read = || {
        let (name, layers) = text.split_once('=')?;
        let (start, end) = layers.split_once("..")?;
        Some((name.to_owned(), start.parse().ok()?..end.parse().ok()?))
    };
    read().ok_or_else(|| format!("{text:?} is no NAME=FIRST..END, as in desk=0..10,pi=10..22"))
}
