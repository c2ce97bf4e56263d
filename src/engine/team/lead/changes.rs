//! Changes a lead's team to another one.

use super::{OtherTeam, TeamLead, TeamTimes, is_asked_for};
use crate::engine::error::StepError;
use crate::engine::ring::frames;
use crate::engine::team::passes::line;
use crate::model::{Stage, StageInfo, Team, Transformer};
use crate::team::{Mesh, TeamError};

/// Difference between the epochs of a team and those of the next one.
const EPOCHS: u32 = 1 << 16;

impl TeamLead {
    /// Whether another team is requested.
    pub(in crate::engine) fn is_to_change(&self) -> bool {
        is_asked_for(&self.waiting, self.options.changes.as_ref())
    }

    /// Makes the requested change, if there is one, and opens the links if they are closed.
    ///
    /// # Errors
    /// If the links cannot open.
    pub(super) fn change(&mut self, transformer: &mut Transformer) -> Result<(), StepError> {
        while self.is_to_change() {
            if let Some(other) = self.waiting.take() {
                self.take_other(other, transformer);
            }
        }
        let Some(link) = &mut self.link else { return Ok(()) };
        let mesh = link().map_err(|why| StepError::Team(TeamError::Links(why)))?;
        self.lead = self.lead.over(mesh, self.options.epoch);
        self.link = None;
        Ok(())
    }

    fn take_other(&mut self, other: OtherTeam, transformer: &mut Transformer) {
        let OtherTeam { shares, tell, link, notices, done } = other;
        if let Err(why) = self.share_out(&shares, transformer) {
            // The client that asked may be gone.
            let _ = done.send(Err(why));
            return;
        }
        self.lead.close();
        // The next links need the ports.
        self.lead = self.lead.over(Mesh::alone(), self.options.epoch);
        self.options.epoch = self.options.epoch.wrapping_add(EPOCHS);
        self.line = line(transformer, &self.options.name);
        (self.options.shares, self.options.tell, self.link) = (shares, notices, Some(link));
        (self.is_open, self.times) = (false, TeamTimes::default());
        let _ = done.send(tell());
    }

    /// Makes the transformer compute the lead's part of `shares`. On an error it stays unchanged.
    fn share_out(&self, shares: &[u16], transformer: &mut Transformer) -> Result<(), String> {
        let StageInfo { header, plan, .. } = transformer.about();
        let team = Team::new(header, shares, 0).map_err(|e| e.to_string())?;
        let (team, plan) = (team.with_wire(frames::precision(self.options.wire)), *plan);
        transformer.set_team(Some(team), plan).map_err(|e| e.to_string())
    }
}
