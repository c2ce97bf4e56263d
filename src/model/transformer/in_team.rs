//! A transformer as a node of a team: all nodes make the same calls, with the same arguments, at the same
//! time. A call is interrupted only where it gathers.

use super::{Transformer, allocate};
use crate::model::batch::{self, ForwardError, Span};
use crate::model::gather::Gather;
use crate::model::interrupt::Interrupt;
use crate::model::pass::Pass;
use crate::model::plan::Plan;
use crate::model::precision::Precision;
use crate::model::start_error::StartError;
use crate::model::team::Team;
use crate::model::team_pass::layers_in_team;

impl Transformer {
    /// Becomes a node of `team`; `None` leaves it. All streams are forgotten.
    ///
    /// # Errors
    /// If the plan does not fit the machine; nothing has been changed then.
    pub fn set_team(&mut self, team: Option<Team>, plan: Plan) -> Result<(), StartError> {
        (self.arena, self.kv) = allocate(&self.model, &plan, team.as_ref())?;
        (self.team, self.plan) = (team, plan);
        Ok(())
    }

    /// Brings the first `n` rows, which the lead has, to all nodes.
    ///
    /// # Errors
    /// If `gather` fails.
    ///
    /// # Panics
    /// If these are more than planned, or there is no team.
    pub fn share_rows(&mut self, n: usize, gather: &mut dyn Gather) -> Result<(), ForwardError> {
        let dim = self.model.header().dim;
        let (pass, buffers) = self.begin(&[]);
        in_team(&pass).share(&mut buffers.x[..n * dim], gather)
    }

    /// Takes the rows of `spans` through the share's layers.
    ///
    /// # Errors
    /// If they do not fit the plan, and nothing has been changed then; or if `gather` fails.
    pub fn run_layers_in_team(
        &mut self,
        spans: &[Span],
        gather: &mut dyn Gather,
    ) -> Result<(), ForwardError> {
        batch::check_spans(spans, &self.plan)?;
        let (pass, mut buffers) = self.begin(spans);
        let pass = Pass { interrupt: Interrupt::new(None), ..pass };
        layers_in_team(&pass, in_team(&pass), &mut buffers, gather)
    }

    /// The logits of those rows of `spans` that want them, `[wanted, vocab_size]`, which have been through all layers;
    /// they are complete on the lead.
    ///
    /// # Errors
    /// If `gather` fails.
    ///
    /// # Panics
    /// If these are more than planned, or the model is a share without ends.
    pub fn logits_in_team(
        &mut self,
        spans: &[Span],
        gather: &mut dyn Gather,
    ) -> Result<&mut [f32], ForwardError> {
        let (pass, mut buffers) = self.begin(spans);
        match pass.normalise_wanted(&mut buffers) {
            0 => Ok(&mut []),
            m => pass.classify(m, buffers, Some(gather)),
        }
    }

    /// The logits of `n` rows, `[n, vocab_size]`, complete on the lead, which gives the rows.
    ///
    /// # Errors
    /// If these are more than planned, and nothing has been changed then; or if `gather` fails.
    ///
    /// # Panics
    /// If the model is a share without ends, or there is no team.
    pub fn classify_in_team(
        &mut self,
        n: usize,
        rows: Option<(Precision, &[u8])>,
        gather: &mut dyn Gather,
    ) -> Result<&mut [f32], ForwardError> {
        if n > self.plan.max_logits.min(self.plan.max_batch) {
            return Err(ForwardError::Plan);
        }
        let dim = self.model.header().dim;
        let (pass, buffers) = self.begin(&[]);
        // `x` holds rows that may still have to be sent.
        let x = &mut buffers.delta[..n * dim];
        if let Some((precision, bytes)) = rows {
            precision.read(bytes, x);
        }
        in_team(&pass).share(x, gather)?;
        pass.normalise(x.chunks_exact(dim), buffers.inputs.f32);
        pass.classify(n, buffers, Some(gather))
    }

    /// The logits of the last rows that got some, `[n, vocab_size]`.
    ///
    /// # Panics
    /// If these are more than planned.
    pub fn last_logits(&mut self, n: usize) -> &mut [f32] {
        let vocab_size = self.model.header().vocab_size;
        let (_, buffers) = self.begin(&[]);
        &mut buffers.logits[..n * vocab_size]
    }
}

fn in_team<'a>(pass: &Pass<'a>) -> &'a Team {
    pass.team.expect("it is a node of a team")
}
