//! The known state of a master's boards.

use std::ops::Range;
use std::time::Duration;

use super::admission::Entry;
use crate::engine::ring::Setbacks;
use crate::engine::team::{TeamLead, TeamTimes};
use crate::ring::{TeamNode, Times};
use crate::wire::frame::{BoardReport, BoardsReport, NodeLine, Way};
use crate::wire::hello::Name;

/// Known state of a master's boards, for its users.
pub(crate) struct Status {
    pub(crate) seen: Seen,
    /// Tokens a second just now.
    pub(crate) tokens_per_s: f64,
    /// Boards that were left out.
    pub(crate) left_out: Vec<Entry>,
    /// Places of the ring that are teams.
    pub(crate) teams: Vec<PlaceTeam>,
}

/// A place of a ring that is a team.
#[derive(Clone)]
pub(crate) struct PlaceTeam {
    /// Name of the place.
    name: String,
    /// Boards with their parts of the rows, the lead first.
    boards: Vec<(String, f64)>,
}

/// A board of a place: its name, its part of the rows, and its known state.
pub(crate) type PlaceBoard<'a> = (&'a str, f64, Option<TeamNodeSeen<'a>>);

impl PlaceTeam {
    /// The place of this name, which is a team of these.
    pub(super) fn new((name, nodes): (&str, &[TeamNode])) -> PlaceTeam {
        let total: f64 = nodes.iter().map(|node| f64::from(node.share)).sum();
        let board = |node: &TeamNode| (node.name.clone(), f64::from(node.share) / total);
        PlaceTeam { name: name.to_owned(), boards: nodes.iter().map(board).collect() }
    }
}

impl Status {
    /// The boards of the node at `index` of a ring; none if it is no team.
    pub(crate) fn boards(&self, index: usize) -> Vec<PlaceBoard<'_>> {
        let name = self.seen.lines.get(index).map_or("", |line| line.name.as_str());
        let mut known = self.seen.place(index).map(TeamSeen::nodes).unwrap_or_default().into_iter();
        let team = self.teams.iter().find(|team| team.name == name);
        let boards = team.into_iter().flat_map(|team| &team.boards);
        boards.map(|(name, part)| (name.as_str(), *part, known.next())).collect()
    }
}

/// Known state of a ring.
#[derive(Clone, Default)]
pub(crate) struct Seen {
    /// The nodes, the master first; none before the ring has been open.
    pub(crate) lines: Vec<NodeLine>,
    /// Times of the nodes since the last change of layers.
    pub(crate) times: Times,
    /// Counts of losses and waits.
    pub(crate) setbacks: Setbacks,
    /// Reason why the ring waits, if it does.
    pub(crate) trouble: Option<String>,
    /// The team without a ring, or the one at the master's place.
    pub(crate) team: Option<TeamSeen>,
    /// Teams at the other places, by the places' names.
    pub(crate) places: Vec<(Name, TeamSeen)>,
}

/// Known state of a team.
#[derive(Clone)]
pub(crate) struct TeamSeen {
    /// The nodes, the lead first.
    lines: Vec<NodeLine>,
    shares: Vec<u16>,
    times: TeamTimes,
}

/// A node of a team.
pub(crate) struct TeamNodeSeen<'a> {
    pub(crate) line: &'a NodeLine,
    /// Part of the rows that the node has, from 0 to 1.
    pub(crate) share: f64,
    /// Milliseconds of a pass in which the node computed; `None` before the first pass.
    pub(crate) compute_ms: Option<f64>,
    /// Milliseconds of a pass in which the node waited; `None` before the first pass.
    pub(crate) waiting_ms: Option<f64>,
}

impl TeamSeen {
    pub(super) fn of_lead(team: &TeamLead) -> TeamSeen {
        let (lines, shares) = (team.lines().cloned().collect(), team.shares().to_vec());
        TeamSeen { lines, shares, times: *team.times() }
    }

    /// The team of another place of a ring, from its report.
    pub(super) fn of_report(report: &BoardsReport) -> TeamSeen {
        let line = |board: &BoardReport| NodeLine {
            name: board.name.clone(),
            isa: board.isa.clone(),
            threads: board.threads,
            bytes_per_token: board.bytes_per_token,
            way: Way { rtt_us: board.rtt_us, ..Way::default() },
            ..NodeLine::default()
        };
        let mut times = TeamTimes {
            passes: report.passes,
            whole: Duration::from_micros(report.whole_us),
            slowest: Duration::from_micros(report.slowest_us),
            ..TeamTimes::default()
        };
        for (time, board) in times.computing.iter_mut().zip(&report.boards) {
            *time = Duration::from_micros(board.compute_us);
        }
        TeamSeen {
            lines: report.boards.iter().map(line).collect(),
            shares: report.boards.iter().map(|board| board.share).collect(),
            times,
        }
    }

