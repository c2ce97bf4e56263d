//! Notices of nodes while a team comes together.

use std::fmt;
use std::net::SocketAddr;

use crate::team::mesh::Unfit;
use crate::wire::frame::NodeLine;
use crate::wire::hello::{Name, PROTOCOL};

/// An event of another node, by its index.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum TeamNotice {
    /// The lead waits for a link to the node.
    Waiting {
        /// Index of the node.
        node: usize,
    },
    /// The member's links are up, and it is asked to be ready.
    Came {
        /// Index of the node.
        node: usize,
        /// Name of the node.
        name: Name,
    },
    /// The member is ready.
    Ready {
        /// Index of the node.
        node: usize,
        /// The node's description of itself.
        line: NodeLine,
    },
    /// The member cannot be ready.
    Refused {
        /// Index of the node.
        node: usize,
        /// Name of the node.
        name: Name,
        /// The member's reason.
        why: String,
    },
    /// The member has no link to another member.
    Missing {
        /// Index of the node.
        node: usize,
        /// Index of the other member.
        other: usize,
    },
    /// The member was ready, and its links are gone.
    Gone {
        /// Index of the node.
        node: usize,
    },
    /// The member is of another release.
    Release {
        /// Index of the node.
        node: usize,
        /// Address of the node.
        at: SocketAddr,
        /// Version of the node's protocol.
        protocol: u16,
    },
    /// A notice of the node's link, or of the link's carrier.
    Link {
        /// Index of the node.
        node: usize,
        /// The notice in one line.
        what: String,
    },
}

impl TeamNotice {
    /// Why node `node` has no links with this one.
    pub(super) fn unfit(node: usize, unfit: Unfit) -> TeamNotice {
        match unfit {
            Unfit::Protocol(at, protocol) => TeamNotice::Release { node, at, protocol },
            Unfit::Other(what) => TeamNotice::Link { node, what },
        }
    }
}

impl fmt::Display for TeamNotice {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            TeamNotice::Waiting { node } => write!(f, "waiting for node {node} of the team"),
            TeamNotice::Came { node, name } => {
                write!(f, "node {node} of the team, {name}, is there")
            }
            TeamNotice::Ready { node, line } => {
                write!(f, "node {node} of the team, {}, is ready", line.name)
            }
            TeamNotice::Refused { node, name, why } => {
                write!(f, "node {node} of the team, {name}, refuses: {why}")
            }
            TeamNotice::Missing { node, other } => {
                write!(f, "node {node} of the team has no link to node {other}")
            }
            TeamNotice::Gone { node } => write!(f, "node {node} of the team is gone"),
            TeamNotice::Release { node, at, protocol } => {
                let at = SocketAddr::new(at.ip().to_canonical(), at.port());
                write!(
                    f,
                    "node {node} of the team at {at} speaks protocol {protocol}, this node protocol \
                     {PROTOCOL}; install the same release on both"
                )
            }
            TeamNotice::Link { node, what } => write!(f, "link to node {node} of the team: {what}"),
        }
    }
}
