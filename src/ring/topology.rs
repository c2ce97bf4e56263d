//! Each node's layers and address.
//!
//! A ring file has a line for each node, in the order of the layers; the first is the master:
//!
//! ```text
//! # name   address[:port]       layers first..end
//! desk     192.168.1.10         0..6
//! pi       192.168.1.11:9999    6..14
//! orange   [fd00::3]:10000      14..22       threads=2
//! ```
//!
//! Layers are counted from 0; the one after `..` is the next node's. A line may have the node's number of
//! threads. All nodes use the same file. A place may be a team; then lines with `team` follow it, in the form
//! of a team's file ([`TeamNode`]), the place's own first:
//!
//! ```text
//! pi       192.168.1.11         6..14
//! team pi  192.168.1.11         40
//! team fig 192.168.1.12         20
//! ```

use std::fmt;
use std::ops::Range;

use super::address::Address;
use super::team_file::{self, TeamNode};
use crate::wire::frame::{NODES_MAX, NodeLine};
use crate::wire::hello::NAME_MAX;

/// Port of a node that names none.
pub(crate) const PORT_DEFAULT: u16 = 9999;

/// A node of a ring file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Member {
    /// Name of the node.
    pub name: String,
    /// Address of the node.
    pub address: Address,
    /// First layer and layer after the last.
    pub layers: Range<usize>,
    /// Threads it is to compute with, if that is said.
    pub threads: Option<u16>,
}

/// A node's place in the ring: its layers and its addresses.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Place {
    /// Name of the node.
    pub name: String,
    /// Layers of the node.
    pub layers: Range<usize>,
    /// Threads it is to compute with, if that is said.
    pub threads: Option<u16>,
    /// Address on which the node listens for the node before it.
    pub listen: Address,
    /// Address of the next node; `None` in a ring of one.
    pub next: Option<Address>,
}

/// The nodes of a ring in the order of their layers.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Topology {
    members: Vec<Member>,
    /// The team of each member; empty where it is a single board.
    teams: Vec<Vec<TeamNode>>,
}

/// A place that is a team, as one of its boards sees it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct TeamPlace {
    /// Boards of the place, the lead first.
    pub nodes: Vec<TeamNode>,
    /// Which of them this is.
    pub own: usize,
    /// Layers of the node.
    pub layers: Range<usize>,
    /// Whether it is the master's.
    pub is_first: bool,
}

/// An error in a ring file.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum TopologyError {
    /// A line is not a node.
    NodeLine {
        /// Number of the line, from 1.
        line: usize,
        /// Description of the error.
        what: String,
    },
    /// The file has no nodes.
    Empty,
    /// The file has more nodes than [`NODES_MAX`].
    TooMany,
    /// No node has this name.
    Unknown {
        /// The name.
        name: String,
        /// The names there are.
        known: String,
    },
    /// A place that is no team as its lines have it.
    Team {
        /// The place's name.
        name: String,
        /// Description of the error.
        what: String,
    },
    /// Layers that no node has.
    Gap(Range<usize>),
    /// Layers that two nodes have, and these nodes.
    Overlap(Range<usize>, String, String),
    /// Layers that the model does not have.
    Beyond {
        /// The node that has them.
        name: String,
        /// Layers of the node.
        layers: Range<usize>,
        /// Layers of the model.
        n_layers: usize,
    },
}

impl fmt::Display for TopologyError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            TopologyError::NodeLine { line, what } => write!(f, "line {line}: {what}"),
            TopologyError::Empty => write!(f, "there is no node in it"),
            TopologyError::TooMany => write!(f, "a ring has at most {NODES_MAX} nodes"),
            TopologyError::Unknown { name, known } => {
                write!(f, "no node is called {name:?}; there are {known}")
            }
            TopologyError::Team { name, what } => write!(f, "the team of {name}: {what}"),
            TopologyError::Gap(Range { start, end }) => {
                write!(f, "no node has layers {start}..{end}")
            }
            TopologyError::Overlap(Range { start, end }, first, second) => {
                write!(f, "layers {start}..{end} belong to {first} and to {second}")
            }
            TopologyError::Beyond { name, layers: Range { start, end }, n_layers } => {
                write!(f, "{name} has layers {start}..{end}, the model only 0..{n_layers}")
            }
        }
    }
}

impl std::error::Error for TopologyError {}

