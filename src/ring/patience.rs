//! How long a master has waited, and for whom.
//!
//! What counts is progress: batches that are answered. A ring that opens again and again, or whose
//! nodes all answer while none computes, makes none.

use super::{Member, Notice, Reason, RingError};
use crate::wire::hello::Name;

/// What a node says again and again is believed for so long.
const FRESH_US: u64 = 2_500_000;
/// A ring that is not complete for so long is told, and no more often.
const WAITING_US: u64 = 3_000_000;
/// A batch that takes so long is told; after that only one that takes twice as long.
const STALL_US: u64 = 10_000_000;

/// Which of a master's links are up.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Ups {
    pub(super) next: bool,
    pub(super) prev: bool,
}

/// What nodes have said of themselves.
#[derive(Clone, Copy, Default)]
struct Said {
    /// When that the node before is missing.
    missing_us: Option<u64>,
    /// When that it computes, and for how many seconds.
    busy: Option<(u64, u32)>,
    /// When that it waits for boards of its team.
    incomplete_us: Option<u64>,
}

/// A node that packs the weights of layers that are new to it.
struct NodePacking {
    name: Name,
    /// How far it was at most since the last answer.
    percent: u32,
    /// When it said so last.
    heard_us: u64,
}

/// What a master knows of the time that it waits. Times are microseconds.
pub(super) struct Patience {
    /// The members of the ring file, the master first; as far as they are known.
    members: Vec<Member>,
    n_nodes: usize,
    limit_us: Option<u64>,
    /// What each member said last.
    said: Vec<Said>,
    /// Whether they are members or not.
    packing: Vec<NodePacking>,
    /// The last progress, less the time that this node was away.
    since_us: u64,
    /// Rows that were replayed in this epoch, and in any since the last answer.
    replayed: (usize, usize),
    /// Whether the ring has become complete since the last answer.
    was_opened: bool,
    /// What broke the ring, and who did not fit meanwhile.
    trouble: Option<String>,
    refusal: Option<String>,
    /// Since when the ring is to be opened, less the time that this node was away.
    closed_us: u64,
    stall_us: u64,
    is_stalled: bool,
    /// What was told last of nodes that are missing, and when.
    waiting: Option<(String, u64)>,
}

impl Patience {
    pub(super) fn new(members: Vec<Member>, n_nodes: usize, limit_us: Option<u64>) -> Patience {
        Patience {
            said: vec![Said::default(); members.len()],
            packing: Vec::with_capacity(n_nodes),
            members,
            n_nodes,
            limit_us,
            since_us: 0,
            replayed: (0, 0),
            was_opened: false,
            trouble: None,
            refusal: None,
            closed_us: 0,
            stall_us: STALL_US,
            is_stalled: false,
            waiting: None,
        }
    }

    /// This node was away for so long: nobody could show progress.
    pub(super) fn pause(&mut self, us: u64) {
        self.since_us += us;
        self.closed_us += us;
    }

    /// Nothing is waited for.
    pub(super) fn rest(&mut self, now: u64) {
        self.since_us = now;
    }

    /// A batch was answered. Returns what the user should hear.
    pub(super) fn answered(&mut self, now: u64) -> Option<Notice> {
        let took_us = now.saturating_sub(self.since_us);
        (self.since_us, self.replayed, self.was_opened) = (now, (self.replayed.0, 0), false);
        (self.trouble, self.refusal) = (None, None);
        self.packing.clear();
        if !std::mem::take(&mut self.is_stalled) {
            return None;
        }
        self.stall_us = self.stall_us.max(2 * took_us);
        Some(Notice::GoesOn)
    }

    /// Rows of earlier batches were computed again: progress if there are more than ever since the last
    /// answer.
    pub(super) fn replayed(&mut self, now: u64, n_rows: usize) {
        let (rows, most) = &mut self.replayed;
        *rows += n_rows;
        if rows > most {
            (*most, self.since_us) = (*rows, now);
        }
    }

    /// The ring is complete: progress, but only once before the next answer.
    pub(super) fn opened(&mut self, now: u64) {
        if !std::mem::replace(&mut self.was_opened, true) {
            self.since_us = now;
        }
        (self.trouble, self.refusal, self.waiting) = (None, None, None);
    }

    /// The ring is to be opened again.
    pub(super) fn reopened(&mut self, now: u64) {
        (self.replayed.0, self.closed_us) = (0, now);
    }

