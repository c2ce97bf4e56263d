//! Frames that a node knows by other means to have arrived.

use super::super::seq::is_before;
use super::LinkOut;

impl LinkOut {
    /// Number of the next frame.
    pub fn head(&self) -> u32 {
        self.session.as_ref().map_or(0, |session| session.window.head)
    }

    /// Notes that the next node has released all frames before `end`, as another message shows; `end` was
    /// [`LinkOut::head`] in the same session. These frames need no acknowledgement.
    pub fn on_released(&mut self, end: u32) {
        let Some(session) = &mut self.session else { return };
        if is_before(session.window.base, end) && !is_before(session.window.sent, end) {
            session.on_released(self.serviced_at, end);
            self.on_delivered(end);
        }
    }
}
