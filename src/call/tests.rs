//! A master and boards on loopback.

use std::io::{Read, Write};
use std::net::{IpAddr, Ipv4Addr, SocketAddr, TcpListener, TcpStream};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::thread;

use super::board::{self, Board, Order};
use super::find;
use super::master::{CallError, Called, Identity};
use crate::channel::{Channel, ChannelError};
use crate::sys::net::free_port;
use crate::wire::call::{Call, Figures, HeldState, Speed};
use crate::wire::hello::name;
use crate::wire::opening::Purpose;
use crate::wire::seal::Key;

const KEY: [u8; 32] = [7; 32];

fn figures() -> Figures {
    let speed = Speed { threads: 4, read: [11, 12, 13, 14], milliwatts: None };
    let speeds = [speed].into_iter().collect();
    Figures { port: 9999, memory: 33, name: name("pi"), speeds }
}

/// A board that accepts one order and no second one, and its address.
fn wait() -> (SocketAddr, Arc<Mutex<Vec<String>>>) {
    let heard = Arc::new(Mutex::new(Vec::new()));
    let (orders, strangers) = (Arc::clone(&heard), Arc::clone(&heard));
    let board = Board {
        figures: figures(),
        take: Box::new(move |order| {
            let mut orders = orders.lock().unwrap();
            if let Some(first) = orders.first() {
                return Err(format!("it has {first}"));
            }
            match order {
                Order::Ring { file, port } => orders.push(format!("{port} {file}")),
                Order::Rest => orders.push("rest".to_owned()),
            }
            Ok(())
        }),
        prepare: Box::new(|file, _| file.parse().map_err(|_| "no number".to_owned())),
        keep: Box::new(|_| Err("it keeps nothing".to_owned())),
        forget: Box::new(|| Err("it forgets nothing".to_owned())),
        state: Box::new(|| Ok(HeldState { ring: 9, is_ready: true, progress: 0 })),
        refuse: Box::new(move |_, why| strangers.lock().unwrap().push(why.to_string())),
    };
    let any = SocketAddr::from((Ipv4Addr::LOCALHOST, 0));
    (board::start(board, any, Key::new(KEY)).unwrap(), heard)
}

fn call(address: SocketAddr) -> Result<Called<'static>, CallError> {
    Called::new(address, &Key::new(KEY), &|| false)
}

#[test]
fn a_master_asks_measures_and_tells() {
    let (address, heard) = wait();
    let mut called = call(address).unwrap();
    assert_eq!(called.ask().unwrap(), figures());
    assert!(called.local_ip().unwrap().is_loopback());
    let way = called.measure().unwrap();
    assert!(way.round_trip_s > 0.0 && way.bytes_per_s > 1e3);
    assert_eq!(called.prepare(4, "40").unwrap(), 40);
    let why = called.prepare(4, "x").unwrap_err();
    assert!(matches!(&why, CallError::Refused(why) if why == "no number"), "{why}");
    let why = called.tell(&Call::Keep { port: 4, file: "x" }).unwrap_err();
    assert!(matches!(&why, CallError::Refused(why) if why == "it keeps nothing"), "{why}");
    let why = called.tell(&Call::Forget).unwrap_err();
    assert!(matches!(&why, CallError::Refused(why) if why == "it forgets nothing"), "{why}");
    called.tell(&Call::Ring { port: 4, file: "a ring" }).unwrap();
    // A board that is told what it will not do says why.
    let why = call(address).unwrap().tell(&Call::Rest).unwrap_err();
    assert!(matches!(&why, CallError::Refused(why) if why == "it has 4 a ring"), "{why}");
    assert!(!why.may_pass());
    assert_eq!(*heard.lock().unwrap(), ["4 a ring"]);
}

