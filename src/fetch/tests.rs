//! Two boards on one machine.

use std::fs;
use std::io::{Read, Write};
use std::net::{IpAddr, Ipv4Addr, SocketAddr, TcpListener, TcpStream};
use std::path::{Path, PathBuf};
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Receiver, channel};
use std::thread;

mod slow;

use super::download::LANES_MAX;
use super::giver::{self, Content, Gift};
use super::taker::{self, FetchError, Fetched, Order};
use crate::channel::server::{self, Service};
use crate::channel::{Channel, ChannelError};
use crate::format::model::{Header, Slice, TensorKind};
use crate::wire::give::{MESSAGE_MAX, Offer, PIECE_BYTES, Question, Rows};
use crate::wire::opening::{No, Purpose, opening};
use crate::wire::seal::Key;

const MODEL: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/models/demo.bin");
const ANY: SocketAddr = SocketAddr::new(std::net::IpAddr::V4(Ipv4Addr::LOCALHOST), 0);

fn key() -> Key {
    Key::new([7; 32])
}

/// A folder that is removed after the test.
struct Folder(PathBuf);

impl Folder {
    fn new(name: &str) -> Folder {
        let folder = std::env::temp_dir().join(format!("leap-fetch-{name}-{}", std::process::id()));
        let _ = fs::remove_dir_all(&folder);
        fs::create_dir(&folder).unwrap();
        Folder(folder)
    }

    fn names(&self) -> Vec<String> {
        let names = fs::read_dir(&self.0).unwrap().map(|entry| entry.unwrap().file_name());
        names.map(|name| name.into_string().unwrap()).collect()
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.0);
    }
}

/// A board that gives the demo model, and what it tells.
fn giver() -> (SocketAddr, Receiver<String>) {
    let file = fs::read(MODEL).unwrap();
    let header = Header::parse(&file).unwrap();
    let content = Content::open(Path::new(MODEL), &header, header.fingerprint(&file), cut).unwrap();
    let (tell, told) = channel();
    let tell = Box::new(move |gift: &Gift| {
        let _ = tell.send(format!("{gift:?}"));
    });
    (giver::start(content, ANY, key(), tell).unwrap(), told)
}

fn order<'a>(folder: &'a Folder, key: &'a Key, layers: (usize, Option<usize>)) -> Order<'a> {
    let (folder, is_interrupted) = (&*folder.0, &|| false);
    Order { name: "pi", layers, rows: None, cut, key, folder, is_interrupted }
}

fn fetch(from: SocketAddr, folder: &Folder, start: usize) -> Result<Fetched, FetchError> {
    taker::fetch(&order(folder, &key(), (start, None)), from, &mut |_, _| {})
}

#[test]
fn a_board_gets_the_file_of_its_layers_and_keeps_it() {
    let (from, told) = giver();
    let folder = Folder::new("part");
    let fetched = fetch(from, &folder, 2).unwrap();
    let (whole, part) = (fs::read(MODEL).unwrap(), fs::read(&fetched.path).unwrap());
    let (whole_header, header) = (Header::parse(&whole).unwrap(), Header::parse(&part).unwrap());
    let n_layers = whole_header.n_layers;
    assert_eq!(header.share.as_ref().unwrap().layers, 2..n_layers);
    assert_eq!(header.fingerprint(&part), whole_header.fingerprint(&whole));
    let bytes = |file: &[u8], at: u64, len: u64| file[at as usize..(at + len) as usize].to_vec();
    for (tensor, crc) in header.tensors().zip(header.checksums(&part)) {
        let own = whole_header.tensors().find(|own| own.id == tensor.id).unwrap();
        let got = bytes(&part, tensor.offset, tensor.bytes);
        assert_eq!(crc32fast::hash(&got), crc, "{}", tensor.id);
        assert_eq!(got, bytes(&whole, own.offset, own.bytes), "{}", tensor.id);
    }
    assert_eq!(fetched.sent, part.len() as u64);
    assert!(told.recv().unwrap().starts_with("Begun"));
    assert_eq!(folder.names().len(), 1);
    let again = fetch(from, &folder, 2).unwrap();
    assert_eq!(again, Fetched { sent: 0, ..fetched });
    // Layers inside a larger file are there, too.
    let path = again.path.clone();
    let later = fetch(from, &folder, 3).unwrap();
    assert_eq!((later.layers.start, later.sent, &later.path), (3, 0, &path));
    let fingerprint = whole_header.fingerprint(&whole);
    assert_eq!(taker::holding(&folder.0, fingerprint, &(4..5)), Some(path));
    assert_eq!(taker::holding(&folder.0, fingerprint, &(1..5)), None);
    assert_eq!(taker::holding(&folder.0, fingerprint ^ 1, &(4..5)), None);
}

