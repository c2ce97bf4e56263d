//! Changes of a ring's layers that its users ask for while it works.

use std::io::ErrorKind;
use std::ops::Range;
use std::thread;
use std::time::Instant;

use super::mailbox::Mailbox;
use super::moves::Moves;
use super::seen::Seen;
use crate::control::server::Say;
use crate::control::{Refusal, WORD_EVERY};
use crate::ring::plan::Objective;
use crate::wire::frame::NodeLine;

/// Smallest gain for which the layers move, as a ratio.
const WORTH_IT: f64 = 1.02;

/// A node's name, and its layers.
pub(crate) type Part = (String, Range<usize>);

/// Result of a request for the best layers.
pub(crate) enum Replanned {
    /// The layers are the best already.
    Stays(Vec<Part>),
    /// Layers have moved, with this gain as a ratio: infinite if the ring could not work before.
    Moved(f64, Vec<Part>),
}

impl Mailbox {
    /// Watches for a moment: returns the tokens a second, by the count that `tokens` reads, and the state.
    pub(crate) fn watch(&self, tokens: impl Fn(&Seen) -> u64) -> (f64, Seen) {
        let look = || self.ask(&mut |_| Err(ErrorKind::TimedOut.into()));
        let first = look();
        let from = Instant::now();
        thread::sleep(WORD_EVERY / 2);
        match (first, look()) {
            (Ok(first), Ok(seen)) => {
                let n = tokens(&seen).saturating_sub(tokens(&first));
                (n as f64 / from.elapsed().as_secs_f64(), seen)
            }
            _ => (0.0, self.seen()),
        }
    }
}

impl Moves {
    /// Gives the nodes these layers; every node must get some. Returns the layers of each node.
    ///
    /// # Errors
    /// If the nodes cannot have these layers.
    pub(crate) fn resize(&self, given: &[Part], say: Say<'_>) -> Result<Vec<Part>, Refusal> {
        let seen = self.mailbox.seen();
        let layers = in_order(&seen.lines, given).map_err(|why| Refusal { code: 2, why })?;
        self.split(&seen, layers, say)
    }

    /// Gives the nodes the layers that are best for `objective`.
    ///
    /// # Errors
    /// If a node is a team, whose layers stay, or if the nodes cannot have the layers.
    pub(crate) fn replan(&self, objective: Objective, say: Say<'_>) -> Result<Replanned, Refusal> {
        let seen = self.mailbox.ask(say)?;
        if let Some(team) = seen.lines.iter().find(|line| line.nodes > 1) {
            let name = &team.name;
            let why = format!(
                "{name} is a team, whose layers stay: give the others theirs with `leap ring resize`"
            );
            return Err(Refusal { code: 2, why });
        }
        let better = self.best(&seen, objective)?;
        if better.gain < WORTH_IT {
            return Ok(Replanned::Stays(seen.layers()));
        }
        Ok(Replanned::Moved(better.gain, self.take(&seen, &better, say)?))
    }
}

/// The layers that each of the nodes is given, in the order of the ring.
fn in_order(lines: &[NodeLine], given: &[Part]) -> Result<Vec<Range<usize>>, String> {
    if lines.is_empty() {
        return Err("the ring has not been open yet".to_owned());
    }
    if let Some((name, _)) = given.iter().find(|(name, _)| lines.iter().all(|l| l.name != **name)) {
        let names: Vec<&str> = lines.iter().map(|line| line.name.as_str()).collect();
        return Err(format!("there is no {name} in the ring: it has {}", names.join(", ")));
    }
    let of = |line: &NodeLine| {
        let mut own = given.iter().filter(|(name, _)| line.name == **name);
        match (own.next(), own.next()) {
            (Some((_, layers)), None) => Ok(layers.clone()),
            (None, _) => Err(format!("{} gets no layers: name all nodes", line.name)),
            (Some(_), Some(_)) => Err(format!("{} is named twice", line.name)),
        }
    };
    lines.iter().map(of).collect()
}
