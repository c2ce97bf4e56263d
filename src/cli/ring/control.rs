//! A running master's answers to `leap ring`.

use std::io::ErrorKind;
use std::ops::Range;
use std::sync::Arc;
use std::thread;
use std::time::Instant;

use super::boards;
use super::events::layers as words;
use super::status::{self, PlaceTeam};
use super::tell;
use crate::cli::boards::failure as boards_failure;
use crate::cli::{Failure, options, warn};
use crate::control::place::{self, SocketFile};
use crate::control::server::{self, Say, Service};
use crate::control::{Refusal, WORD_EVERY};
use crate::engine::ring::ChangesBy;
use crate::engine::{Engine, WeightsPlace};
use crate::fleet::desk::{Desk, Seen};
use crate::fleet::moves::Moves;
use crate::fleet::settings::{ControlPlace, Settings};
use crate::fleet::{layers, load};
use crate::ring::plan::Objective;
use crate::ring::{Notice, Topology};
use crate::wire::frame::NodeLine;

/// How many times as good a split has to be for the layers to move.
const WORTH_IT: f64 = 1.02;

/// A master that can be asked, and looks after its ring by itself. Dropping it removes its socket.
pub(in crate::cli) struct Control {
    desk: Arc<Desk>,
    _file: Option<SocketFile>,
}

impl Control {
    /// Lets users of this machine ask the master that `engine` becomes, and has its layers move by themselves
    /// if the settings ask for it. The master hears of changes by the returned receiver.
    pub(super) fn start(
        settings: &Settings,
        engine: &Engine,
        place: &WeightsPlace,
    ) -> Result<(Control, ChangesBy), Failure> {
        let leaves_out = settings.fleet.is_some() && settings.wishes.patience.is_some();
        let (desk, changes) = Desk::new(place, leaves_out);
        let desk = Arc::new(desk);
        let load = load::load(engine.header(), engine.plan()).map_err(|e| Failure::input(&e))?;
        let weights = (place.clone(), engine.about().isa);
        let (fleet, events) = (settings.fleet.clone(), boards::events(settings));
        let moves = Moves::new(Arc::clone(&desk), load, weights, fleet, events);
        let (moves, objective) = (Arc::new(moves), settings.wishes.objective);
        if let Some(after) = settings.wishes.patience {
            layers::keep(Arc::clone(&moves), objective, after).map_err(|e| {
                Failure::Runtime(format!("cannot start the thread of --rebalance-after: {e}"))
            })?;
        }
        let topology = settings.boards.topology();
        let topology = topology.map_err(|e| boards_failure(settings.named_by, &e))?;
        let teams = topology.iter().flat_map(Topology::teams).map(PlaceTeam::new).collect();
        let file = listen(settings, Answers { moves, teams, objective })?;
        Ok((Control::new(desk, file), changes))
    }

    /// State that the answers are made from.
    pub(super) fn desk(&self) -> Arc<Desk> {
        Arc::clone(&self.desk)
    }

    /// Answers at the socket `file` for `desk`, until this is dropped.
    pub(super) fn new(desk: Arc<Desk>, file: Option<SocketFile>) -> Control {
        Control { desk, _file: file }
    }

    /// The callback that hears what happens to the ring.
    pub(super) fn ear(&self) -> impl Fn(&Notice, &[NodeLine]) + Send + use<> {
        let desk = Arc::clone(&self.desk);
        move |notice, lines| desk.hear(notice, lines, &tell::words(notice))
    }

    /// The engine is between two steps: does what is asked for.
    pub(in crate::cli) fn visit(&self, engine: &mut Engine) {
        self.desk.visit(engine);
    }
}

/// Answers at the socket that the settings name.
pub(super) fn listen(
    settings: &Settings,
    answers: impl Service,
) -> Result<Option<SocketFile>, Failure> {
    let path = match &settings.control {
        ControlPlace::Off => None,
        ControlPlace::At(path) => Some(path.clone()),
        ControlPlace::Auto => place::own(),
    };
    let Some(path) = path else { return Ok(None) };
    let started = place::listen(&path).and_then(|(listener, file)| {
        server::start(listener, answers)?;
        Ok(file)
    });
    let shown = path.display();
    let why = match started {
        Ok(file) => {
            log::debug!("leap ring asks at {shown}");
            return Ok(Some(file));
        }
        Err(e) if e.kind() == ErrorKind::AddrInUse => format!("{shown} is in use"),
        Err(e) => format!("cannot listen on {shown}: {e}"),
    };
    match settings.control {
        ControlPlace::At(_) => Err(Failure::Runtime(format!("--control: {why}"))),
        _ => {
            warn(&format!("`leap ring` will not reach this master: {why}"));
            Ok(None)
        }
    }
}

