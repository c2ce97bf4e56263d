//! The work of a node of a team: connects the model's passes and the team's gathers.

mod error;
mod lead;
mod member;
mod passes;

pub use error::TeamStartError;
pub use lead::{LinkTeam, OtherTeam, TeamLead, TeamOptions, TeamTimes, TellTeam};
pub use member::{MemberNotice, MemberOptions, run_member};
