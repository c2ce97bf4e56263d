//! `--team auto` with `--rebalance-after`: the rows are shared anew when a board is away, or back, or has become slower.

use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::mpsc::{self, Receiver, Sender};
use std::thread;
use std::time::{Duration, Instant};

use super::control::Control;
use super::desk::Desk;
use super::experience::Experience;
use super::flags::RingFlags;
use super::fleet::Fleet;
use super::interrupt::is_interrupted;
use super::moves::only;
use super::watch::{Act, TOKENS_MIN, Watch};
use crate::cli::plan::load;
use crate::cli::plan::team::TeamPlan;
use crate::cli::{Failure, note, warn};
use crate::engine::Engine;
use crate::engine::team::{LinkTeam, OtherTeam, TeamTimes, TellTeam};
use crate::format::model::Header;
use crate::model::SharesError;
use crate::ring::Topology;
use crate::ring::plan::{Board, Load};

/// What opens the links of the team in a ring file, and who is told what happens to it.
pub(in crate::cli) type Links = Box<dyn Fn(&str) -> (LinkTeam, TellTeam) + Send>;

/// Has the rows of the team that `engine` is to lead shared anew among its boards, if the flags have it so: by what is
/// returned. Whoever gets ready for that is counted in `n_coming`.
pub(in crate::cli) fn start(
    flags: &RingFlags,
    engine: &Engine,
    control: &Control,
    (links, n_coming): (Links, Arc<AtomicUsize>),
) -> Result<Option<Receiver<OtherTeam>>, Failure> {
    let (Some(after), Some(fleet)) = (flags.rebalance_after, flags.fleet.clone()) else {
        return Ok(None);
    };
    let header = engine.header().clone();
    let load = load::load(&header, engine.plan()).map_err(|e| Failure::input(&e))?;
    let (changes, asked) = mpsc::channel();
    let keeper = Keeper {
        watch: Watch::new(after, fleet.nodes.clone()),
        fleet,
        header,
        load,
        began: Instant::now(),
        changes,
        links,
        n_coming,
        desk: control.desk(),
        before: TeamTimes::default(),
        experience: Experience::default(),
        told: None,
    };
    let thread = thread::Builder::new().name("leap-watch".to_owned());
    thread
        .spawn(move || keeper.keep())
        .map_err(|e| Failure::Runtime(format!("no thread for --rebalance-after: {e}")))?;
    Ok(Some(asked))
}

/// Looks after the boards of a team.
struct Keeper {
    fleet: Fleet,
    header: Header,
    load: Load,
    watch: Watch,
    began: Instant,
    /// Takes other teams to the engine's thread.
    changes: Sender<OtherTeam>,
    links: Links,
    /// How many boards get ready.
    n_coming: Arc<AtomicUsize>,
    desk: Arc<Desk>,
    /// Times at the beginning of the comparison.
    before: TeamTimes,
    /// How quick boards have been with how many thousandths of the rows.
    experience: Experience,
    /// Why what was to be done is not, if it is not.
    told: Option<String>,
}

impl Keeper {
    fn keep(mut self) {
        let mut compared = Instant::now();
        while !is_interrupted() {
            thread::sleep(self.watch.period());
            if let Some(there) = self.look_after_boards()
                && compared.elapsed() >= self.watch.after()
            {
                compared = Instant::now();
                self.compare(&there);
            }
        }
    }

    /// Takes boards in and leaves them out. If there was nothing to do, the boards that are there.
    fn look_after_boards(&mut self) -> Option<Vec<Board>> {
        let is_there = self.fleet.look(&self.desk);
        self.fleet.tell_again(&is_there);
        let there = only(self.fleet.boards.clone(), &is_there);
        let names = self.fleet.boards.iter().map(|board| board.name.as_str());
        let seen: Vec<(&str, bool)> = names.zip(is_there).collect();
        let act = self.watch.see(self.began.elapsed(), &seen, &self.fleet.nodes);
        let (name, what) = match &act {
            Act::Nothing => return Some(there),
            Act::Without(name) => (name, "is away: the others take its rows"),
            Act::With(name) => (name, "is there, and gets rows"),
        };
        let result = self.share(&there, &format!("leap: {name} {what}"));
        if let (Act::With(name), true) = (&act, result.is_err()) {
            self.watch.forget(name);
        }
        self.tell(result);
        None
    }

    /// Shares the rows anew among the boards of the team if that has been better for long enough, by the times since
    /// the last look.
    fn compare(&mut self, there: &[Board]) {
        // Nobody writes, or the team waits: there is nothing to compare.
        let asked = self.desk.ask(&mut |_| Err(io::ErrorKind::TimedOut.into()));
        let Some(team) = asked.ok().and_then(|seen| seen.team) else { return };
        let since = team.times().since(&self.before);
        if since.is_some_and(|(passes, _)| u64::from(passes) < TOKENS_MIN) {
            return;
        }
        self.before = *team.times();
        let of_team = |node: &String| there.iter().find(|board| board.name == *node);
        let boards: Option<Vec<&Board>> = self.fleet.nodes.iter().map(of_team).collect();
        let (Some((passes, computing)), Some(boards)) = (since, boards) else { return };
        if computing[..boards.len()].iter().any(Duration::is_zero) {
            return;
        }
        let now = self.began.elapsed();
        self.experience.forget_before(self.watch.known_since(now));
        let known = (&mut self.experience, now);
        let shown = as_shown(
            (&self.header, &self.load),
            (boards, team.shares()),
            (passes, &computing),
            known,
        );
        let Ok((boards, gain)) = shown else { return };
        log::debug!("other shares would be {gain:.2} times as good");
        if self.watch.compare(now, gain) {
            let words = format!("leap: rows are shared anew: {:.0} % better", (gain - 1.0) * 1e2);
            let result = self.share(&boards, &words);
            self.watch.moved(now);
            self.before = TeamTimes::default();
            self.tell(result);
        }
    }

