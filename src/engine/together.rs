//! An engine in a group: the master or a worker of a ring, the lead or a member of a team.

use std::cell::RefCell;
use std::ops::Range;
use std::path::PathBuf;

use super::backend::Local;
use super::error::{JoinError, LeadError, StepError};
use super::own_stage::OwnStage;
use super::ready::Engine;
use super::ring::{
    Held, Limits, NodeError, NodeMeter, ResplitError, RingMaster, RingOptions, WorkerOptions,
    run_worker,
};
use super::team::{MemberNotice, MemberOptions, TeamLead, TeamOptions, TeamStartError, run_member};
use super::weights::{Listener, WeightsPlace};
use crate::group::Notice;
use crate::model::{Model, PackReport, Plan, Share, Stage, Transformer};
use crate::team::Mesh;
use crate::transport::Endpoint;

/// Finds another file of the model that holds these layers, with its path.
type OtherFile<'a> = &'a dyn Fn(&Range<usize>) -> Option<(Model, PathBuf)>;

impl Engine {
    /// Becomes the master of a ring over `endpoint`, and waits until the ring is complete. The model must be
    /// the share with embedding and output. All streams are then empty.
    ///
    /// # Errors
    /// If the weights do not match their checksums, or the ring cannot be completed.
    pub fn join(
        &mut self,
        endpoint: Box<dyn Endpoint>,
        options: RingOptions,
    ) -> Result<(), JoinError> {
        let stage = &mut self.stage;
        let checked = stage.check_weights(&options.is_interrupted);
        checked.map_err(|e| JoinError::Node(NodeError::Weights(e)))?;
        stage.interrupt_by(options.is_interrupted);
        let ring = RingMaster::new(stage, endpoint, options).map_err(JoinError::Node)?;
        let mut ring = Box::new(ring);
        ring.open(stage).map_err(JoinError::Step)?;
        stage.prefixes = None;
        self.places.forget();
        self.backend = ring;
        Ok(())
    }

    /// Gives the nodes of the ring that this engine leads other layers, and waits until the ring is open
    /// again. `layers` are in the ring's order, this node's first. Streams continue; measured times are
    /// reset. Returns what this node packed. `place` says where the weights of other layers are kept.
    ///
    /// If there is no ring, `layers` is not a valid split, or a node cannot take its part: the ring is then
    /// open as before. Or if the ring is lost.
    pub fn resplit(
        &mut self,
        layers: &[Range<usize>],
        place: &WeightsPlace,
    ) -> Result<Option<PackReport>, ResplitError> {
        let prepare =
            |stage: &mut Transformer, listener: Listener<'_>| place.prepare(stage, listener);
        let ring = self.backend.ring_mut();
        let ring =
            ring.ok_or_else(|| ResplitError::Split("there is no ring to split".to_owned()))?;
        ring.resplit(&mut self.stage, layers, &prepare)
    }

    /// Applies a requested change to the ring or team that this engine leads, if there is one, and opens it again.
    ///
    /// # Errors
    /// If the ring or team cannot be opened.
    pub fn look_for_changes(&mut self) -> Result<(), StepError> {
        self.backend.change(&mut self.stage)
    }

    /// Becomes the lead of a team over `mesh`. The team computes the layers of this node: its range in a ring
    /// that it joins or works for afterwards, or the whole model ([`Engine::lead_alone`]).
    ///
    /// # Errors
    /// If the weights do not match their checksums, or the model cannot be shared by a team of this size.
    pub fn lead(&mut self, mesh: Mesh, options: TeamOptions) -> Result<(), LeadError> {
        let start = |e| LeadError::Start(TeamStartError::Node(e));
        let max_batch = self.max_batch();
        let transformer = &mut self.stage.transformer;
        let checked = transformer.check_weights(&options.is_interrupted);
        checked.map_err(|e| start(NodeError::Weights(e)))?;
        let team = TeamLead::new(transformer, mesh, options).map_err(LeadError::Start)?;
        self.stage.team = Some(Box::new(team));
        self.stage.prefixes = None;
        // The team has stored nothing.
        self.backend = Box::new(Local::new(max_batch));
        Ok(())
    }