#[test]
fn the_giver_hears_why_a_board_cannot_keep_its_layers() {
    let (from, told) = giver();
    let folder = Folder::new("lost");
    fs::remove_dir(&folder.0).unwrap();
    let error = fetch(from, &folder, 2).unwrap_err();
    assert!(matches!(error, FetchError::File(..)), "{error}");
    let told = told.recv().unwrap();
    assert!(
        told.starts_with("Unkept { name: \"pi\", from: 127.0.0.1, why: \"cannot write"),
        "{told}"
    );
}

#[test]
fn an_overwritten_model_is_named_and_not_sent() {
    let folder = Folder::new("overwritten");
    let model = folder.0.join("model.bin");
    let file = fs::read(MODEL).unwrap();
    fs::write(&model, &file).unwrap();
    let header = Header::parse(&file).unwrap();
    let content = Content::open(&model, &header, header.fingerprint(&file), cut).unwrap();
    let (tell, told) = channel();
    let tell = Box::new(move |gift: &Gift| {
        let _ = tell.send(format!("{gift:?}"));
    });
    let from = giver::start(content, ANY, key(), tell).unwrap();
    // A file with the same bytes and another time is the same file.
    let touched = std::time::SystemTime::UNIX_EPOCH;
    fs::File::options().append(true).open(&model).unwrap().set_modified(touched).unwrap();
    let taken = Folder::new("overwritten-taken");
    assert_eq!(fetch(from, &taken, 3).unwrap().layers.start, 3);
    assert!(told.recv().unwrap().starts_with("Begun"));
    let other: Vec<u8> = file.iter().map(|byte| byte ^ 1).collect();
    fs::write(&model, other).unwrap();
    let Err(FetchError::Refused(why)) = fetch(from, &taken, 2) else { panic!("it is sent") };
    assert!(why.contains("was overwritten while it ran: start that master again"), "{why}");
    assert!(why.contains("model.bin"), "{why}");
    assert!(told.recv().unwrap().starts_with("Refused"));
}

#[test]
fn another_model_of_the_same_shape_that_is_written_over_this_one_is_named() {
    let folder = Folder::new("overwritten-by-another");
    let model = folder.0.join("model.bin");
    let mut file = fs::read(MODEL).unwrap();
    fs::write(&model, &file).unwrap();
    let header = Header::parse(&file).unwrap();
    let content = Content::open(&model, &header, header.fingerprint(&file), cut).unwrap();
    assert_eq!(content.check_unchanged(), Ok(()));
    // Another model's file, whose checksums fit it.
    let (index, tensor) = header.tensors().enumerate().last().unwrap();
    let place = tensor.offset as usize..(tensor.offset + tensor.bytes) as usize;
    file[place.start] ^= 1;
    let crc = crc32fast::hash(&file[place]).to_le_bytes();
    let at = header.tensors_end() as usize + 4 * index;
    file[at..at + 4].copy_from_slice(&crc);
    assert!(Header::parse(&file).unwrap().verify(&file).is_ok());
    fs::write(&model, &file).unwrap();
    let why = content.check_unchanged().unwrap_err();
    assert!(why.contains("model.bin was overwritten while it ran"), "{why}");
    // A copy that stopped half-way.
    fs::write(&model, &file[..file.len() / 2]).unwrap();
    assert!(content.check_unchanged().is_err());
}

#[test]
fn all_layers_are_the_very_file() {
    let (from, _told) = giver();
    let folder = Folder::new("whole");
    let fetched = fetch(from, &folder, 0).unwrap();
    assert_eq!(fs::read(fetched.path).unwrap(), fs::read(MODEL).unwrap());
}

