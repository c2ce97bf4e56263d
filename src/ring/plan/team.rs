//! The expected speed of a team: boards that share every layer by rows.
//!
//! Time is that of a decoding pass of one row over a short text: every board reads its part of the weights,
//! and the slowest decides; then all exchange their results, four times a layer and once or twice more where a
//! layer stands beside a mixture, and send the logits to the lead. A board sends its bytes to each other one, and
//! takes theirs at the same time.

use super::{Board, Links, Need};

/// Work of a node for a token.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct TeamPart {
    /// Bytes of the board's weights, keys and values.
    pub(crate) need: Need,
    /// Bytes that it gives to the gathers of each layer: four, and up to two for a layer beside a mixture.
    pub(crate) gives: [u64; 6],
    /// Bytes of its logits, which go to the lead.
    pub(crate) logits: u64,
}

/// Time of a team's token by its use, in seconds.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct TeamFigures {
    /// Weights of the board that takes longest, and which that is.
    pub(crate) weights_s: (f64, usize),
    /// Bytes on their way.
    pub(crate) gathers_s: f64,
    /// One way of each gather, and of the token.
    pub(crate) latency_s: f64,
    /// Whether those are times of links over the kernel module, as all boards have it.
    pub(crate) is_by_kernel: bool,
}

impl TeamFigures {
    pub(crate) fn token_s(&self) -> f64 {
        self.weights_s.0 + self.gathers_s + self.latency_s
    }
}

/// Largest share of a board's memory that its part may take: rows are cut in steps.
const MEMORY_PART: f64 = 0.98;

/// Shares in proportion to the boards' speeds with all of a model, the largest 1000 or less. A board without
/// memory for its share, beside the bytes that `every` board needs, gets as much as fits, if all of them
/// together have enough.
pub(crate) fn shares(boards: &[&Board], all: &Need, every: u64) -> Vec<u16> {
    let speeds: Vec<f64> = boards.iter().map(|board| 1.0 / board.seconds(all)).collect();
    let rooms = boards.iter().map(|board| {
        MEMORY_PART * board.memory.saturating_sub(every) as f64 / all.memory.max(1) as f64
    });
    let parts = parts(&speeds, &rooms.collect::<Vec<f64>>()).unwrap_or(speeds);
    let largest = parts.iter().copied().fold(0.0, f64::max);
    let share = |part: &f64| (1e3 * part / largest).round().max(1.0) as u16;
    let shares: Vec<u16> = parts.iter().map(share).collect();
    let by = shares.iter().fold(0, |by, share| gcd(by, *share)).max(1);
    shares.iter().map(|share| share / by).collect()
}

/// Parts of a whole in proportion to `speeds`, each at most its room; `None` if the rooms are too small.
fn parts(speeds: &[f64], rooms: &[f64]) -> Option<Vec<f64>> {
    let mut is_full = vec![false; speeds.len()];
    loop {
        let nodes = || is_full.iter().zip(speeds).zip(rooms);
        let left = 1.0 - nodes().filter(|((full, _), _)| **full).map(|(_, room)| room).sum::<f64>();
        let speed: f64 = nodes().filter(|((full, _), _)| !**full).map(|((_, of), _)| of).sum();
        let part = |(full, of): (&bool, &f64), room: &f64| match full {
            true => *room,
            false => left * of / speed,
        };
        let parts: Vec<f64> = nodes().map(|(node, room)| part(node, room)).collect();
        let fits = parts.iter().zip(rooms).map(|(part, room)| part <= room);
        let over: Vec<usize> = fits.enumerate().filter(|(_, fits)| !fits).map(|(i, _)| i).collect();
        if over.is_empty() {
            return (speed > 0.0 || left <= 0.0).then_some(parts);
        }
        over.iter().for_each(|node| is_full[*node] = true);
        if is_full.iter().all(|full| *full) {
            return None;
        }
    }
}

/// Predicts the figures of a team of `boards` that have these parts of `n_layers` layers, the lead first.
pub(crate) fn team_figures(boards: &[&Board], parts: &[TeamPart], n_layers: usize) -> TeamFigures {
    let all = || boards.iter().zip(parts);
    let weights_s = all().map(|(board, part)| board.seconds(&part.need)).enumerate();
    let weights_s =
        weights_s.fold((0.0, 0), |slowest, (node, seconds)| match seconds > slowest.0 {
            true => (seconds, node),
            false => slowest,
        });
    let largest =
        |seconds: &dyn Fn((&&Board, &TeamPart)) -> f64| all().map(seconds).fold(0.0, f64::max);
    let is_by_kernel = boards.iter().all(|board| board.kernel.is_some());
    let links = |board: &Board| {
        let Board { round_trip_s, wire, .. } = *board;
        board.kernel.filter(|_| is_by_kernel).unwrap_or(Links { round_trip_s, wire })
    };
    let gather = |index: usize| {
        let sum: u64 = parts.iter().map(|part| part.gives[index]).sum();
        largest(&|(board, part)| {
            let (own, others) = (part.gives[index], parts.len() as u64 - 1);
            (own * others).max(sum - own) as f64 / links(board).wire
        })
    };
    let is_there = |index: &usize| parts.iter().any(|part| part.gives[*index] > 0);
    let n_gathers = 4 + (4..6).filter(is_there).count();
    let of_layer: f64 = (0..n_gathers).map(gather).sum();
    let logits = |part: &TeamPart| part.logits as f64;
    let taken: f64 = parts.iter().skip(1).map(logits).sum();
    let sent = all().skip(1).map(|(board, part)| logits(part) / links(board).wire);
    let sent = sent.fold(0.0, f64::max);
    let gathers_s = of_layer * n_layers as f64 + sent.max(taken / links(boards[0]).wire);
    let way = largest(&|(board, _)| links(board).round_trip_s / 2.0);
    let latency_s = way * (n_gathers * n_layers + 2) as f64;
    TeamFigures { weights_s, gathers_s, latency_s, is_by_kernel }
}

fn gcd(a: u16, b: u16) -> u16 {
    if b == 0 { a } else { gcd(b, a % b) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_board_without_memory_gets_what_fits_and_the_others_the_rest() {
        let near = |parts: Option<Vec<f64>>, wanted: &[f64]| {
            let parts = parts.unwrap();
            assert!(parts.iter().zip(wanted).all(|(a, b)| (a - b).abs() < 1e-9), "{parts:?}");
        };
        near(parts(&[2.0, 1.0, 1.0], &[9.0; 3]), &[0.5, 0.25, 0.25]);
        near(parts(&[2.0, 1.0, 1.0], &[0.3, 9.0, 9.0]), &[0.3, 0.35, 0.35]);
        // A board with enough memory at first may be the next that lacks it.
        near(parts(&[2.0, 1.0, 1.0], &[0.3, 0.3, 9.0]), &[0.3, 0.3, 0.4]);
        assert_eq!(parts(&[2.0, 1.0], &[0.4, 0.5]), None);
        assert_eq!(parts(&[1.0], &[0.0]), None);
    }
}
