//! The first node's state machine: the epoch, the members, and the notices to the user.

use super::{Blame, Notice, Notices, Patience, Phase, Roll, Setbacks, Ups};
use crate::wire::frame::Reason;
use crate::wire::hello::Name;

/// After this long without a complete group the user is told, and again after the same time.
const WAITING_US: u64 = 3_000_000;

/// A group that made no progress for longer than allowed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Overdue {
    /// The limit in seconds.
    pub(crate) seconds: u64,
    /// Object of the wait, in words.
    pub(crate) what: String,
}

/// A group as its first node sees it.
pub(crate) struct Membership {
    epoch: u32,
    pub(crate) phase: Phase,
    was_open: bool,
    /// Time of the last reopening; `None` if that one was requested.
    reopened_us: Option<u64>,
    roll: Roll,
    patience: Patience,
    blame: Blame,
    /// The last notice of missing nodes, and the time when the user got it.
    waiting: Option<(String, u64)>,
    pub(crate) setbacks: Setbacks,
    notices: Notices,
}

impl Membership {
    /// A group of the nodes on `roll`, which is opened in `epoch`. `limit_us` limits the time without progress.
    pub(crate) fn new(epoch: u32, roll: Roll, limit_us: Option<u64>) -> Membership {
        Membership {
            epoch,
            phase: Phase::Opening(0),
            was_open: false,
            reopened_us: None,
            roll,
            patience: Patience::new(limit_us),
            blame: Blame::default(),
            waiting: None,
            setbacks: Setbacks::default(),
            notices: Notices::new(),
        }
    }

    /// The current epoch, open or not.
    pub(crate) fn epoch(&self) -> u32 {
        self.epoch
    }

    /// Whether batches flow.
    pub(crate) fn is_open(&self) -> bool {
        matches!(self.phase, Phase::Open)
    }

    /// Whether an opening is in progress.
    pub(crate) fn is_opening(&self) -> bool {
        matches!(self.phase, Phase::Opening(_))
    }

    /// Whether batches flow, or did at any time before.
    pub(crate) fn was_open(&self) -> bool {
        self.was_open
    }

    // Epochs

    /// Begins the next epoch. If the last one began less than `gap_us` ago, it is opened only after `gap_us`: a group
    /// that breaks at once must not be reopened in a tight loop.
    pub(crate) fn restart(&mut self, now: u64, gap_us: u64) {
        self.epoch = self.epoch.wrapping_add(1);
        self.patience.reopened(now);
        let is_recent = self.reopened_us.is_some_and(|at| now < at + gap_us);
        self.phase = Phase::Opening(if is_recent { now + gap_us } else { now });
        self.setbacks.openings_put_off += u64::from(is_recent);
        self.reopened_us = Some(now);
    }

    /// Notes that all nodes are ready.
    pub(crate) fn opened(&mut self, now: u64) {
        self.patience.opened(now);
        self.blame.clear();
        self.waiting = None;
    }

    /// Notes that batches flow. Returns whether they flowed before.
    pub(crate) fn begin(&mut self) -> bool {
        self.phase = Phase::Open;
        std::mem::replace(&mut self.was_open, true)
    }

    /// Notes that the nodes get other parts on request. The group did not break, so it is opened at once, even soon
    /// after the last opening.
    pub(crate) fn assigned(&mut self, now: u64) {
        self.patience.assigned(now);
        self.roll.forget_packing();
        self.reopened_us = None;
    }

    /// Replaces the nodes by those on `roll`, from the next epoch on.
    pub(crate) fn admit(&mut self, roll: Roll) {
        self.roll = roll;
        self.patience = self.patience.renewed();
        self.blame.clear();
        self.waiting = None;
    }

    // Failures

    /// Counts a failure. It stays the cause until the group is whole, unless an earlier failure is the cause.
    pub(crate) fn trouble(&mut self, what: impl FnOnce() -> String) {
        self.setbacks.failures += 1;
        self.blame.trouble(what);
    }

    /// Whether the group has failed and is not whole again.
    pub(crate) fn is_troubled(&self) -> bool {
        self.blame.is_troubled()
    }