    /// Share of each node in proportion to the others, the lead first.
    pub(crate) fn shares(&self) -> &[u16] {
        &self.shares
    }

    /// Times of the passes.
    pub(crate) fn times(&self) -> &TeamTimes {
        &self.times
    }

    /// The nodes, the lead first.
    pub(crate) fn nodes(&self) -> Vec<TeamNodeSeen<'_>> {
        let TeamSeen { lines, shares, times } = self;
        let total: f64 = shares.iter().copied().map(f64::from).sum();
        let node = |(index, (line, share)): (usize, (_, &u16))| TeamNodeSeen {
            line,
            share: f64::from(*share) / total,
            compute_ms: self.of_pass(times.computing[index]),
            waiting_ms: self.of_pass(times.waiting(index)),
        };
        lines.iter().zip(shares).enumerate().map(node).collect()
    }

    /// Milliseconds of a pass, and of its gathers.
    pub(crate) fn pass_ms(&self) -> Option<(f64, f64)> {
        Some((self.of_pass(self.times.whole)?, self.of_pass(self.times.gathering())?))
    }

    fn of_pass(&self, time: Duration) -> Option<f64> {
        let passes = self.times.passes;
        (passes > 0).then(|| time.as_secs_f64() * 1e3 / f64::from(passes))
    }
}

impl Seen {
    /// The nodes of a team without a ring, the lead first.
    pub(crate) fn team_nodes(&self) -> Vec<TeamNodeSeen<'_>> {
        self.team.as_ref().map(TeamSeen::nodes).unwrap_or_default()
    }

    /// The team at the place of a ring at `index`, if there is one.
    pub(crate) fn place(&self, index: usize) -> Option<&TeamSeen> {
        let line = self.lines.get(index)?;
        let of_name = |(name, _): &&(Name, TeamSeen)| *name == line.name;
        match index {
            0 => self.team.as_ref(),
            _ => self.places.iter().find(of_name).map(|(_, team)| team),
        }
    }

    /// The layers of each node, in the order of the ring.
    pub(crate) fn layers(&self) -> Vec<(String, Range<usize>)> {
        let layers = |line: &NodeLine| line.layers.start as usize..line.layers.end as usize;
        self.lines.iter().map(|line| (line.name.as_str().to_owned(), layers(line))).collect()
    }

    /// The state of the ring, in a word.
    pub(crate) fn state(&self) -> &str {
        match &self.trouble {
            Some(trouble) => trouble,
            None if self.lines.is_empty() => "waiting for the ring",
            None => "open",
        }
    }

    /// Milliseconds that a node computes for a token of each stream.
    pub(crate) fn compute_ms(&self, index: usize) -> Option<f64> {
        let us = *self.times.compute_us.get(index)?;
        (self.times.batches > 0).then(|| us as f64 / self.times.batches as f64 / 1e3)
    }

    /// Watts of a node, on average.
    pub(crate) fn watts(&self, index: usize) -> Option<f64> {
        let (joules, seconds) = self.times.energy.get(index)?.spent()?;
        Some(joules / seconds)
    }

    /// Temperature of a node, in degrees Celsius.
    pub(crate) fn degrees(&self, index: usize) -> Option<f64> {
        self.times.heat.get(index)?.map(|heat| heat.degrees.into())
    }

    /// True if heat slows a node down; `None` if the node does not report.
    pub(crate) fn is_slowed(&self, index: usize) -> Option<bool> {
        self.times.heat.get(index)?.map(|heat| heat.is_slowed)
    }

    /// Tokens a second of one stream.
    pub(crate) fn stream_tokens_per_s(&self) -> Option<f64> {
        let times = &self.times;
        (times.lap_us > 0).then(|| times.batches as f64 / (times.lap_us as f64 / 1e6))
    }

    /// Tokens that a team has written.
    pub(crate) fn team_tokens(&self) -> u64 {
        self.team.as_ref().map_or(0, |team| team.times.tokens)
    }

    /// The state of the team, in a word.
    pub(crate) fn team_state(&self) -> &str {
        match (&self.trouble, &self.team) {
            (Some(trouble), _) => trouble,
            (None, None) => "waiting for the team",
            (None, Some(_)) => "open",
        }
    }
}
