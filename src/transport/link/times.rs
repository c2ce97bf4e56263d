//! How long a link waits for what.

use crate::transport::Micros;

/// A neighbour that says nothing for so long is lost.
pub const LOST_US: Micros = 1_000_000;
/// Silence after which the neighbour may have restarted: the sending half asks with a HELLO, and the
/// receiving one gives its place to another node.
pub(super) const SILENCE_US: Micros = 600_000;
/// Longest delay of an acknowledgement: more frames may come meanwhile, and frames sent in reply go first.
/// The sender expects it.
pub(super) const ACK_DELAY_US: Micros = 500;
/// A link with nothing to say sends a PING as often.
pub(super) const PING_US: Micros = 250_000;

/// Shifts `heard_at` by a pause of this node itself, in which the neighbour could not be heard.
pub(super) fn without_pause(heard_at: Micros, before: Micros, now: Micros) -> Micros {
    let pause = now.saturating_sub(before);
    if pause > 2 * PING_US { (heard_at + pause).min(now) } else { heard_at }
}
