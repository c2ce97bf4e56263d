//! Code that masters and workers share: the endpoint in use, and a node's description of itself.

use std::time::Duration;

use crate::group::Notice;
use crate::model::{Share, Stage, StageInfo};
use crate::transport::Endpoint;
use crate::wire::frame::{NodeLine, Streams};
use crate::wire::hello;

/// Services the endpoint. A socket's failure appears as a silent neighbour.
pub(super) fn serve(endpoint: &mut dyn Endpoint, wait: Duration) {
    if let Err(e) = endpoint.service(wait) {
        log::debug!("link: {e}");
    }
}

/// The next notice of the endpoint's carrier after the first `n_told`.
pub(super) fn carrier_notice(endpoint: &dyn Endpoint, n_told: &mut usize) -> Option<Notice> {
    let notice = endpoint.notices().get(*n_told)?;
    *n_told += 1;
    Some(Notice::Carrier(notice.clone()))
}

/// A node's description of itself when the ring opens.
pub(super) fn line(stage: &dyn Stage, name: &str) -> NodeLine {
    let StageInfo { header, share, device, threads, .. } = stage.about();
    let (layers, held) = (&share.layers, Share::of_file(header).layers);
    NodeLine {
        name: hello::name(name),
        isa: heapless::String::try_from(device).unwrap_or_default(),
        layers: layers.start as u32..layers.end as u32,
        held: held.start as u32..held.end as u32,
        bytes_per_token: stage.bytes_per_token(),
        nodes: stage.n_nodes() as u16,
        threads: threads as u16,
        streams: Streams::Empty,
        ..NodeLine::default()
    }
}
