//! The plan of a team: boards that share every layer by rows.

use std::fmt::Write;
use std::time::Duration;

use crate::format::model::Header;
use crate::model::{GivenBytes, SharesError, Team};
use crate::ring::Address;
use crate::ring::plan::team::{TeamFigures, TeamPart, shares, team_figures};
use crate::ring::plan::{Board, Load, Need, Wish};

/// The team of all boards that may serve.
pub struct TeamPlan<'a> {
    boards: Vec<&'a Board>,
    shares: Vec<u16>,
    parts: Vec<TeamPart>,
    figures: TeamFigures,
    /// Bytes that each board needs besides its part.
    every: u64,
}

impl<'a> TeamPlan<'a> {
    /// The team of the boards that may serve, the lead first.
    ///
    /// # Errors
    /// If these are too many boards, or one.
    pub(crate) fn new(
        header: &Header,
        load: &Load,
        boards: &'a [Board],
    ) -> Result<TeamPlan<'a>, SharesError> {
        let boards = quickest(boards);
        if boards.len() < 2 {
            return Err(SharesError::Nodes(boards.len()));
        }
        TeamPlan::of(header, load, boards)
    }

    /// The team of `boards`, the lead first, by how quick they are and what memory they have.
    ///
    /// # Errors
    /// If these are too many, or none.
    pub(crate) fn of(
        header: &Header,
        load: &Load,
        boards: Vec<&'a Board>,
    ) -> Result<TeamPlan<'a>, SharesError> {
        let shares = shares(&boards, &divided(load), load.every);
        TeamPlan::with_shares(header, load, boards, shares)
    }

    /// The team of `boards`, the lead first, which have these shares.
    ///
    /// # Errors
    /// If these are too many, or none.
    pub(crate) fn with_shares(
        header: &Header,
        load: &Load,
        boards: Vec<&'a Board>,
        shares: Vec<u16>,
    ) -> Result<TeamPlan<'a>, SharesError> {
        let all = divided(load);
        let part = |own: usize| {
            let team = Team::new(header, &shares, own)?;
            let GivenBytes { heads, dim, ffn, beside: [one, other], logits } = team.given_bytes();
            let part = |n| team.part_of(n);
            Ok(TeamPart {
                need: Need { memory: part(all.memory), read: part(all.read), ops: part(all.ops) },
                gives: [heads, dim, ffn, dim, one, other],
                logits,
            })
        };
        let parts = (0..boards.len()).map(part).collect::<Result<Vec<TeamPart>, SharesError>>()?;
        let figures = team_figures(&boards, &parts, load.layers.len());
        Ok(TeamPlan { boards, shares, parts, figures, every: load.every })
    }

    /// The first board that lacks memory for its part: its name, and the bytes that it needs.
    pub(crate) fn lacks(&self) -> Option<(&'a str, u64)> {
        let nodes = self.boards.iter().zip(&self.parts);
        let mut nodes = nodes.map(|(board, part)| (*board, part.need.memory + self.every));
        nodes.find(|(board, need)| *need > board.memory).map(|(board, need)| (&*board.name, need))
    }

    /// The boards with the speeds that they showed: `passes` passes took each of them its time of `computing`.
    pub(crate) fn as_seen(&self, passes: u32, computing: &[Duration]) -> Vec<Board> {
        let nodes = self.boards.iter().zip(&self.parts).zip(computing);
        let seen = nodes.map(|((board, part), time)| {
            let read = part.need.read as f64 * f64::from(passes) / time.as_secs_f64();
            // The observed speed includes every bound of the board.
            Board { read, int8: f64::INFINITY, others: Vec::new(), ..Board::clone(board) }
        });
        seen.collect()
    }

    /// Seconds of a token.
    pub(crate) fn token_s(&self) -> f64 {
        self.figures.token_s()
    }

    /// True if gathers are expected to go through the kernel module.
    pub(crate) fn is_by_kernel(&self) -> bool {
        self.figures.is_by_kernel
    }

    /// Predicted figures of a token.
    pub(crate) fn figures(&self) -> &TeamFigures {
        &self.figures
    }

    /// Seconds that a node needs for its weights.
    pub(crate) fn weights_s(&self, node: usize) -> f64 {
        self.boards[node].seconds(&self.parts[node].need)
    }

    /// Bytes of memory that a node needs.
    pub(crate) fn memory(&self, node: usize) -> u64 {
        self.parts[node].need.memory + self.every
    }

    /// The lines of a team file.
    pub(crate) fn lines(&self, port: u16) -> String {
        let mut text = String::new();
        let n = self.boards.len() as u16;
        for (node, (board, share)) in self.boards.iter().zip(&self.shares).enumerate() {
            // Nodes of one machine need ports of their own.
            let before = self.boards[..node].iter();
            let same = before.filter(|other| other.address.host == board.address.host).count();
            let port = port.saturating_add(n.saturating_mul(same as u16));
            let address = Address { host: board.address.host.clone(), port };
            let _ = writeln!(text, "{} {address} {share}", board.name);
        }
        text
    }

    /// The team as a place of a ring: a board with the speed of all of them, and gathers for each layer.
    pub(crate) fn as_place(&self, load: &Load) -> Board {
        let (all, lead) = (divided(load), self.boards[0]);
        let TeamFigures { weights_s, gathers_s, latency_s, .. } = self.figures;
        let names: Vec<&str> = self.boards.iter().map(|board| &*board.name).collect();
        let room = |(board, part): (&&Board, &TeamPart)| {
            let part = part.need.memory as f64 / all.memory.max(1) as f64;
            board.memory.saturating_sub(self.every) as f64 / part.max(1e-9)
        };
        let room = self.boards.iter().zip(&self.parts).map(room).fold(f64::INFINITY, f64::min);
        let is_fixed = self.boards.iter().any(|board| board.wish == Wish::Always);
        Board {
            name: names.join("+"),
            threads: None,
            read: all.read as f64 / weights_s.0,
            // `weights_s` includes computing.
            int8: f64::INFINITY,
            memory: self.every.saturating_add(room as u64),
            layer_s: (gathers_s + latency_s) / load.layers.len() as f64,
            watts: None,
            wish: if is_fixed { Wish::Always } else { Wish::Any },
            others: Vec::new(),
            ..lead.clone()
        }
    }

    /// The boards, the lead first, and their shares.
    pub(crate) fn nodes(&self) -> impl Iterator<Item = (&'a Board, u16)> {
        self.boards.iter().copied().zip(self.shares.iter().copied())
    }

    /// The ring file with one place that is this team, or its only board with all `n_layers`.
    pub(crate) fn ring_file(&self, n_layers: usize) -> String {
        let lead = self.boards[0];
        let mut text = format!("{} {} 0..{n_layers}\n", lead.name, lead.address);
        let nodes = self.boards.iter().zip(&self.shares).filter(|_| self.boards.len() > 1);
        for (board, share) in nodes {
            // Writing to a string cannot fail.
            let _ = writeln!(text, "team {} {} {share}", board.name, board.address);
        }
        text
    }
}

/// The boards that may serve. A board with several numbers of threads counts with the quickest one, because a team is
/// for one stream.
pub(crate) fn quickest(boards: &[Board]) -> Vec<&Board> {
    let same = boards.chunk_by(|a, b| a.name == b.name);
    let quickest = same.filter_map(|same| same.iter().max_by(|a, b| a.read.total_cmp(&b.read)));
    quickest.filter(|board| board.wish != Wish::Never).collect()
}

/// Sum of a model's demand on boards that a team's boards divide.
fn divided(load: &Load) -> Need {
    let needs = load.layers.iter().chain([&load.ends]);
    needs.fold(Need::default(), |sum, need| Need {
        memory: sum.memory.saturating_add(need.memory),
        read: sum.read.saturating_add(need.read),
        ops: sum.ops.saturating_add(need.ops),
    })
}
