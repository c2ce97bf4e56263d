//! Looks after the boards of a running ring or team: leaves out a board that is away, takes in a board that came, and
//! moves parts of the model to boards that turn out to be faster.

use std::io;
use std::thread;
use std::time::{Duration, Instant};

use super::events::{Event, Shape, Teller};
use super::interrupt::is_interrupted;
use super::members::only;
use super::watch::{Act, WORTH_IT, Watch};
use crate::ring::plan::Board;

/// The boards that were called, and for each whether it answers.
pub(super) type Looked = (Vec<Board>, Vec<bool>);

/// Another plan, and how many times better than the current one it is.
pub(super) struct Better<P> {
    pub(super) gain: f64,
    /// The plan, or the reason why there is none.
    pub(super) plan: Result<P, String>,
}

/// Times of a comparison, since the keeper began.
pub(super) struct Times {
    pub(super) now: Duration,
    /// Observations from before this time are outdated.
    pub(super) known_since: Duration,
}

/// The parts of a model that boards have, and how they change.
pub(super) trait Parts: Send + 'static {
    /// Another assignment of parts.
    type Plan;

    /// The kind of division: ring or team.
    const SHAPE: Shape;

    /// Checks which of the boards answer, this board first; `None` if none were called.
    fn look(&mut self) -> Option<Looked>;

    /// Names of the boards that have a part.
    fn nodes(&self) -> Vec<String>;

    /// True if enough is known to judge what another board would add.
    fn is_known(&self) -> bool;

    /// The best parts for these boards, this one first. The gain is infinite if any plan is better than the present
    /// one.
    fn plan(&mut self, there: &[Board]) -> Better<Self::Plan>;

    /// The best parts if one of these boards got no part before. A board that turned out to be slow is as slow again.
    fn plan_again(&mut self, there: &[Board]) -> Better<Self::Plan>;

    /// Other parts for the boards that are `there`, by speeds observed since the last look; `None` if there is nothing
    /// to compare.
    fn compare(&mut self, there: &[Board], times: Times) -> Option<Better<Self::Plan>>;

    /// Puts the plan into effect.
    ///
    /// # Errors
    /// The reason why it failed, in words.
    fn take(&mut self, plan: Self::Plan) -> Result<(), String>;

    /// The reason why the board of this name did not serve when it last answered.
    fn idle(&self, name: &str) -> Option<String>;

    /// Leaves out the board of this name: it has no part any more.
    fn set_aside(&self, name: &str);

    /// Notes that the board of this name is there and has no part, and why.
    fn spare(&self, name: &str, why: &str);

    /// Tells the board of this name that it has no part: it may still follow an order from before it went away.
    fn rest(&self, name: &str);

    /// Starts the next comparison at this moment.
    fn compare_from_now(&mut self);
}

/// Looks after `parts` as long as the process lives; the first plan considered the boards `considered`. A board's
/// state, or a better plan, must last for the time `after` before anything changes.
///
/// # Errors
/// If the system refuses a thread.
pub(super) fn start<P: Parts>(
    parts: P,
    considered: Vec<String>,
    after: Duration,
    events: Teller,
) -> io::Result<()> {
    let watch = Watch::new(after, considered);
    let keeper = Keeper { parts, watch, began: Instant::now(), events, told: None };
    thread::Builder::new().name("leap-watch".to_owned()).spawn(move || keeper.keep())?;
    Ok(())
}

/// Carries out what the watch decides.
struct Keeper<P> {
    parts: P,
    watch: Watch,
    began: Instant,
    /// Receives reports.
    events: Teller,
    /// The reported reason why an action failed; `None` if it did not.
    told: Option<String>,
}

impl<P: Parts> Keeper<P> {
    fn keep(mut self) {
        let every = self.watch.period();
        let mut compared = Instant::now();
        while !is_interrupted() {
            thread::sleep(every);
            if let Some(there) = self.look_after_boards()
                && compared.elapsed() >= self.watch.after()
            {
                compared = Instant::now();
                self.compare(&there);
            }
        }
    }

    /// Takes boards in and leaves them out. Returns the boards that are there if no action was due and all boards with
    /// a part are there; an empty list if boards were not called; else `None`.
    fn look_after_boards(&mut self) -> Option<Vec<Board>> {
        let Some((boards, is_there)) = self.parts.look() else { return Some(Vec::new()) };
        let seen: Vec<(&str, bool)> =
            boards.iter().map(|board| board.name.as_str()).zip(is_there.iter().copied()).collect();
        let nodes = self.parts.nodes();
        let act = self.watch.see(self.began.elapsed(), &seen, &nodes);
        let are_there = nodes.iter().all(|name| seen.contains(&(name.as_str(), true)));
        let there = only(boards, &is_there);
        match act {
            Act::Nothing => return are_there.then_some(there),
            Act::Without(name) => {
                let (plan, idle) = (self.parts.plan(&there).plan, self.parts.idle(&name));
                let idle = idle.as_deref();
                self.take(plan, &Event::Gone { name: &name, idle, shape: P::SHAPE });
                if self.told.is_none() {
                    self.parts.set_aside(&name);
                    // The board may be back before the next look, which then takes it for one that came.
                    self.watch.forget(&name);
                }
            }
            // A ring that was never open has no times to judge by: later.
            Act::With(name) | Act::WithAgain(name) if !self.parts.is_known() => {
                self.watch.forget(&name);
            }
            Act::With(name) => {
                let better = self.parts.plan(&there);
                self.take_in(&name, better);
            }
            Act::WithAgain(name) => {
                let better = self.parts.plan_again(&there);
                if self.take_in(&name, better) {
                    self.watch.moved(self.began.elapsed());
                    self.parts.compare_from_now();
                }
            }
        }
        None
    }

