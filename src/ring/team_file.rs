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

use super::address::Address;
use crate::wire::frame::TEAM_NODES_MAX as NODES_MAX;
use crate::wire::hello::NAME_MAX;

/// First port of a node that names none.
pub(crate) const TEAM_PORT_DEFAULT: u16 = 9970;

/// A node of a team.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct TeamNode {
    /// Name of the node.
    pub(crate) name: String,
    /// Address of the board, with its first port.
    pub(crate) address: Address,
    /// The board's share of the rows, in proportion to the others.
    pub(crate) share: u16,
}

impl TeamNode {
    /// The nodes of a team's file.
    ///
    /// # Errors
    /// The defect, in words.
    pub(crate) fn parse_all(text: &str) -> Result<Vec<TeamNode>, String> {
        let mut nodes: Vec<TeamNode> = Vec::new();
        for (index, line) in text.lines().enumerate() {
            let line = line.split('#').next().unwrap_or("").trim();
            if line.is_empty() {
                continue;
            }
            let error = |what: String| format!("line {}: {what}", index + 1);
            let node = TeamNode::parse(line).map_err(error)?;
            if let Some(other) = nodes.iter().find(|other| other.name == node.name) {
                return Err(error(format!("there is a node called {} already", other.name)));
            }
            nodes.push(node);
        }
        check(&nodes, false)?;
        Ok(nodes)
    }

    /// A line of it.
    pub(super) fn parse(line: &str) -> Result<TeamNode, String> {
        let words: Vec<&str> = line.split_whitespace().collect();
        let (name, address, share) = match words[..] {
            [name, address] => (name, address, "1"),
            [name, address, share] => (name, address, share),
            _ => return Err("wanted a name, an address and a share".to_owned()),
        };
        if name.len() > NAME_MAX {
            return Err(format!("{name:?} is longer than {NAME_MAX} bytes"));
        }
        let address = Address::parse(address, TEAM_PORT_DEFAULT)?;
        let share = share.strip_suffix('%').unwrap_or(share);
        let share = share.parse().ok().filter(|share| *share > 0);
        let share = share.ok_or("a share is a whole number from 1 to 65535")?;
        Ok(TeamNode { name: name.to_owned(), address, share })
    }

    /// Whether one of its `n` ports is one of the `m` from `other` on.
    pub(super) fn overlaps(&self, other: &Address, n: usize, m: usize) -> bool {
        let [own, others] = [self.address.port, other.port].map(usize::from);
        self.address.host == other.host && own < others + m && others < own + n
    }
}

/// Checks that these can be a team, or none if there may be none. Each needs a port of its own for each other
/// one.
pub(super) fn check(nodes: &[TeamNode], may_be_none: bool) -> Result<(), String> {
    let n = match nodes.len() {
        0 if may_be_none => return Ok(()),
        0 | 1 => return Err("a team has two nodes or more, a line for each".to_owned()),
        n if n > NODES_MAX => return Err(format!("a team has at most {NODES_MAX} nodes")),
        n => n,
    };
    for (index, node) in nodes.iter().enumerate() {
        let is_taken = nodes[..index].iter().any(|other| node.overlaps(&other.address, n, n));
        if is_taken || usize::from(node.address.port) + n > usize::from(u16::MAX) {
            let TeamNode { name, address, .. } = node;
            return Err(format!("{name} needs {n} ports of its own, from {} on", address.port));
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nodes_have_ports_and_shares() {
        let nodes = TeamNode::parse_all("# a team\ndesk 10.0.0.1 40%\n\npi pi.local:7000 # slow\n")
            .unwrap();
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
            let error = TeamNode::parse_all(text).unwrap_err();
            assert!(error.contains(what), "{text:?}: {error}");
        }
        let many: String = (0..17).map(|i| format!("n{i} 10.0.0.{i}\n")).collect();
        assert!(TeamNode::parse_all(&many).unwrap_err().contains("at most 16"));
    }
}