/// Interrupts a fetch once `at` bytes are there.
fn interrupted(from: SocketAddr, folder: &Folder, at: u64) {
    let (key, is_enough) = (key(), AtomicBool::new(false));
    let is_interrupted = || is_enough.load(Ordering::Relaxed);
    let order = Order { is_interrupted: &is_interrupted, ..order(folder, &key, (0, None)) };
    let progress = &mut |done: u64, _: u64| is_enough.store(done >= at, Ordering::Relaxed);
    let error = taker::fetch(&order, from, progress).unwrap_err();
    assert!(error.is_interruption(), "{error}");
}

#[test]
fn an_interrupted_board_goes_on_where_it_was() {
    let (from, _told) = giver();
    let folder = Folder::new("again");
    interrupted(from, &folder, 2 * PIECE_BYTES);
    let there = fs::metadata(folder.0.join(&folder.names()[0])).unwrap().len();
    assert!(there >= 2 * PIECE_BYTES && there.is_multiple_of(PIECE_BYTES), "{there}");
    let fetched = fetch(from, &folder, 0).unwrap();
    assert_eq!(fetched.sent, fetched.bytes - there);
    assert_eq!(fs::read(fetched.path).unwrap(), fs::read(MODEL).unwrap());
}

#[test]
fn files_of_abandoned_fetches_are_removed() {
    let (from, _told) = giver();
    let folder = Folder::new("left");
    interrupted(from, &folder, 2 * PIECE_BYTES);
    assert!(folder.names()[0].ends_with(".part"));
    // Another program is writing this one.
    let held = folder.0.join("0123456789abcdef-1-2.bin.part");
    let file = fs::File::create(&held).unwrap();
    file.lock().unwrap();
    // The board gets other layers than before.
    let fetched = fetch(from, &folder, 4).unwrap();
    let mut names = folder.names();
    names.sort();
    let wanted = [&held, &fetched.path].map(|path| path.file_name().unwrap().to_str().unwrap());
    let mut wanted = wanted.to_vec();
    wanted.sort_unstable();
    assert_eq!(names, wanted);
    // Once the file is free, the next fetch removes it.
    drop(file);
    fetch(from, &folder, 3).unwrap();
    assert!(folder.names().iter().all(|name| !name.ends_with(".part")), "{:?}", folder.names());
}

#[test]
fn what_the_disk_has_lost_is_sent_again() {
    let (from, _told) = giver();
    let folder = Folder::new("lost");
    interrupted(from, &folder, 2 * PIECE_BYTES);
    let partial = folder.0.join(&folder.names()[0]);
    let mut bytes = fs::read(&partial).unwrap();
    let there = bytes.len() as u64;
    // One piece is damaged, and one never came while a later one did.
    bytes[PIECE_BYTES as usize + 5] ^= 1;
    bytes[..PIECE_BYTES as usize].fill(0);
    bytes.extend([0; 99]);
    fs::write(&partial, bytes).unwrap();
    let fetched = fetch(from, &folder, 0).unwrap();
    assert_eq!(fetched.sent, fetched.bytes - (there - 2 * PIECE_BYTES));
    assert_eq!(fs::read(fetched.path).unwrap(), fs::read(MODEL).unwrap());
}

#[test]
fn layers_that_there_are_not_are_refused_in_words() {
    let (from, told) = giver();
    let folder = Folder::new("none");
    let ask = |layers| taker::fetch(&order(&folder, &key(), layers), from, &mut |_, _| {});
    for layers in [(3, Some(99)), (99, None), (3, Some(3)), (5, Some(4))] {
        let Err(FetchError::Refused(why)) = ask(layers) else { panic!("{layers:?}") };
        assert!(why.contains("no layers"), "{why}");
        assert!(told.recv().unwrap().starts_with("Refused"));
    }
    assert!(folder.names().is_empty());
}

#[test]
fn a_board_with_another_key_gets_nothing() {
    let (from, told) = giver();
    let folder = Folder::new("key");
    let other = Key::new([8; 32]);
    let error = taker::fetch(&order(&folder, &other, (0, None)), from, &mut |_, _| {}).unwrap_err();
    assert!(matches!(error, FetchError::Channel(ChannelError::Key)), "{error}");
    assert!(told.recv().unwrap().contains("another key"));
}

