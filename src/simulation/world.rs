//! Virtual time, and whose turn it is.

use std::any::Any;
use std::io;
use std::net::SocketAddr;
use std::panic::{self, AssertUnwindSafe};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread::{self, JoinHandle};
use std::time::Duration;

use crate::team::Time;
use crate::transport::link::{LinkConfig, Links};
use crate::transport::loopback::{Loopback, Network};
use crate::transport::{Endpoint, Micros, Sleep};
use crate::wire::hello::Name;

/// Time in which a node looks for missing parts before others go on.
const PAUSE_US: Micros = 30;

/// A network, and threads of which one runs at a time.
pub(super) struct World {
    network: Network,
    state: Mutex<State>,
    threads: Mutex<Vec<JoinHandle<()>>>,
}

struct State {
    actors: Vec<ActorState>,
    running: usize,
    /// The panic of a thread that should not have panicked.
    failure: Option<Box<dyn Any + Send>>,
}

struct ActorState {
    turn: Arc<Condvar>,
    wake: Micros,
    /// Endpoints whose arrivals wake it, too.
    ears: Vec<usize>,
    is_killed: bool,
    is_gone: bool,
}

/// Panic payload of a thread that is killed.
struct Killed;

impl ActorState {
    fn new(wake: Micros) -> ActorState {
        let turn = Arc::new(Condvar::new());
        ActorState { turn, wake, ears: Vec::new(), is_killed: false, is_gone: false }
    }
}

/// A thread's place in the world.
#[derive(Clone)]
pub(super) struct Actor {
    world: Arc<World>,
    id: usize,
}

impl World {
    /// A world over `network`, and this thread's place in it.
    pub(super) fn begin(network: Network) -> Actor {
        let actors = vec![ActorState::new(network.now())];
        let state = Mutex::new(State { actors, running: 0, failure: None });
        Actor { world: Arc::new(World { network, state, threads: Mutex::default() }), id: 0 }
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Moves time to the next thread's turn, and lets it run. Of two at the same time, the first to ask.
    fn hand_over(&self, state: &mut State) {
        let wake = |actor: &ActorState| {
            let arrivals =
                actor.ears.iter().filter_map(|listener| self.network.next_arrival(*listener));
            actor.wake.min(arrivals.min().unwrap_or(Micros::MAX))
        };
        let alive = state.actors.iter().enumerate().filter(|(_, actor)| !actor.is_gone);
        let next = alive.map(|(id, actor)| (wake(actor), id)).min();
        // The first thread never goes.
        let (at, id) = next.expect("a thread waits");
        self.network.pass_to(at);
        state.running = id;
        state.actors[id].turn.notify_one();
    }
}

impl Actor {
    pub(super) fn network(&self) -> &Network {
        &self.world.network
    }

    pub(super) fn now(&self) -> Micros {
        self.world.network.now()
    }

    /// Has the next arrival at endpoint `listener` end the next sleep.
    fn listen(&self, listener: usize) {
        self.world.lock().actors[self.id].ears.push(listener);
    }

    /// Lets time go by until `until`, or until something comes that it listens to.
    pub(super) fn sleep(&self, until: Micros) {
        let mut state = self.world.lock();
        state.actors[self.id].wake = until;
        self.world.hand_over(&mut state);
        let turn = Arc::clone(&state.actors[self.id].turn);
        while state.running != self.id {
            state = turn.wait(state).unwrap_or_else(PoisonError::into_inner);
        }
        state.actors[self.id].ears.clear();
        if self.id == 0
            && let Some(failure) = state.failure.take()
        {
            drop(state);
            panic::resume_unwind(failure);
        }
        if state.actors[self.id].is_killed {
            drop(state);
            panic::resume_unwind(Box::new(Killed));
        }
    }

    /// Computes for `us`.
    pub(super) fn work(&self, us: Micros) {
        self.sleep(self.now() + us);
    }

