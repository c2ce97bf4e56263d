//! Both boards, and the events between them.

use std::io::ErrorKind;
use std::sync::{Arc, Mutex};

use super::models::{SmallModel, SmallStream, vocabulary};
use super::texts::{Shape, Texts};
use super::wires::{Cable, Kept, Sending, Wire};
use crate::channel::ChannelError;
use crate::engine::draft_node::DraftNodeError;
use crate::engine::draft_node::caller::{
    ANSWER_WITHIN_US, Caller, PING_EVERY_US, RETRY_LAST_US, STEADY_US,
};
use crate::engine::draft_node::guesses::Guesses;
use crate::engine::draft_node::session::Session;
use crate::transport::Micros;
use crate::transport::fault::{Dice, Faults};
use crate::wire::draft::Node;
use crate::wire::frame::NodeLine;

/// Longest wait for a connection.
const CONNECT_US: Micros = 5_000_000;
/// Silence after which a node that has nothing to do ends a connection.
const SILENCE_US: Micros = 20_000_000;
/// Longest silence of a node before the master gives it up.
const UNHEARD_US: Micros = ANSWER_WITHIN_US + 4 * PING_EVERY_US;

/// A master and its draft node.
pub(super) struct Boards {
    pub(super) now: Micros,
    pub(super) cable: Cable,
    pub(super) shape: Shape,
    pub(super) texts: Texts,
    master: Master,
    node: Option<NodeBoard>,
    /// Whether the node lost its power when it died, so that nothing answers in its place.
    is_dark: bool,
    /// All connections, by their numbers.
    wires: Vec<Wire>,
    dice: Dice,
}

/// The master's end of the connection.
#[derive(Clone, Copy)]
enum Call {
    /// There is no connection.
    None,
    /// The outcome of a call is known at this time: a connection, or none for this reason.
    Calling(Micros, Option<ErrorKind>),
    /// This connection is up.
    Up(usize),
}

struct Master {
    caller: Caller,
    guesses: Arc<Guesses>,
    call: Call,
    /// Time of the next turn without a cause.
    turn_us: Micros,
    /// Time of the node's last message.
    heard_us: Micros,
    /// Reports to the user.
    told: Arc<Mutex<Vec<String>>>,
    /// Time of the last call and of the last loss, and whether a loss was reported, by this simulation's count.
    begun_us: Micros,
    lost_us: Option<Micros>,
    is_told: bool,
}

struct NodeBoard {
    model: SmallModel,
    /// Connections: number, session, and time since when there was nothing to do.
    sessions: Vec<(usize, Session<SmallStream>, Micros)>,
    busy_us: Micros,
}

impl Boards {
    pub(super) fn new(shape: Shape, faults: Faults) -> Boards {
        let guesses = Arc::new(Guesses::new(shape.n_lanes, shape.ctx_len).unwrap());
        let told = Arc::<Mutex<Vec<String>>>::default();
        let to = Arc::clone(&told);
        let tell = Box::new(move |why: &DraftNodeError| to.lock().unwrap().push(why.to_string()));
        let caller = Caller::new(Arc::clone(&guesses), vocabulary(false), (tell, false));
        let now = 1_000_000;
        let mut boards = Boards {
            now,
            cable: Cable::new(shape.seed, faults),
            texts: Texts::new(&shape, Arc::clone(&guesses), now),
            master: Master {
                caller,
                guesses,
                call: Call::None,
                turn_us: now,
                heard_us: now,
                told,
                begun_us: now,
                lost_us: None,
                is_told: false,
            },
            node: None,
            is_dark: false,
            wires: Vec::new(),
            dice: Dice::new(shape.seed ^ 0xb0a2),
            shape,
        };
        boards.start();
        boards
    }

    // Faults

    /// Starts the dead node.
    pub(super) fn start(&mut self) {
        let Shape { n_streams, token_us, is_other, .. } = self.shape;
        let model = SmallModel::new(n_streams, token_us, is_other);
        self.node = Some(NodeBoard { model, sessions: Vec::new(), busy_us: self.now });
        self.is_dark = false;
    }

    /// Kills the node's program, or cuts its power; `false` if it is dead.
    pub(super) fn kill(&mut self) -> bool {
        if self.node.is_none() {
            return false;
        }
        self.is_dark = self.dice.below(2) == 0;
        if !self.is_dark {
            self.hang_up();
        }
        self.node = None;
        true
    }

    /// Ends all connections, with both boards alive.
    pub(super) fn hang_up(&mut self) {
        let Some(node) = &mut self.node else { return };
        for (wire, ..) in node.sessions.drain(..) {
            self.wires[wire].to_master.end(self.now, &mut self.cable);
        }
    }

    /// Cuts the cable, or mends it.
    pub(super) fn cut(&mut self, is_cut: bool) {
        self.cable.is_cut = is_cut;
        for wire in self.wires.iter_mut().filter(|_| !is_cut) {
            wire.to_node.mend(self.now);
            wire.to_master.mend(self.now);
        }
    }

