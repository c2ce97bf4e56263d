//! A master's wishes for its boards.

use std::time::Duration;

use super::boards::Sought;
use super::events::Shape;
use crate::ring::plan::Objective;

/// The boards that a master asks for, how they are to share a model, and its own name and addresses.
#[derive(Clone, Debug)]
pub(crate) struct Wanted {
    /// Where boards are looked for.
    pub(crate) sought: Sought,
    /// Whether they are to be a ring or a team.
    pub(crate) shape: Shape,
    /// Objective of a ring's plan.
    pub(crate) objective: Objective,
    /// How long a board may be away before the master does without it; `None` for ever.
    pub(crate) patience: Option<Duration>,
    /// Whether boards are taken from other masters.
    pub(crate) is_taking: bool,
    /// Name of this board.
    pub(crate) name: String,
    /// The address by which others reach this board, if the user gives it.
    pub(crate) host: Option<String>,
    /// Port of this board's links.
    pub(crate) port: u16,
    /// Port on which it gives layers.
    pub(crate) give: u16,
}
