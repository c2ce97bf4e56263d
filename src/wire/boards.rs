//! A report about the boards of a ring's place that is a team.
//!
//! ```text
//! offset  type     field
//! 12      u32      passes so far
//! 24      u16      boards
//! 32      u64      microseconds of all passes
//! 40      u64      of these, microseconds in which the slowest board computed before a gather
//! 48               the place's name (32 bytes), then the boards, the lead first:
//!
//! board:  name (32 bytes), instruction set (16 bytes), u64 bytes per token, u64 microseconds of computing,
//!         u32 round trip to the lead in µs, u16 threads, u16 share
//! ```

use super::fields::{Writer, u16_at, u32_at, u64_at};
use super::name::{NAME_MAX, Name, put_text, text};

/// Most boards in one place.
pub const BOARDS_MAX: usize = 16;
const ISA_MAX: usize = 16;
const BOARD_LEN: usize = NAME_MAX + ISA_MAX + 24;

/// Work of a place that is a team, and of its boards, since it began.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct BoardsReport {
    /// Name of the place.
    pub name: Name,
    /// Passes so far.
    pub passes: u32,
    /// Microseconds of all passes.
    pub whole_us: u64,
    /// The part of `whole_us` in which the slowest board computed before a gather.
    pub slowest_us: u64,
    /// The boards, the lead first.
    pub boards: heapless::Vec<BoardReport, BOARDS_MAX>,
}

/// Work of a board.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct BoardReport {
    /// Name of the board.
    pub name: Name,
    /// Instruction set of its kernels.
    pub isa: heapless::String<ISA_MAX>,
    /// Bytes of weights that the board reads per token.
    pub bytes_per_token: u64,
    /// Microseconds of computing so far.
    pub compute_us: u64,
    /// Round trip between the board and the lead, in microseconds; 0 if unknown.
    pub rtt_us: u32,
    /// Threads that compute.
    pub threads: u16,
    /// The board's share of the rows, in proportion to the other boards'.
    pub share: u16,
}

/// Number of boards in a frame's header.
pub(super) fn count<const N: usize>(header: &[u8; N]) -> u16 {
    u16_at(header, 24)
}

/// Bytes behind the header in a frame with `n_boards` boards.
pub(super) fn bytes(n_boards: u16) -> usize {
    NAME_MAX + usize::from(n_boards) * BOARD_LEN
}

/// Reads a report. The frame must have the length that [`bytes()`] demands.
pub(super) fn parse(frame: &[u8], header_len: usize) -> BoardsReport {
    let (name, boards) = frame[header_len..].split_at(NAME_MAX);
    let board = |bytes: &[u8; BOARD_LEN]| BoardReport {
        name: text(&bytes[..32]),
        isa: text(&bytes[32..48]),
        bytes_per_token: u64_at(bytes, 48),
        compute_us: u64_at(bytes, 56),
        rtt_us: u32_at(bytes, 64),
        threads: u16_at(bytes, 68),
        share: u16_at(bytes, 70),
    };
    BoardsReport {
        name: text(name),
        passes: u32_at(frame, 12),
        whole_us: u64_at(frame, 32),
        slowest_us: u64_at(frame, 40),
        boards: boards.as_chunks().0.iter().take(BOARDS_MAX).map(board).collect(),
    }
}

/// Writes the report's header fields, and the body behind the header.
pub(super) fn emit(report: &BoardsReport, header: &mut [u8], body: &mut [u8]) {
    let mut out = Writer::new(&mut header[12..]);
    out.u32(report.passes).zero(8).u16(report.boards.len() as u16).zero(6);
    out.u64(report.whole_us).u64(report.slowest_us);
    let (name, boards) = body.split_at_mut(NAME_MAX);
    put_text(name, &report.name);
    for (board, out) in report.boards.iter().zip(boards.as_chunks_mut::<BOARD_LEN>().0) {
        let (texts, numbers) = out.split_at_mut(NAME_MAX + ISA_MAX);
        put_text(&mut texts[..NAME_MAX], &board.name);
        put_text(&mut texts[NAME_MAX..], &board.isa);
        let mut numbers = Writer::new(numbers);
        numbers.u64(board.bytes_per_token).u64(board.compute_us).u32(board.rtt_us);
        numbers.u16(board.threads).u16(board.share);
    }
}