    /// Mends everything, and waits until the node must draft again.
    ///
    /// # Panics
    /// If it does not.
    pub(super) fn heal(&mut self) {
        self.cut(false);
        (self.shape.is_other, self.cable.faults) = (false, Faults::NONE);
        if self.node.as_ref().is_none_or(|node| !node.model.is_useful()) {
            self.kill();
            self.shape.token_us = 1_000;
            self.start();
        }
        // A dead connection is noticed, and an attempt under way fails; the next one does not.
        self.run_to(self.now + UNHEARD_US + 2 * (RETRY_LAST_US + CONNECT_US + SILENCE_US));
        assert!(self.master.guesses.is_there(), "the node is not tried again");
    }

    pub(super) fn told(&self) -> Vec<String> {
        self.master.told.lock().unwrap().clone()
    }

    // Events

    /// Goes on until this time, or until all texts have ended; returns whether they have.
    pub(super) fn run_until_done(&mut self, until: Micros) -> bool {
        while !self.texts.are_done() {
            if !self.step(until) {
                return false;
            }
        }
        true
    }

    fn run_to(&mut self, until: Micros) {
        while self.step(until) {}
    }

    /// Handles the next event; `false` if there is none until then.
    fn step(&mut self, until: Micros) -> bool {
        let next = self.next_us();
        if next > until {
            self.now = self.now.max(until);
            return false;
        }
        self.now = self.now.max(next);
        let is_rung = self.texts.go_on(self.now);
        self.run_node();
        self.run_master(is_rung);
        true
    }

    fn next_us(&self) -> Micros {
        let Master { caller, call, turn_us, .. } = &self.master;
        let of_master = match *call {
            Call::None => self.now + caller.pause_us(self.now),
            Call::Calling(at, _) => at,
            Call::Up(wire) => {
                let next = self.wires[wire].to_master.next(&self.cable);
                next.unwrap_or(*turn_us).min(*turn_us)
            }
        };
        let busy_us = self.node.as_ref().map_or(0, |node| node.busy_us);
        let arrivals = self.wires.iter().filter_map(|wire| wire.to_node.next(&self.cable));
        let arrivals = arrivals.map(|at| at.max(busy_us));
        let sessions = self.node.iter().flat_map(|node| &node.sessions);
        let of_node = sessions.map(|(_, session, idle_us)| match session.is_wanting() {
            true => busy_us,
            false => busy_us.max(idle_us + SILENCE_US),
        });
        arrivals.chain(of_node).chain([of_master, self.texts.next_us()]).min().unwrap_or(of_master)
    }

    /// Has the node take messages, and draft if there are none.
    fn run_node(&mut self) {
        let (now, cable) = (self.now, &mut self.cable);
        if self.node.as_ref().is_some_and(|node| node.busy_us > now) {
            return;
        }
        for (number, wire) in self.wires.iter_mut().enumerate() {
            while let Some(bytes) = wire.to_node.take(now, cable) {
                let taken =
                    self.node.as_mut().map(|node| node.hear(number, &bytes, wire, (now, cable)));
                if !taken.unwrap_or(self.is_dark) {
                    wire.to_master.end(now, cable);
                }
            }
        }
        let Some(node) = &mut self.node else { return };
        node.think(&mut self.wires, (now, cable));
    }

    fn run_master(&mut self, is_rung: bool) {
        match self.master.call {
            Call::None if self.master.caller.pause_us(self.now) == 0 => self.call(),
            Call::Calling(at, why) if at <= self.now => self.called(why),
            Call::Up(wire) => {
                if let Err(why) = self.talk(wire, is_rung) {
                    let silence_us = self.now - self.master.heard_us;
                    let is_soon = silence_us < ANSWER_WITHIN_US;
                    assert!(!(is_soon && is_timeout(&why)), "lost after {silence_us} us");
                    self.wires[wire].to_node.end(self.now, &mut self.cable);
                    self.lose(&why);
                }
            }
            _ => {}
        }
    }

    fn call(&mut self) {
        let pause_us = self.master.lost_us.map(|lost| self.now - lost);
        let is_sound = |pause| (500_000..=RETRY_LAST_US).contains(&pause);
        assert!(pause_us.is_none_or(is_sound), "called again after {pause_us:?} us");
        (self.master.begun_us, self.master.heard_us) = (self.now, self.now);
        self.master.caller.begin(self.now);
        let round_us = self.cable.delay_us() + self.cable.delay_us();
        let (us, why) = match (self.cable.is_cut || self.is_dark, &self.node) {
            (true, _) => (CONNECT_US, Some(ErrorKind::TimedOut)),
            (false, None) => (round_us, Some(ErrorKind::ConnectionRefused)),
            (false, Some(_)) => (round_us, None),
        };
        self.master.call = Call::Calling(self.now + us.min(CONNECT_US), why);
    }

