//! Gathers of a team of two over the measured links; the client is the lead.

use std::time::{Duration, Instant};

use super::ends::{GIVE_UP, GatherFigures, PATIENCE, TURNS, WARM_UP, quantiles};
use crate::cli::Failure;
use crate::sys::cpu;
use crate::team::{
    FrameSpan, FrameWants, Gathered, Lead, Member, Mesh, NodeLine, Opening, Order, Part, Sizes, To,
    Work,
};
use crate::transport::Endpoint;
use crate::wire::hello::name;
use crate::wire::{Dtype, KvType};

/// Sizes of a node's part to measure, in bytes.
const SIZES: [usize; 4] = [2 << 10, 4 << 10, 8 << 10, 16 << 10];
/// Gathers of a pass after the first, which also waits until the member has heard of the pass.
const PASS: usize = 90;
/// Turns over all sizes.
const N_TURNS: usize = TURNS as usize * SIZES.len();

/// Rows of both nodes: each has half of them.
struct Rows {
    bytes: Box<[u8]>,
    parts: [Part; 2],
}

impl Rows {
    fn new(part_bytes: usize) -> Rows {
        let parts = [0..part_bytes, part_bytes..2 * part_bytes].map(|columns| vec![columns]);
        Rows { bytes: vec![0; 2 * part_bytes].into_boxed_slice(), parts }
    }

    /// The input of a gather, after node `own` has written its part again.
    fn written(&mut self, own: usize) -> Gathered<'_> {
        self.bytes[self.parts[own][0].clone()].fill(own as u8);
        let row_bytes = self.bytes.len();
        Gathered { bytes: &mut self.bytes, row_bytes, parts: &self.parts, to: To::All }
    }
}

/// Gathers of one size so far.
pub(super) struct GatherRun {
    bytes: usize,
    samples: Vec<f64>,
    /// CPU time of this machine; `None` if it is unknown.
    busy: Option<Duration>,
    n_gathers: u32,
}

impl GatherRun {
    /// One run for each size.
    pub(super) fn all() -> [GatherRun; SIZES.len()] {
        let busy = Some(Duration::ZERO);
        SIZES.map(|bytes| GatherRun { bytes, samples: Vec::new(), busy, n_gathers: 0 })
    }

    fn turn(&mut self, lead: &mut Lead) -> Result<(), Failure> {
        let mut rows = Rows::new(self.bytes);
        pass(lead, &mut rows, WARM_UP / N_TURNS, &mut Vec::new())?;
        let (start, busy, mut n) = (Instant::now(), cpu::busy_time(), 0);
        // Uses the whole time, because CPU time is known only to some hundredths of a second.
        while start.elapsed() < PATIENCE / N_TURNS as u32 {
            pass(lead, &mut rows, PASS, &mut self.samples)?;
            n += PASS + 1;
        }
        let spent = cpu::busy_time().zip(busy).map(|(now, before)| now.saturating_sub(before));
        self.busy = self.busy.zip(spent).map(|(sum, spent)| sum + spent);
        self.n_gathers += n as u32;
        Ok(())
    }

    pub(super) fn figures(self) -> GatherFigures {
        let [p50_us, p99_us] = quantiles(self.samples);
        let cpu_us = self.busy.map(|busy| busy.as_secs_f64() * 1e6 / f64::from(self.n_gathers));
        GatherFigures { bytes: self.bytes, p50_us, p99_us, cpu_us }
    }
}

/// Runs a turn of all sizes with the server, which was told that gathers follow. Returns the endpoint.
pub(super) fn turn(
    node: Box<dyn Endpoint>,
    runs: &mut [GatherRun],
) -> Result<Box<dyn Endpoint>, Failure> {
    let mesh = Mesh::new(vec![None, Some(node)]).map_err(|e| Failure::runtime(&e))?;
    let mut lead = Lead::new(mesh, 0);
    let opened = lead.open(&opening(), &|| false, &mut |_| {}, Some(GIVE_UP));
    opened.map_err(|e| Failure::Runtime(format!("the server gathers nothing: {e}")))?;
    runs.iter_mut().try_for_each(|run| run.turn(&mut lead))?;
    lead.close();
    peer(lead.into_mesh())
}

/// Runs one gather and `n` more; notes the times of the `n`.
fn pass(lead: &mut Lead, rows: &mut Rows, n: usize, samples: &mut Vec<f64>) -> Result<(), Failure> {
    // Each id of the batch is the length of a part.
    let (n_gathers, part_bytes) = (1 + n as u16, rows.bytes.len() as u32 / 2);
    let span = FrameSpan {
        stream: 0,
        wants: FrameWants::None,
        pos: 0,
        n_rows: n_gathers,
        is_long: false,
        state: [None; 2],
    };
    let ids = vec![part_bytes; n_gathers.into()];
    lead.start(Work::Ids, &[span], &ids).map_err(|e| Failure::runtime(&e))?;
    let mut before: Option<Instant> = None;
    for _ in 0..n_gathers {
        lead.gather(rows.written(0)).map_err(|e| Failure::runtime(&e))?;
        let now = Instant::now();
        samples.extend(before.map(|before| (now - before).as_secs_f64() * 1e6));
        before = Some(now);
    }
    Ok(())
}

/// Takes part in gathers until the client closes or is silent for `GIVE_UP`.
pub(super) fn serve(node: Box<dyn Endpoint>) -> Option<Box<dyn Endpoint>> {
    let mut member = Member::new(Mesh::new(vec![Some(node), None]).ok()?, "bench");
    let mut heard = Instant::now();
    loop {
        match member.next(&|| heard.elapsed() > GIVE_UP, &mut |_| {}) {
            Ok(Order::Open(_)) => member.ready(NodeLine::default()),
            Ok(Order::Pass(_)) => take_part(&mut member),
            // Nothing is stored here.
            Ok(Order::Pages) => {}
            Ok(Order::Close) | Err(_) => return peer(member.into_mesh()).ok(),
        }
        heard = Instant::now();
    }
}

fn take_part(member: &mut Member) {
    let longest = *SIZES.last().unwrap_or(&0) as u32;
    let part_bytes = member.tokens().first().map_or(0, |bytes| (*bytes).min(longest));
    let mut rows = Rows::new(part_bytes as usize);
    for _ in 0..member.tokens().len() {
        // If the pass ends early, the next order tells.
        if member.gather(rows.written(1)).is_err() {
            return;
        }
    }
}

fn opening() -> Opening {
    let sizes = Sizes {
        ctx_len: 1 + PASS.max(WARM_UP) as u32,
        n_streams: 1,
        n_pages: 1,
        max_batch: 1 + PASS.max(WARM_UP) as u16,
        max_logits: 1,
        kv: KvType::F16,
        wire: Dtype::F32,
        dim: 0,
    };
    Opening {
        sizes,
        layers: 0..2,
        has_ends: true,
        shares: [1, 1].into_iter().collect(),
        node: 0,
        lead: name("bench"),
    }
}

/// The one endpoint of a mesh.
fn peer(mesh: Mesh) -> Result<Box<dyn Endpoint>, Failure> {
    let mut endpoints = mesh.into_endpoints().into_iter().flatten();
    endpoints.next().ok_or_else(|| Failure::Runtime("the links are still in use".to_owned()))
}