    /// What broke the ring first, until it is whole.
    pub(super) fn blame(&mut self, what: impl FnOnce() -> String) {
        self.trouble.get_or_insert_with(what);
    }

    /// Someone does not fit, which may be why nodes are missing; `true` if that is new.
    pub(super) fn refuse(&mut self, what: String) -> bool {
        self.refusal.replace(what) != self.refusal
    }

    pub(super) fn is_troubled(&self) -> bool {
        self.trouble.is_some()
    }

    /// Name and address of a node, if they are known.
    pub(super) fn label(&self, index: usize) -> Option<String> {
        let member = self.members.get(index)?;
        Some(format!("{} ({})", member.name, member.address))
    }

    /// The last node as the ring file has it, if that has all.
    pub(super) fn last(&self) -> Option<usize> {
        (self.members.len() == self.n_nodes).then(|| self.n_nodes - 1)
    }

    /// The nodes get other layers, which is asked for and takes its time.
    pub(super) fn assigned(&mut self, now: u64) {
        (self.since_us, self.was_opened) = (now, false);
        self.packing.clear();
    }

    /// A node said something that it says again and again. One that gets on with packing its weights
    /// makes progress.
    pub(super) fn hear(&mut self, now: u64, name: &Name, reason: Reason) {
        if let Reason::Packing(percent) = reason {
            return self.hear_packing(now, name, percent.min(100));
        }
        let index = self.members.iter().position(|member| member.name == name.as_str());
        let Some(said) = index.and_then(|index| self.said.get_mut(index)) else { return };
        match reason {
            Reason::Missing => said.missing_us = Some(now),
            Reason::Busy(seconds) => said.busy = Some((now, seconds)),
            Reason::Incomplete => said.incomplete_us = Some(now),
            _ => {}
        }
    }

    fn hear_packing(&mut self, now: u64, name: &Name, percent: u32) {
        let n_known = self.packing.len();
        match self.packing.iter_mut().find(|packing| packing.name == *name) {
            Some(packing) if percent > packing.percent => {
                (packing.percent, packing.heard_us, self.since_us) = (percent, now, now);
            }
            Some(packing) => packing.heard_us = now,
            None if n_known < self.n_nodes => {
                self.packing.push(NodePacking { name: name.clone(), percent, heard_us: now });
                self.since_us = now;
            }
            None => {}
        }
    }

    /// Why the ring is lost, if it is.
    pub(super) fn failure(&self, now: u64, ups: Option<Ups>) -> Option<RingError> {
        let limit_us = self.limit_us?;
        let is_over = now.saturating_sub(self.since_us) > limit_us;
        let seconds = limit_us / 1_000_000;
        let what = || match &self.refusal {
            Some(refusal) => format!("{}; {refusal}", self.what(now, ups)),
            None => self.what(now, ups),
        };
        is_over.then(|| RingError::Timeout { seconds, what: what() })
    }

    /// What the user should hear of the waiting; `ups` in a ring that is not open.
    pub(super) fn notice(&mut self, now: u64, ups: Option<Ups>) -> Option<Notice> {
        let waited_us = now.saturating_sub(self.since_us);
        if ups.is_some() {
            let is_early = match &self.waiting {
                Some((_, told_us)) => now < told_us + WAITING_US,
                None => now.saturating_sub(self.closed_us) < WAITING_US,
            };
            if is_early {
                return None;
            }
            let what = self.what(now, ups);
            let is_new = self.waiting.as_ref().is_none_or(|(told, _)| *told != what);
            self.waiting = Some((what.clone(), now));
            let (missing, _) = self.missing(now, ups?);
            let name = |index: usize| Some(self.members.get(index)?.name.clone());
            let missing = missing.into_iter().filter_map(name).collect();
            return is_new.then_some(Notice::Waiting { what, missing });
        }
        if self.is_stalled || self.is_troubled() || waited_us < self.stall_us {
            return None;
        }
        self.is_stalled = true;
        Some(Notice::Stalled { seconds: waited_us / 1_000_000, what: self.what(now, ups) })
    }