    /// Leads a team that has the whole model, without a ring; waits until all members are ready. All streams
    /// are then empty.
    ///
    /// # Errors
    /// If this node cannot take its rows, or a member is not ready.
    pub fn lead_alone(&mut self, mesh: Mesh, options: TeamOptions) -> Result<(), LeadError> {
        self.lead(mesh, options)?;
        self.assemble().map_err(LeadError::Step)?;
        self.places.forget();
        Ok(())
    }

    /// Waits until all members of the team are ready. For a lead that has not joined a ring yet.
    ///
    /// # Errors
    /// If a member is refused, or the wait is interrupted.
    pub fn assemble(&mut self) -> Result<(), StepError> {
        self.backend.assemble(&mut self.stage)
    }

    /// Mutable access to the team, to reset its times.
    pub fn team_mut(&mut self) -> Option<&mut TeamLead> {
        self.stage.team.as_deref_mut()
    }

    /// Works as a member for any lead of a team over `mesh` until it is interrupted.
    ///
    /// # Errors
    /// If the weights do not match their checksums.
    pub fn follow(
        &mut self,
        mesh: Mesh,
        options: &MemberOptions<'_>,
        tell: &mut dyn FnMut(&MemberNotice),
    ) -> Result<(), NodeError> {
        run_member(&mut self.stage.transformer, mesh, options, tell)
    }

    /// The team, if this engine leads one.
    pub fn team(&self) -> Option<&TeamLead> {
        self.stage.team.as_deref()
    }

    /// Works for any master of a ring over `endpoint` until `is_interrupted` returns true. The model is the
    /// share of the node called `name`, unless the master gives it other layers; if its file lacks them,
    /// `other_file` may find them in another one. `place` says where the weights are kept; `meter` measures
    /// the machine's energy. `held` is the KV from the node's last work, and afterwards that of this work.
    ///
    /// # Errors
    /// If weights do not match their checksums, or the system refuses a thread.
    pub fn work(
        &mut self,
        endpoint: Box<dyn Endpoint>,
        (name, limits, meter): (&str, Limits, NodeMeter<'_>),
        place: &WeightsPlace,
        (is_interrupted, other_file): (&dyn Fn() -> bool, OtherFile<'_>),
        held: &mut Held,
        tell: &mut dyn FnMut(&Notice),
    ) -> Result<(), NodeError> {
        let wish = Some(self.stage.about().share.layers.clone());
        let place = RefCell::new(place.clone());
        let prepare = |stage: &mut OwnStage, listener: Listener<'_>| {
            place.borrow().prepare(&mut stage.transformer, listener)
        };
        let elsewhere = |stage: &mut OwnStage, share: &Share, plan: Plan| {
            let (model, path) = other_file(&share.layers)?;
            let taken = stage.transformer.take_model(&model, share.clone(), plan);
            if taken.is_ok() {
                place.borrow_mut().model = Some(path);
            }
            Some(taken)
        };
        let report = |stage: &OwnStage| stage.team.as_ref().map(|team| team.report(name));
        let (prepare, elsewhere, report) = (&prepare, &elsewhere, &report);
        let prefixes = self.stage.prefixes.take().map(RefCell::new);
        let options = WorkerOptions {
            name,
            wish,
            limits,
            prepare,
            elsewhere,
            prefixes: prefixes.as_ref(),
            meter,
            report,
            is_interrupted,
        };
        run_worker(&mut self.stage, endpoint, &options, held, tell)
    }

    /// The ring, if this engine is its master.
    pub fn ring(&self) -> Option<&RingMaster> {
        self.backend.ring()
    }

    /// Mutable access to the ring, to reset its times.
    pub fn ring_mut(&mut self) -> Option<&mut RingMaster> {
        self.backend.ring_mut()
    }
}