#[test]
fn strangers_are_told_and_others_served() {
    let (from, told) = giver();
    let mut browser = TcpStream::connect(from).unwrap();
    browser.write_all(b"GET / HTTP/1.1\r\nHost: pi\r\n\r\n").unwrap();
    assert!(told.recv().unwrap().contains("no board"));
    // A stranger is reported once.
    let mut newer = TcpStream::connect(from).unwrap();
    let mut hello = opening(Purpose::Layers);
    hello[4] += 1;
    newer.write_all(&hello).unwrap();
    let mut answer = [0; 16];
    newer.read_exact(&mut answer).unwrap();
    assert_eq!(answer, opening(Purpose::Layers));
    let folder = Folder::new("others");
    assert!(fetch(from, &folder, 4).is_ok());
    assert!(told.recv().unwrap().starts_with("Begun"));
}

#[test]
fn a_peer_that_is_no_board_gives_nothing() {
    let listener = TcpListener::bind(ANY).unwrap();
    let from = listener.local_addr().unwrap();
    let server = thread::spawn(move || {
        let opening = opening(Purpose::Layers);
        let other_key = [&opening[..], &No::Key.emit()].concat();
        let no_board = &b"HTTP/1.1 400 Bad Request\r\n\r\n"[..];
        for answer in [no_board, &[0; 9], &opening, &other_key] {
            let mut stream = listener.accept().unwrap().0;
            stream.write_all(answer).unwrap();
            // The question is read, so that the connection is not reset before the answer.
            let _ = stream.read(&mut [0; 256]);
        }
    });
    let folder = Folder::new("no-board");
    assert!(matches!(fetch(from, &folder, 0), Err(FetchError::Channel(ChannelError::Broken(_)))));
    assert!(fetch(from, &folder, 0).unwrap_err().may_pass());
    // The connection was closed before its turn came, because others crowd there.
    assert!(fetch(from, &folder, 0).unwrap_err().may_pass());
    assert!(matches!(fetch(from, &folder, 0), Err(FetchError::Channel(ChannelError::Key))));
    server.join().unwrap();
    assert!(fetch(from, &folder, 0).unwrap_err().may_pass());
    assert!(folder.names().is_empty());
}

/// A board that has the key, but breaks the protocol.
struct Liar {
    offer: Offer,
    /// Bytes that it sends in place of each piece.
    piece: Vec<u8>,
}

impl Service for Liar {
    fn talk(&self, mut channel: Channel<'_>, _: IpAddr) -> Result<(), ChannelError> {
        let mut bytes = [0; MESSAGE_MAX];
        loop {
            let len = channel.receive(&mut bytes)?;
            match Question::parse(&bytes[..len]) {
                Ok(Question::Want { .. }) => channel.send(&self.offer.emit())?,
                _ if self.piece.is_empty() => return Ok(()),
                _ => channel.send(&self.piece)?,
            }
        }
    }

    fn refuse(&self, _: IpAddr, _: &ChannelError) {}
}

#[test]
fn a_board_that_lies_is_told_and_nothing_is_taken_for_a_file() {
    let tell = |offer: Offer, piece: Vec<u8>| {
        let from = server::start(("leap-liar", Purpose::Layers), ANY, key(), Liar { offer, piece })
            .unwrap();
        let folder = Folder::new("liar");
        let error = fetch(from, &folder, 2).unwrap_err();
        assert!(folder.names().iter().all(|name| name.ends_with(".part")), "{:?}", folder.names());
        error
    };
    let offer = Offer { layers: 2..6, bytes: 3 * PIECE_BYTES, fingerprint: 9, rows: 0 };
    let words = |error: FetchError| error.to_string();
    let others = Offer { layers: 1..6, ..offer.clone() };
    assert!(words(tell(others, vec![1; 8])).contains("other layers"));
    let empty = Offer { layers: 2..2, ..offer.clone() };
    assert!(words(tell(empty, vec![1; 8])).contains("without meaning"));
    // More than any disk has.
    let endless = Offer { bytes: PIECE_BYTES * u64::from(u32::MAX), ..offer.clone() };
    assert!(matches!(tell(endless, vec![1; MESSAGE_MAX]), FetchError::Full(..)));
    let more = Offer { bytes: u64::MAX, ..offer.clone() };
    assert!(words(tell(more, vec![1; 8])).contains("without meaning"));
    assert!(words(tell(offer.clone(), vec![1; 7])).contains("short message"));
    // The board answers, and then it is gone.
    assert!(tell(offer.clone(), Vec::new()).may_pass());
    // A file of the right length with other bytes: they are checked before use.
    let piece = vec![1; PIECE_BYTES as usize];
    let from = server::start(("leap-liar", Purpose::Layers), ANY, key(), Liar { offer, piece });
    let folder = Folder::new("wrong");
    let fetched = fetch(from.unwrap(), &folder, 2).unwrap();
    assert!(Header::parse(&fs::read(fetched.path).unwrap()).is_err());
}

