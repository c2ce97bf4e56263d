//! The file of a team: a line for each node.
//!
//! ```text
//! # name  address[:port]  share
//! desk    192.168.1.10    40
//! pi      192.168.1.11    20
//! ```
//!
//! The first is the lead. Shares are whole numbers in proportion to each other, 1 where there is none. A node
//! listens for node `i`, counted from 0, on its port and `i` more.

use std::fs;
use std::path::Path;

use crate::cli::Failure;
use crate::model::TEAM_MAX;
use crate::ring::Address;

/// First port of a node that names none.
pub(in crate::cli) const PORT_DEFAULT: u16 = 9970;

/// A node of a team.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct TeamNode {
    /// What it is called.
    pub(super) name: String,
    /// Where it is reached; its first port.
    pub(super) address: Address,
    /// What it computes in proportion to the others.
    pub(super) share: u16,
}

/// Reads the file at `path`.
pub(super) fn read(path: &Path) -> Result<Vec<TeamNode>, Failure> {
    let text = fs::read_to_string(path).map_err(|e| Failure::unreadable(path, &e))?;
    parse(&text).map_err(|what| Failure::Input(format!("{}: {what}", path.display())))
}

fn parse(text: &str) -> Result<Vec<TeamNode>, String> {
    let mut nodes: Vec<TeamNode> = Vec::new();
    for (index, line) in text.lines().enumerate() {
        let line = line.split('#').next().unwrap_or("").trim();
        if line.is_empty() {
            continue;
        }
        let error = |what: String| format!("line {}: {what}", index + 1);
        let node = node(line).map_err(error)?;
        if let Some(other) = nodes.iter().find(|other| other.name == node.name) {
            return Err(error(format!("there is a node called {} already", other.name)));
        }
        nodes.push(node);
    }
    match nodes.len() {
        0 | 1 => Err("a team has two nodes or more, a line for each".to_owned()),
        n if n > TEAM_MAX => Err(format!("a team has at most {TEAM_MAX} nodes")),
        n => check_ports(nodes, n as u16),
    }
}

/// Each node needs a port for each other one, which are nobody else's.
fn check_ports(nodes: Vec<TeamNode>, n: u16) -> Result<Vec<TeamNode>, String> {
    let overlaps = |a: &Address, b: &Address| a.host == b.host && a.port.abs_diff(b.port) < n;
    for (index, TeamNode { name, address, .. }) in nodes.iter().enumerate() {
        let is_taken = nodes[..index].iter().any(|other| overlaps(&other.address, address));
        if is_taken || address.port.checked_add(n).is_none() {
            return Err(format!("{name} needs {n} ports of its own, from {} on", address.port));
        }
    }
    Ok(nodes)
}

fn node(line: &str) -> Result<TeamNode, String> {
    let words: Vec<&str> = line.split_whitespace().collect();
    let (name, address, share) = match words[..] {
        [name, address] => (name, address, "1"),
        [name, address, share] => (name, address, share),
        _ => return Err("wanted a name, an address and a share".to_owned()),
    };
    if name.len() > crate::wire::hello::NAME_MAX {
        return Err(format!("{name:?} is longer than {} bytes", crate::wire::hello::NAME_MAX));
    }
    let address = Address::parse(address, PORT_DEFAULT)?;
    let share = share.strip_suffix('%').unwrap_or(share);
    let share = share.parse().ok().filter(|share| *share > 0);
    let share = share.ok_or("a share is a whole number from 1 to 65535")?;
    Ok(TeamNode { name: name.to_owned(), address, share })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nodes_have_ports_and_shares() {
        let nodes = parse("# a team\ndesk 10.0.0.1 40%\n\npi pi.local:7000 # slow\n").unwrap();
        let found: Vec<_> = nodes.iter().map(|n| (n.address.to_string(), n.share)).collect();
        assert_eq!(found, [("10.0.0.1:9970".to_owned(), 40), ("pi.local:7000".to_owned(), 1)]);
    }

    #[test]
    fn what_is_no_team_is_named() {
        for (text, what) in [
            ("", "two nodes"),
            ("desk 10.0.0.1\n", "two nodes"),
            ("desk 10.0.0.1 0\npi 10.0.0.2\n", "line 1: a share"),
            ("desk 10.0.0.1\ndesk 10.0.0.2\n", "line 2: there is"),
            ("desk 10.0.0.1 1 2\n", "line 1: wanted"),
            ("desk 10.0.0.1:0\n", "line 1:"),
            ("desk 10.0.0.1\npi 10.0.0.1:9971\n", "pi needs 2 ports"),
            ("desk 10.0.0.1\npi 10.0.0.2:65535\n", "pi needs 2 ports"),
        ] {
            let error = parse(text).unwrap_err();
            assert!(error.contains(what), "{text:?}: {error}");
        }
        let many: String = (0..17).map(|i| format!("n{i} 10.0.0.{i}\n")).collect();
        assert!(parse(&many).unwrap_err().contains("at most 16"));
    }
}
