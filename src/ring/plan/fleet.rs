//! A file of boards and what was measured of them.
//!
//! A line for each board, in the order of the ring; the first is the master:
//!
//! ```text
//! # name  address         GB/s       GOP/s     GB          µs       MB/s      W, if known
//! desk    192.168.1.10    read=23.1  int8=270  memory=6.5  rtt=180  wire=112  watts=4,11
//! pi      192.168.1.11    read=11.4  int8=90   memory=7.2  rtt=200  wire=112  watts=2.8,8.1  always
//! ```
//!
//! `kernel=80,115`, if known, are µs and MB/s of links over the kernel module. `gpu=400,8` are GB/s and GB of a GPU
//! beside the processors. `always` and `never` say whether a board is to serve. A board that was measured with several
//! numbers of threads has a line for each, one after the other, with `threads=N`; the plan takes one of them.

use super::Need;
use crate::ring::address::Address;
use crate::ring::topology::PORT_DEFAULT;
use crate::wire::frame::NODES_MAX;
use crate::wire::hello::NAME_MAX;

/// Power that a board draws.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Watts {
    /// While it waits.
    pub(crate) idle: f64,
    /// While it computes.
    pub(crate) busy: f64,
}

/// A GPU beside the processors of a board.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct BoardGpu {
    /// Bytes a second that it reads.
    pub(crate) read: f64,
    /// Bytes of its memory for a model.
    pub(crate) memory: u64,
}

/// Whether a board is to serve.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Wish {
    /// If it helps.
    Any,
    /// In any case.
    Always,
    /// Not at all.
    Never,
}

/// A board, and what was measured of it.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Board {
    /// Name of the board.
    pub(crate) name: String,
    /// Address of the board.
    pub(crate) address: Address,
    /// Number of threads with which the board was measured, if that is said.
    pub(crate) threads: Option<u16>,
    /// Bytes a second that it reads.
    pub(crate) read: f64,
    /// int8 operations a second.
    pub(crate) int8: f64,
    /// Bytes of memory for a model.
    pub(crate) memory: u64,
    /// Seconds to the next board and back.
    pub(crate) round_trip_s: f64,
    /// Bytes a second that it sends.
    pub(crate) wire: f64,
    /// Links over the kernel module, if the board has one; a team has them if all its boards do.
    pub(crate) kernel: Option<Links>,
    /// GPU that computes the last of the board's layers, as many as fit.
    pub(crate) gpu: Option<BoardGpu>,
    /// Seconds of each layer besides computing: where it is a team, those of its gathers.
    pub(crate) layer_s: f64,
    pub(crate) watts: Option<Watts>,
    pub(crate) wish: Wish,
    /// Other choices for this board.
    pub(crate) others: Vec<Other>,
}

/// Links with other boards.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Links {
    /// Seconds there and back.
    pub(crate) round_trip_s: f64,
    /// Bytes a second that are sent.
    pub(crate) wire: f64,
}

/// A board with another number of threads.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Other {
    pub(crate) threads: u16,
    /// Bytes a second that it reads.
    pub(crate) read: f64,
    pub(crate) watts: Option<Watts>,
}

/// The boards, each with each of its numbers of threads in turn. If `needs_watts`, only entries with known
/// watts, if there are any.
pub(crate) fn with_others(boards: &[Board], needs_watts: bool) -> Vec<Board> {
    let all = |board: &Board| {
        let others = board.others.iter().filter(|other| !needs_watts || other.watts.is_some());
        let mut all = vec![Board { others: Vec::new(), ..board.clone() }];
        all.extend(others.map(|other| Board {
            threads: Some(other.threads),
            read: other.read,
            watts: other.watts,
            others: Vec::new(),
            ..board.clone()
        }));
        if needs_watts && board.watts.is_none() && all.len() > 1 {
            all.remove(0);
        }
        all
    };
    boards.iter().flat_map(all).collect()
}

impl Board {
    /// Whether another entry is the same board, with other threads.
    pub(super) fn is_same(&self, other: &Board) -> bool {
        self.name == other.name
    }

    /// Seconds of a pass over something by the processors.
    pub(crate) fn seconds(&self, need: &Need) -> f64 {
        (need.read as f64 / self.read).max(need.ops as f64 / self.int8)
    }

    /// Least seconds of a pass over something, by the processors or the GPU.
    pub(super) fn least_seconds(&self, need: &Need) -> f64 {
        self.gpu.map_or(f64::INFINITY, |gpu| need.read as f64 / gpu.read).min(self.seconds(need))
    }
}

/// Reads a file of boards.
///
/// # Errors
/// The first line that is none, and why, in words.
pub(crate) fn parse(text: &str) -> Result<Vec<Board>, String> {
    let mut boards: Vec<Board> = Vec::new();
    for (index, line) in text.lines().enumerate() {
        let line = line.split('#').next().unwrap_or_default().trim();
        if line.is_empty() {
            continue;
        }
        let bad = |what: String| format!("line {}: {what}", index + 1);
        let board = board(line).map_err(bad)?;
        check_same(&boards, &board).map_err(bad)?;
        boards.push(board);
    }
    match boards.chunk_by(|a, b| a.is_same(b)).count() {
        0 => Err("there is no board in it".to_owned()),
        n if n > NODES_MAX => Err(format!("a ring has at most {NODES_MAX} boards")),
        _ if boards[0].wish == Wish::Never => {
            Err(format!("{} is the first board, the master, and has to serve", boards[0].name))
        }
        _ => Ok(boards),
    }
}