impl Topology {
    /// Reads a ring file.
    ///
    /// # Errors
    /// If a line is not a node, a name or an address occurs twice, or the layers of
    /// neighbours do not join.
    pub(crate) fn parse(text: &str) -> Result<Topology, TopologyError> {
        let mut topology = Topology { members: Vec::new(), teams: Vec::new() };
        for (index, line) in text.lines().enumerate() {
            let line = line.split('#').next().unwrap_or("").trim();
            if line.is_empty() {
                continue;
            }
            let error = |what| TopologyError::NodeLine { line: index + 1, what };
            match line.strip_prefix("team").filter(|rest| rest.starts_with(char::is_whitespace)) {
                Some(rest) => topology.add_team_node(rest).map_err(error)?,
                None if topology.members.len() == NODES_MAX => {
                    return Err(TopologyError::TooMany);
                }
                None => topology.add_member(line).map_err(error)?,
            }
        }
        topology.check_joints()?;
        topology.check_teams()?;
        Ok(topology)
    }

    fn add_member(&mut self, line: &str) -> Result<(), String> {
        let member = member(line)?;
        if self.knows(&member.name) {
            return Err(format!("there is a node called {} already", member.name));
        }
        if let Some(other) = self.members.iter().find(|other| other.address == member.address) {
            return Err(format!("{} is {}'s address too", member.address, other.name));
        }
        self.members.push(member);
        self.teams.push(Vec::new());
        Ok(())
    }

    /// Adds a board to the team of the last place.
    fn add_team_node(&mut self, line: &str) -> Result<(), String> {
        if line.split_whitespace().nth(1).is_some_and(|word| word.contains("..")) {
            return Err("no node is called team: that begins a line of a team's board".to_owned());
        }
        let node = TeamNode::parse(line)?;
        let Some(place) = self.members.last() else {
            return Err("a team's boards follow the line of their place".to_owned());
        };
        let is_first = self.teams.last().is_some_and(Vec::is_empty);
        if is_first && node.name != place.name {
            let name = &place.name;
            return Err(format!("the first board of {name}'s team is {name} itself"));
        }
        if !is_first && self.knows(&node.name) {
            return Err(format!("there is a node called {} already", node.name));
        }
        self.teams.last_mut().into_iter().for_each(|team| team.push(node.clone()));
        Ok(())
    }

    /// Whether a board is called so.
    pub(crate) fn knows(&self, name: &str) -> bool {
        self.names().any(|known| known == name)
    }

    /// The boards of all places.
    fn names(&self) -> impl Iterator<Item = &str> {
        let of_teams = self.teams.iter().flat_map(|team| team.iter().skip(1));
        let of_teams = of_teams.map(|node| node.name.as_str());
        self.members.iter().map(|member| member.name.as_str()).chain(of_teams)
    }

    /// Number of boards of all places.
    pub(crate) fn n_boards(&self) -> usize {
        self.names().count()
    }

    /// Checks that teams have as many boards as they may, which need ports of their own.
    fn check_teams(&self) -> Result<(), TopologyError> {
        let mut before: Vec<(&TeamNode, usize)> = Vec::new();
        for (member, team) in self.members.iter().zip(&self.teams) {
            let error = |what| TopologyError::Team { name: member.name.clone(), what };
            team_file::check(team, team.is_empty()).map_err(error)?;
            for node in team {
                // A ring of one place has no links.
                let has_links = self.members.len() > 1;
                let is_ring =
                    |other: &&Member| has_links && node.overlaps(&other.address, team.len(), 1);
                if let Some(other) = self.members.iter().find(is_ring) {
                    let what = format!("{} needs ports that {} has", node.name, other.name);
                    return Err(error(what));
                }
                let is_taken = |(other, n): &&(&TeamNode, usize)| {
                    node.overlaps(&other.address, team.len(), *n)
                };
                if let Some((other, _)) = before.iter().find(is_taken) {
                    let what = format!("{} needs ports that {} has", node.name, other.name);
                    return Err(error(what));
                }
            }
            before.extend(team.iter().map(|node| (node, team.len())));
        }
        Ok(())
    }

    /// The team that the board called `name` is in, if its place is one.
    pub(crate) fn team(&self, name: &str) -> Option<TeamPlace> {
        let of = |team: &Vec<TeamNode>| team.iter().position(|node| node.name == name);
        let index = self.teams.iter().position(|team| of(team).is_some())?;
        let nodes = self.teams[index].clone();
        let layers = self.members[index].layers.clone();
        Some(TeamPlace { own: of(&nodes)?, nodes, layers, is_first: index == 0 })
    }

    /// The places that are teams: what each is called, and its boards, the lead first.
    pub(crate) fn teams(&self) -> impl Iterator<Item = (&str, &[TeamNode])> {
        let places = self.members.iter().zip(&self.teams).filter(|(_, team)| !team.is_empty());
        places.map(|(member, team)| (member.name.as_str(), &team[..]))
    }

    /// The first place that is a team.
    pub(crate) fn first_team(&self) -> Option<&str> {
        let index = self.teams.iter().position(|team| !team.is_empty())?;
        Some(&self.members[index].name)
    }

