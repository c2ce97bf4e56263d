//! The orders of masters that call a board. The last order is kept, so that a restarted board continues as before.

use std::fs;
use std::io::Write;
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};
use std::thread;
use std::time::Duration;

use super::boards::{Boards, Origin, RingFile};
use super::error::{Aim, PartError};
use super::events::Event;
use super::figures::{self, Own};
use super::give;
use super::interrupt::{Stop, is_interrupted};
use super::obtain::remove_damaged;
use super::place::part_of;
use super::readiness::Readiness;
use super::settings::Settings;
use super::{admission, ahead};
use crate::call::board::{self, Board, Order};
use crate::call::find;
use crate::engine::{Isa, WeightsPlace};
use crate::fetch::taker;
use crate::model::Share;
use crate::ring::{Address, PORT_DEFAULT, Topology};
use crate::sys::file::AtomicFile;
use crate::sys::{notify, signal};
use crate::transport::place::HostPort;
use crate::wire::call::{Figures, HeldState, ring_number};
use crate::wire::hello;
use crate::wire::seal::Key;

/// Interval between checks of a waiting board whether it was called.
const LOOKED_EVERY: Duration = Duration::from_millis(100);

/// A board that waits to be called, or does what it was told.
pub(super) struct Waiting {
    name: String,
    orders: Arc<Orders>,
}

/// Places of a board's layers, figures and orders, and the settings by which it packs weights ahead.
pub(super) struct Store {
    /// Folder of the layers, the figures and the last order.
    pub(super) folder: PathBuf,
    pub(super) weights: WeightsPlace,
    pub(super) isa: Option<Isa>,
}

/// Orders of masters.
struct Orders {
    name: String,
    key: Key,
    store: Store,
    readiness: Arc<Readiness>,
    stop: Stop,
    state: Mutex<State>,
}

struct State {
    order: Order,
    /// True if the order is yet to be begun.
    is_new: bool,
    /// True if the ring changed to this order while the board worked. The next master does not know of that: the same
    /// order from it is begun anew.
    is_kept: bool,
    /// Layers that the board fetches, or has fetched, while it works.
    next: Option<Arc<Next>>,
}

/// Layers of another ring file, which are fetched ahead.
struct Next {
    order: Order,
    /// Percentage that is there; 100 when all is there and packed.
    percent: AtomicU32,
    /// Reason why the layers do not come.
    failure: OnceLock<String>,
}

/// Begins to wait for calls on `port`, and answers them with the figures `own`.
///
/// # Errors
/// Without a key, or if the system refuses the port.
pub(super) fn start(
    settings: &Settings,
    port: u16,
    Own { speeds, memory }: Own,
    store: Store,
    (readiness, stop): (Arc<Readiness>, Stop),
) -> Result<Waiting, PartError> {
    let events = &settings.events;
    let key = settings.links.key.clone().ok_or(PartError::NoKey(Aim::Wait))?;
    notify::start();
    let name = settings.node.clone().unwrap_or_else(figures::name);
    if let Err(why) = admission::check_name(&name) {
        events.tell(&Event::Misnamed { why: &why });
    }
    let links = settings.links.port.unwrap_or(PORT_DEFAULT);
    let figures = Figures {
        port: links,
        memory,
        name: hello::name(&name),
        speeds: speeds.into_iter().collect(),
    };
    let order = kept(&store.order(), &name).unwrap_or(Order::Rest);
    let is_new = order != Order::Rest;
    let state = Mutex::new(State { is_new, is_kept: false, order, next: None });
    let (name, key) = (name.clone(), key.clone());
    let orders = Orders { name: name.clone(), key: key.clone(), store, readiness, stop, state };
    let orders = Arc::new(orders);
    let board = handlers(&orders, figures, settings);
    let bound = listen(settings, port, board, key)?;
    events.tell(&Event::WaitsForMaster { name: &name, at: bound });
    notify::ready();
    Ok(Waiting { name, orders })
}

/// The board that masters call.
fn handlers(orders: &Arc<Orders>, figures: Figures, settings: &Settings) -> Board {
    let [taken, prepared, kept, forgetful, of_orders] = [(); 5].map(|()| Arc::clone(orders));
    let events = Arc::clone(&settings.events);
    Board {
        figures,
        take: Box::new(move |order| taken.take(order)),
        prepare: Box::new(move |file: &str, port| prepared.prepare(file, port)),
        keep: Box::new(move |order| kept.keep(order)),
        forget: Box::new(move || {
            let forgotten = figures::forget(&forgetful.store.folder);
            forgotten.map_err(|e| format!("cannot remove its figures: {e}"))
        }),
        state: Box::new(move || of_orders.held_state()),
        refuse: Box::new(move |from: IpAddr, why| events.tell(&Event::Ignores { from, why })),
    }
}

