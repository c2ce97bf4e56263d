//! A transformer as a node of a team. All nodes make the same calls, with the same arguments, at the same
//! time. Only a gather can interrupt a call.

use super::{Transformer, allocate};
use crate::model::batch::{self, ForwardError, Span};
use crate::model::gather::Gather;
use crate::model::interrupt::Interrupt;
use crate::model::pass::Pass;
use crate::model::plan::Plan;
use crate::model::precision::Precision;
use crate::model::start_error::StartError;
use crate::model::team::{Columns, Team};
use crate::model::team_pass::layers_in_team;

impl Transformer {
    /// Becomes a node of `team`, or leaves the team if it is `None`. The streams' KV is lost.
    ///
    /// # Errors
    /// If the plan does not fit the machine, or a device computes layers. Nothing is changed then.
    pub fn set_team(&mut self, team: Option<Team>, plan: Plan) -> Result<(), StartError> {
        if team.is_some() && self.beside.is_some() {
            let why = "boards of a team compute on the CPU alone, without --device";
            return Err(StartError::Device(why.to_owned()));
        }
        self.memory = allocate(&self.model, &plan, team.as_ref())?;
        (self.team, self.plan) = (team, plan);
        Ok(())
    }

    /// Sends the first `n` rows, which the lead holds, with their inputs of layers to all nodes.
    ///
    /// # Errors
    /// If `gather` fails.
    ///
    /// # Panics
    /// If there are more rows than planned, or there is no team.
    pub fn share_rows(&mut self, n: usize, gather: &mut dyn Gather) -> Result<(), ForwardError> {
        let dim = self.model.header().dim;
        let inputs = self.model.header().layer_inputs();
        let (pass, buffers) = self.begin(&[]);
        in_team(&pass).share(Columns::Rows, &mut buffers.x[..n * dim], gather)?;
        if inputs == 0 {
            return Ok(());
        }
        let rows = &mut buffers.tables.layer_inputs[..n * inputs];
        in_team(&pass).share(Columns::LayerInputs, rows, gather)
    }

    /// Computes the share's layers on the rows of `spans`.
    ///
    /// # Errors
    /// If the rows do not fit the plan, or there is no state that they continue: nothing is changed then. Or if
    /// `gather` fails.
    pub fn run_layers_in_team(
        &mut self,
        spans: &[Span],
        gather: &mut dyn Gather,
    ) -> Result<(), ForwardError> {
        batch::check_spans(spans, &self.plan)?;
        self.begin_states(spans)?;
        let (pass, mut buffers) = self.begin(spans);
        let pass = Pass { interrupt: Interrupt::new(None), ..pass };
        layers_in_team(&pass, in_team(&pass), &mut buffers, gather)?;
        self.memory.states.iter_mut().for_each(|states| states.end(spans));
        Ok(())
    }

    /// Logits of the rows of `spans` that want them, `[wanted, vocab_size]`, after all layers. Only the lead
    /// has them complete.
    ///
    /// # Errors
    /// If `gather` fails.
    ///
    /// # Panics
    /// If there are more rows than planned, or the model is a share without ends.
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

    /// Logits of `n` rows, `[n, vocab_size]`. The lead gives the rows, and only the lead has the logits
    /// complete.
    ///
    /// # Errors
    /// If there are more rows than planned: nothing is changed then. Or if `gather` fails.
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
        let (dim, width) = (self.model.header().dim, self.model.header().row_width());
        let (pass, buffers) = self.begin(&[]);
        // `x` may hold rows that still have to be sent.
        let x = &mut buffers.delta[..n * dim];
        if let Some((precision, bytes)) = rows {
            precision.read_states(bytes, width, x.chunks_exact_mut(dim));
        }
        in_team(&pass).share(Columns::Rows, x, gather)?;
        pass.normalise(x.chunks_exact(dim), buffers.inputs.f32);
        pass.classify(n, buffers, Some(gather))
    }

    /// The logits that were computed last, for `n` rows, `[n, vocab_size]`.
    ///
    /// # Panics
    /// If there are more rows than planned.
    pub fn last_logits(&mut self, n: usize) -> &mut [f32] {
        let vocab_size = self.model.header().vocab_size;
        let (_, buffers) = self.begin(&[]);
        &mut buffers.logits[..n * vocab_size]
    }
}

fn in_team<'a>(pass: &Pass<'a>) -> &'a Team {
    pass.team.expect("it is a node of a team")
}
