//! Timeouts of a link.

use crate::transport::Micros;

/// Silence after which a neighbour counts as lost.
pub const LOST_US: Micros = 1_000_000;
/// Silence after which the neighbour may have restarted: the sending half asks with a HELLO, and the receiving half
/// accepts another node in its place.
pub(super) const SILENCE_US: Micros = 600_000;
/// Longest delay of an acknowledgement: more frames may come meanwhile, and frames sent in reply go first. The sender's
/// timeout includes it.
pub(super) const ACK_DELAY_US: Micros = 500;
/// Interval between PINGs on an idle link.
pub(super) const PING_US: Micros = 250_000;

/// Shifts `heard_at` by a pause of this node itself, in which the neighbour could not be heard.
pub(super) fn without_pause(heard_at: Micros, before: Micros, now: Micros) -> Micros {
    let pause = now.saturating_sub(before);
    if pause > 2 * PING_US { (heard_at + pause).min(now) } else { heard_at }
}