    /// The nodes, the master first.
    pub(crate) fn members(&self) -> &[Member] {
        &self.members
    }

    /// Checks that the nodes have all layers of a model of `n_layers`.
    ///
    /// # Errors
    /// If one of them is missing, or a node has more.
    pub(crate) fn check(&self, n_layers: usize) -> Result<(), TopologyError> {
        if let Some(member) = self.members.iter().find(|m| m.layers.end > n_layers) {
            let (name, layers) = (member.name.clone(), member.layers.clone());
            return Err(TopologyError::Beyond { name, layers, n_layers });
        }
        match self.members.last().map_or(0, |last| last.layers.end) {
            end if end < n_layers => Err(TopologyError::Gap(end..n_layers)),
            _ => Ok(()),
        }
    }

    /// The place of the node called `name`, and whether it is the master.
    ///
    /// # Errors
    /// If there is no such node.
    pub(crate) fn place(&self, name: &str) -> Result<(Place, bool), TopologyError> {
        let Some(index) = self.members.iter().position(|member| member.name == name) else {
            let known: Vec<&str> = self.names().collect();
            let (name, known) = (name.to_owned(), known.join(", "));
            return Err(TopologyError::Unknown { name, known });
        };
        let member = &self.members[index];
        let next = &self.members[(index + 1) % self.members.len()];
        let place = Place {
            name: member.name.clone(),
            layers: member.layers.clone(),
            threads: member.threads,
            listen: member.address.clone(),
            next: (self.members.len() > 1).then(|| next.address.clone()),
        };
        Ok((place, index == 0))
    }

    fn check_joints(&self) -> Result<(), TopologyError> {
        let Some(first) = self.members.first() else { return Err(TopologyError::Empty) };
        if first.layers.start > 0 {
            return Err(TopologyError::Gap(0..first.layers.start));
        }
        for pair in self.members.windows(2) {
            let (end, start) = (pair[0].layers.end, pair[1].layers.start);
            if start > end {
                return Err(TopologyError::Gap(end..start));
            }
            if start < end {
                let common = start..end.min(pair[1].layers.end);
                let names = (pair[0].name.clone(), pair[1].name.clone());
                return Err(TopologyError::Overlap(common, names.0, names.1));
            }
        }
        Ok(())
    }
}

/// Whether the lines have layers 0 to `n_layers`, each once and in order.
pub(super) fn covers(lines: &[NodeLine], n_layers: u32) -> bool {
    let mut end = 0;
    let joins = lines.iter().all(|line| {
        let joins = line.layers.start == end && line.layers.end >= end;
        end = line.layers.end;
        joins
    });
    joins && end == n_layers
}

fn member(line: &str) -> Result<Member, String> {
    let words: Vec<&str> = line.split_whitespace().collect();
    let (name, host, range, threads) = match words[..] {
        [name, host, range] => (name, host, range, None),
        [name, host, range, threads] => (name, host, range, Some(self::threads(threads)?)),
        _ => {
            let form = "wants a name, an address and layers, as in `pi 192.168.1.11 6..14`";
            return Err(form.to_owned());
        }
    };
    if name.len() > NAME_MAX || !name.chars().all(|c| c.is_ascii_graphic()) {
        return Err(format!("{name:?} is no name: up to {NAME_MAX} letters, digits and signs"));
    }
    Ok(Member {
        name: name.to_owned(),
        address: Address::parse(host, PORT_DEFAULT)?,
        layers: layers(range)?,
        threads,
    })
}

/// `threads=N`.
fn threads(text: &str) -> Result<u16, String> {
    let number = text.strip_prefix("threads=").and_then(|number| number.parse().ok());
    number
        .filter(|n| *n > 0)
        .ok_or_else(|| format!("{text:?} is not threads=N, the only word behind layers"))
}

