//! The compute of this node, alone or as a node of a ring: its own processors, or a team that it leads.

use super::error::StepError;
use super::prefix::Store;
use super::team::TeamLead;
use crate::model::{
    AssembleError, Batch, CheckError, ForwardError, KvPlace, PageChange, PiecePlace, Plan,
    Precision, Share, Span, Stage, StageInfo, StartError, StatePlace, Transformer,
};

/// This node's stage. If the node leads a team, its transformer has only a part of each matrix's rows.
pub(in crate::engine) struct OwnStage {
    pub(in crate::engine) transformer: Transformer,
    /// The team that shares the transformer's layers; `None` if this node computes alone.
    pub(in crate::engine) team: Option<Box<TeamLead>>,
    /// Files of prompt beginnings, if they are kept.
    pub(in crate::engine) prefixes: Option<Store>,
}

impl OwnStage {
    /// A stage that computes the layers of `transformer` on this machine alone.
    pub(in crate::engine) fn new(transformer: Transformer) -> OwnStage {
        OwnStage { transformer, team: None, prefixes: None }
    }

    /// Makes the prefix files fit the current layers of this stage and their KV format.
    pub(in crate::engine) fn fit_prefixes(&mut self) {
        if let Some(mut prefixes) = self.prefixes.take() {
            prefixes.fit(self);
            self.prefixes = Some(prefixes);
        }
    }

    /// Assembles the node's team or its device, see [`Stage::assemble`].
    ///
    /// # Errors
    /// The team's error. Or if the CPUs cannot take the layers of a lost device.
    pub(in crate::engine) fn assemble_parts(&mut self) -> Result<bool, StepError> {
        match &mut self.team {
            Some(team) => team.assemble(&mut self.transformer),
            None => self.transformer.without_failed_device().map_err(|error| {
                let why = format!("the CPU cannot compute a lost device's layers: {error}");
                StepError::Forward(ForwardError::Device(why))
            }),
        }
    }

    /// Records that the team, if there is one, lost its streams' KV and `n_batches` batches.
    pub(in crate::engine) fn count_loss(&mut self, n_batches: u64) {
        self.team.iter_mut().for_each(|team| team.lost(n_batches));
    }
}

impl Stage for OwnStage {
    fn about(&self) -> StageInfo<'_> {
        let about = self.transformer.about();
        let threads = self.team.as_ref().map(|team| team.lines().map(|l| usize::from(l.threads)));
        StageInfo { threads: threads.map_or(about.threads, Iterator::sum), ..about }
    }

    fn bytes_per_token(&self) -> u64 {
        match self.team {
            None => self.transformer.bytes_per_token(),
            Some(_) => self.transformer.model().bytes_per_token(),
        }
    }

    fn set_plan(&mut self, plan: Plan) -> Result<(), StartError> {
        self.transformer.set_plan(plan)?;
        self.team.iter_mut().for_each(|team| team.replan(&plan));
        Ok(())
    }

    fn set_share(&mut self, share: Share, plan: Plan) -> Result<(), StartError> {
        match self.team {
            None => self.transformer.set_share(share, plan),
            Some(_) if share == *self.transformer.about().share => self.set_plan(plan),
            Some(_) => Err(StartError::Fixed),
        }
    }

    fn check_weights(&self, is_interrupted: &dyn Fn() -> bool) -> Result<(), CheckError> {
        self.transformer.check_weights(is_interrupted)
    }

    fn assemble(&mut self) -> Result<bool, AssembleError> {
        self.assemble_parts().map_err(|error| match error {
            StepError::Interrupted => AssembleError::Interrupted,
            StepError::Forward(ForwardError::Device(_)) => AssembleError::Memory,
            _ => AssembleError::Refused,
        })
    }

    fn n_nodes(&self) -> usize {
        self.team.as_ref().map_or(1, |team| team.n_nodes())
    }

    fn interrupt_by(&mut self, is_interrupted: fn() -> bool) {
        self.transformer.interrupt_by(is_interrupted);
        self.team.iter_mut().for_each(|team| team.interrupt_by(is_interrupted));
    }

    fn embed(&mut self, batch: &Batch) -> Result<(), ForwardError> {
        match &mut self.team {
            None => self.transformer.embed(batch),
            Some(team) => team.embed(&mut self.transformer, batch),
        }
    }

    fn run_layers(&mut self, spans: &[Span]) -> Result<(), ForwardError> {
        match &mut self.team {
            None => self.transformer.run_layers(spans),
            Some(team) => team.run_layers(&mut self.transformer, spans),
        }
    }

    fn put_rows(&mut self, first: usize, precision: Precision, bytes: &[u8]) {
        match &mut self.team {
            None => self.transformer.put_rows(first, precision, bytes),
            Some(team) => team.put_rows(&mut self.transformer, first, (precision, bytes)),
        }
    }

    fn get_row(&mut self, row: usize, precision: Precision, out: &mut [u8]) {
        self.transformer.get_row(row, precision, out);
    }

    fn change_page(&mut self, change: &PageChange) -> bool {
        let is_there = self.transformer.change_page(change);
        if is_there && let Some(team) = &mut self.team {
            team.change_page(change);
        }
        is_there
    }

    fn is_windowed(&self, layer: usize) -> bool {
        self.transformer.is_windowed(layer)
    }

    fn kv_part_bytes(&self, layer: usize) -> Option<usize> {
        match self.team {
            None => self.transformer.kv_part_bytes(layer),
            Some(_) => None,
        }
    }

    fn read_kv(&mut self, part: KvPlace, out: &mut [u8]) -> bool {
        self.team.is_none() && self.transformer.read_kv(part, out)
    }

    fn write_kv(&mut self, part: KvPlace, first: usize, bytes: &[u8]) -> bool {
        self.team.is_none() && self.transformer.write_kv(part, first, bytes)
    }

    fn state_bytes(&self) -> usize {
        match self.team {
            None => self.transformer.state_bytes(),
            Some(_) => 0,
        }
    }

    fn read_state(&mut self, part: StatePlace, out: &mut [u8]) -> bool {
        self.team.is_none() && self.transformer.read_state(part, out)
    }

    fn write_state(&mut self, part: StatePlace, bytes: &[u8]) -> bool {
        self.team.is_none() && self.transformer.write_state(part, bytes)
    }

    fn n_state_pieces(&self) -> u32 {
        match self.team {
            None => self.transformer.n_state_pieces(),
            Some(_) => 0,
        }
    }

    fn state_piece_bytes(&self) -> usize {
        match self.team {
            None => self.transformer.state_piece_bytes(),
            Some(_) => 0,
        }
    }

    fn read_state_piece(&mut self, place: PiecePlace, out: &mut [u8]) -> bool {
        self.team.is_none() && self.transformer.read_state_piece(place, out)
    }

    fn write_state_piece(&mut self, place: PiecePlace, first: usize, bytes: &[u8]) -> bool {
        self.team.is_none() && self.transformer.write_state_piece(place, first, bytes)
    }

    fn classify(&mut self, precision: Precision, bytes: &[u8]) -> Result<&mut [f32], ForwardError> {
        let Some(team) = &mut self.team else { return self.transformer.classify(precision, bytes) };
        let n = bytes.len() / (self.transformer.about().header.row_width() * precision.bytes());
        team.classify(&mut self.transformer, n, (precision, bytes))?;
        Ok(self.transformer.last_logits(n))
    }
}
