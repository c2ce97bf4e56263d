//! The nodes of a group, and its first node's view of each: whether it is missing, and what it does.

use crate::wire::frame::Reason;
use crate::wire::hello::Name;

/// A report that a node repeats is valid for this long.
const FRESH_US: u64 = 2_500_000;

/// A node that is known before it answers.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Expected {
    /// Name of the node.
    pub(crate) name: String,
    /// Address of the node, in words.
    pub(crate) at: String,
}

/// State of the first node's links in a ring.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Ups {
    /// Whether the link to the second node is up.
    pub(crate) next: bool,
    /// Whether the link from the last node is up.
    pub(crate) prev: bool,
}

/// Times and contents of a node's latest reports.
#[derive(Clone, Copy, Default)]
struct Said {
    /// Time of its report that the node before it is missing.
    missing_us: Option<u64>,
    /// Time of its report that it computes, and the seconds in it.
    busy: Option<(u64, u32)>,
    /// Time of its report that it waits for boards of its team.
    incomplete_us: Option<u64>,
}

/// A node that packs the weights of layers that are new to it.
struct NodePacking {
    name: Name,
    /// Highest percentage since the last answer.
    percent: u32,
    /// Time of its last report.
    heard_us: u64,
}

/// The nodes of a group, the first node first.
pub(crate) struct Roll {
    /// Nodes that are known beforehand.
    expected: Vec<Expected>,
    /// Most nodes that the group may have.
    n_nodes: usize,
    /// Whether `expected` has all nodes.
    is_whole: bool,
    /// Reports of each expected node.
    said: Vec<Said>,
    /// Nodes that pack weights, expected or not.
    packing: Vec<NodePacking>,
}

fn is_fresh(now: u64, at: Option<u64>) -> bool {
    at.is_some_and(|at| now < at + FRESH_US)
}

impl Roll {
    /// A roll of up to `n_nodes` nodes, of which the `expected` ones are known.
    pub(crate) fn new(expected: Vec<Expected>, n_nodes: usize) -> Roll {
        Roll {
            said: vec![Said::default(); expected.len()],
            packing: Vec::with_capacity(n_nodes),
            is_whole: expected.len() == n_nodes,
            expected,
            n_nodes,
        }
    }

    /// Declares that the group has just the expected nodes, although more may join later.
    pub(crate) fn whole(self) -> Roll {
        Roll { is_whole: true, ..self }
    }

    /// Name and address of a node, if known.
    pub(crate) fn label(&self, index: usize) -> Option<String> {
        let Expected { name, at } = self.expected.get(index)?;
        Some(format!("{name} ({at})"))
    }

    /// Index of the last node, if all nodes are known.
    pub(crate) fn last(&self) -> Option<usize> {
        self.is_whole.then(|| self.expected.len().saturating_sub(1))
    }

    /// Forgets the reports of packing.
    pub(crate) fn forget_packing(&mut self) {
        self.packing.clear();
    }

    /// Takes a message that a node repeats; `true` if it shows progress with packing weights.
    pub(crate) fn hear(&mut self, now: u64, name: &Name, reason: Reason) -> bool {
        if let Reason::Packing(percent) = reason {
            return self.hear_packing(now, name, percent.min(100));
        }
        let index = self.expected.iter().position(|node| node.name == name.as_str());
        let Some(said) = index.and_then(|index| self.said.get_mut(index)) else { return false };
        match reason {
            Reason::Missing(_) => said.missing_us = Some(now),
            Reason::Busy(seconds) => said.busy = Some((now, seconds)),
            Reason::Incomplete => said.incomplete_us = Some(now),
            _ => {}
        }
        false
    }

    fn hear_packing(&mut self, now: u64, name: &Name, percent: u32) -> bool {
        let n_known = self.packing.len();
        match self.packing.iter_mut().find(|packing| packing.name == *name) {
            Some(packing) => {
                let gets_on = percent > packing.percent;
                packing.percent = packing.percent.max(percent);
                packing.heard_us = now;
                gets_on
            }
            None if n_known < self.n_nodes => {
                self.packing.push(NodePacking { name: name.clone(), percent, heard_us: now });
                true
            }
            None => false,
        }
    }