/// `first..end`.
fn layers(text: &str) -> Result<Range<usize>, String> {
    let bounds = text.split_once("..").map(|(a, b)| (a.parse(), b.parse()));
    match bounds {
        Some((Ok(start), Ok(end))) if start < end => Ok(start..end),
        _ => Err(format!("{text:?} are no layers; wanted as in 0..8, the last one excluded")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const RING: &str = "# three boards\n\
        desk 10.0.0.1 0..6   # the master\n\
        \n\
        pi\tpi.local:7000   6..14\r\n\
        orange [fd00::3]:10000 14..22 threads=2";

    #[test]
    fn a_ring_file_names_addresses_and_layers() {
        let ring = Topology::parse(RING).unwrap();
        assert_eq!(ring.members().len(), 3);
        let (desk, is_master) = ring.place("desk").unwrap();
        assert!(is_master);
        assert_eq!((desk.listen.to_string(), desk.layers), ("10.0.0.1:9999".to_owned(), 0..6));
        assert_eq!(desk.next.unwrap().to_string(), "pi.local:7000");
        let (orange, is_master) = ring.place("orange").unwrap();
        assert!(!is_master);
        assert_eq!(orange.listen.to_string(), "[fd00::3]:10000");
        assert_eq!(orange.next.unwrap().to_string(), "10.0.0.1:9999");
        assert_eq!((desk.threads, orange.threads), (None, Some(2)));
        assert_eq!(ring.check(22), Ok(()));
    }

    #[test]
    fn places_may_be_teams() {
        let ring = "desk 10.0.0.1 0..6\npi 10.0.0.2 6..9\nteam pi 10.0.0.2 2\nteam fig 10.0.0.3\n";
        let ring = Topology::parse(ring).unwrap();
        assert_eq!(ring.members().len(), 2);
        assert_eq!((ring.team("desk"), ring.first_team()), (None, Some("pi")));
        let fig = ring.team("fig").unwrap();
        assert_eq!((fig.own, fig.layers, fig.is_first), (1, 6..9, false));
        let nodes: Vec<_> = fig.nodes.iter().map(|n| (n.address.to_string(), n.share)).collect();
        assert_eq!(nodes, [("10.0.0.2:9970".to_owned(), 2), ("10.0.0.3:9970".to_owned(), 1)]);
        assert_eq!(ring.team("pi").unwrap().own, 0);
        let said = ring.place("fog").unwrap_err().to_string();
        assert_eq!(said, "no node is called \"fog\"; there are desk, pi, fig");
    }

    #[test]
    fn a_ring_of_one_has_no_link() {
        let ring = Topology::parse("desk ::1 0..4").unwrap();
        let (desk, _) = ring.place("desk").unwrap();
        assert_eq!((desk.listen.host.as_str(), desk.next), ("::1", None));
    }

    #[test]
    fn every_mistake_is_named() {
        let said = |text: &str| Topology::parse(text).unwrap_err().to_string();
        for (text, part) in [
            ("", "no node"),
            ("a h", "line 1: wants a name"),
            ("a h 0..2\na g 2..4", "line 2: there is a node called a"),
            ("a h 0..2\nb h 2..4", "line 2: h:9999 is a's address too"),
            ("a h:0 0..2", "\"0\" is no port"),
            ("a h:70000 0..2", "is no port"),
            ("a :1 0..2", "names no host"),
            ("a [::1 0..2", "lacks a ]"),
            ("a h 2..2", "are no layers"),
            ("a h 2-3", "are no layers"),
            ("a h 0..3 threads=0", "is not threads=N"),
            ("a h 0..3 2", "is not threads=N"),
            ("a h 0..3 threads=2 x", "wants a name"),
            ("a h 1..2", "no node has layers 0..1"),
            ("a h 0..2\nb g 3..4", "no node has layers 2..3"),
            ("a h 0..3\nb g 2..6", "layers 2..3 belong to a and to b"),
            ("team a h 1\na h 0..2", "line 1: a team's boards follow"),
            ("a h 0..2\nteam b h 1", "line 2: the first board of a's team is a itself"),
            ("a h 0..2\nteam a h 0", "line 2: a share"),
            ("a h 0..2\nteam a h 2\nteam a g 1", "line 3: there is a node called a"),
            ("a h 0..2\nteam h 2..4", "line 2: no node is called team"),
            ("a h 0..2\nteam a h 2", "the team of a: a team has two"),
            (
                "a h 0..2\nteam a h:9999\nteam b g\nc f 2..4",
                "the team of a: a needs ports that a has",
            ),
            (
                "a h 0..2\nteam a h\nteam b g\nc f 2..3\nteam c f\nteam d g:9971",
                "d needs ports that b",
            ),
        ] {
            let said = said(text);
            assert!(said.contains(part), "{text:?}: {said}");
        }
        let many: String = (0..65).map(|i| format!("n{i} h:{} {i}..{}\n", i + 1, i + 1)).collect();
        assert_eq!(Topology::parse(&many), Err(TopologyError::TooMany));
    }

    #[test]
    fn coverage_of_the_model_is_checked() {
        let ring = Topology::parse(RING).unwrap();
        assert_eq!(ring.check(24), Err(TopologyError::Gap(22..24)));
        let said = ring.check(20).unwrap_err().to_string();
        assert_eq!(said, "orange has layers 14..22, the model only 0..20");
        let said = ring.place("pie").unwrap_err().to_string();
        assert_eq!(said, "no node is called \"pie\"; there are desk, pi, orange");
    }
}