/// The rows of the second of two nodes, in whole panels.
fn cut(header: &Header, rows: &Rows) -> Result<Slice, String> {
    if rows.own != 1 {
        return Err("there is no such node".to_owned());
    }
    let [first, second] = [0, 1].map(|node| usize::from(rows.shares[node]));
    let rest = |n: usize, unit: usize| n * first / (first + second) / unit * unit..n;
    Ok(Slice {
        heads: rest(header.n_heads, 1),
        kv_heads: rest(header.n_kv_heads, 1),
        dim: rest(header.dim, 32),
        ffn: rest(header.ffn_dim, 32),
        vocab: rest(header.vocab_size, 32),
        ..Slice::default()
    })
}

#[test]
fn a_board_of_a_team_gets_its_rows_and_no_others() {
    let (from, told) = giver();
    let folder = Folder::new("rows");
    let key = key();
    let rows = |own| Rows { shares: [1, 3].into_iter().collect(), own };
    let fetch = |rows: &Rows| {
        let order = Order { rows: Some(rows), ..order(&folder, &key, (0, None)) };
        taker::fetch(&order, from, &mut |_, _| {})
    };
    let Err(FetchError::Refused(why)) = fetch(&rows(0)) else { panic!("a node without rows") };
    assert_eq!(why, "there is no such node");
    assert!(told.recv().unwrap().starts_with("Refused"));
    let fetched = fetch(&rows(1)).unwrap();
    assert!(told.recv().unwrap().contains("has_all_rows: false"));
    let (whole, part) = (fs::read(MODEL).unwrap(), fs::read(&fetched.path).unwrap());
    let (all, own) = (Header::parse(&whole).unwrap(), Header::parse(&part).unwrap());
    assert_eq!(own.verify(&part), Ok(true));
    assert_eq!(own.fingerprint(&part), all.fingerprint(&whole));
    let slice = own.slice().unwrap();
    assert_eq!(*slice, cut(&all, &rows(1)).unwrap());
    assert!(part.len() < whole.len() && fetched.sent == part.len() as u64 && !fetched.has_all_rows);
    for tensor in own.tensors() {
        let from = all.tensors().find(|from| from.id == tensor.id).unwrap();
        let is_cut = own.is_multiplied(tensor.id.kind);
        let rows = slice.rows(tensor.id.kind, &own).next().unwrap();
        assert_eq!(tensor.rows, if is_cut { rows.len() } else { from.rows }, "{}", tensor.id);
        // The last rows of a cut matrix: where numbers end, or their scales do.
        let bytes = |file: &[u8], end: u64, n: u64| file[(end - n) as usize..end as usize].to_vec();
        let n = tensor.bytes.min(64);
        let (got, wanted) = (tensor.offset + tensor.bytes, from.offset + from.bytes);
        assert_eq!(bytes(&part, got, n), bytes(&whole, wanted, n), "{}", tensor.id);
    }
    assert_eq!(fetch(&rows(1)).unwrap(), Fetched { sent: 0, ..fetched });
    // A board that wants layers does not take rows for them.
    let fingerprint = all.fingerprint(&whole);
    assert_eq!(taker::holding(&folder.0, fingerprint, &(1..2)), None);
    // Damage by the disk is found, as in any other file.
    let mut damaged = part.clone();
    damaged[part.len() / 2] ^= 1;
    assert!(own.verify(&damaged).is_err());
}