    /// Names of the missing nodes, as many as are known.
    pub(crate) fn missing_names(&self, now: u64, ups: Ups) -> Vec<String> {
        let name = |index: usize| Some(self.expected.get(index)?.name.clone());
        self.missing(now, ups).0.into_iter().filter_map(name).collect()
    }

    /// Describes the object of the group's wait. `trouble` is the cause of a break; `ups` are the links while the group
    /// is not open.
    pub(crate) fn what(&self, now: u64, ups: Option<Ups>, trouble: Option<&str>) -> String {
        let missing = ups.map_or(String::new(), |ups| self.missing_words(now, ups));
        if !missing.is_empty() {
            return missing;
        }
        if let Some(trouble) = trouble {
            return trouble.to_owned();
        }
        let is_packing = |packing: &&NodePacking| is_fresh(now, Some(packing.heard_us));
        if let Some(packing) = self.packing.iter().find(is_packing) {
            return format!("waiting for {}, which packs its weights", packing.name);
        }
        let is_incomplete = |said: &Said| is_fresh(now, said.incomplete_us);
        if let Some(index) = self.said.iter().position(is_incomplete) {
            let name = &self.expected[index].name;
            return format!("waiting for {name}, which waits for a board of its team");
        }
        // Of several nodes that compute, the last one has the oldest batch.
        let busy = |said: &Said| said.busy.filter(|(at, _)| is_fresh(now, Some(*at)));
        let busy = self.said.iter().enumerate().rev().find_map(|(i, said)| Some((i, busy(said)?)));
        match (busy, ups) {
            // The seconds would not be updated, so the text has none.
            (Some((index, _)), Some(_)) => {
                format!("waiting for {}, which still computes", self.expected[index].name)
            }
            (Some((index, (_, seconds))), None) => {
                format!("{} has been computing for {seconds} s", self.expected[index].name)
            }
            (None, Some(_)) => "not all nodes answer".to_owned(),
            (None, None) => "all nodes answer, and none says that it computes".to_owned(),
        }
    }

    /// Indices of the missing nodes, and of those whose state is unknown.
    fn missing(&self, now: u64, ups: Ups) -> (Vec<usize>, Vec<usize>) {
        let is_packing = |name: &str| {
            let mut packing = self.packing.iter();
            packing.any(|packing| packing.name == name && is_fresh(now, Some(packing.heard_us)))
        };
        let is_last = |index: usize| Some(index) == self.last();
        let (mut missing, mut unheard) = (Vec::new(), Vec::new());
        for index in 1..self.expected.len() {
            let is_told =
                self.said.get(index + 1).is_some_and(|said| is_fresh(now, said.missing_us));
            let said = self.said[index];
            let is_heard = (index == 1 && ups.next)
                || (is_last(index) && ups.prev)
                || is_fresh(now, said.missing_us)
                || is_packing(&self.expected[index].name)
                || is_fresh(now, said.busy.map(|(at, _)| at));
            if is_told || (index == 1 && !ups.next) || (is_last(index) && !ups.prev) {
                missing.push(index);
            } else if !is_heard {
                unheard.push(index);
            }
        }
        (missing, unheard)
    }

    fn missing_words(&self, now: u64, ups: Ups) -> String {
        let names = |indices: &[usize]| -> String {
            let labels: Vec<String> = indices.iter().filter_map(|&i| self.label(i)).collect();
            labels.join(", ")
        };
        let (missing, unheard) = self.missing(now, ups);
        match (missing.is_empty(), self.last()) {
            (true, None) if !ups.prev => "waiting for the last node".to_owned(),
            (true, _) => String::new(),
            (false, _) if unheard.is_empty() => format!("waiting for {}", names(&missing)),
            (false, _) => {
                let (missing, unheard) = (names(&missing), names(&unheard));
                format!("waiting for {missing}; not heard of so far: {unheard}")
            }
        }
    }
}