    /// A call has ended with this failure, or a connection.
    fn called(&mut self, why: Option<ErrorKind>) {
        let failure = |why: ErrorKind| ChannelError::Io(why.into()).into();
        let Some(node) = self.node.as_mut().filter(|_| why.is_none() && !self.cable.is_cut) else {
            return self.lose(&failure(why.unwrap_or(ErrorKind::ConnectionReset)));
        };
        let number = self.wires.len();
        let mut wire = Wire::default();
        node.sessions.push((number, Session::new(self.shape.about(&node.model)), self.now));
        self.master.call = Call::Up(number);
        let mut line = Sending(&mut wire.to_node, self.now, &mut self.cable);
        let opened = self.master.caller.open(self.now, &mut line);
        opened.expect("a simulated line takes everything");
        (self.master.heard_us, self.master.turn_us) = (self.now, self.now + PING_EVERY_US);
        self.wires.push(wire);
    }

    /// Hears the node, and has a turn.
    fn talk(&mut self, wire: usize, is_rung: bool) -> Result<(), DraftNodeError> {
        let (now, cable, master) = (self.now, &mut self.cable, &mut self.master);
        let Wire { to_node, to_master } = &mut self.wires[wire];
        let mut is_due = is_rung || master.turn_us <= now;
        while let Some(bytes) = to_master.take(now, cable) {
            if bytes.is_empty() {
                return Err(ChannelError::Io(ErrorKind::UnexpectedEof.into()).into());
            }
            master.heard_us = now;
            master.caller.hear(now, &bytes)?;
            is_due = true;
        }
        if is_due {
            master.turn_us = now + PING_EVERY_US;
            master.caller.turn(now, &mut Sending(to_node, now, cable))?;
            let silence_us = now - master.heard_us;
            assert!(silence_us <= UNHEARD_US, "nothing was heard for {silence_us} us");
        }
        Ok(())
    }

    /// The master has lost the node. The user must hear of it, unless it heard of another loss and the node was not
    /// there for long since then.
    fn lose(&mut self, why: &DraftNodeError) {
        let master = &mut self.master;
        let is_news = !master.is_told || self.now >= master.begun_us + STEADY_US;
        let n_told = master.told.lock().unwrap().len();
        master.caller.lose(self.now, why);
        let n_new = master.told.lock().unwrap().len() - n_told;
        assert_eq!(n_new, usize::from(is_news), "reports of {why}");
        assert!(!master.guesses.is_there() && !master.guesses.is_waiting());
        (master.is_told, master.lost_us, master.call) = (true, Some(self.now), Call::None);
    }
}

fn is_timeout(why: &DraftNodeError) -> bool {
    matches!(why, DraftNodeError::Channel(ChannelError::Io(e)) if e.kind() == ErrorKind::TimedOut)
}

impl NodeBoard {
    /// Takes a message that came over a connection; `false` if it does not know that connection.
    fn hear(
        &mut self,
        number: usize,
        bytes: &[u8],
        wire: &mut Wire,
        (now, cable): (Micros, &mut Cable),
    ) -> bool {
        let Some(index) = self.sessions.iter().position(|(known, ..)| *known == number) else {
            return bytes.is_empty();
        };
        if bytes.is_empty() {
            self.sessions.remove(index);
            return true;
        }
        let (_, session, idle_us) = &mut self.sessions[index];
        *idle_us = now;
        let mut line = Sending(&mut wire.to_master, now, cable);
        let heard = session.hear(bytes, (&self.model, &NodeLine::default()), &mut line);
        heard.expect("a master that makes sense");
        true
    }

    /// Drafts for one of the masters, and ends connections that have been silent for long.
    fn think(&mut self, wires: &mut [Wire], (now, cable): (Micros, &mut Cable)) {
        self.sessions.retain(|(number, session, idle_us)| {
            let is_kept = session.is_wanting() || now < idle_us + SILENCE_US;
            if !is_kept {
                wires[*number].to_master.end(now, cable);
            }
            is_kept
        });
        let mut wanting = self.sessions.iter_mut().filter(|(_, session, _)| session.is_wanting());
        let Some((number, session, idle_us)) = wanting.next() else { return };
        let mut sent = Kept::default();
        session.think(&self.model, &mut sent).expect("a line that keeps everything");
        self.busy_us = now + self.model.worked_us.take().max(1);
        *idle_us = self.busy_us;
        for bytes in sent.0 {
            wires[*number].to_master.send(self.busy_us, &bytes, cable);
        }
        // Each master's turn comes.
        self.sessions.rotate_left(1);
    }
}

impl Shape {
    fn about(&self, model: &SmallModel) -> Node {
        let of = vocabulary(model.is_other);
        Node { n_texts: 0, vocab_len: of.len, ctx_len: self.node_ctx_len, hash: of.hash }
    }
}