    /// Takes in the board of this name, if that is an improvement; true if it was and is done.
    fn take_in(&mut self, name: &str, Better { gain, plan }: Better<P::Plan>) -> bool {
        if plan.is_ok() && gain < WORTH_IT {
            self.parts.rest(name);
            let percent = ((gain - 1.0) * 1e2).max(0.0);
            let why = format!(
                "it has no layers: the ring would be {percent:.0} % better with it, a tenth is wanted"
            );
            self.parts.spare(name, &why);
            self.told = None;
            return false;
        }
        self.take(plan, &Event::Came { name, shape: P::SHAPE });
        let Some(why) = &self.told else { return true };
        self.parts.spare(name, &format!("it has no part yet: {why}"));
        // Try again later.
        self.watch.forget(name);
        false
    }

    /// Takes another plan if it has been better for long enough, by speeds observed since the last look.
    fn compare(&mut self, there: &[Board]) {
        let now = self.began.elapsed();
        let times = Times { now, known_since: self.watch.known_since(now) };
        let Some(Better { gain, plan }) = self.parts.compare(there, times) else { return };
        log::debug!("another plan would be {gain:.2} times as good");
        if self.watch.compare(now, gain) {
            self.take(plan, &Event::Better { gain, shape: P::SHAPE });
            self.watch.moved(now);
            self.parts.compare_from_now();
        }
    }

    /// Takes a plan for the reason that `event` gives; reports once why that fails.
    fn take(&mut self, plan: Result<P::Plan, String>, event: &Event<'_>) {
        let result = plan.and_then(|plan| {
            if self.told.is_none() {
                self.events.tell(event);
            }
            self.parts.take(plan)
        });
        let why = result.err();
        if let Some(why) = &why
            && self.told.as_ref() != Some(why)
        {
            self.events.tell(&Event::Stays { why, shape: P::SHAPE });
        }
        self.told = why;
    }
}

#[cfg(test)]
mod tests {
    use std::cell::RefCell;
    use std::sync::Arc;

    use super::super::events::Deaf;
    use super::super::sample::board;
    use super::*;

    /// A ring of desk and pi. Its plans give every board that is there a part.
    #[derive(Default)]
    struct Desk {
        nodes: Vec<String>,
        is_pi_there: bool,
        gain: f64,
        /// Why pi has no part, as the user hears it.
        spare: RefCell<String>,
    }

    impl Parts for Desk {
        type Plan = Vec<String>;
        const SHAPE: Shape = Shape::Ring;

        fn look(&mut self) -> Option<Looked> {
            Some((["desk", "pi"].map(board).to_vec(), vec![true, self.is_pi_there]))
        }

        fn nodes(&self) -> Vec<String> {
            self.nodes.clone()
        }

        fn is_known(&self) -> bool {
            true
        }

        fn plan(&mut self, there: &[Board]) -> Better<Vec<String>> {
            let names = there.iter().map(|board| board.name.clone()).collect();
            Better { gain: self.gain, plan: Ok(names) }
        }

        fn plan_again(&mut self, there: &[Board]) -> Better<Vec<String>> {
            self.plan(there)
        }

        fn compare(&mut self, _: &[Board], _: Times) -> Option<Better<Vec<String>>> {
            None
        }

        fn take(&mut self, plan: Vec<String>) -> Result<(), String> {
            self.nodes = plan;
            Ok(())
        }

        fn idle(&self, _: &str) -> Option<String> {
            None
        }

        fn set_aside(&self, _: &str) {}

        fn spare(&self, name: &str, why: &str) {
            *self.spare.borrow_mut() = format!("{name}: {why}");
        }

        fn rest(&self, _: &str) {}

        fn compare_from_now(&mut self) {}
    }

    /// The keeper of desk and pi, which acts at once.
    fn keeper() -> Keeper<Desk> {
        let nodes = vec!["desk".to_owned(), "pi".to_owned()];
        let watch = Watch::new(Duration::ZERO, nodes.clone());
        let parts = Desk { nodes, gain: 1.3, ..Desk::default() };
        Keeper { parts, watch, began: Instant::now(), events: Arc::new(Deaf), told: None }
    }

    #[test]
    fn a_board_that_restarts_while_it_is_left_out_is_taken_back() {
        let mut keeper = keeper();
        keeper.look_after_boards();
        assert_eq!(keeper.parts.nodes, ["desk"]);
        // No look has found it away since.
        keeper.parts.is_pi_there = true;
        keeper.look_after_boards();
        assert_eq!(keeper.parts.nodes, ["desk", "pi"]);
    }

    #[test]
    fn a_board_that_brought_nothing_is_shown_and_taken_in_once_it_does() {
        let mut keeper = keeper();
        keeper.look_after_boards();
        (keeper.parts.is_pi_there, keeper.parts.gain) = (true, 1.03);
        keeper.look_after_boards();
        assert_eq!(keeper.parts.nodes, ["desk"]);
        let spare = keeper.parts.spare.borrow().clone();
        assert!(spare.starts_with("pi: it has no layers: ") && spare.contains("3 %"), "{spare}");
        keeper.parts.gain = 1.31;
        keeper.look_after_boards();
        assert_eq!(keeper.parts.nodes, ["desk", "pi"]);
    }
}
