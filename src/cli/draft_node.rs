//! `--draft-node`: another board drafts.

use std::path::Path;
use std::time::Duration;

use super::{Failure, key, warn};
use crate::engine::draft_node::master::{DraftPlace, NodeDrafter, check};
use crate::engine::draft_node::{DraftNodeError, PORT_DEFAULT};
use crate::fleet::boards::Boards;
use crate::fleet::interrupt::is_interrupted;
use crate::ring::Address;
use crate::tokenizer::Tokenizer;
use crate::transport::place::HostPort;

/// Longest time to connect again to a board that was there before.
const CONNECT: Duration = Duration::from_millis(500);

/// Address and key of the board that drafts.
#[derive(Clone, Copy)]
pub(super) struct DraftNode<'a> {
    pub(super) at: &'a Address,
    pub(super) key: Option<&'a Path>,
    /// The boards, of which it may be one.
    pub(super) boards: &'a Boards,
}

/// `NAME`, `HOST` or `HOST:PORT`.
pub(super) fn parse(value: &str) -> Result<Address, String> {
    Address::parse(value, PORT_DEFAULT)
}

/// A drafter on that board for `n_lanes` texts at a time, of up to `ctx_len` ids of `tokenizer`. The board may start
/// later.
pub(super) fn drafter(
    node: DraftNode<'_>,
    tokenizer: &Tokenizer,
    (n_lanes, ctx_len): (usize, usize),
) -> Result<NodeDrafter, Failure> {
    let shown = node.at.to_string();
    let needs_key = || Failure::Usage("--draft-node needs --key, as the board has".to_owned());
    let key = key::read(node.key.ok_or_else(needs_key)?)?;
    let host = node.boards.host_of(&node.at.host).unwrap_or_else(|| node.at.host.clone());
    let place = DraftPlace { at: HostPort::new(&host, node.at.port), key };
    let tell = move |why: &DraftNodeError| {
        warn(&format!(
            "--draft-node {shown}: {why}; texts go on without it, and it is tried again"
        ));
    };
    let checked = check(&place, tokenizer, &is_interrupted);
    let is_told = checked.is_err();
    match checked {
        Err(e) if e.is_interruption() => return Err(Failure::Runtime("interrupted".to_owned())),
        Err(e) if e.is_of_tokens() => {
            return Err(Failure::Input(format!("--draft-node {}: {e}", node.at)));
        }
        Err(e) => tell(&e),
        Ok(()) => {}
    }
    let told = (Box::new(tell) as _, is_told);
    let drafter = NodeDrafter::start(place, tokenizer, (n_lanes, ctx_len), told);
    let drafter = drafter.map_err(|e| Failure::runtime(&e))?;
    if !is_told {
        drafter.wait(CONNECT);
    }
    Ok(drafter)
}
