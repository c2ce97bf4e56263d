//! `--team auto` with `--rebalance-after`: the rows are shared anew when a board is away, or back.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::mpsc::{self, Receiver, Sender};
use std::thread;
use std::time::Instant;

use super::flags::RingFlags;
use super::fleet::Fleet;
use super::interrupt::is_interrupted;
use super::moves::only;
use super::watch::{Act, Watch};
use crate::cli::plan::load;
use crate::cli::plan::team::TeamPlan;
use crate::cli::{Failure, note, warn};
use crate::engine::Engine;
use crate::engine::team::{LinkTeam, OtherTeam, TellTeam};
use crate::format::model::Header;
use crate::ring::Topology;
use crate::ring::plan::{Board, Load};

/// What opens the links of the team in a ring file, and who is told what happens to it.
pub(in crate::cli) type Links = Box<dyn Fn(&str) -> (LinkTeam, TellTeam) + Send>;

/// Has the rows of the team that `engine` is to lead shared anew among its boards, if the flags have it so: by what is
/// returned. Whoever gets ready for that is counted in `n_coming`.
pub(in crate::cli) fn start(
    flags: &RingFlags,
    engine: &Engine,
    links: Links,
    n_coming: Arc<AtomicUsize>,
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
    /// Why what was to be done is not, if it is not.
    told: Option<String>,
}

impl Keeper {
    fn keep(mut self) {
        while !is_interrupted() {
            thread::sleep(self.watch.period());
            self.look_after_boards();
        }
    }

    /// Takes boards in and leaves them out.
    fn look_after_boards(&mut self) {
        let is_there = self.fleet.look();
        self.fleet.tell_again(&is_there);
        let there = only(self.fleet.boards.clone(), &is_there);
        let names = self.fleet.boards.iter().map(|board| board.name.as_str());
        let seen: Vec<(&str, bool)> = names.zip(is_there).collect();
        let act = self.watch.see(self.began.elapsed(), &seen, &self.fleet.nodes);
        let (name, what) = match &act {
            Act::Nothing => return,
            Act::Without(name) => (name, "is away: the others take its rows"),
            Act::With(name) => (name, "is there, and gets rows"),
        };
        let result = self.share(&there, &format!("leap: {name} {what}"));
        if let (Act::With(name), true) = (&act, result.is_err()) {
            self.watch.forget(name);
        }
        self.tell(result);
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