    /// Notes a node that does not fit, which may be why others are missing. Returns `true` if this is new.
    pub(crate) fn refuse(&mut self, what: String) -> bool {
        self.blame.refuse(what)
    }

    /// Name and address of a node, if known.
    pub(crate) fn label(&self, index: usize) -> Option<String> {
        self.roll.label(index)
    }

    /// Name and address of the last node, if known.
    pub(crate) fn last_label(&self) -> Option<String> {
        self.roll.label(self.roll.last()?)
    }

    // Progress

    /// Changes the limit of the time without progress.
    pub(crate) fn limit(&mut self, limit_us: Option<u64>) {
        self.patience.limit(limit_us);
    }

    /// Extends the deadlines by the `us` in which this node was away and could hear no progress.
    pub(crate) fn pause(&mut self, us: u64) {
        self.patience.pause(us);
    }

    /// Notes that a wait for nodes failed. The next wait gets the full time again.
    pub(crate) fn give_up(&mut self, now: u64) {
        self.patience.assigned(now);
    }

    /// Restarts the deadline: the group is idle, or waits for something else than before.
    pub(crate) fn rest(&mut self, now: u64) {
        self.patience.rest(now);
    }

    /// Notes that nodes are missing. This restarts the deadline, but not again once the group has opened and begun a
    /// batch that is not answered.
    pub(crate) fn waits(&mut self, now: u64) {
        self.patience.waits(now);
    }

    /// Notes that a batch begins. The deadline starts, unless an earlier batch is unanswered.
    pub(crate) fn begins_batch(&mut self, now: u64) {
        self.patience.begins(now);
    }

    /// Notes that a batch was answered.
    pub(crate) fn answered(&mut self, now: u64) {
        self.blame.clear();
        self.roll.forget_packing();
        if self.patience.answered(now) {
            self.tell(Notice::GoesOn);
        }
    }

    /// Notes that rows of earlier batches were recomputed: progress if there are more than in any epoch since the last
    /// answer.
    pub(crate) fn replayed(&mut self, now: u64, n_rows: usize) {
        self.patience.replayed(now, n_rows);
    }

    /// Takes a message that a node repeats.
    pub(crate) fn hear(&mut self, now: u64, name: &Name, reason: Reason) {
        if self.roll.hear(now, name, reason) {
            self.patience.rest(now);
        }
    }

    /// The limit in whole seconds, if it has passed without progress.
    pub(crate) fn overdue(&self, now: u64) -> Option<u64> {
        self.patience.overdue(now)
    }

    /// The failure if the limit has passed; `ups` are the links while an opening is in progress.
    pub(crate) fn failure(&self, now: u64, ups: Option<Ups>) -> Option<Overdue> {
        let seconds = self.patience.overdue(now)?;
        let what = self.roll.what(now, ups, self.blame.what());
        let what = match self.blame.refusal() {
            Some(refusal) => format!("{what}; {refusal}"),
            None => what,
        };
        Some(Overdue { seconds, what })
    }

    // Notices to the user

    /// Queues the notice about the wait, if one is due; `ups` are the links while an opening is in progress.
    pub(crate) fn look(&mut self, now: u64, ups: Option<Ups>) {
        let notice = match ups {
            Some(ups) => self.missed(now, ups),
            None if self.is_troubled() => None,
            None => self.patience.stalls(now).map(|seconds| {
                let what = self.roll.what(now, None, None);
                Notice::Stalled { seconds, what }
            }),
        };
        notice.into_iter().for_each(|notice| self.tell(notice));
    }

    fn missed(&mut self, now: u64, ups: Ups) -> Option<Notice> {
        let is_early = match &self.waiting {
            Some((_, told_us)) => now < told_us + WAITING_US,
            None => self.patience.closed_for(now) < WAITING_US,
        };
        if is_early {
            return None;
        }
        let what = self.roll.what(now, Some(ups), self.blame.what());
        let is_new = self.waiting.as_ref().is_none_or(|(told, _)| *told != what);
        self.waiting = Some((what.clone(), now));
        let missing = self.roll.missing_names(now, ups);
        is_new.then_some(Notice::Waiting { what, missing })
    }

    /// Queues `notice` for the user, unless it equals the last one.
    pub(crate) fn tell(&mut self, notice: Notice) {
        self.notices.tell(notice);
    }