    /// Begins a thread; returns its number.
    pub(super) fn spawn(&self, run: impl FnOnce(&Actor) + Send + 'static) -> usize {
        let mut state = self.world.lock();
        let actor = Actor { world: Arc::clone(&self.world), id: state.actors.len() };
        state.actors.push(ActorState::new(self.now()));
        drop(state);
        let id = actor.id;
        let thread = thread::spawn(move || actor.live(run));
        self.world.threads.lock().unwrap().push(thread);
        id
    }

    fn live(self, run: impl FnOnce(&Actor)) {
        let mut state = self.world.lock();
        let turn = Arc::clone(&state.actors[self.id].turn);
        while state.running != self.id {
            state = turn.wait(state).unwrap_or_else(PoisonError::into_inner);
        }
        let is_killed = state.actors[self.id].is_killed;
        drop(state);
        let ended = match is_killed {
            true => Ok(()),
            false => panic::catch_unwind(AssertUnwindSafe(|| run(&self))),
        };
        let mut state = self.world.lock();
        state.actors[self.id].is_gone = true;
        if let Err(failure) = ended
            && !failure.is::<Killed>()
        {
            state.failure = Some(failure);
            state.actors[0].wake = 0;
        }
        self.world.hand_over(&mut state);
    }

    /// Ends a thread: it does nothing more.
    pub(super) fn kill(&self, id: usize) {
        let mut state = self.world.lock();
        let actor = &mut state.actors[id];
        (actor.is_killed, actor.wake) = (true, 0);
    }

    /// Ends all threads but the first, which this is.
    pub(super) fn end(&self) {
        let n = self.world.lock().actors.len();
        (1..n).for_each(|id| self.kill(id));
        self.sleep(self.now() + 1);
        for thread in self.world.threads.lock().unwrap().drain(..) {
            thread.join().unwrap();
        }
    }

    /// Endpoint `index` of the network as this thread uses it, in its life from now on.
    pub(super) fn endpoint(
        &self,
        index: usize,
        config: LinkConfig,
        next: usize,
    ) -> Box<dyn Endpoint> {
        let loopback = self.network().restart(index, config, Some(next));
        Box::new(SlowEndpoint { actor: self.clone(), index, loopback })
    }
}

impl Time for Actor {
    fn now(&self) -> Micros {
        Actor::now(self)
    }

    fn pause(&self) {
        Actor::sleep(self, self.now() + PAUSE_US);
    }

    fn sleep(&self, sleep: Sleep<'_>) {
        let us = (sleep.longest().as_micros() as Micros).max(1);
        Actor::sleep(self, self.now() + us);
    }
}

/// An endpoint whose waits are turns of others.
struct SlowEndpoint {
    actor: Actor,
    index: usize,
    loopback: Loopback,
}

impl Endpoint for SlowEndpoint {
    fn links(&mut self) -> &mut Links {
        self.loopback.links()
    }

    fn service(&mut self, wait: Duration) -> io::Result<()> {
        self.loopback.service(Duration::ZERO)?;
        let end = self.actor.now() + wait.as_micros() as Micros;
        while !self.links().is_ready() && self.actor.now() < end {
            let until = self.links().deadline().clamp(self.actor.now() + 1, end);
            self.actor.listen(self.index);
            self.actor.sleep(until);
            self.loopback.service(Duration::ZERO)?;
        }
        Ok(())
    }

    fn join<'a>(&'a mut self, sleep: &mut Sleep<'a>) {
        self.actor.listen(self.index);
        self.loopback.join(sleep);
    }

    fn expect_next(&mut self, name: Option<Name>) {
        self.loopback.expect_next(name);
    }

    fn set_next(&mut self, address: SocketAddr) {
        self.loopback.set_next(address);
    }

    fn carrier(&self) -> &'static str {
        "loopback"
    }

    fn local_address(&self) -> SocketAddr {
        self.loopback.local_address()
    }

    fn notices(&self) -> &[String] {
        &[]
    }
}
