//! Events of links and frames of other nodes that break the ring, or mend it.

use super::{Asked, Master, Nodes};
use crate::group::Notice;
use crate::ring::error::nameless_refusal;
use crate::ring::{Event, Link, Misfits, NodeLine, Reason, RingError, Setbacks, Side};
use crate::wire::frame::BoardsReport;
use crate::wire::hello::Name;

impl Master {
    pub(super) fn take_events(&mut self, now: u64, link: &mut impl Link) {
        while let Some(event) = link.next_event() {
            match event {
                Event::Up(side) => {
                    let name = self.neighbour(side);
                    if self.group.is_troubled() && self.group.is_open() {
                        self.group.tell(Notice::Back(name));
                    }
                }
                Event::Silent(side) => {
                    let name = self.neighbour(side);
                    self.trouble(&name);
                    self.group.tell(Notice::Silent(name));
                }
                Event::Reset(side) => {
                    let name = self.neighbour(side);
                    self.reset(now, name);
                }
                Event::Refused { what, is_final: true } if !self.group.was_open() => {
                    match self.options.misfits {
                        Misfits::End => self.failure = Some(RingError::Refused(what)),
                        // A board that changes over refuses once or twice. If it goes on, this is why it is missing.
                        Misfits::Wait | Misfits::LeaveOut => drop(self.group.refuse(what)),
                    }
                }
                Event::Refused { what, .. } => {
                    self.group.refuse(what.clone());
                    self.group.tell(Notice::Refused(what));
                }
            }
        }
    }

    /// Handles nodes that answer but form no ring. No setting of a ring that was open has changed: another
    /// node answers, or a node came back with other settings. This may pass, so OPEN is sent again.
    pub(super) fn does_not_fit(&mut self, error: RingError) {
        if let RingError::Node { line } = &error
            && self.leaves_out(line)
        {
            // It is asked again until the ring is another one, or the node.
            let (name, why) = (line.name.as_str().to_owned(), nameless_refusal(line));
            if self.group.refuse(why.clone()) {
                self.group.tell(Notice::Unfit { name, why });
            }
            return;
        }
        if !self.group.was_open() || self.nodes.asked != Asked::Nothing {
            self.failure = Some(error);
            return;
        }
        let what = error.to_string();
        if self.group.refuse(what.clone()) {
            self.group.tell(Notice::Refused(what));
        }
    }

    /// The name of a neighbour, as far as it is known.
    fn neighbour(&self, side: Side) -> String {
        let (line, label, unknown) = match side {
            Side::Next => (self.nodes.lines.get(1), self.group.label(1), "the next node"),
            Side::Prev => (self.nodes.lines.last(), self.group.last_label(), "the last node"),
        };
        let name = line.map(|line| line.name.as_str().to_owned());
        name.or(label).unwrap_or_else(|| unknown.to_owned())
    }

    /// Whether this node, which cannot take its part, will be left out. A node that only cannot take other layers keeps
    /// its place with the former ones.
    fn leaves_out(&self, line: &NodeLine) -> bool {
        self.options.misfits == Misfits::LeaveOut
            && self.nodes.asked != Asked::Layers
            && line.name != self.options.line.name
    }

    /// Records a failure of the node called `name`, which is to blame until the ring is whole.
    pub(super) fn trouble(&mut self, name: &str) {
        self.group.trouble(|| format!("nothing is heard of {name}"));
    }

    /// A place that is a team says what its boards do.
    pub(super) fn hear_of_boards(&mut self, report: BoardsReport) {
        let Nodes { lines, reports, .. } = &mut self.nodes;
        match reports.iter_mut().find(|known| known.name == report.name) {
            Some(known) => *known = report,
            None => {
                reports.push(report);
                let is_node = |name: &Name| lines.iter().any(|line| line.name == *name);
                reports.retain(|report| is_node(&report.name));
            }
        }
    }

    /// Latest reports of places that are teams; some may have left the ring.
    pub(crate) fn reports(&self) -> &[BoardsReport] {
        &self.nodes.reports
    }

    /// Counts of what the ring lost or put off.
    pub(crate) fn setbacks(&self) -> &Setbacks {
        &self.group.setbacks
    }

    pub(super) fn down(&mut self, now: u64, reporter: &str, reason: Reason) {
        let index = self.nodes.lines.iter().position(|line| line.name == reporter);
        let before = index.and_then(|index| self.nodes.lines.get(index.checked_sub(1)?));
        let name = before.map_or("a node", |line| line.name.as_str()).to_owned();
        match reason {
            Reason::Silent => {
                self.trouble(&name);
                self.group.tell(Notice::Silent(name));
            }
            Reason::Back => self.group.tell(Notice::Back(name)),
            Reason::Reset => self.reset(now, name),
            Reason::Lost => {
                self.group.trouble(|| format!("{reporter} begins anew"));
                self.group.tell(Notice::Anew(reporter.to_owned()));
                self.reopen(now);
            }
            // Reasons that a node repeats only extend the master's wait.
            _ => {}
        }
    }
}
