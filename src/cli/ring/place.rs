//! A board's place in its ring, by the ring file or by flags alone.

use std::ops::Range;

use super::flags::{RingFile, RingFlags};
use super::origin::Origin;
use crate::channel;
use crate::cli::Failure;
use crate::ring::{Address, Member, PORT_DEFAULT, Place, TeamPlace, Topology, TopologyError};
use crate::wire::give::Rows;

const NO_NODE: &str = "--ring needs --node NAME on a worker";
const NO_RING: &str =
    "a ring needs --ring FILE, or --split with --next-host; or, on the master, --boards";

pub(super) fn from_file(
    flags: &RingFlags,
    file: &RingFile,
    n_layers: usize,
) -> Result<(Place, Vec<Member>), Failure> {
    let topology = file.read()?;
    topology.check(n_layers).map_err(|e| file.is_bad(&e))?;
    let name = match (&flags.node, flags.is_master) {
        (Some(name), _) => name.clone(),
        (None, true) => topology.members()[0].name.clone(),
        (None, false) => {
            return Err(Failure::Usage(NO_NODE.to_owned()));
        }
    };
    let stays = flags.rebalance_after.is_some() && !flags.is_team;
    if let Some(team) = topology.first_team().filter(|_| stays) {
        let what = format!("--rebalance-after cannot move the layers of {team}, which is a team");
        return Err(Failure::Usage(what));
    }
    if let Some(TeamPlace { nodes, .. }) = topology.team(&name).filter(|team| team.own > 0) {
        let lead = &nodes[0].name;
        let what = format!("{name} is a board of {lead}'s team in {file}: start it as a worker");
        return Err(Failure::Usage(what));
    }
    let (mut place, is_master) = topology.place(&name).map_err(|e| file.is_bad(&e))?;
    if is_master != flags.is_master {
        let first = &topology.members()[0].name;
        return Err(Failure::Usage(format!(
            "{name} is not the {} in {file}: the first node, {first}, is the master",
            if is_master { "worker" } else { "master" },
        )));
    }
    if let Some(host) = &flags.host {
        place.listen.host.clone_from(host);
    }
    place.listen.port = flags.port.unwrap_or(place.listen.port);
    Ok((place, topology.members().to_vec()))
}

/// Request of a worker that has no model.
pub(super) struct Wanted {
    /// Name of the worker.
    pub(super) name: String,
    /// Its layers; all from the first on if there is no end.
    pub(super) layers: (usize, Option<usize>),
    /// Which rows of them, if not all.
    pub(super) rows: Option<Rows>,
    /// Where they come from.
    pub(super) from: Address,
}

/// The place that the ring file or the flags name.
pub(super) fn wanted(flags: &RingFlags, origin: &Origin) -> Result<Wanted, Failure> {
    let given = |origin: &Origin| match origin {
        Origin::At(address) => Some(address.clone()),
        Origin::Auto => None,
    };
    let Some(file) = &flags.file else {
        let split = flags.split.ok_or_else(|| Failure::Usage(NO_RING.to_owned()))?;
        let name = flags.node.clone().unwrap_or_else(|| format!("worker-{split}"));
        let from = given(origin).ok_or_else(|| {
            Failure::Usage("--fetch auto needs --ring FILE; else name the board".to_owned())
        })?;
        return Ok(Wanted { name, layers: (split, flags.end), rows: None, from });
    };
    let topology = file.read()?;
    let name = flags.node.clone().ok_or_else(|| Failure::Usage(NO_NODE.to_owned()))?;
    let (layers, rows) = part_of(&topology, &name).map_err(|e| file.is_bad(&e))?;
    let first = &topology.members()[0].address;
    let auto = || Address { host: first.host.clone(), port: channel::PORT_DEFAULT };
    let layers = (layers.start, Some(layers.end));
    Ok(Wanted { name, layers, rows, from: given(origin).unwrap_or_else(auto) })
}

/// The layers that a board has in a ring, and which rows of them, if not all.
pub(super) fn part_of(
    topology: &Topology,
    name: &str,
) -> Result<(Range<usize>, Option<Rows>), TopologyError> {
    match topology.team(name) {
        // Its lead has all rows.
        Some(team) if team.own > 0 => {
            let shares = team.nodes.iter().map(|node| node.share).collect();
            Ok((team.layers, Some(Rows { shares, own: team.own as u16 })))
        }
        _ => Ok((topology.place(name)?.0.layers, None)),
    }
}

/// A node and the next one, of a ring of which no more is known.
pub(super) fn neighbours(place: &Place) -> Vec<Member> {
    let member = |name: &str, address: &Address| Member {
        name: name.to_owned(),
        address: address.clone(),
        layers: place.layers.clone(),
        threads: None,
    };
    let next = place.next.iter().map(|next| member("the next node", next));
    std::iter::once(member(&place.name, &place.listen)).chain(next).collect()
}

pub(super) fn from_flags(flags: &RingFlags, n_layers: usize) -> Result<Place, Failure> {
    let usage = |what: String| Err(Failure::Usage(what));
    let Some(split) = flags.split else {
        return usage(NO_RING.to_owned());
    };
    let (name, layers) = match flags.is_master {
        false => {
            let end = flags.end.unwrap_or(n_layers);
            (format!("worker-{split}"), split..end)
        }
        true => ("master".to_owned(), 0..split),
    };
    if layers.is_empty() || layers.end > n_layers {
        let (start, end) = (layers.start, layers.end);
        return usage(format!("--split and --end give layers {start}..{end} of 0..{n_layers}"));
    }
    let Some(next_host) = &flags.next_host else {
        return usage("--split needs --next-host".to_owned());
    };
    // Without a key only this machine is trusted.
    let any = if flags.key.is_some() { "0.0.0.0" } else { "127.0.0.1" };
    Ok(Place {
        name: flags.node.clone().unwrap_or(name),
        layers,
        threads: None,
        listen: Address {
            host: flags.host.clone().unwrap_or_else(|| any.to_owned()),
            port: flags.port.unwrap_or(PORT_DEFAULT),
        },
        next: Some(Address {
            host: next_host.clone(),
            port: flags.next_port.unwrap_or(PORT_DEFAULT),
        }),
    })
}