    /// Takes the next notice for the user.
    pub(crate) fn notice(&mut self) -> Option<Notice> {
        self.notices.next()
    }

    /// Heap bytes of the notices, without the names in them.
    #[cfg(test)]
    pub(crate) fn heap_bytes(&self) -> usize {
        self.notices.heap_bytes()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::group::Expected;
    use crate::wire::hello::name;

    const S: u64 = 1_000_000;
    const NONE: Ups = Ups { next: false, prev: false };
    const BOTH: Ups = Ups { next: true, prev: true };

    fn group(n: usize) -> Membership {
        let node = |i: usize| Expected { name: format!("n{i}"), at: format!("10.0.0.{i}:9999") };
        Membership::new(0, Roll::new((0..n).map(node).collect(), n), Some(120 * S))
    }

    fn told(group: &mut Membership, now: u64) -> Option<Notice> {
        group.look(now, None);
        group.notice()
    }

    fn waiting(group: &mut Membership, now: u64, ups: Ups) -> Option<String> {
        group.look(now, Some(ups));
        match group.notice() {
            Some(Notice::Waiting { what, .. }) => Some(what),
            None => None,
            notice => panic!("{notice:?}"),
        }
    }

    #[test]
    fn a_missing_node_is_named() {
        let mut group = group(4);
        group.rest(0);
        assert_eq!(waiting(&mut group, 2 * S, NONE), None);
        let said = waiting(&mut group, 3 * S, NONE).unwrap();
        let all = "waiting for n1 (10.0.0.1:9999), n3 (10.0.0.3:9999); \
                   not heard of so far: n2 (10.0.0.2:9999)";
        assert_eq!(said, all);
        assert_eq!(waiting(&mut group, 7 * S, NONE), None);
        let next = Ups { next: true, prev: false };
        let said = waiting(&mut group, 10 * S, next).unwrap();
        assert!(said.starts_with("waiting for n3 (10.0.0.3:9999); not heard"), "{said}");
        group.hear(13 * S, &name("n3"), Reason::Missing(0));
        let said = waiting(&mut group, 13 * S, BOTH).unwrap();
        assert_eq!(said, "waiting for n2 (10.0.0.2:9999)");
        // A single report expires unless it is repeated.
        assert_eq!(waiting(&mut group, 17 * S, BOTH).unwrap(), "not all nodes answer");
        let failure = group.failure(121 * S, Some(next)).unwrap();
        assert!(
            failure.seconds == 120 && failure.what.contains("n3 (10.0.0.3:9999)"),
            "{failure:?}"
        );
    }

    #[test]
    fn a_last_node_that_stays_silent_is_named_where_more_may_join() {
        let expected =
            |i: usize| Expected { name: format!("n{i}"), at: format!("10.0.0.{i}:9999") };
        let missing = |roll: Roll| {
            let mut group = Membership::new(0, roll, Some(120 * S));
            group.hear(9 * S, &name("n1"), Reason::Packing(1));
            group.look(10 * S, Some(Ups { next: true, prev: false }));
            match group.notice() {
                Some(Notice::Waiting { what, missing }) => (what, missing),
                notice => panic!("{notice:?}"),
            }
        };
        let open = || Roll::new((0..3).map(expected).collect(), 64);
        let (what, names) = missing(open().whole());
        assert_eq!(
            (what.as_str(), &names[..]),
            ("waiting for n2 (10.0.0.2:9999)", &["n2".to_owned()][..])
        );
        // Unless all nodes are known beforehand, the last one has no name.
        assert_eq!(missing(open()), ("waiting for the last node".to_owned(), Vec::new()));
    }

    #[test]
    fn a_node_that_answers_and_does_not_compute_is_named() {
        let mut group = group(3);
        group.opened(0);
        assert_eq!(told(&mut group, 9 * S), None);
        group.hear(9 * S, &name("n1"), Reason::Busy(6));
        group.hear(9 * S, &name("n2"), Reason::Busy(8));
        let what = "n2 has been computing for 8 s".to_owned();
        assert_eq!(told(&mut group, 10 * S), Some(Notice::Stalled { seconds: 10, what }));
        assert_eq!(told(&mut group, 50 * S), None);
        // The node was only slow. An equally slow batch is not reported again.
        group.answered(60 * S);
        assert_eq!(group.notice(), Some(Notice::GoesOn));
        assert_eq!(told(&mut group, 110 * S), None);
        group.answered(115 * S);
        assert_eq!(group.notice(), None);
        assert_eq!(group.failure(235 * S, None), None);
        group.hear(235 * S, &name("n1"), Reason::Busy(118));
        let failure = group.failure(236 * S, None).unwrap();
        assert!(failure.what.contains("n1 has been computing for 118 s"), "{failure:?}");
    }

    #[test]
    fn a_node_that_computes_for_another_master_is_told_once() {
        let mut group = group(3);
        let told = (0..60).filter_map(|second| {
            group.hear(second * S, &name("n1"), Reason::Busy(100 + second as u32));
            waiting(&mut group, second * S, BOTH)
        });
        assert_eq!(told.collect::<Vec<_>>(), ["waiting for n1, which still computes"]);
    }

    #[test]
    fn a_place_that_waits_for_its_team_is_named() {
        let mut group = group(3);
        group.patience.reopened(0);
        group.hear(3 * S, &name("n1"), Reason::Incomplete);
        let said = waiting(&mut group, 3 * S, BOTH).unwrap();
        assert_eq!(said, "waiting for n1, which waits for a board of its team");
        assert_eq!(waiting(&mut group, 7 * S, BOTH).unwrap(), "not all nodes answer");
        let failure = group.failure(121 * S, Some(BOTH));
        assert!(failure.is_some(), "it is no progress");
    }

    #[test]
    fn a_node_that_gets_on_with_packing_is_waited_for() {
        let mut group = group(3);
        group.patience.reopened(0);
        for percent in 0..=100 {
            group.hear(percent * 100 * S, &name("n1"), Reason::Packing(percent as u32));
            assert_eq!(group.failure(percent * 100 * S + 99 * S, Some(BOTH)), None);
        }
        let said = waiting(&mut group, 10_000 * S, BOTH).unwrap();
        assert_eq!(said, "waiting for n1, which packs its weights");
        // A node that always reports the same percentage makes no progress.
        let lost = (10_000..).find(|&second| {
            group.hear(second * S, &name("n1"), Reason::Packing(100));
            group.failure(second * S, Some(BOTH)).is_some()
        });
        assert_eq!(lost, Some(10_121));
    }

    #[test]
    fn a_ring_that_opens_again_and_again_makes_no_progress() {
        let mut group = group(3);
        group.answered(0);
        // Every ten seconds the ring is opened, replays twenty rows, and breaks.
        let lost = (1..).map(|i| i * 10 * S).find(|&now| {
            group.patience.reopened(now);
            group.opened(now);
            group.replayed(now + S, 20);
            group.failure(now + 2 * S, None).is_some()
        });
        assert_eq!(lost, Some(130 * S));
        // A ring that gets further each time is only slow.
        group.answered(200 * S);
        for i in 0..100 {
            let now = 200 * S + i * 100 * S;
            group.patience.reopened(now);
            group.replayed(now, 20 + i as usize);
            assert_eq!(group.failure(now + S, None), None);
        }
    }

    #[test]
    fn a_group_that_was_given_up_is_waited_for_as_long_again() {
        let mut group = group(2);
        group.waits(0);
        group.opened(S);
        group.begins_batch(2 * S);
        // The batch is lost again and again.
        for second in 3..=130 {
            group.waits(second * S);
            group.opened(second * S);
            group.begins_batch(second * S);
        }
        assert_eq!(group.overdue(130 * S), Some(120));
        group.give_up(130 * S);
        group.waits(1000 * S);
        assert_eq!(group.overdue(1120 * S), None);
        assert_eq!(group.overdue(1121 * S), Some(120));
    }

    #[test]
    fn zero_waits_for_ever_and_says_for_whom() {
        let mut group = Membership::new(0, Roll::new(Vec::new(), 64), None);
        assert_eq!(group.failure(u64::MAX, Some(NONE)), None);
        let said = waiting(&mut group, 3 * S, Ups { next: true, prev: false });
        assert_eq!(said.unwrap(), "waiting for the last node");
    }
}
