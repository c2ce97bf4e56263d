//! A board's place in a team.

use super::boards::{self, Boards, RingFile};
use super::error::PartError;
use super::settings::Settings;
use crate::model::Share;
use crate::ring::{TeamNode, TeamPlace};

/// A board's place in a team.
pub(crate) struct TeamSeat {
    /// Boards of the team, the lead first.
    pub(crate) nodes: Vec<TeamNode>,
    /// Index of this board in `nodes`.
    pub(crate) own: usize,
    /// The team's part of the model, for a place of a ring; `None` for all of it.
    pub(crate) share: Option<Share>,
}

impl TeamSeat {
    /// The place that `settings` give this board in a team, by a file with shares, or as one of the boards of a
    /// ring's place; `None` if they give it none.
    ///
    /// # Errors
    /// If they name a team that this board is not in.
    pub(crate) fn find(settings: &Settings) -> Result<Option<TeamSeat>, PartError> {
        let mut seat = match &settings.boards {
            Boards::Shares(path) => {
                let nodes = boards::team(path)?;
                let file = path.display().to_string();
                let own = own(settings, &nodes, &file)?;
                TeamSeat { nodes, own, share: None }
            }
            Boards::Layers(file) => match of_ring(settings, file)? {
                // An option for the port is for the lead's links of the ring.
                Some(seat) if seat.own == 0 => return Ok(Some(seat)),
                Some(seat) => seat,
                None => return Ok(None),
            },
            _ => return Ok(None),
        };
        let address = &mut seat.nodes[seat.own].address;
        address.port = settings.links.port.unwrap_or(address.port);
        Ok(Some(seat))
    }
}

/// Index of this board in `nodes`.
fn own(settings: &Settings, nodes: &[TeamNode], file: &str) -> Result<usize, PartError> {
    let own = match (&settings.node, settings.is_master) {
        (None, true) => 0,
        (None, false) => return Err(PartError::NoName),
        (Some(name), _) => nodes.iter().position(|node| node.name == *name).ok_or_else(|| {
            let known: Vec<&str> = nodes.iter().map(|node| node.name.as_str()).collect();
            let what = format!("no node is called {name:?}; there are {}", known.join(", "));
            PartError::File { file: file.to_owned(), what }
        })?,
    };
    if (own == 0) == settings.is_master {
        return Ok(own);
    }
    let [name, first] = [own, 0].map(|index| nodes[index].name.clone());
    let role = if settings.is_master { "lead" } else { "worker" };
    Err(PartError::OtherRole { name, role, first, lead: "lead", file: file.to_owned() })
}

fn of_ring(settings: &Settings, file: &RingFile) -> Result<Option<TeamSeat>, PartError> {
    let topology = file.read()?;
    let first = topology.members().first().map(|member| member.name.clone());
    let name = match (&settings.node, settings.is_master) {
        (None, true) => first,
        (name, _) => name.clone(),
    };
    Ok(name.and_then(|name| topology.team(&name)).map(|place| {
        let TeamPlace { nodes, own, layers, is_first } = place;
        TeamSeat { nodes, own, share: Some(Share { layers, has_ends: is_first }) }
    }))
}
