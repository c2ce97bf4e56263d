//! Where whoever asks about a ring meets the thread that has the engine, between two steps of its work.

use std::net::SocketAddr;
use std::ops::Range;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::mpsc::{self, RecvTimeoutError, Sender};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use super::tell;
use crate::control::server::Say;
use crate::control::{Refusal, WORD_EVERY};
use crate::engine::ring::{OtherNodes, OtherNodesBy, ResplitError};
use crate::engine::{Engine, StepError, WeightsPlace};
use crate::ring::{Member, Notice, Times};
use crate::wire::frame::NodeLine;

/// How often somebody is told to wait before the engine has begun.
const PATIENCE: usize = 10;

/// What the engine's thread is to do.
pub(super) enum Wish {
    /// Say how things are.
    Look,
    /// Give the nodes these layers.
    Split(Vec<Range<usize>>),
}

/// What is known of a ring.
#[derive(Clone, Default)]
pub(super) struct Seen {
    /// The nodes, the master first; none before the ring has been open.
    pub(super) lines: Vec<NodeLine>,
    /// Where time went since the layers are as they are.
    pub(super) times: Times,
    /// Why it waits, if it does.
    pub(super) trouble: Option<String>,
}

type Done = Result<Seen, Refusal>;

struct Asked {
    wish: Wish,
    done: Sender<Done>,
}

/// The desk.
pub(super) struct Desk {
    /// Takes other nodes to the engine's thread.
    others: Sender<OtherNodes>,
    /// How many get such nodes ready.
    n_coming: Arc<AtomicUsize>,
    /// Whether somebody asks.
    is_asked: AtomicBool,
    /// Who asks, under which number.
    asked: Mutex<(u64, Vec<(u64, Asked)>)>,
    seen: Mutex<Seen>,
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Nodes that are being got ready: until it is dropped, the master does not give up those that are away.
pub(super) struct Coming(Arc<AtomicUsize>);

impl Drop for Coming {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::AcqRel);
    }
}

impl Desk {
    /// A desk, and how the master hears from it of other nodes; `place` says where the weights of other layers
    /// are kept.
    pub(super) fn new(place: &WeightsPlace) -> (Desk, OtherNodesBy) {
        let (others, asked) = mpsc::channel();
        let n_coming = Arc::new(AtomicUsize::new(0));
        let by = OtherNodesBy { asked, n_coming: Arc::clone(&n_coming), place: place.clone() };
        let desk = Desk {
            others,
            n_coming,
            is_asked: AtomicBool::new(false),
            asked: Mutex::default(),
            seen: Mutex::default(),
        };
        (desk, by)
    }

    /// From now on, other nodes are got ready.
    pub(super) fn expect_others(&self) -> Coming {
        self.n_coming.fetch_add(1, Ordering::AcqRel);
        Coming(Arc::clone(&self.n_coming))
    }

    /// Gives the ring other nodes, which `tell` is to tell, and waits until it has them.
    pub(super) fn change(
        &self,
        (members, next): (Vec<Member>, SocketAddr),
        tell: Box<dyn FnOnce() -> Result<(), String> + Send>,
        say: Say<'_>,
    ) -> Result<(), Refusal> {
        let (done, answer) = mpsc::channel();
        let gone = || Refusal { code: 1, why: "the master ends".to_owned() };
        let others = OtherNodes { members, next, tell, done };
        self.others.send(others).map_err(|_| gone())?;
        loop {
            match answer.recv_timeout(WORD_EVERY) {
                Ok(told) => return told.map_err(|why| Refusal { code: 1, why }),
                Err(RecvTimeoutError::Disconnected) => return Err(gone()),
                // It comes to pass, whoever waits for it.
                Err(RecvTimeoutError::Timeout) => {
                    let _ = say("waiting for the ring");
                }
            }
        }
    }

    /// Something happened to the ring.
    pub(super) fn hear(&self, notice: &Notice, lines: &[NodeLine]) {
        let mut seen = lock(&self.seen);
        seen.lines.clear();
        seen.lines.extend_from_slice(lines);
        match notice {
            Notice::Opened { .. } | Notice::Back(_) | Notice::GoesOn => seen.trouble = None,
            Notice::Silent(_) | Notice::Reset(_) | Notice::Waiting(_) | Notice::Stalled { .. } => {
                seen.trouble = Some(tell::words(notice));
            }
            _ => {}
        }
    }

    /// What was seen last.
    pub(super) fn seen(&self) -> Seen {
        lock(&self.seen).clone()
    }

    /// Has the engine's thread do something, and waits for that.
    pub(super) fn ask(&self, wish: Wish, say: Say<'_>) -> Done {
        let (done, answer) = mpsc::channel();
        let number = {
            let mut asked = lock(&self.asked);
            asked.0 += 1;
            let number = asked.0;
            asked.1.push((number, Asked { wish, done }));
            number
        };
        self.is_asked.store(true, Ordering::Release);
        for n in 1.. {
            match answer.recv_timeout(WORD_EVERY) {
                Ok(done) => return done,
                Err(RecvTimeoutError::Disconnected) => break,
                Err(RecvTimeoutError::Timeout) => {}
            }
            let is_gone = say("waiting for the ring").is_err();
            if (is_gone || n >= PATIENCE) && self.withdraw(number) {
                break;
            }
        }
        let why = match self.seen().trouble {
            Some(trouble) => format!("the ring is as it was: {trouble}"),
            None => "the ring is as it was: no answer is being written; ask again when one is"
                .to_owned(),
        };
        Err(Refusal { code: 1, why })
    }

    /// Takes a wish back that the engine's thread has not begun with.
    fn withdraw(&self, number: u64) -> bool {
        let mut asked = lock(&self.asked);
        let n_before = asked.1.len();
        asked.1.retain(|(other, _)| *other != number);
        asked.1.len() < n_before
    }

    /// The engine is between two steps of its work: does what is asked for.
    pub(super) fn visit(&self, engine: &mut Engine, place: &WeightsPlace) {
        if let Err(e) = engine.look_for_other_nodes() {
            // Whoever wants a token next hears of it.
            log::debug!("a ring of other nodes: {e}");
        }
        if !self.is_asked.swap(false, Ordering::Acquire) {
            return;
        }
        let asked = std::mem::take(&mut lock(&self.asked).1);
        for (_, Asked { wish, done }) in asked {
            let answer = match wish {
                Wish::Look => Ok(()),
                Wish::Split(layers) => match engine.resplit(&layers, place) {
                    Ok(_) => Ok(()),
                    Err(e) => Err(Refusal { code: code(&e), why: e.to_string() }),
                },
            };
            let answer = answer.map(|()| self.look(engine));
            // Whoever asked may be gone.
            let _ = done.send(answer);
        }
    }

    fn look(&self, engine: &Engine) -> Seen {
        let mut seen = lock(&self.seen);
        if let Some(ring) = engine.ring() {
            seen.lines.clear();
            seen.lines.extend_from_slice(ring.lines());
            seen.times = ring.times().clone();
        }
        seen.clone()
    }
}

fn code(error: &ResplitError) -> u8 {
    match error {
        ResplitError::Split(_) => 2,
        ResplitError::Step(StepError::Ring(e)) if e.is_lost() => 4,
        _ => 1,
    }
}
