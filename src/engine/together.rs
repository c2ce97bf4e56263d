//! An engine among others: the master or a worker of a ring, the lead or a member of a team.

use std::cell::RefCell;
use std::ops::Range;
use std::path::PathBuf;

use super::error::{JoinError, LeadError, StepError};
use super::nodes::Nodes;
use super::ready::Engine;
use super::ring::{
    Held, Limits, NodeError, NodeMeter, ResplitError, RingMaster, RingOptions, WorkerOptions,
    run_worker,
};
use super::team::{MemberNotice, MemberOptions, TeamLead, TeamOptions, TeamStartError, run_member};
use super::weights::{Listener, WeightsPlace};
use crate::model::{Model, PackReport, Plan, Share, Stage, Transformer};
use crate::ring::Notice;
use crate::team::Mesh;
use crate::transport::Endpoint;

/// Another file of the model with these layers, and where it is.
type OtherFile<'a> = &'a dyn Fn(&Range<usize>) -> Option<(Model, PathBuf)>;

impl Engine {
    /// Becomes the master of a ring over `endpoint`, and waits until it is complete. The model
    /// is the share with ends. Each stream has memory for keys and values of its own from then on.
    ///
    /// # Errors
    /// If the weights do not match their checksums, or the ring cannot be completed.
    pub fn join(
        &mut self,
        endpoint: Box<dyn Endpoint>,
        options: RingOptions,
    ) -> Result<(), JoinError> {
        if self.plan().kv_pages.is_some() {
            return Err(JoinError::Node(NodeError::Pages));
        }
        let checked = self.transformer.check_weights(&options.is_interrupted);
        checked.map_err(|e| JoinError::Node(NodeError::Weights(e)))?;
        self.transformer.interrupt_by(options.is_interrupted);
        let ring =
            RingMaster::new(&self.transformer, endpoint, options).map_err(JoinError::Node)?;
        let mut ring = Box::new(ring);
        ring.open(&mut self.transformer).map_err(JoinError::Step)?;
        self.prefixes = None;
        self.transformer.divide_kv_pages();
        self.places.divide();
        self.nodes = Nodes::Ring(ring);
        Ok(())
    }

    /// As the master of a ring: gives its nodes other layers, in their order, this one's first. See
    /// [`RingMaster::resplit`]. `place` says where the weights of other layers are kept.
    ///
    /// # Errors
    /// The same; or if there is no ring.
    pub fn resplit(
        &mut self,
        layers: &[Range<usize>],
        place: &WeightsPlace,
    ) -> Result<Option<PackReport>, ResplitError> {
        let prepare =
            |stage: &mut Transformer, listener: Listener<'_>| place.prepare(stage, listener);
        match &mut self.nodes {
            Nodes::Ring(ring) => ring.resplit(&mut self.transformer, layers, &prepare),
            Nodes::Alone(_) | Nodes::Team(_) => {
                Err(ResplitError::Split("there is no ring to split".to_owned()))
            }
        }
    }

    /// As the master of a ring: makes it what it is to become, if somebody asks for that, and opens it so.
    ///
    /// # Errors
    /// If it cannot be opened.
    pub fn look_for_changes(&mut self) -> Result<(), StepError> {
        let Nodes::Ring(ring) = &mut self.nodes else { return Ok(()) };
        match ring.look_for_changes(&mut self.transformer) {
            true => ring.open(&mut self.transformer),
            false => Ok(()),
        }
    }

    /// Becomes the lead of a team over `mesh`, and waits until all of its nodes are ready. Each stream has
    /// memory for keys and values of its own from then on.
    ///
    /// # Errors
    /// If the weights do not match their checksums, the model cannot be shared so, or a node is not ready.
    pub fn lead(&mut self, mesh: Mesh, options: TeamOptions) -> Result<(), LeadError> {
        let start = |e| LeadError::Start(TeamStartError::Node(e));
        if self.plan().kv_pages.is_some() {
            return Err(start(NodeError::Pages));
        }
        let checked = self.transformer.check_weights(&options.is_interrupted);
        checked.map_err(|e| start(NodeError::Weights(e)))?;
        let mut team = Box::new(
            TeamLead::new(&mut self.transformer, mesh, options).map_err(LeadError::Start)?,
        );
        team.open(&mut self.transformer).map_err(LeadError::Step)?;
        self.prefixes = None;
        self.places.divide();
        self.nodes = Nodes::Team(team);
        Ok(())
    }

    /// The team, to reset its times.
    pub fn team_mut(&mut self) -> Option<&mut TeamLead> {
        match &mut self.nodes {
            Nodes::Team(team) => Some(team),
            Nodes::Alone(_) | Nodes::Ring(_) => None,
        }
    }

    /// Works for any lead of a team over `mesh` until it is interrupted.
    ///
    /// # Errors
    /// If the weights do not match their checksums.
    pub fn follow(
        &mut self,
        mesh: Mesh,
        options: &MemberOptions<'_>,
        tell: &mut dyn FnMut(&MemberNotice),
    ) -> Result<(), NodeError> {
        run_member(&mut self.transformer, mesh, options, tell)
    }

    /// The team, if this is its lead.
    pub fn team(&self) -> Option<&TeamLead> {
        match &self.nodes {
            Nodes::Team(team) => Some(team),
            Nodes::Alone(_) | Nodes::Ring(_) => None,
        }
    }

    /// Works for any master of a ring over `endpoint` until `is_interrupted` says so. The model is the
    /// share of the node called `name`, which it has unless the master gives it other layers; those that its file
    /// lacks may be in another one. `place` says where the weights are kept, `meter` tells what the machine spends. `held` is
    /// what was stored of the streams when the node worked last, and then now.
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
        let wish = Some(self.model().share().layers.clone());
        let place = RefCell::new(place.clone());
        let prepare = |stage: &mut Transformer, listener: Listener<'_>| {
            place.borrow().prepare(stage, listener)
        };
        let elsewhere = |stage: &mut Transformer, share: &Share, plan: Plan| {
            let (model, path) = other_file(&share.layers)?;
            let taken = stage.take_model(&model, share.clone(), plan);
            if taken.is_ok() {
                place.borrow_mut().model = Some(path);
            }
            Some(taken)
        };
        let (prepare, elsewhere) = (&prepare, &elsewhere);
        let options =
            WorkerOptions { name, wish, limits, prepare, elsewhere, meter, is_interrupted };
        run_worker(&mut self.transformer, endpoint, &options, held, tell)
    }

    /// The ring, if this is its master.
    pub fn ring(&self) -> Option<&RingMaster> {
        match &self.nodes {
            Nodes::Alone(_) | Nodes::Team(_) => None,
            Nodes::Ring(ring) => Some(ring),
        }
    }

    /// The same, to reset its times.
    pub fn ring_mut(&mut self) -> Option<&mut RingMaster> {
        match &mut self.nodes {
            Nodes::Alone(_) | Nodes::Team(_) => None,
            Nodes::Ring(ring) => Some(ring),
        }
    }
}
