//! The rows of a team, as parts that the keeper moves.

use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::mpsc::{self, Receiver, Sender};
use std::time::Duration;

use super::events::{Event, Shape};
use super::experience::Experience;
use super::keeper::{self, Better, Looked, Parts, Times};
use super::mailbox::{Coming, Mailbox};
use super::members::Fleet;
use super::team_plan::TeamPlan;
use super::watch::TOKENS_MIN;
use crate::engine::team::{LinkTeam, OtherTeam, TeamTimes, TellTeam};
use crate::format::model::Header;
use crate::model::SharesError;
use crate::ring::Topology;
use crate::ring::plan::{Board, Load};

/// Opens the links of the team in a ring file, and returns a listener for its events.
pub(crate) type Links = Box<dyn Fn(&str) -> (LinkTeam, TellTeam) + Send>;

/// A team whose rows are to move.
pub(crate) struct Team {
    pub(crate) fleet: Fleet,
    pub(crate) header: Header,
    /// The model's demand on boards.
    pub(crate) load: Load,
    /// Opens the links of another team of these boards.
    pub(crate) links: Links,
    /// Number of boards that are getting ready.
    pub(crate) n_coming: Arc<AtomicUsize>,
    pub(crate) mailbox: Arc<Mailbox>,
}

/// Divides the rows of a team again when a board has been away, back or slower for the time `after`. The engine that
/// leads the team takes the changes from the returned receiver. Runs as long as the process.
///
/// # Errors
/// If the system refuses a thread.
pub(crate) fn keep(team: Team, after: Duration) -> io::Result<Receiver<OtherTeam>> {
    let (changes, asked) = mpsc::channel();
    let (considered, events) = (team.fleet.nodes.clone(), Arc::clone(&team.fleet.caller.events));
    let (before, experience) = (TeamTimes::default(), Experience::default());
    keeper::start(TeamParts { team, changes, before, experience }, considered, after, events)?;
    Ok(asked)
}

/// The rows of a team.
struct TeamParts {
    team: Team,
    /// Sends other teams to the engine's thread.
    changes: Sender<OtherTeam>,
    /// Times at the start of the comparison.
    before: TeamTimes,
    /// Observed speeds of boards, by thousandths of the rows.
    experience: Experience,
}

/// Another team and its shares.
struct Other {
    /// Names of the boards that are there; each gets the change.
    there: Vec<String>,
    /// Boards that have rows, the lead first.
    nodes: Vec<String>,
    shares: Vec<u16>,
    /// The ring file.
    file: String,
}

impl Parts for TeamParts {
    type Plan = Other;

    const SHAPE: Shape = Shape::Team;

    fn look(&mut self) -> Option<Looked> {
        let Team { fleet, mailbox, .. } = &mut self.team;
        let is_there = fleet.look(mailbox);
        fleet.tell_again(&is_there);
        Some((fleet.boards.clone(), is_there))
    }

    fn nodes(&self) -> Vec<String> {
        self.team.fleet.nodes.clone()
    }

    fn is_known(&self) -> bool {
        true
    }

    /// A plan in which every board that is there gets rows.
    fn plan(&mut self, there: &[Board]) -> Better<Other> {
        Better { gain: f64::INFINITY, plan: self.other(there) }
    }

    fn plan_again(&mut self, there: &[Board]) -> Better<Other> {
        self.plan(there)
    }

    /// Compares with other shares for the same boards.
    fn compare(
        &mut self,
        there: &[Board],
        Times { now, known_since }: Times,
    ) -> Option<Better<Other>> {
        // The engine is idle or the team waits: there is nothing to compare.
        let asked = self.team.mailbox.ask(&mut |_| Err(io::ErrorKind::TimedOut.into()));
        let team = asked.ok()?.team?;
        let since = team.times().since(&self.before);
        if since.is_some_and(|(passes, _)| u64::from(passes) < TOKENS_MIN) {
            return None;
        }
        self.before = *team.times();
        let (passes, computing) = since?;
        let of_team = |node: &String| there.iter().find(|board| board.name == *node);
        let boards: Vec<&Board> =
            self.team.fleet.nodes.iter().map(of_team).collect::<Option<_>>()?;
        if computing.get(..boards.len())?.iter().any(Duration::is_zero) {
            return None;
        }
        self.experience.forget_before(known_since);
        let known = (&mut self.experience, now);
        let model = (&self.team.header, &self.team.load);
        let shown = as_shown(model, (boards, team.shares()), (passes, &computing), known);
        let (boards, gain) = shown.ok()?;
        Some(Better { gain, plan: self.other(&boards) })
    }

    /// Divides the rows differently, or among other boards, once these have theirs.
    fn take(&mut self, other: Other) -> Result<(), String> {
        let _coming = Coming::new(&self.team.n_coming);
        let names = other.nodes.iter().skip(1).map(String::as_str).collect();
        let fleet = &self.team.fleet;
        fleet.prepare(names, &other.file, &mut |_| Ok(())).map_err(|refusal| refusal.why)?;
        let is_told = Arc::new(AtomicBool::new(false));
        let answer = self.ask(&other, Arc::clone(&is_told))?;
        let changed = answer.recv().unwrap_or_else(|_| Err("the master ends".to_owned()));
        // True even if a board was not reached: the team then waits for it.
        if is_told.load(Ordering::Acquire) {
            let fleet = &mut self.team.fleet;
            fleet.caller.tell(&Event::OtherTeam { nodes: &other.nodes });
            fleet.nodes = other.nodes;
            fleet.split.untold = changed.is_err().then_some(other.file);
        }
        changed
    }

