//! Runs a text through a model and measures the inputs of its matrices.
//!
//! All windows of the text go through one layer before the next layer begins. So memory holds little more
//! than one layer's weights, its moments and the text's activations. Where the last layers use the keys and values of
//! earlier ones, these of all windows are held, too: each window is a stream of its own.

use std::collections::HashMap;
use std::fmt;
use std::io;
use std::ops::ControlFlow;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use super::error::EngineError;
use super::options::Options;
use super::ready::Engine;
use crate::export::{Calibration, MatrixId, Moments};
use crate::model::{
    Batch, ForwardError, KvKind, Model, Plan, Precision, Share, Span, Stage, Transformer, Wants,
};

/// Why a calibration failed.
#[derive(Debug)]
#[non_exhaustive]
pub enum CalibrateError {
    /// The model cannot be run.
    Engine(EngineError),
    /// A part of the model cannot be computed alone.
    Whole(&'static str),
    /// The text does not fit the model.
    Forward(ForwardError),
    /// The calibration file cannot be written.
    Write(io::Error),
    /// The caller ended the work.
    Interrupted,
}

impl fmt::Display for CalibrateError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            CalibrateError::Engine(e) => e.fmt(f),
            CalibrateError::Forward(e) => e.fmt(f),
            CalibrateError::Whole(why) => {
                write!(
                    f,
                    "calibration computes one layer at a time, which this model forbids: {why}"
                )
            }
            CalibrateError::Write(_) => write!(f, "cannot keep what the calibration found out"),
            CalibrateError::Interrupted => write!(f, "interrupted"),
        }
    }
}

impl std::error::Error for CalibrateError {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        match self {
            CalibrateError::Engine(e) => e.source(),
            CalibrateError::Write(e) => Some(e),
            CalibrateError::Whole(_) | CalibrateError::Forward(_) | CalibrateError::Interrupted => {
                None
            }
        }
    }
}

impl From<ForwardError> for CalibrateError {
    fn from(error: ForwardError) -> CalibrateError {
        match error {
            ForwardError::Interrupted => CalibrateError::Interrupted,
            other => CalibrateError::Forward(other),
        }
    }
}

/// Moments of the matrices of one layer.
type Found = Arc<Mutex<HashMap<MatrixId, Moments>>>;

/// A text on its way through a model.
struct Run<'a> {
    transformer: Transformer,
    plan: Plan,
    windows: &'a [Vec<u32>],
    /// Whether the windows are long texts to the model.
    is_long: bool,
    /// Activations of all windows, as bytes; behind those of a row its inputs of layers, if the model has such.
    rows: Vec<u8>,
    found: Found,
}

/// Runs `windows`, which are separate texts, through `model` and adds the inputs of its matrices to
/// `calibration`. `progress` gets the number of finished steps and the number of all. A step is one window in
/// one layer, or writing a layer's moments. Returns the number of matrices with too few inputs.
///
/// # Errors
/// If the model cannot be run, the disk is full, or `progress` ends the work.
pub fn calibrate(
    model: Model,
    windows: &[Vec<u32>],
    options: &Options,
    calibration: &mut Calibration,
    mut progress: impl FnMut(u64, u64) -> ControlFlow<()>,
) -> Result<usize, CalibrateError> {
    let n_layers = model.header().n_layers;
    if let Some(why) = model.header().why_whole() {
        return Err(CalibrateError::Whole(why));
    }
    let mut run = Run::new(model, windows, options)?;
    let (mut done, total) = (0, (n_layers * (windows.len() + 1)) as u64);
    let mut step = || {
        done += 1;
        match progress(done, total) {
            ControlFlow::Continue(()) => Ok(()),
            ControlFlow::Break(()) => Err(CalibrateError::Interrupted),
        }
    };
    let mut n_lacking = 0;
    for layer in 0..n_layers {
        run.layer(layer, &mut step)?;
        let found = std::mem::take(&mut *lock(&run.found));
        n_lacking += run.n_matrices(layer).saturating_sub(found.len());
        for (id, moments) in found {
            let is_added = calibration.add(id, moments).map_err(CalibrateError::Write)?;
            n_lacking += usize::from(!is_added);
        }
        step()?;
    }
    calibration.finish().map_err(CalibrateError::Write)?;
    Ok(n_lacking)
}

