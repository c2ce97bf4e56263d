//! Notices of nodes while a team comes together.

use std::fmt;
use std::net::SocketAddr;

use crate::team::mesh::Unfit;
use crate::wire::hello::PROTOCOL;

/// An event of another node, by its name.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum TeamNotice {
    /// The lead waits for a link to the node.
    Waiting {
        /// Name of the node.
        node: String,
    },
    /// The member's links are up, and it is asked to be ready.
    Came {
        /// Name of the node.
        node: String,
    },
    /// The member is ready.
    Ready {
        /// Name of the node.
        node: String,
    },
    /// The member cannot be ready.
    Refused {
        /// Name of the node.
        node: String,
        /// The member's reason.
        why: String,
    },
    /// The member has no link to another member.
    Missing {
        /// Name of the node.
        node: String,
        /// Name of the other member.
        other: String,
    },
    /// The member was ready, and its links are gone.
    Gone {
        /// Name of the node.
        node: String,
    },
    /// The member is of another release.
    Release {
        /// Name of the node.
        node: String,
        /// Address of the node.
        at: SocketAddr,
        /// Version of the node's protocol.
        protocol: u16,
    },
    /// A notice of the node's link, or of the link's carrier.
    Link {
        /// Name of the node.
        node: String,
        /// The notice in one line.
        what: String,
    },
}

impl TeamNotice {
    /// Why node `node` has no links with this one.
    pub(super) fn unfit(node: String, unfit: Unfit) -> TeamNotice {
        match unfit {
            Unfit::Protocol(at, protocol) => TeamNotice::Release { node, at, protocol },
            Unfit::Other(what) => TeamNotice::Link { node, what },
        }
    }
}

impl fmt::Display for TeamNotice {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            TeamNotice::Waiting { node } => write!(f, "waiting for {node}"),
            TeamNotice::Came { node } => write!(f, "{node} is there"),
            TeamNotice::Ready { node } => write!(f, "{node} is ready"),
            TeamNotice::Refused { node, why } => write!(f, "{node} refuses: {why}"),
            TeamNotice::Missing { node, other } => write!(f, "{node} has no link to {other}"),
            TeamNotice::Gone { node } => write!(f, "{node} is gone"),
            TeamNotice::Release { node, at, protocol } => {
                let at = SocketAddr::new(at.ip().to_canonical(), at.port());
                write!(
                    f,
                    "{node} at {at} speaks protocol {protocol}, this node protocol {PROTOCOL}; \
                     install the same release on both"
                )
            }
            TeamNotice::Link { node, what } => write!(f, "link to {node}: {what}"),
        }
    }
}