    /// What is waited for.
    fn what(&self, now: u64, ups: Option<Ups>) -> String {
        let missing = ups.map_or(String::new(), |ups| self.missing_words(now, ups));
        if !missing.is_empty() {
            return missing;
        }
        if let Some(trouble) = &self.trouble {
            return trouble.clone();
        }
        let is_fresh = |packing: &&NodePacking| now < packing.heard_us + FRESH_US;
        if let Some(packing) = self.packing.iter().find(is_fresh) {
            return format!("waiting for {}, which packs its weights", packing.name);
        }
        let is_incomplete = |said: &Said| said.incomplete_us.is_some_and(|at| now < at + FRESH_US);
        if let Some(index) = self.said.iter().position(is_incomplete) {
            let name = &self.members[index].name;
            return format!("waiting for {name}, which waits for a board of its team");
        }
        // The last node of the ring has the oldest batch.
        let busy = |said: &Said| said.busy.filter(|(at, _)| now < at + FRESH_US);
        let busy = self.said.iter().enumerate().rev().find_map(|(i, said)| Some((i, busy(said)?)));
        match (busy, ups) {
            // Said once, so it counts no seconds.
            (Some((index, _)), Some(_)) => {
                format!("waiting for {}, which still computes", self.members[index].name)
            }
            (Some((index, (_, seconds))), None) => {
                format!("{} has been computing for {seconds} s", self.members[index].name)
            }
            (None, Some(_)) => "not all nodes answer".to_owned(),
            (None, None) => "all nodes answer, and none says that it computes".to_owned(),
        }
    }

