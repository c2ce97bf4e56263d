//! Notices of nodes while a team comes together.

use std::fmt;
use std::net::SocketAddr;

use crate::team::mesh::Unfit;
use crate::wire::frame::NodeLine;
use crate::wire::hello::{Name, PROTOCOL};

/// An event of another node, by its index.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum TeamNotice {
    /// The lead waits for a link to it.
    Waiting {
        /// Its index.
        node: usize,
    },
    /// Its links are up, and it is asked to be ready.
    Came {
        /// Its index.
        node: usize,
        /// Name of the node.
        name: Name,
    },
    /// The member is ready.
    Ready {
        /// Its index.
        node: usize,
        /// The node's description of itself.
        line: NodeLine,
    },
    /// The member cannot be ready.
    Refused {
        /// Its index.
        node: usize,
        /// Name of the node.
        name: Name,
        /// Why, in its words.
        why: String,
    },
    /// The member has no link to another member.
    Missing {
        /// Its index.
        node: usize,
        /// Index of the other one.
        other: usize,
    },
    /// The member was ready and is so no more.
    Gone {
        /// Its index.
        node: usize,
    },
    /// The member is of another release.
    Release {
        /// Its index.
        node: usize,
        /// Where it is.
        at: SocketAddr,
        /// The version of the protocol that it speaks.
        protocol: u16,
    },
    /// Its link, or the link's carrier, has something to say.
    Link {
        /// Its index.
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
