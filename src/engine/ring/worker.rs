//! A worker's loop. It outlives masters: whoever comes next opens the ring anew.

use std::time::Duration;

use super::master::{carrier_notice, line, serve};
use super::node::Node;
use super::rows::{Activations, from_spans};
use super::{NodeError, plan};
use crate::model::{ForwardError, Row, Transformer};
use crate::ring::{Hop, Host, Notice, Rows, Worker, WorkerStep};
use crate::transport::Endpoint;
use crate::wire::Dtype;
use crate::wire::datagram::FRAME_MAX;
use crate::wire::frame::{Sizes, Status};
use crate::wire::hello;

/// Longest wait for the link before the caller's wish is asked again.
const WAIT: Duration = Duration::from_millis(100);

/// The most that a worker is ready to keep for a master.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Limits {
    /// Longest context.
    pub ctx_len: usize,
    /// Streams.
    pub n_streams: usize,
    /// Rows of a batch.
    pub max_batch: usize,
}

/// Works for any master until `is_wanted` says no. `transformer` is this node's share; its plan
/// follows the master's wishes within `limits`.
///
/// # Errors
/// If the weights do not match their checksums, or the system refuses a thread.
pub fn run_worker(
    transformer: &mut Transformer,
    endpoint: Box<dyn Endpoint>,
    name: &str,
    limits: Limits,
    is_wanted: &dyn Fn() -> bool,
    tell: &mut dyn FnMut(&Notice),
) -> Result<(), NodeError> {
    transformer.check_weights(is_wanted).map_err(NodeError::Weights)?;
    // Those that there are, the caller has told.
    let mut n_told = endpoint.notices().len();
    let node = Node::new(endpoint, Some(hello::name(name)))?;
    let header = transformer.model().header();
    let (dim, n_layers) = (header.dim as u32, header.n_layers as u32);
    let mut worker = Worker::new(line(transformer, name), dim, n_layers, FRAME_MAX);
    let mut rows: Vec<Row> = Vec::with_capacity(limits.max_batch);
    while is_wanted() {
        let mut endpoint = node.lock();
        serve(&mut **endpoint, Duration::ZERO);
        let mut host = Share { transformer, limits };
        let step = worker.poll(node.now(), &mut Hop::new(&mut **endpoint), &mut host);
        while let Some(notice) = worker.notice() {
            tell(&notice);
        }
        while let Some(notice) = carrier_notice(&**endpoint, &mut n_told) {
            tell(&notice);
        }
        match step {
            WorkerStep::Idle => serve(&mut **endpoint, WAIT),
            WorkerStep::Compute => {
                // Frames taken just now are acknowledged before this thread is away.
                serve(&mut **endpoint, Duration::ZERO);
                drop(endpoint);
                from_spans(worker.spans(), &[], &mut rows);
                let (result, compute_us) = node.compute(|| transformer.run_layers(&rows));
                match result {
                    Ok(()) => worker.computed(compute_us),
                    Err(ForwardError::Interrupted) => break,
                    // The spans were checked against the plan; another plan came meanwhile.
                    Err(_) => worker.discard(),
                }
            }
        }
    }
    Ok(())
}

/// The node's layers as the ring sees them.
struct Share<'a> {
    transformer: &'a mut Transformer,
    limits: Limits,
}

impl Rows for Share<'_> {
    fn put(&mut self, first: usize, dtype: Dtype, bytes: &[u8]) {
        Activations(self.transformer).put(first, dtype, bytes);
    }

    fn get(&mut self, row: usize, dtype: Dtype, out: &mut [u8]) {
        Activations(self.transformer).get(row, dtype, out);
    }
}

impl Host for Share<'_> {
    fn open(&mut self, sizes: &Sizes) -> Status {
        let plan = plan(sizes);
        if plan.ctx_len > self.limits.ctx_len {
            return Status::Context(self.limits.ctx_len as u32);
        }
        if plan.n_streams > self.limits.n_streams {
            return Status::Streams(self.limits.n_streams as u32);
        }
        if plan.max_batch > self.limits.max_batch {
            return Status::Batch(self.limits.max_batch as u32);
        }
        if plan == *self.transformer.plan() {
            return Status::Ready;
        }
        match self.transformer.set_plan(plan) {
            Ok(()) => Status::Ready,
            Err(e) => {
                log::warn!("{e}");
                Status::Memory
            }
        }
    }
}