    /// The nodes that are not there, and those of which nothing can be known.
    fn missing(&self, now: u64, ups: Ups) -> (Vec<usize>, Vec<usize>) {
        let is_fresh = |at: Option<u64>| at.is_some_and(|at| now < at + FRESH_US);
        let is_packing = |name: &str| {
            let mut packing = self.packing.iter();
            packing.any(|packing| packing.name == name && is_fresh(Some(packing.heard_us)))
        };
        let n = self.members.len();
        let is_last = |index: usize| Some(index) == self.last();
        let (mut missing, mut unheard) = (Vec::new(), Vec::new());
        for index in 1..n {
            let is_told = self.said.get(index + 1).is_some_and(|said| is_fresh(said.missing_us));
            let said = self.said[index];
            let is_heard = (index == 1 && ups.next)
                || (is_last(index) && ups.prev)
                || is_fresh(said.missing_us)
                || is_packing(&self.members[index].name)
                || is_fresh(said.busy.map(|(at, _)| at));
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ring::Topology;
    use crate::wire::hello::name;

    const S: u64 = 1_000_000;
    const NONE: Ups = Ups { next: false, prev: false };
    const BOTH: Ups = Ups { next: true, prev: true };

    fn patience(n: usize) -> Patience {
        let line = |i: usize| format!("n{i} 10.0.0.{i} {i}..{}\n", i + 1);
        let text: String = (0..n).map(line).collect();
        Patience::new(Topology::parse(&text).unwrap().members().to_vec(), n, Some(120 * S))
    }

    fn waiting(patience: &mut Patience, now: u64, ups: Ups) -> Option<String> {
        match patience.notice(now, Some(ups)) {
            Some(Notice::Waiting { what, .. }) => Some(what),
            None => None,
            notice => panic!("{notice:?}"),
        }
    }

    #[test]
    fn who_is_missing_is_named() {
        let mut patience = patience(4);
        patience.rest(0);
        assert_eq!(waiting(&mut patience, 2 * S, NONE), None);
        let said = waiting(&mut patience, 3 * S, NONE).unwrap();
        let all = "waiting for n1 (10.0.0.1:9999), n3 (10.0.0.3:9999); \
                   not heard of so far: n2 (10.0.0.2:9999)";
        assert_eq!(said, all);
        assert_eq!(waiting(&mut patience, 7 * S, NONE), None);
        let next = Ups { next: true, prev: false };
        let said = waiting(&mut patience, 10 * S, next).unwrap();
        assert!(said.starts_with("waiting for n3 (10.0.0.3:9999); not heard"), "{said}");
        patience.hear(13 * S, &name("n3"), Reason::Missing);
        let said = waiting(&mut patience, 13 * S, BOTH).unwrap();
        assert_eq!(said, "waiting for n2 (10.0.0.2:9999)");
        // Said once; nobody repeats it.
        assert_eq!(waiting(&mut patience, 17 * S, BOTH).unwrap(), "not all nodes answer");
        let failure = patience.failure(121 * S, Some(next)).unwrap().to_string();
        assert!(failure.contains("120 s") && failure.contains("n3 (10.0.0.3:9999)"), "{failure}");
    }

    #[test]
    fn a_node_that_answers_and_does_not_compute_is_named() {
        let mut patience = patience(3);
        patience.opened(0);
        assert_eq!(patience.notice(9 * S, None), None);
        patience.hear(9 * S, &name("n1"), Reason::Busy(6));
        patience.hear(9 * S, &name("n2"), Reason::Busy(8));
        let what = "n2 has been computing for 8 s".to_owned();
        assert_eq!(patience.notice(10 * S, None), Some(Notice::Stalled { seconds: 10, what }));
        assert_eq!(patience.notice(50 * S, None), None);
        // It was only slow. As slow again is no news.
        assert_eq!(patience.answered(60 * S), Some(Notice::GoesOn));
        assert_eq!(patience.notice(110 * S, None), None);
        assert_eq!(patience.answered(115 * S), None);
        assert_eq!(patience.failure(235 * S, None), None);
        patience.hear(235 * S, &name("n1"), Reason::Busy(118));
        let failure = patience.failure(236 * S, None).unwrap().to_string();
        assert!(failure.contains("n1 has been computing for 118 s"), "{failure}");
    }

    #[test]
    fn a_node_that_computes_for_another_master_is_told_once() {
        let mut patience = patience(3);
        let told = (0..60).filter_map(|second| {
            patience.hear(second * S, &name("n1"), Reason::Busy(100 + second as u32));
            waiting(&mut patience, second * S, BOTH)
        });
        assert_eq!(told.collect::<Vec<_>>(), ["waiting for n1, which still computes"]);
    }

    #[test]
    fn a_place_that_waits_for_its_team_is_named() {
        let mut patience = patience(3);
        patience.reopened(0);
        patience.hear(3 * S, &name("n1"), Reason::Incomplete);
        let said = waiting(&mut patience, 3 * S, BOTH).unwrap();
        assert_eq!(said, "waiting for n1, which waits for a board of its team");
        assert_eq!(waiting(&mut patience, 7 * S, BOTH).unwrap(), "not all nodes answer");
        let failure = patience.failure(121 * S, Some(BOTH));
        assert!(failure.is_some(), "it is no progress");
    }

    #[test]
    fn a_node_that_gets_on_with_packing_is_waited_for() {
        let mut patience = patience(3);
        patience.reopened(0);
        for percent in 0..=100 {
            patience.hear(percent * 100 * S, &name("n1"), Reason::Packing(percent as u32));
            assert_eq!(patience.failure(percent * 100 * S + 99 * S, Some(BOTH)), None);
        }
        let said = waiting(&mut patience, 10_000 * S, BOTH).unwrap();
        assert_eq!(said, "waiting for n1, which packs its weights");
        // One that says the same for ever gets nowhere.
        let lost = (10_000..).find(|&second| {
            patience.hear(second * S, &name("n1"), Reason::Packing(100));
            patience.failure(second * S, Some(BOTH)).is_some()
        });
        assert_eq!(lost, Some(10_121));
    }

    #[test]
    fn a_ring_that_opens_again_and_again_makes_no_progress() {
        let mut patience = patience(3);
        patience.answered(0);
        // Every ten seconds it is opened, replays twenty rows, and breaks.
        let lost = (1..).map(|i| i * 10 * S).find(|&now| {
            patience.reopened(now);
            patience.opened(now);
            patience.replayed(now + S, 20);
            patience.failure(now + 2 * S, None).is_some()
        });
        assert_eq!(lost, Some(130 * S));
        // One that gets further each time is only slow.
        patience.answered(200 * S);
        for i in 0..100 {
            let now = 200 * S + i * 100 * S;
            patience.reopened(now);
            patience.replayed(now, 20 + i as usize);
            assert_eq!(patience.failure(now + S, None), None);
        }
    }

    #[test]
    fn zero_waits_for_ever_and_says_for_whom() {
        let mut patience = Patience::new(Vec::new(), 64, None);
        assert_eq!(patience.failure(u64::MAX, Some(NONE)), None);
        let said = waiting(&mut patience, 3 * S, Ups { next: true, prev: false });
        assert_eq!(said.unwrap(), "waiting for the last node");
    }
}