impl<'a> Run<'a> {
    fn new(
        model: Model,
        windows: &'a [Vec<u32>],
        options: &Options,
    ) -> Result<Run<'a>, CalibrateError> {
        let window = windows.iter().map(Vec::len).max().unwrap_or(0);
        let plan = Plan {
            ctx_len: window,
            max_batch: window,
            max_logits: 1,
            n_streams: 1,
            kv: KvKind::F32,
            kv_pages: None,
        };
        let long = model.header().features.long_rope.as_ref();
        let is_long = long.is_some_and(|long| window > long.original_ctx);
        let kernels = Engine::kernels(None, options.isa).map_err(CalibrateError::Engine)?;
        let pool =
            options.pool(&model).map_err(|e| CalibrateError::Engine(EngineError::Threads(e)))?;
        let started = Transformer::new(Arc::new(model), kernels, pool, plan);
        let transformer = started.map_err(|e| CalibrateError::Engine(EngineError::Start(e)))?;
        let mut run =
            Run { transformer, plan, windows, is_long, rows: Vec::new(), found: Found::default() };
        let found = Arc::clone(&run.found);
        run.transformer.watch_inputs(Box::new(move |id, expert, x, k| {
            lock(&found).entry((id, expert)).or_insert_with(|| Moments::new(k)).add(x);
        }));
        Ok(run)
    }

    /// Number of matrix inputs to calibrate in a layer: of q, k and v, of attention's output projection, of
    /// gate and up, and of down. Each expert has its own last two.
    fn n_matrices(&self, layer: usize) -> usize {
        let header = self.transformer.model().header();
        let beside = usize::from(header.features.more.parallel_ffn.is_some());
        2 + 2 * if header.is_dense(layer) { 1 } else { header.n_ffns() + beside }
    }

    /// Gives the transformer `layer` alone, or with it all layers that use each other's keys and values. Returns whether
    /// it is among these.
    fn give(&mut self, layer: usize) -> Result<bool, CalibrateError> {
        let header = self.transformer.model().header();
        let (joined, n_layers) = (header.joined_from(), header.n_layers);
        let is_joined = layer >= joined;
        let (layers, n_streams) = match is_joined {
            true => (joined..n_layers, self.windows.len()),
            false => (layer..layer + 1, 1),
        };
        let share = Share { has_ends: layers.start == 0, layers };
        // The later ones need what the first of them have stored.
        if layer <= joined {
            let set = self.transformer.set_share(share, Plan { n_streams, ..self.plan });
            set.map_err(|e| CalibrateError::Engine(EngineError::Start(e)))?;
        }
        Ok(is_joined)
    }

    /// Takes all windows through `layer`.
    fn layer(
        &mut self,
        layer: usize,
        step: &mut impl FnMut() -> Result<(), CalibrateError>,
    ) -> Result<(), CalibrateError> {
        let is_joined = self.give(layer)?;
        let row_bytes = Precision::F32.bytes() * self.transformer.model().header().row_width();
        let n_rows: usize = self.windows.iter().map(Vec::len).sum();
        self.rows.resize(n_rows * row_bytes, 0);
        let mut rest = &mut self.rows[..];
        let mut batch = Batch::with_capacity(self.plan.max_batch);
        for (index, window) in self.windows.iter().enumerate() {
            let stream = if is_joined { index } else { 0 };
            let (rows, others) = rest.split_at_mut(window.len() * row_bytes);
            rest = others;
            let (n_rows, is_long) = (window.len(), self.is_long);
            batch.clear();
            batch.push(
                Span { stream, pos: 0, n_rows, wants: Wants::None, is_long, ..Span::EMPTY },
                window,
            );
            match layer {
                0 => self.transformer.embed(&batch)?,
                _ => self.transformer.put_rows(0, Precision::F32, rows),
            }
            self.transformer.run_layer(layer, batch.spans())?;
            for (row, bytes) in rows.chunks_exact_mut(row_bytes).enumerate() {
                self.transformer.get_row(row, Precision::F32, bytes);
            }
            step()?;
        }
        Ok(())
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use super::*;
    use crate::export::{ExportOptions, ExportPlan};
    use crate::format::model::Weights;

    fn exported(name: &str) -> Model {
        let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/golden").join(name);
        let options =
            ExportOptions { weights: Weights::Q8 { group: 32 }, ctx: None, verify: false };
        let plan = ExportPlan::open(&folder, &options).unwrap();
        let file = format!("leap-calibrate-{name}-{}", std::process::id());
        let path = std::env::temp_dir().join(file);
        plan.write(&path, |_| ControlFlow::Continue(())).unwrap();
        let model = Model::open(&path);
        std::fs::remove_file(&path).unwrap();
        model.unwrap()
    }

    /// Windows of unlike texts, the last of them shorter.
    fn windows(model: &Model) -> Vec<Vec<u32>> {
        let n_ids = model.header().vocab_size as u32;
        let window = |(n, start): (u32, u32)| (0..n).map(|i| (i * 37 + start) % n_ids).collect();
        [(90, 5), (90, 300), (40, 11)].map(window).to_vec()
    }

    /// Also of a model whose last layers use earlier ones' keys and values.
    #[test]
    fn layers_one_by_one_compute_what_all_compute_together() {
        for name in ["gemma4-tiny", "gemma4moe-tiny", "gemma3-tiny", "qwen35-tiny"] {
            let (windows, options) = (windows(&exported(name)), Options::default());
            let mut run = Run::new(exported(name), &windows, &options).unwrap();
            let header = run.transformer.model().header().clone();
            for layer in 0..header.n_layers {
                run.layer(layer, &mut || Ok(())).unwrap();
            }
            let mut whole = Run::new(exported(name), &windows, &options).unwrap().transformer;
            let mut rows = run.rows.chunks_exact(4 * header.row_width());
            for window in &windows {
                let mut batch = Batch::with_capacity(window.len());
                batch.push(Span { n_rows: window.len(), ..Span::EMPTY }, window);
                whole.embed(&batch).unwrap();
                whole.run_all_rows(batch.spans()).unwrap();
                for row in 0..window.len() {
                    let mut wanted = vec![0; 4 * header.row_width()];
                    whole.get_row(row, Precision::F32, &mut wanted);
                    assert!(rows.next() == Some(&wanted), "{name}, row {row}");
                }
            }
            assert_eq!(rows.next(), None);
        }
    }
}