    /// Shares the rows among these boards, this one first, once they have theirs; `words` are said if that can be.
    fn share(&mut self, there: &[Board], words: &str) -> Result<(), String> {
        let refused = |e: &dyn std::fmt::Display| e.to_string();
        let plan = match there.len() {
            1 => TeamPlan::of(&self.header, &self.load, there.iter().collect()),
            _ => TeamPlan::new(&self.header, &self.load, there),
        };
        let plan = plan.map_err(|e| refused(&e))?;
        if let Some((name, need)) = plan.lacks() {
            let need = need as f64 / 1e9;
            return Err(format!("{name} would need {need:.2} GB for its part"));
        }
        let file = plan.ring_file(self.header.n_layers);
        Topology::parse(&file).map_err(|e| refused(&e))?;
        if self.told.is_none() {
            note(words);
        }
        let (nodes, shares): (Vec<String>, Vec<u16>) =
            plan.nodes().map(|(board, share)| (board.name.clone(), share)).unzip();
        let _coming = Coming::new(&self.n_coming);
        let others = nodes.iter().skip(1).map(String::as_str).collect();
        self.fleet.prepare(others, &file, &mut |_| Ok(())).map_err(|refusal| refusal.why)?;
        let is_told = Arc::new(AtomicBool::new(false));
        let answer = self.ask((shares, there), &file, Arc::clone(&is_told))?;
        let changed = answer.recv().unwrap_or_else(|_| Err("the master ends".to_owned()));
        // Even if a board was not reached: the team waits for it now.
        if is_told.load(Ordering::Acquire) {
            note(&format!("leap: the team is another one: {}", nodes.join(", ")));
            self.fleet.nodes = nodes;
            self.fleet.untold = changed.is_err().then_some(file);
        }
        changed
    }

    /// Has the engine's thread lead the team of this file, and says where it answers. It tells the boards that are there
    /// when it does.
    fn ask(
        &self,
        (shares, there): (Vec<u16>, &[Board]),
        file: &str,
        is_told: Arc<AtomicBool>,
    ) -> Result<Receiver<Result<(), String>>, String> {
        let (link, notices) = (self.links)(file);
        let names: Vec<String> = there.iter().map(|board| board.name.clone()).collect();
        let (fleet, file) = (self.fleet.clone(), file.to_owned());
        let tell = Box::new(move || {
            is_told.store(true, Ordering::Release);
            // Without it the next start may share the rows otherwise.
            let _ = fleet.keep_split(&file);
            fleet.tell(&names, &file)
        });
        let (done, answer) = mpsc::channel();
        let other = OtherTeam { shares, tell, link, notices, done };
        self.changes.send(other).map_err(|_| "the master ends".to_owned())?;
        Ok(answer)
    }

    /// Says once why something is not done.
    fn tell(&mut self, result: Result<(), String>) {
        let why = result.err();
        if let Some(why) = &why
            && self.told.as_ref() != Some(why)
        {
            warn(&format!("rows stay as they are: {why}"));
        }
        self.told = why;
    }
}

/// The boards of a team as quick as they showed themselves in so many passes, and how many times as quick a token is with
/// shares that fit that.
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
        // Who was slow with more rows does not get them back at once.
        board.read = experience.least(&board.name, part).unwrap_or(board.read);
    }
    let as_is = with_shares(boards.iter().collect())?.token_s();
    let gain = as_is / TeamPlan::of(header, load, boards.iter().collect())?.token_s();
    Ok((boards, gain))
}

/// Boards that get ready, until it is dropped.
struct Coming(Arc<AtomicUsize>);

impl Coming {
    fn new(n: &Arc<AtomicUsize>) -> Coming {
        n.fetch_add(1, Ordering::AcqRel);
        Coming(Arc::clone(n))
    }
}

impl Drop for Coming {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::AcqRel);
    }
}

#[cfg(all(test, feature = "demo"))]
mod tests {
    use super::*;
    use crate::model::{KvKind, Model, Plan};
    use crate::ring::Address;
    use crate::ring::plan::Wish;

    fn board(name: &str) -> Board {
        Board {
            name: name.to_owned(),
            address: Address { host: name.to_owned(), port: 1 },
            threads: None,
            read: 1e9,
            int8: 1e12,
            memory: 1 << 40,
            round_trip_s: 0.0,
            wire: 1e12,
            kernel: None,
            layer_s: 0.0,
            watts: None,
            wish: Wish::Any,
            others: Vec::new(),
        }
    }

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
        // pi is throttled to a quarter: of 400 ms there remain 160.
        let (ratio, gain) = show([1, 1], [100, 400], 2);
        assert!((ratio - 4.0).abs() < 0.1 && (gain - 2.5).abs() < 0.2, "{ratio} {gain}");
        // With few rows it seems to be quick.
        let (_, gain) = show([4, 1], [160, 40], 3);
        assert!(gain < 1.05, "{gain}");
    }
}