    fn idle(&self, name: &str) -> Option<String> {
        self.team.fleet.idle(name)
    }

    fn set_aside(&self, name: &str) {
        self.team.fleet.set_aside(name);
    }

    fn spare(&self, name: &str, why: &str) {
        self.team.fleet.spare(name, why);
    }

    /// Does nothing: a board that came always gets a part.
    fn rest(&self, _: &str) {}

    fn compare_from_now(&mut self) {
        self.before = TeamTimes::default();
    }
}

impl TeamParts {
    /// The team of the boards that are `there`, this one first.
    fn other(&self, there: &[Board]) -> Result<Other, String> {
        let refused = |e: &dyn std::fmt::Display| e.to_string();
        let Team { header, load, .. } = &self.team;
        let plan = match there.len() {
            1 => TeamPlan::of(header, load, there.iter().collect()),
            _ => TeamPlan::new(header, load, there),
        };
        let plan = plan.map_err(|e| refused(&e))?;
        if let Some((name, need)) = plan.lacks() {
            let need = need as f64 / 1e9;
            return Err(format!("{name} would need {need:.2} GB for its part"));
        }
        let file = self.team.fleet.split.model_line.clone() + &plan.ring_file(header.n_layers);
        Topology::parse(&file).map_err(|e| refused(&e))?;
        let (nodes, shares) =
            plan.nodes().map(|(board, share)| (board.name.clone(), share)).unzip();
        let there = there.iter().map(|board| board.name.clone()).collect();
        Ok(Other { there, nodes, shares, file })
    }

    /// Asks the engine's thread to lead the other team; the returned receiver gets its answer. That thread then tells
    /// the boards that are there.
    fn ask(
        &self,
        other: &Other,
        is_told: Arc<AtomicBool>,
    ) -> Result<Receiver<Result<(), String>>, String> {
        let (link, notices) = (self.team.links)(&other.file);
        let (fleet, file, there) =
            (self.team.fleet.clone(), other.file.clone(), other.there.clone());
        let tell = Box::new(move || {
            is_told.store(true, Ordering::Release);
            fleet.keep_split(&file);
            fleet.tell(&there, &file)
        });
        let (done, answer) = mpsc::channel();
        let other = OtherTeam { shares: other.shares.clone(), tell, link, notices, done };
        self.changes.send(other).map_err(|_| "the master ends".to_owned())?;
        Ok(answer)
    }
}

/// The boards of a team with the speeds that `passes` passes showed, and the gain in time per token of shares that fit
/// these speeds.
fn as_shown(
    (header, load): (&Header, &Load),
    (boards, shares): (Vec<&Board>, &[u16]),
    (passes, computing): (u32, &[Duration]),
    (experience, now): (&mut Experience, Duration),
) -> Result<(Vec<Board>, f64), SharesError> {
    let with_shares = |boards| TeamPlan::with_shares(header, load, boards, shares.to_vec());
    let mut boards = with_shares(boards)?.as_seen(passes, computing);
    let total: usize = shares.iter().copied().map(usize::from).sum();
    for (board, share) in boards.iter_mut().zip(shares) {
        let part = usize::from(*share) * 1000 / total.max(1);
        experience.note(now, &board.name, part, board.read);
        // A board that was slow with more rows does not get them back at once.
        board.read = experience.least(&board.name, part).unwrap_or(board.read);
    }
    let as_is = with_shares(boards.iter().collect())?.token_s();
    let gain = as_is / TeamPlan::of(header, load, boards.iter().collect())?.token_s();
    Ok((boards, gain))
}

#[cfg(all(test, feature = "demo"))]
mod tests {
    use super::*;
    use crate::fleet::load;
    use crate::fleet::sample::board;
    use crate::model::{KvKind, Model, Plan};

    #[test]
    fn shares_follow_what_boards_showed_and_go_back_slowly() {
        let header = Model::open("models/demo.bin".as_ref()).unwrap().header().clone();
        let (ctx_len, kv) = (256, KvKind::F16);
        let plan = Plan { ctx_len, max_batch: 1, max_logits: 1, n_streams: 1, kv, kv_pages: None };
        let load = load::load(&header, &plan).unwrap();
        let all = ["desk", "pi"].map(board);
        let mut experience = Experience::default();
        let mut show = |shares: [u16; 2], ms: [u64; 2], at: u64| {
            let said = (all.iter().collect(), &shares[..]);
            let (ms, at) = (ms.map(Duration::from_millis), Duration::from_secs(at));
            let known = (&mut experience, at);
            let (boards, gain) = as_shown((&header, &load), said, (100, &ms), known).unwrap();
            let plan = TeamPlan::of(&header, &load, boards.iter().collect()).unwrap();
            let [desk, pi] = [0, 1].map(|node| plan.nodes().nth(node).unwrap().1);
            (f64::from(desk) / f64::from(pi), gain)
        };
        let (ratio, gain) = show([1, 1], [100, 100], 1);
        assert!((ratio - 1.0).abs() < 0.02 && (gain - 1.0).abs() < 0.02, "{ratio} {gain}");
        // pi is throttled to a quarter: of 400 ms, 160 would remain.
        let (ratio, gain) = show([1, 1], [100, 400], 2);
        assert!((ratio - 4.0).abs() < 0.1 && (gain - 2.5).abs() < 0.2, "{ratio} {gain}");
        // With few rows, pi seems to be fast.
        let (_, gain) = show([4, 1], [160, 40], 3);
        assert!(gain < 1.05, "{gain}");
    }
}
