//! Messages about a ring.

use crate::cli::{counted, note};
use crate::ring::{Place, token_bytes};
use crate::transport::Endpoint;
use crate::wire::Dtype;
use crate::wire::frame::NodeLine;

/// Prints this board's part, and its links.
pub(super) fn introduce(place: &Place, endpoint: &dyn Endpoint) {
    let Place { name, layers, next, .. } = place;
    let next = next.as_ref().map_or(String::new(), |next| format!(", next is {next}"));
    note(&format!(
        "leap: {name} has layers {}..{} and listens on {} ({}){next}",
        layers.start,
        layers.end,
        endpoint.local_address(),
        endpoint.carrier(),
    ));
}

/// Prints the ring, a line for each node.
pub(super) fn describe(lines: &[NodeLine], dim: u32, wire: Dtype) {
    note(&format!(
        "ring of {} nodes, {} activations, {} bytes per token on each link",
        lines.len(),
        wire.name(),
        token_bytes(dim, wire),
    ));
    let width = lines.iter().map(|line| line.name.len()).max().unwrap_or(0);
    for line in lines {
        note(&format!(
            "  {:width$}  layers {}..{}, {:.1} MB of weights per token, {}, {}; {} to the next, {} us round trip{}",
            line.name.as_str(),
            line.layers.start,
            line.layers.end,
            line.bytes_per_token as f64 / 1e6,
            match line.nodes {
                0 | 1 => line.isa.as_str().to_owned(),
                n => format!("team of {n}, {}", line.isa),
            },
            counted(usize::from(line.threads), "thread"),
            line.way.carrier,
            line.way.rtt_us,
            datagrams(line.way.datagram_bytes),
        ));
    }
}

fn datagrams(bytes: u32) -> String {
    if bytes > 0 { format!(", datagrams of {bytes} bytes") } else { String::new() }
}