/// Looks how things are for a moment: how many tokens a second are written, and what is seen then.
pub(super) fn look(desk: &Desk, tokens: impl Fn(&Seen) -> u64) -> (f64, Seen) {
    let look = || desk.ask(&mut |_| Err(ErrorKind::TimedOut.into()));
    let first = look();
    let from = Instant::now();
    thread::sleep(WORD_EVERY / 2);
    match (first, look()) {
        (Ok(first), Ok(seen)) => {
            let n = tokens(&seen).saturating_sub(tokens(&first));
            (n as f64 / from.elapsed().as_secs_f64(), seen)
        }
        _ => (0.0, desk.seen()),
    }
}

/// Answers requests.
struct Answers {
    moves: Arc<Moves>,
    /// The places that are teams.
    teams: Vec<PlaceTeam>,
    /// Objective of the ring, unless a request names another.
    objective: Objective,
}

impl Service for Answers {
    fn answer(&self, request: &str, say: Say<'_>) -> Result<String, Refusal> {
        let mut words = request.split(' ');
        match (words.next(), words.next(), words.next()) {
            (Some("status"), form, None) => Ok(self.status(form == Some("json"))),
            (Some("resize"), Some(layers), None) => self.resize(layers, say),
            (Some("replan"), None, None) => self.replan(self.objective, say),
            (Some("replan"), Some(name), None) => {
                let objective = options::objective(name).map_err(|why| refusal(2, why))?;
                self.replan(objective, say)
            }
            _ => Err(refusal(2, "this master knows status, resize and replan".to_owned())),
        }
    }
}

fn refusal(code: u8, why: String) -> Refusal {
    Refusal { code, why }
}

impl Answers {
    /// How things are; without the engine where that is away.
    fn status(&self, is_json: bool) -> String {
        let (rate, seen) = look(&self.moves.desk, |seen| seen.times.tokens);
        let left_out = self.moves.fleet().map(|fleet| fleet.left_out.all()).unwrap_or_default();
        let about = (&*self.teams, &*left_out);
        match is_json {
            true => status::json(&seen, about, rate),
            false => status::text(&seen, about, rate),
        }
    }

    /// Gives the nodes the layers that the request names.
    fn resize(&self, layers: &str, say: Say<'_>) -> Result<String, Refusal> {
        let seen = self.moves.desk.seen();
        let layers = in_order(&seen.lines, layers).map_err(|why| refusal(2, why))?;
        Ok(words(&self.moves.split(&seen, layers, say)?) + "\n")
    }

    /// Gives them those that are best for `objective`.
    fn replan(&self, objective: Objective, say: Say<'_>) -> Result<String, Refusal> {
        let seen = self.moves.desk.ask(say)?;
        if let Some(team) = seen.lines.iter().find(|line| line.nodes > 1) {
            let why = format!(
                "{} is a team, whose layers stay: give the others theirs with `leap ring resize`",
                team.name
            );
            return Err(refusal(2, why));
        }
        let better = self.moves.best(&seen, objective)?;
        if better.gain < WORTH_IT {
            return Ok(format!("nothing moves: {}\n", words(&seen.layers())));
        }
        let done = words(&self.moves.take(&seen, &better, say)?) + "\n";
        Ok(match better.gain.is_finite() {
            true => format!("{:.0} % better: {done}", (better.gain - 1.0) * 1e2),
            false => done,
        })
    }
}

/// The layers that `text` gives each of the nodes, as in `desk=0..10,pi=10..22`, in the order of the ring.
fn in_order(lines: &[NodeLine], text: &str) -> Result<Vec<Range<usize>>, String> {
    if lines.is_empty() {
        return Err("the ring has not been open yet".to_owned());
    }
    let given = text.split(',').map(part).collect::<Result<Vec<_>, String>>()?;
    if let Some((name, _)) = given.iter().find(|(name, _)| lines.iter().all(|l| l.name != *name)) {
        let names: Vec<&str> = lines.iter().map(|line| line.name.as_str()).collect();
        return Err(format!("there is no {name} in the ring: it has {}", names.join(", ")));
    }
    let of = |line: &NodeLine| {
        let mut own = given.iter().filter(|(name, _)| line.name == *name);
        match (own.next(), own.next()) {
            (Some((_, layers)), None) => Ok(layers.clone()),
            (None, _) => Err(format!("{} gets no layers: name all nodes", line.name)),
            (Some(_), Some(_)) => Err(format!("{} is named twice", line.name)),
        }
    };
    lines.iter().map(of).collect()
}

fn part(text: &str) -> Result<(&str, Range<usize>), String> {
    let read = || {
        let (name, layers) = text.split_once('=')?;
        let (start, end) = layers.split_once("..")?;
        Some((name, start.parse().ok()?..end.parse().ok()?))
    };
    read().ok_or_else(|| format!("{text:?} is no NAME=FIRST..END, as in desk=0..10,pi=10..22"))
}