#[test]
fn a_board_that_works_for_a_master_is_no_other_ones() {
    let (address, _) = wait();
    let (key, is_interrupted) = (Key::new(KEY), || false);
    let of = |name| Identity::new(name, false);
    let (desk, again, laptop) = (of("desk"), of("desk"), of("laptop"));
    let call = |master| Called::by(master, address, &key, &is_interrupted);
    let ring = Call::Ring { port: 4, file: "a ring" };
    call(&desk).unwrap().tell(&ring).unwrap();
    let mut held = call(&desk).unwrap();
    assert_eq!(held.hold().unwrap().ring, 9);
    for other in [&laptop, &again] {
        let why = call(other).map(drop).unwrap_err();
        assert!(matches!(&why, CallError::Busy(_)) && why.may_pass(), "{why}");
        assert_eq!(why.to_string(), "it works for desk at 127.0.0.1; --take takes it from there");
    }
    assert_eq!(held.hold().unwrap().ring, 9, "it goes on");
    assert!(call(&desk).unwrap().ask().is_ok(), "its master is heard");
    // The first master is gone, however it ended: the board is free as soon as it sees that.
    drop(held);
    let start = std::time::Instant::now();
    while let Err(why) = call(&laptop).and_then(|mut called| called.ask()) {
        assert!(start.elapsed().as_secs() < 60, "waited for the board to be free: {why}");
        thread::sleep(std::time::Duration::from_millis(5));
    }
    let mut held = call(&laptop).unwrap();
    held.hold().unwrap();
    // Another master takes it all the same, and the former one hears so.
    let taker = Identity::new("desk", true);
    let mut taken = call(&taker).unwrap();
    assert_eq!(taken.hold().unwrap().ring, 9);
    let why = held.hold().unwrap_err();
    assert_eq!(why.to_string(), "it works for desk at 127.0.0.1");
    taker.be_content();
    assert!(call(&laptop).is_err() && call(&taker).is_ok());
}

#[test]
fn a_board_with_another_key_is_not_heard() {
    let (address, heard) = wait();
    let other = Called::new(address, &Key::new([8; 32]), &|| false);
    let why = other.err().unwrap();
    assert!(matches!(why, CallError::Channel(ChannelError::Key)), "{why}");
    let mut stranger = TcpStream::connect(address).unwrap();
    stranger.write_all(&[0x55; 400]).unwrap();
    // The board hangs up, with or without a greeting of its own.
    let _ = stranger.read_to_end(&mut Vec::new());
    assert_eq!(call(address).unwrap().ask().unwrap(), figures());
    // All strangers of one address are reported once.
    assert_eq!(heard.lock().unwrap().len(), 1);
}

#[test]
fn boards_are_found_by_their_key() {
    let (port, elsewhere) = (free_port(), free_port());
    find::answer(port, Key::new(KEY)).unwrap();
    let networks = [Ipv4Addr::new(127, 255, 255, 255)];
    let seek = |port, key| find::seek(&networks, port, &Key::new(key), &|| false).unwrap().places;
    let found = thread::scope(|scope| {
        let other = scope.spawn(|| seek(port, [8; 32]));
        let absent = scope.spawn(|| seek(elsewhere, KEY));
        (seek(port, KEY), other.join().unwrap(), absent.join().unwrap())
    });
    assert_eq!(found, (vec![IpAddr::from(Ipv4Addr::LOCALHOST)], vec![], vec![]));
}

#[test]
fn a_board_that_is_away_may_come() {
    let (address, _) = wait();
    let absent = SocketAddr::from((Ipv4Addr::new(127, 9, 9, 9), address.port()));
    assert!(call(absent).err().unwrap().may_pass());
}

#[test]
fn a_way_that_carries_little_is_measured_by_little() {
    let (board, _) = wait();
    let way = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
    // The board answers only greetings for its own address.
    let address = SocketAddr::from((Ipv4Addr::LOCALHOST, way.local_addr().unwrap().port()));
    let carried = Arc::new(AtomicUsize::new(0));
    let counter = Arc::clone(&carried);
    thread::spawn(move || {
        let (near, _) = way.accept().unwrap();
        let far = TcpStream::connect(board).unwrap();
        let carry = |mut from: TcpStream, mut to: TcpStream, counter: Arc<AtomicUsize>| {
            let mut bytes = [0; 4096];
            while let Ok(n @ 1..) = from.read(&mut bytes) {
                counter.fetch_add(n, Ordering::Relaxed);
                thread::sleep(std::time::Duration::from_millis(20));
                if to.write_all(&bytes[..n]).is_err() {
                    break;
                }
            }
        };
        let back = (far.try_clone().unwrap(), near.try_clone().unwrap(), Arc::clone(&counter));
        thread::spawn(move || carry(back.0, back.1, back.2));
        carry(near, far, counter);
    });
    let channel = Channel::connect_as(address, board, Purpose::Orders, &Key::new(KEY), &|| false);
    let mut called = Called::over(&Identity::new("desk", false), channel.unwrap()).unwrap();
    let measured = called.measure().unwrap();
    assert!(measured.round_trip_s > 0.0 && measured.bytes_per_s > 0.0, "{measured:?}");
    // 4 MB would go through in 20 s, and over a radio that loses a third of its packets in many minutes.
    let carried = carried.load(Ordering::Relaxed);
    assert!(carried < 500_000, "{carried} bytes");
}
