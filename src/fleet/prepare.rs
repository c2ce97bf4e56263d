//! Calls of a master to the boards of a ring or team that changes: they fetch parts before, and get orders after it.

use std::ops::Range;
use std::thread;
use std::time::Instant;

use super::caller::Failed;
use super::events::Event;
use super::members::{Fleet, only};
use crate::call::master::{CallError, Called};
use crate::control::server::Say;
use crate::control::{Refusal, WORD_EVERY};
use crate::ring::plan::Board;
use crate::ring::{Address, Topology};
use crate::wire::call::Call;
use crate::wire::frame::NodeLine;

/// Longest time in seconds that a board may be away while it prepares.
const AWAY_S: u64 = 30;

/// The number of threads that a node was told, if it was.
pub(super) fn threads_told(board: &Board, line: &NodeLine) -> Option<u16> {
    board.others.iter().map(|other| other.threads).find(|threads| *threads == line.threads)
}

impl Fleet {
    /// The ring file in which the nodes have these layers.
    pub(super) fn ring_file(&self, lines: &[NodeLine], layers: &[Range<usize>]) -> String {
        let parts = lines.iter().zip(layers).filter_map(|(line, layers)| {
            let board = self.boards.iter().find(|board| board.name == line.name.as_str())?;
            let threads = threads_told(board, line);
            let threads = threads.map_or(String::new(), |threads| format!(" threads={threads}"));
            let Range { start, end } = layers;
            Some(format!("{} {} {start}..{end}{threads}\n", board.name, board.address))
        });
        [self.split.model_line.clone()].into_iter().chain(parts).collect()
    }

    /// Address at which the board of this name is called.
    pub(super) fn address(&self, name: &str) -> Option<&Address> {
        let index = self.boards.iter().position(|board| board.name == name)?;
        self.called.get(index.checked_sub(1)?)
    }

    fn call<T>(
        &self,
        name: &str,
        talk: impl FnOnce(&mut Called<'_>) -> Result<T, CallError>,
    ) -> Result<T, Failed> {
        let unknown = || Failed {
            may_pass: false,
            is_interruption: false,
            why: "it was not called".to_owned(),
        };
        self.caller.call(self.address(name).ok_or_else(unknown)?, talk)
    }

    /// Waits until the boards of these names have their parts of the ring file.
    pub(super) fn prepare(
        &self,
        mut names: Vec<&str>,
        file: &str,
        say: Say<'_>,
    ) -> Result<(), Refusal> {
        let refused = |name: &str, why: &str| Refusal { code: 1, why: format!("{name}: {why}") };
        let mut heard = Instant::now();
        loop {
            let (mut words, mut waiting) = (Vec::new(), Vec::new());
            for name in names {
                match self.call(name, |called| called.prepare(self.port, file)) {
                    Ok(100) => continue,
                    Ok(percent) => {
                        heard = Instant::now();
                        words.push(format!("{name} has {percent} % of its layers"));
                    }
                    Err(Failed { may_pass: true, why, .. })
                        if heard.elapsed().as_secs() < AWAY_S =>
                    {
                        words.push(format!("waiting for {name}: {why}"));
                    }
                    Err(Failed { why, .. }) => return Err(refused(name, &why)),
                }
                waiting.push(name);
            }
            let Some(name) = waiting.first() else { return Ok(()) };
            // Pieces that have come stay on the boards, even if the client is gone.
            say(&words.join(", ")).map_err(|e| refused(name, &e.to_string()))?;
            names = waiting;
            thread::sleep(WORD_EVERY / 2);
        }
    }

    /// Tells the workers that the ring has become this one, and keeps its split.
    pub(super) fn keep(&self, lines: &[NodeLine], file: &str) {
        self.keep_split(file);
        let call = Call::Keep { port: self.port, file };
        for line in lines.iter().skip(1) {
            if let Err(Failed { why, .. }) = self.call(&line.name, |called| called.tell(&call)) {
                self.caller.tell(&Event::Forgetful { name: &line.name, why: &why });
            }
        }
    }

    /// Tells the boards of these names their parts of the ring in this file, or that they have none.
    pub(super) fn tell(&self, names: &[String], file: &str) -> Result<(), String> {
        let ring = Topology::parse(file).map_err(|e| e.to_string())?;
        let mut result = Ok(());
        let others = self.boards.iter().skip(1).zip(&self.called);
        for (board, place) in others.filter(|(board, _)| names.contains(&board.name)) {
            let has_part = ring.knows(&board.name);
            let order = if has_part { Call::Ring { port: self.port, file } } else { Call::Rest };
            let told = self.caller.call(place, |called| called.tell(&order));
            if let (Err(Failed { why, .. }), true, Ok(())) = (told, has_part, &result) {
                result = Err(format!("{}: {why}", board.name));
            }
        }
        result
    }

    /// Tells the boards that are there of the ring, if not all of its boards could be told before.
    pub(super) fn tell_again(&mut self, is_there: &[bool]) {
        let Some(file) = self.split.untold.take() else { return };
        let there = only(self.boards.clone(), is_there);
        let there: Vec<String> = there.into_iter().map(|board| board.name).collect();
        let are_all_there = self.nodes.iter().all(|node| there.contains(node));
        if self.tell(&there, &file).is_err() || !are_all_there {
            self.split.untold = Some(file);
        }
    }
}
