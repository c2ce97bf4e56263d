//! What links and other nodes say that breaks the ring, or mends it.

use super::Master;
use crate::ring::moving::Phase;
use crate::ring::{Event, Link, NodeLine, Notice, Reason, RingError, Side};

impl Master {
    pub(super) fn take_events(&mut self, now: u64, link: &mut impl Link) {
        while let Some(event) = link.next_event() {
            match event {
                Event::Up(side) => {
                    let name = self.neighbour(side);
                    if self.patience.is_troubled() && matches!(self.phase, Phase::Open) {
                        self.tell(Notice::Back(name));
                    }
                }
                Event::Silent(side) => {
                    let name = self.neighbour(side);
                    self.trouble(&name);
                    self.tell(Notice::Silent(name));
                }
                Event::Reset(side) => {
                    let name = self.neighbour(side);
                    self.reset(now, name);
                }
                Event::Refused { what, is_final: true } if !self.was_open => {
                    self.failure = Some(RingError::Refused(what));
                }
                Event::Refused { what, .. } => {
                    self.patience.refuse(what.clone());
                    self.tell(Notice::Refused(what));
                }
            }
        }
    }

    /// The name of a neighbour, as far as it is known.
    fn neighbour(&self, side: Side) -> String {
        let (line, label, unknown) = match side {
            Side::Next => (self.lines.get(1), self.patience.label(1), "the next node"),
            Side::Prev => {
                let last = self.patience.last().and_then(|last| self.patience.label(last));
                (self.lines.last(), last, "the last node")
            }
        };
        let name = line.map(|line| line.name.as_str().to_owned());
        name.or(label).unwrap_or_else(|| unknown.to_owned())
    }

    /// Whether this node, which cannot take its part of a ring that was never open, is left out by somebody.
    pub(super) fn leaves_out(&self, line: &NodeLine) -> bool {
        self.options.leaves_out && !self.was_open && line.name != self.options.line.name
    }

    pub(super) fn down(&mut self, now: u64, reporter: &str, reason: Reason) {
        let index = self.lines.iter().position(|line| line.name == reporter);
        let before = index.and_then(|index| self.lines.get(index.checked_sub(1)?));
        let name = before.map_or("a node", |line| line.name.as_str()).to_owned();
        match reason {
            Reason::Silent => {
                self.trouble(&name);
                self.tell(Notice::Silent(name));
            }
            Reason::Back => self.tell(Notice::Back(name)),
            Reason::Reset => self.reset(now, name),
            Reason::Lost => {
                self.patience.blame(|| format!("{reporter} begins anew"));
                self.tell(Notice::Anew(reporter.to_owned()));
                self.reopen(now);
            }
            // What is said again and again is the patience's.
            _ => {}
        }
    }
}
