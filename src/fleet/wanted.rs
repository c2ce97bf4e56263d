//! A master's wishes for its boards.

use super::boards::Sought;
use super::events::Shape;
use super::settings::Wishes;

/// The boards that a master asks for, how they are to share a model, and its own name and addresses.
#[derive(Clone, Debug)]
pub(crate) struct Wanted {
    /// Places in which boards are looked for.
    pub(crate) sought: Sought,
    /// Kind of division: a ring or a team.
    pub(crate) shape: Shape,
    pub(crate) wishes: Wishes,
    /// Name of this board.
    pub(crate) name: String,
    /// The address by which others reach this board, if the user gives it.
    pub(crate) host: Option<String>,
    /// Port of this board's links.
    pub(crate) port: u16,
    /// Port on which this board gives layers.
    pub(crate) give: u16,
}