/// Lets masters call `board` on `port`, and find it there. Returns the address.
fn listen(settings: &Settings, port: u16, board: Board, key: Key) -> Result<SocketAddr, PartError> {
    let any = IpAddr::V4(Ipv4Addr::UNSPECIFIED).to_string();
    let host = settings.links.host.as_ref().unwrap_or(&any);
    let address = HostPort::new(host, port).resolve_to_listen(|| false);
    let address = address.map_err(PartError::Links)?;
    let found_by = key.clone();
    let bound = board::start(board, address, key);
    let bound = bound.map_err(|source| PartError::Listen { aim: Aim::Wait, address, source })?;
    if settings.links.host.is_none() {
        let found = find::answer(bound.port(), found_by);
        found.unwrap_or_else(|e| settings.events.tell(&Event::Unfindable { why: &e }));
    }
    Ok(bound)
}

impl Store {
    /// Path of the file that keeps the last order.
    fn order(&self) -> PathBuf {
        self.folder.join("order")
    }
}

impl Waiting {
    /// The next order, as settings of a worker; `None` if the user ends it.
    pub(super) fn next(&self, settings: &Settings) -> Option<Settings> {
        let mut is_told = false;
        loop {
            let begun = self.orders.begin();
            if is_interrupted() {
                return None;
            }
            if let Some((file, from)) = begun {
                return Some(Settings {
                    boards: Boards::Layers(RingFile::Told(file)),
                    node: Some(self.name.clone()),
                    gets: Some(Origin::At(from)),
                    ..settings.clone()
                });
            }
            if !std::mem::replace(&mut is_told, true) {
                settings.events.tell(&Event::Rests);
            }
            thread::sleep(LOOKED_EVERY);
        }
    }

    /// Reports to the master why the order failed. The board begins it again when a master says so.
    pub(super) fn fail(&self, why: &str) {
        let mut state = self.orders.state();
        // Begins what a master told meanwhile.
        if !state.is_new {
            self.orders.readiness.fail(why);
            state.order = Order::Rest;
        }
    }
}

impl Orders {
    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The board's report to the master that holds it.
    fn held_state(&self) -> Result<HeldState, String> {
        let ring = match &self.state().order {
            Order::Ring { file, .. } => ring_number(file),
            Order::Rest => 0,
        };
        let is_ready = self.readiness.state()?;
        Ok(HeldState { ring, is_ready, progress: self.readiness.progress() })
    }

    /// Keeps an order. If it is another one, ends the present work, and begins the order.
    fn take(&self, order: Order) -> Result<(), String> {
        if let Order::Ring { file, .. } = &order {
            check(file, &self.name)?;
        }
        let mut state = self.state();
        if state.order == order && !state.is_kept {
            return Ok(());
        }
        self.write(&order)?;
        (state.order, state.is_new, state.is_kept) = (order, true, false);
        self.readiness.begin();
        self.stop.end_for_other_work();
        Ok(())
    }

    fn write(&self, order: &Order) -> Result<(), String> {
        let path = self.store.order();
        keep(&path, order).map_err(|e| format!("cannot write {}: {e}", path.display()))
    }

    /// Keeps an order for the next start, and goes on with the present work.
    fn keep(&self, order: Order) -> Result<(), String> {
        if let Order::Ring { file, .. } = &order {
            check(file, &self.name)?;
        }
        let mut state = self.state();
        self.write(&order)?;
        (state.order, state.is_kept) = (order, true);
        Ok(())
    }

    /// Gets the layers, or the rows, that this board has in a ring file while it works, and returns the
    /// percentage that is there.
    fn prepare(self: &Arc<Orders>, file: &str, port: u16) -> Result<u32, String> {
        check(file, &self.name)?;
        let order = Order::Ring { file: file.to_owned(), port };
        let mut state = self.state();
        if let Some(next) = &state.next {
            let percent = next.percent.load(Ordering::Relaxed);
            match next.failure.get().cloned() {
                Some(why) => {
                    let is_same = next.order == order;
                    state.next = None;
                    if is_same {
                        return Err(why);
                    }
                }
                None if next.order == order => return Ok(percent),
                None if percent < 100 => return Err("it gets other layers just now".to_owned()),
                None => {}
            }
        }
        let next = Next { order, percent: AtomicU32::new(0), failure: OnceLock::new() };
        let next = Arc::new(next);
        state.next = Some(Arc::clone(&next));
        let orders = Arc::clone(self);
        let get = move || {
            if let Err(why) = orders.get(&next) {
                // Nothing else sets the failure.
                let _ = next.failure.set(why);
            }
        };
        let thread = thread::Builder::new().name("leap-next".to_owned()).spawn(get);
        thread.map(|_| 0).map_err(|e| {
            state.next = None;
            e.to_string()
        })
    }

