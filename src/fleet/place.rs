//! A board's place among the boards that it works with.

use std::ops::Range;

use super::boards::{Boards, Origin, RingFile};
use super::error::PartError;
use super::events::Shape;
use super::settings::Settings;
use crate::channel;
use crate::ring::{Address, Member, PORT_DEFAULT, Place, TeamPlace, Topology, TopologyError};
use crate::wire::frame::NODES_MAX;
use crate::wire::give::Rows;

/// A board's place in a ring, and what it knows of the others.
pub(crate) struct Seat {
    pub(crate) place: Place,
    /// Nodes of the ring as far as they are known, the master first; all if there is a ring file.
    pub(crate) members: Vec<Member>,
    /// Largest number of nodes that the ring may have.
    pub(crate) n_nodes: usize,
}

impl Seat {
    /// The place that `settings` give this board in a ring with a model of `n_layers`.
    ///
    /// # Errors
    /// If they give it none.
    pub(crate) fn find(settings: &Settings, n_layers: usize) -> Result<Seat, PartError> {
        match &settings.boards {
            Boards::Layers(file) => Seat::of_file(settings, file, n_layers),
            Boards::Next { layers, next } => {
                let place = next_to(settings, *layers, next.as_ref(), n_layers)?;
                let members = neighbours(&place);
                Ok(Seat { place, members, n_nodes: NODES_MAX })
            }
            _ => Err(PartError::NoBoards),
        }
    }

    fn of_file(settings: &Settings, file: &RingFile, n_layers: usize) -> Result<Seat, PartError> {
        let topology = file.read()?;
        topology.check(n_layers).map_err(|e| file.is_bad(&e))?;
        let mut place = place_in(settings, file, &topology)?;
        let members = topology.members().to_vec();
        // Only called boards of a ring may become more; a team is one place.
        let has_fleet = settings.fleet.as_ref().is_some_and(|fleet| fleet.shape == Shape::Ring);
        if has_fleet && place.next.is_none() {
            // A ring of one is its own next node.
            place.next = Some(members[0].address.clone());
        }
        // Boards that are called may become more.
        let n_nodes = if has_fleet { NODES_MAX } else { members.len() };
        Ok(Seat { place, members, n_nodes })
    }
}

fn place_in(settings: &Settings, file: &RingFile, topology: &Topology) -> Result<Place, PartError> {
    let name = match (&settings.node, settings.is_master) {
        (Some(name), _) => name.clone(),
        (None, true) => topology.members()[0].name.clone(),
        (None, false) => return Err(PartError::NoName),
    };
    let is_team = settings.fleet.as_ref().is_some_and(|fleet| fleet.shape == Shape::Team);
    let may_move = settings.wishes.patience.is_some() && !is_team;
    if let Some(team) = topology.first_team().filter(|_| may_move) {
        return Err(PartError::StaysPut(team.to_owned()));
    }
    let file_name = || file.to_string();
    if let Some(TeamPlace { nodes, .. }) = topology.team(&name).filter(|team| team.own > 0) {
        let lead = nodes[0].name.clone();
        return Err(PartError::OfTeam { name, lead, file: file_name() });
    }
    let (mut place, is_master) = topology.place(&name).map_err(|e| file.is_bad(&e))?;
    if is_master != settings.is_master {
        let first = topology.members()[0].name.clone();
        let role = if is_master { "worker" } else { "master" };
        return Err(PartError::OtherRole { name, role, first, lead: "master", file: file_name() });
    }
    if let Some(host) = &settings.links.host {
        place.listen.host.clone_from(host);
    }
    place.listen.port = settings.links.port.unwrap_or(place.listen.port);
    Ok(place)
}

/// The place before the board at `next`, with these layers of a model of `n_layers`.
fn next_to(
    settings: &Settings,
    (first, end): (usize, Option<usize>),
    next: Option<&Address>,
    n_layers: usize,
) -> Result<Place, PartError> {
    let layers = first..end.unwrap_or(n_layers);
    if layers.is_empty() || layers.end > n_layers {
        return Err(PartError::Beyond { layers, n_layers });
    }
    let next = next.ok_or(PartError::NoNext)?;
    // If there is no key, only this machine is trusted.
    let any = if settings.links.key.is_some() { "0.0.0.0" } else { "127.0.0.1" };
    let name = || if settings.is_master { "master".to_owned() } else { worker_name(first) };
    Ok(Place {
        name: settings.node.clone().unwrap_or_else(name),
        layers,
        threads: None,
        listen: Address {
            host: settings.links.host.clone().unwrap_or_else(|| any.to_owned()),
            port: settings.links.port.unwrap_or(PORT_DEFAULT),
        },
        next: Some(next.clone()),
    })
}

/// Name of a worker that is given none, whose layers begin at `first`.
fn worker_name(first: usize) -> String {
    format!("worker-{first}")
}

/// A node and the next one, of a ring of which no more is known.
fn neighbours(place: &Place) -> Vec<Member> {
    let member = |name: &str, address: &Address| Member {
        name: name.to_owned(),
        address: address.clone(),
        layers: place.layers.clone(),
        threads: None,
    };
    let next = place.next.iter().map(|next| member("the next node", next));
    std::iter::once(member(&place.name, &place.listen)).chain(next).collect()
}

/// Part of a model that a worker without a file asks for.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct WantedPart {
    /// Name of the worker.
    pub(crate) name: String,
    /// First layer, and the one behind the last; `None` for all that follow.
    pub(crate) layers: (usize, Option<usize>),
    /// Rows of these layers, if not all.
    pub(crate) rows: Option<Rows>,
    /// Address of the board that gives them.
    pub(crate) from: Address,
}

/// The layers that `settings` give this board, from `origin`.
///
/// # Errors
/// If they give it none, or do not say from where.
pub(crate) fn wanted(settings: &Settings, origin: &Origin) -> Result<WantedPart, PartError> {
    let given = match origin {
        Origin::At(address) => Some(address.clone()),
        Origin::Auto => None,
    };
    match &settings.boards {
        Boards::Next { layers, .. } => {
            let name = settings.node.clone().unwrap_or_else(|| worker_name(layers.0));
            let from = given.ok_or(PartError::NoOrigin)?;
            Ok(WantedPart { name, layers: *layers, rows: None, from })
        }
        Boards::Layers(file) => {
            let topology = file.read()?;
            let name = settings.node.clone().ok_or(PartError::NoName)?;
            let (layers, rows) = part_of(&topology, &name).map_err(|e| file.is_bad(&e))?;
            let first = &topology.members()[0].address;
            let auto = || Address { host: first.host.clone(), port: channel::PORT_DEFAULT };
            let layers = (layers.start, Some(layers.end));
            Ok(WantedPart { name, layers, rows, from: given.unwrap_or_else(auto) })
        }
        _ => Err(PartError::NoBoards),
    }
}

/// The layers that a board has in a ring, and which rows of them, if not all.
///
/// # Errors
/// If it is in none.
pub(crate) fn part_of(
    topology: &Topology,
    name: &str,
) -> Result<(Range<usize>, Option<Rows>), TopologyError> {
    match topology.team(name) {
        // The lead's file has all rows.
        Some(team) if team.own > 0 => {
            let shares = team.nodes.iter().map(|node| node.share).collect();
            Ok((team.layers, Some(Rows { shares, own: team.own as u16 })))
        }
        _ => Ok((topology.place(name)?.0.layers, None)),
    }
}