/// The part of the second node with these shares, fetched into `folder`, and once more into an empty one.
fn part_and_fresh(from: SocketAddr, folder: &Folder, shares: [u16; 2]) -> (Fetched, Fetched) {
    let rows = Rows { shares: shares.into_iter().collect(), own: 1 };
    let (key, empty) = (key(), Folder::new(&format!("empty-{}", shares[0])));
    let [fetched, fresh] = [folder, &empty].map(|folder| {
        let order = Order { rows: Some(&rows), ..order(folder, &key, (0, None)) };
        taker::fetch(&order, from, &mut |_, _| {}).unwrap()
    });
    assert_eq!(fs::read(&fetched.path).unwrap(), fs::read(&fresh.path).unwrap(), "{shares:?}");
    assert_eq!(fresh.sent, fresh.bytes);
    (fetched, fresh)
}

#[test]
fn rows_that_a_board_had_before_are_not_sent_again() {
    let (from, _told) = giver();
    let folder = Folder::new("fewer");
    let (had, _) = part_and_fresh(from, &folder, [1, 3]);
    assert_eq!(had.sent, had.bytes);
    // All of them are rows that it has; the checksums are others.
    let (fewer, _) = part_and_fresh(from, &folder, [1, 1]);
    assert!(fewer.sent <= 2 * PIECE_BYTES && fewer.sent < fewer.bytes, "{fewer:?}");
    // Some of these rows are there.
    let (more, _) = part_and_fresh(from, &folder, [1, 7]);
    assert!(more.sent < more.bytes, "{more:?}");
}

#[test]
fn layers_that_a_board_had_before_are_not_sent_again() {
    let (from, _told) = giver();
    let (folder, empty) = (Folder::new("layers-2"), Folder::new("layers-1"));
    let had = fetch(from, &folder, 2).unwrap();
    let [more, fresh] = [&folder, &empty].map(|folder| fetch(from, folder, 1).unwrap());
    assert_eq!(fs::read(&more.path).unwrap(), fs::read(&fresh.path).unwrap());
    assert!(more.sent < more.bytes, "{more:?} after {had:?}");
}

#[test]
fn what_a_disk_has_changed_of_them_is_sent() {
    let (from, _told) = giver();
    let folder = Folder::new("changed");
    let had = fetch(from, &folder, 2).unwrap();
    let mut bytes = fs::read(&had.path).unwrap();
    let header = Header::parse(&bytes).unwrap();
    // A byte in each piece is changed, so no piece is as it was.
    let first = header.tensors().next().unwrap().offset as usize;
    bytes[first..].iter_mut().step_by(PIECE_BYTES as usize / 2).for_each(|byte| *byte ^= 1);
    fs::write(&had.path, &bytes).unwrap();
    let (more, whole) = (fetch(from, &folder, 1).unwrap(), fs::read(MODEL).unwrap());
    let part = fs::read(&more.path).unwrap();
    assert_eq!(Header::parse(&part).unwrap().verify(&part), Ok(true));
    assert!(more.sent > more.bytes / 2 && part.len() < whole.len(), "{more:?}");
    // A file that is no model, and one that ends early.
    for len in [0, 100, bytes.len() / 2] {
        fs::remove_file(&more.path).unwrap();
        fs::write(&had.path, &bytes[..len]).unwrap();
        let again = fetch(from, &folder, 1).unwrap();
        assert_eq!(fs::read(again.path).unwrap(), part, "{len}");
    }
}

#[test]
fn rows_of_a_damaged_file_are_not_given() {
    let folder = Folder::new("damaged");
    let mut file = fs::read(MODEL).unwrap();
    let header = Header::parse(&file).unwrap();
    let w2 = header.tensors().find(|tensor| tensor.id.kind == TensorKind::W2).unwrap();
    // The damaged row is not requested.
    file[w2.offset as usize] ^= 1;
    let path = folder.0.join("model");
    fs::write(&path, &file).unwrap();
    let content = Content::open(&path, &header, header.fingerprint(&file), cut).unwrap();
    let from = giver::start(content, ANY, key(), Box::new(|_| {})).unwrap();
    let (taken, key) = (Folder::new("taken"), key());
    let rows = Rows { shares: [1, 3].into_iter().collect(), own: 1 };
    let order = Order { rows: Some(&rows), ..order(&taken, &key, (0, None)) };
    assert!(taker::fetch(&order, from, &mut |_, _| {}).unwrap_err().may_pass());
    assert!(taken.names().iter().all(|name| name.ends_with(".part")), "{:?}", taken.names());
}