    /// Fetches the layers of `next`, and packs them.
    fn get(&self, next: &Next) -> Result<(), String> {
        let Order::Ring { file, port } = &next.order else { return Ok(()) };
        let topology = Topology::parse(file).map_err(|e| e.to_string())?;
        let (layers, rows) = part_of(&topology, &self.name).map_err(|e| e.to_string())?;
        // A board that has some rows has those of the classifier, too, if its team does.
        let has_ends = topology.team(&self.name).is_some_and(|team| team.is_first);
        let host = &topology.members()[0].address.host;
        let address = HostPort::new(host, *port).resolve(|_: &SocketAddr| true);
        let address = address.map_err(|e| e.to_string())?;
        let order = taker::Order {
            name: &self.name,
            layers: (layers.start, Some(layers.end)),
            rows: rows.as_ref(),
            cut: give::cut,
            key: &self.key,
            folder: &self.store.folder,
            is_interrupted: &|| signal::interrupted() != 0,
        };
        let progress = &mut |done: u64, all: u64| {
            let percent = (done * 100 / all.max(1)).min(99) as u32;
            next.percent.store(percent, Ordering::Relaxed);
        };
        // Once more if a disk has not kept what was fetched earlier.
        for _ in 0..2 {
            let fetched = taker::fetch(&order, address, progress).map_err(|e| e.to_string())?;
            let share = Share { layers: layers.clone(), has_ends };
            let model = Some(fetched.path);
            let place = WeightsPlace { model, ..self.store.weights.clone() };
            let Err(why) = ahead::pack(share, &place, self.store.isa) else { break };
            log::debug!("layers are not packed ahead: {why}");
            if remove_damaged(&self.store.folder) == 0 {
                break;
            }
        }
        next.percent.store(100, Ordering::Relaxed);
        Ok(())
    }

    /// The ring file and where layers come from, if there is something new to do.
    fn begin(&self) -> Option<(String, Address)> {
        let mut state = self.state();
        self.stop.go_on();
        let is_new = std::mem::take(&mut state.is_new);
        state.is_kept &= !is_new;
        let Order::Ring { file, port } = &state.order else { return None };
        let master = Topology::parse(file).ok()?.members()[0].address.host.clone();
        is_new.then(|| (file.clone(), Address { host: master, port: *port }))
    }
}

/// Checks that `name` is a worker of the ring in `file`.
fn check(file: &str, name: &str) -> Result<(), String> {
    let topology = Topology::parse(file).map_err(|e| e.to_string())?;
    if topology.team(name).is_some_and(|team| team.own > 0) {
        return Ok(());
    }
    match topology.place(name) {
        Ok((_, false)) => Ok(()),
        Ok((_, true)) => Err(format!("{name} is no master")),
        Err(e) => Err(e.to_string()),
    }
}

/// Keeps an order as the port and the ring file.
fn keep(path: &Path, order: &Order) -> std::io::Result<()> {
    let mut file = AtomicFile::create(path)?;
    if let Order::Ring { file: ring, port } = order {
        write!(file, "{port}\n{ring}")?;
    }
    file.commit()
}

/// The order that is kept, if it is one for a board of this name.
fn kept(path: &Path, name: &str) -> Option<Order> {
    let text = fs::read_to_string(path).ok()?;
    let (port, file) = text.split_once('\n')?;
    let port = port.parse().ok().filter(|port| *port > 0)?;
    check(file, name).ok()?;
    Some(Order::Ring { file: file.to_owned(), port })
}

#[cfg(test)]
mod tests {
    use super::*;

    const RING: &str = "desk 10.0.0.1 0..3\npi 10.0.0.2 3..6\n";

    #[test]
    fn what_a_board_was_told_is_kept() {
        let path = std::env::temp_dir().join(format!("leap-order-{}", std::process::id()));
        let told = Order::Ring { file: RING.to_owned(), port: 9998 };
        keep(&path, &told).unwrap();
        assert_eq!(kept(&path, "pi"), Some(told));
        assert_eq!(kept(&path, "orange"), None);
        keep(&path, &Order::Rest).unwrap();
        assert_eq!(kept(&path, "pi"), None);
        fs::write(&path, "0\n").unwrap();
        assert_eq!(kept(&path, "pi"), None);
        fs::remove_file(&path).unwrap();
    }

    #[test]
    fn a_board_works_where_it_has_a_place() {
        assert_eq!(check(RING, "pi"), Ok(()));
        assert_eq!(check(RING, "desk"), Err("desk is no master".to_owned()));
        assert!(check(RING, "orange").unwrap_err().contains("orange"));
        assert!(check("pi", "pi").is_err());
    }
}
