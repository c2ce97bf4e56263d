//! A ring whose places may be teams of boards that follow each other.

use std::collections::HashMap;
use std::fmt::Write;

use super::team_plan::{TeamPlan, quickest};
use crate::format::model::Header;
use crate::ring::plan::{Board, Load, NoSplit, Objective, Part, Task, solve};
use crate::ring::{Address, TEAM_PORT_DEFAULT};

/// Limit on the boards: each way to make teams of them is tried.
pub(crate) const BOARDS_MAX: usize = 10;

/// The ring of places and teams that is quickest for one stream.
pub(crate) struct TeamsPlan<'a> {
    load: &'a Load,
    /// The boards of each place with their shares.
    places: Vec<Vec<(&'a Board, u16)>>,
    /// Places as the ring sees them: each is one board.
    seen: Vec<Board>,
    /// For each place, true if it is a team whose gathers are expected to go through the kernel module.
    by_kernel: Vec<bool>,
    parts: Vec<Part>,
}

impl<'a> TeamsPlan<'a> {
    /// The quickest ring of `boards`, in their order.
    ///
    /// # Errors
    /// If the boards cannot have the model in any ring.
    ///
    /// # Panics
    /// If there is no board, or more than [`BOARDS_MAX`] may serve.
    pub(crate) fn new(
        header: &Header,
        load: &'a Load,
        boards: &'a [Board],
    ) -> Result<TeamsPlan<'a>, NoSplit> {
        let boards = quickest(boards);
        assert!((1..=BOARDS_MAX).contains(&boards.len()));
        let n_ways = 1_u32 << (boards.len() - 1);
        // The first is the ring without teams, which says best why there is none.
        let mut best = TeamsPlan::with_ends(n_ways - 1, header, load, &boards);
        for ends in 0..n_ways - 1 {
            let plan = TeamsPlan::with_ends(ends, header, load, &boards);
            let token_s = |plan: &TeamsPlan<'_>| plan.task().figures(&plan.parts).token_s;
            match (&best, &plan) {
                (Err(_), Ok(_)) => best = plan,
                (Ok(than), Ok(this)) if token_s(this) < token_s(than) => best = plan,
                _ => {}
            }
        }
        best
    }

    /// The ring whose places end behind each board that has its bit set in `ends`, and behind the last one.
    fn with_ends(
        ends: u32,
        header: &Header,
        load: &'a Load,
        boards: &[&'a Board],
    ) -> Result<TeamsPlan<'a>, NoSplit> {
        let (mut places, mut seen, mut by_kernel, mut first) = (vec![], vec![], vec![], 0);
        for index in 0..boards.len() {
            if index + 1 < boards.len() && ends >> index & 1 == 0 {
                continue;
            }
            let place = boards[first..=index].to_vec();
            first = index + 1;
            // A place with more boards than a team may have is its first board alone.
            let team = TeamPlan::of(header, load, place.clone()).ok().filter(|_| place.len() > 1);
            by_kernel.push(team.as_ref().is_some_and(TeamPlan::is_by_kernel));
            seen.push(team.as_ref().map_or_else(|| place[0].clone(), |team| team.as_place(load)));
            places.push(team.map_or_else(|| vec![(place[0], 1)], |team| team.nodes().collect()));
        }
        let parts = solve(&Task::new(load, &seen), Objective::Latency, None)?;
        Ok(TeamsPlan { load, places, seen, by_kernel, parts })
    }

    /// The ring's task: each place is one board.
    pub(crate) fn task(&self) -> Task<'_> {
        Task::new(self.load, &self.seen)
    }

    /// Each node of the ring: its place, and its layers.
    pub(crate) fn parts(&self) -> &[Part] {
        &self.parts
    }

    /// For each place, true if it is a team whose gathers are expected to go through the kernel module.
    pub(crate) fn by_kernel(&self) -> &[bool] {
        &self.by_kernel
    }

    /// The ring file.
    pub(crate) fn file(&self) -> String {
        let (mut text, mut ports) = (String::new(), HashMap::new());
        let token_s = self.task().figures(&self.parts).token_s;
        // Writing to a string cannot fail.
        let _ = writeln!(text, "# {:.1} tokens/s of one stream", 1.0 / token_s);
        for Part { board, layers } in &self.parts {
            let place = &self.places[*board];
            let Board { name, address, threads, .. } = place[0].0;
            let threads = threads.filter(|_| place.len() == 1);
            let threads = threads.map_or(String::new(), |threads| format!(" threads={threads}"));
            let _ = writeln!(text, "{name} {address} {}..{}{threads}", layers.start, layers.end);
            for (board, share) in place.iter().filter(|_| place.len() > 1) {
                // Nodes of one machine need ports of their own.
                let next = ports.entry(&*board.address.host).or_insert(TEAM_PORT_DEFAULT);
                let address = Address { host: board.address.host.clone(), port: *next };
                *next = next.saturating_add(place.len() as u16);
                let _ = writeln!(text, "team {} {address} {share}", board.name);
            }
        }
        text
    }
}
