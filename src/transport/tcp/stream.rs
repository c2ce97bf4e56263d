//! A connection's received records, and those still to be sent.

use std::io::{self, IoSlice, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::sync::Arc;

use crate::transport::Micros;
use crate::wire::datagram::{HEADER_LEN, SLOTS_BYTES};

/// Longest record, including its length field.
const RECORD_MAX: usize = 4 + HEADER_LEN + SLOTS_BYTES;
/// Longest record of a connection that is not the session's yet.
const GREETING_MAX: usize = 512;
/// Room for records of other kinds behind a frame that waits.
const CONTROL_ROOM: usize = 4096;

/// Received bytes of a connection: `start..end` of the memory.
pub(super) struct TcpInput {
    pub(super) stream: Arc<TcpStream>,
    pub(super) peer: SocketAddr,
    memory: Box<[u8]>,
    start: usize,
    end: usize,
    pub(super) since: Micros,
    pub(super) is_proven: bool,
    /// Whether the peer was offered a session.
    pub(super) is_offered: bool,
}

/// Bytes of a connection still to be sent: `start..end` of the memory.
pub(super) struct TcpOutput {
    pub(super) stream: Arc<TcpStream>,
    pub(super) peer: SocketAddr,
    memory: Box<[u8]>,
    start: usize,
    end: usize,
    pub(super) is_broken: bool,
}

impl TcpOutput {
    pub(super) fn new(stream: Arc<TcpStream>, peer: SocketAddr) -> TcpOutput {
        let memory = vec![0; RECORD_MAX + CONTROL_ROOM].into_boxed_slice();
        TcpOutput { stream, peer, memory, start: 0, end: 0, is_broken: false }
    }

    pub(super) fn is_empty(&self) -> bool {
        self.start == self.end
    }

    /// Sends what waits. False if some still does.
    pub(super) fn flush(&mut self) -> bool {
        while !self.is_empty() && !self.is_broken {
            match (&*self.stream).write(&self.memory[self.start..self.end]) {
                Ok(n) if n > 0 => self.start += n,
                Err(e) if is_later(&e) => return false,
                _ => self.is_broken = true,
            }
        }
        (self.start, self.end) = (0, 0);
        true
    }

    /// Sends a frame, or keeps the rest of it. False if what came before still waits.
    pub(super) fn frame(&mut self, frame: &[u8]) -> bool {
        if !self.flush() {
            return false;
        }
        let len = (frame.len() as u32).to_le_bytes();
        let record = [IoSlice::new(&len), IoSlice::new(frame)];
        self.start = match (&*self.stream).write_vectored(&record) {
            Err(e) if is_later(&e) => 0,
            Ok(n) if n > 0 => n,
            _ => {
                self.is_broken = true;
                return true;
            }
        };
        self.end = len.len() + frame.len();
        if self.is_empty() {
            // The whole memory is free for what follows the frame.
            (self.start, self.end) = (0, 0);
        } else {
            self.memory[..len.len()].copy_from_slice(&len);
            self.memory[len.len()..self.end].copy_from_slice(frame);
        }
        true
    }

    /// Sends another record. Without room it is dropped, because the link repeats it.
    pub(super) fn control(&mut self, datagram: &[u8]) {
        let len = (datagram.len() as u32).to_le_bytes();
        if let Some(room) = self.memory[self.end..].get_mut(..4 + datagram.len()) {
            room[..4].copy_from_slice(&len);
            room[4..].copy_from_slice(datagram);
            self.end += room.len();
            self.flush();
        }
    }
}

fn is_later(e: &io::Error) -> bool {
    matches!(e.kind(), io::ErrorKind::WouldBlock | io::ErrorKind::Interrupted)
}

/// Outcome of reading from a connection.
pub(super) enum ReadOutcome {
    /// This many bytes.
    Bytes(usize),
    /// The connection has ended, or has sent more than it may.
    Over,
    /// The port is closed.
    Refused,
}

impl TcpInput {
    pub(super) fn new(stream: Arc<TcpStream>, peer: SocketAddr, since: Micros) -> TcpInput {
        // Pages that are never written cost nothing: strangers reach only the first.
        let memory = vec![0; 2 * RECORD_MAX].into_boxed_slice();
        TcpInput {
            stream,
            peer,
            memory,
            start: 0,
            end: 0,
            since,
            is_proven: false,
            is_offered: false,
        }
    }

    /// Reads what has arrived.
    pub(super) fn read(&mut self) -> ReadOutcome {
        let limit = if self.is_proven { self.memory.len() } else { GREETING_MAX };
        // Greetings that came before this node accepted may be more than fit at once.
        if self.start > 0 && limit.saturating_sub(self.end) < RECORD_MAX {
            self.memory.copy_within(self.start..self.end, 0);
            (self.start, self.end) = (0, self.end - self.start);
        }
        let room = match self.memory.get_mut(self.end..limit) {
            Some(room) if !room.is_empty() => room,
            _ => return ReadOutcome::Over,
        };
        match (&*self.stream).read(room) {
            Ok(0) => ReadOutcome::Over,
            Ok(n) => {
                self.end += n;
                ReadOutcome::Bytes(n)
            }
            Err(e) if is_later(&e) => ReadOutcome::Bytes(0),
            // The connection is still being established.
            Err(e) if e.kind() == io::ErrorKind::NotConnected => ReadOutcome::Bytes(0),
            Err(e) if e.kind() == io::ErrorKind::ConnectionRefused => ReadOutcome::Refused,
            Err(_) => ReadOutcome::Over,
        }
    }

    /// The next whole record; an error if the bytes cannot be one.
    pub(super) fn record(&mut self) -> Result<Option<&mut [u8]>, ()> {
        let unread = &self.memory[self.start..self.end];
        let Some(len) = unread.first_chunk().map(|len| u32::from_le_bytes(*len) as usize) else {
            return Ok(None);
        };
        let max = if self.is_proven { RECORD_MAX } else { GREETING_MAX };
        if !(HEADER_LEN..=max - 4).contains(&len) {
            return Err(());
        }
        if unread.len() < 4 + len {
            return Ok(None);
        }
        let start = self.start + 4;
        self.start = start + len;
        let record = &mut self.memory[start..start + len];
        Ok(Some(record))
    }

    /// Starts at the front again when all is read.
    pub(super) fn rewind(&mut self) {
        if self.start == self.end {
            (self.start, self.end) = (0, 0);
        }
    }
}