/// Checks that a board is a new one, or the last one again with other threads.
fn check_same(before: &[Board], board: &Board) -> Result<(), String> {
    let Board { name, address, threads, wish, .. } = board;
    let n = before.iter().filter(|other| other.name == *name).count();
    let same = before.iter().rev().take_while(|other| other.name == *name);
    let with =
        |threads: &Option<u16>| before.iter().any(|b| b.name == *name && b.threads == *threads);
    match before.last() {
        _ if n == 0 => Ok(()),
        _ if same.clone().count() < n => {
            Err(format!("the lines of {name} are not one after the other"))
        }
        _ if threads.is_none() || with(&None) || with(threads) => Err(format!(
            "there are two boards called {name}; lines of one board say threads=, each another number"
        )),
        Some(other) if other.address != *address || other.wish != *wish => {
            Err(format!("{name} is somewhere else, or wished for otherwise, in the line before"))
        }
        Some(other) if other.watts.map(|w| w.idle) != board.watts.map(|w| w.idle) => {
            Err(format!("{name} takes other watts in the line before while it waits"))
        }
        _ => Ok(()),
    }
}

fn board(line: &str) -> Result<Board, String> {
    let mut words = line.split_whitespace();
    let (Some(name), Some(address)) = (words.next(), words.next()) else {
        return Err("wants a name, an address and what was measured".to_owned());
    };
    if name.len() > NAME_MAX || !name.chars().all(|c| c.is_ascii_graphic()) {
        return Err(format!("{name:?} is no name: up to {NAME_MAX} letters, digits and signs"));
    }
    let (mut figures, mut watts, mut wish) = ([None; FIGURES.len()], None, Wish::Any);
    let (mut threads, mut kernel, mut gpu) = (None, None, None);
    for word in words {
        match word.split_once('=') {
            None if word == "always" => wish = Wish::Always,
            None if word == "never" => wish = Wish::Never,
            None => return Err(format!("{word:?} is none of always, never and NAME=VALUE")),
            Some(("watts", value)) => watts = Some(watts_of(value)?),
            Some(("kernel", value)) => kernel = Some(kernel_of(value)?),
            Some(("gpu", value)) => gpu = Some(gpu_of(value)?),
            Some(("threads", value)) => {
                let n = value.parse().ok().filter(|n| *n > 0);
                threads = Some(n.ok_or_else(|| format!("{word:?} is no number of threads"))?);
            }
            Some((key, value)) => {
                let known = FIGURES.iter().position(|(known, _)| *known == key);
                let index = known.ok_or_else(|| format!("{key:?} is nothing that is known"))?;
                let value = figure(value).ok_or_else(|| no_figure(word, index))?;
                figures[index] = Some(value * FIGURES[index].1);
            }
        }
    }
    if let Some(lacks) = figures.iter().position(Option::is_none) {
        return Err(format!("{name} lacks {}=", FIGURES[lacks].0));
    }
    let [read, int8, memory, round_trip_s, wire] = figures.map(Option::unwrap_or_default);
    Ok(Board {
        name: name.to_owned(),
        address: Address::parse(address, PORT_DEFAULT)?,
        threads,
        read,
        int8,
        memory: memory as u64,
        round_trip_s,
        wire,
        kernel,
        gpu,
        layer_s: 0.0,
        watts,
        wish,
        others: Vec::new(),
    })
}

/// Figures that every board has, with their units.
const FIGURES: [(&str, f64); 5] =
    [("read", 1e9), ("int8", 1e9), ("memory", 1e9), ("rtt", 1e-6), ("wire", 1e6)];

/// Units of the figures, and an example of each.
const UNITS: [(&str, &str); FIGURES.len()] = [
    ("GB a second", "read=11.4"),
    ("GOP a second", "int8=90"),
    ("GB", "memory=8"),
    ("microseconds", "rtt=200"),
    ("MB a second", "wire=112"),
];

fn no_figure(word: &str, index: usize) -> String {
    let (unit, example) = UNITS[index];
    format!("{word:?} is no figure: wanted a number of {unit} without a unit, as in {example}")
}

fn figure(text: &str) -> Option<f64> {
    text.parse().ok().filter(|value| (1e-6..1e9).contains(value))
}

fn kernel_of(text: &str) -> Result<Links, String> {
    let pair = text.split_once(',').and_then(|(us, wire)| Some((figure(us)?, figure(wire)?)));
    let (us, wire) = pair.ok_or_else(|| {
        format!("kernel={text:?} wants microseconds and MB/s, as in kernel=80,115")
    })?;
    Ok(Links { round_trip_s: us * 1e-6, wire: wire * 1e6 })
}

fn gpu_of(text: &str) -> Result<BoardGpu, String> {
    let pair = text.split_once(',').and_then(|(read, gb)| Some((figure(read)?, figure(gb)?)));
    let (read, gb) =
        pair.ok_or_else(|| format!("gpu={text:?} wants GB/s and GB, as in gpu=400,8"))?;
    Ok(BoardGpu { read: read * 1e9, memory: (gb * 1e9) as u64 })
}

fn watts_of(text: &str) -> Result<Watts, String> {
    let pair = text.split_once(',').map(|(idle, busy)| (figure(idle), figure(busy)));
    match pair {
        Some((Some(idle), Some(busy))) if idle <= busy => Ok(Watts { idle, busy }),
        _ => Err(format!("watts={text:?} wants idle and busy, as in watts=2.8,8.1")),
    }
}
