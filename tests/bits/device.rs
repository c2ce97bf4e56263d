//! A device beside the CPUs computes the last layers: any number of them, on a board of a ring, and until it is lost.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

use crate::common::jobs::answers;
#[cfg(feature = "pickle")]
use crate::common::models::export;
use crate::common::models::{bits, demo};
use crate::common::rings::{Recipe, Telling, work_with, worker};
use leap::engine::{Engine, Job, Options, WeightsPlace};
use leap::internals::kernels::Kernels;
use leap::internals::model::{
    Device, ForwardError, KvKind, KvPlace, Model, OpenDevice, PageChange, PiecePlace, Plan,
    Precision, Share, Span, Stage, StartError, StatePlace, Transformer,
};
use leap::internals::pool::Pool;
use leap::internals::transport::Endpoint;

/// A device that is a second transformer. It fails when as many passes are done.
struct Second {
    transformer: Transformer,
    passes_left: usize,
}

impl Second {
    /// The layers of a share from `first` on.
    fn open(first: usize, passes_left: usize) -> OpenDevice {
        Box::new(move |model, plan, _| {
            let layers = model.share().layers.start.max(first)..model.share().layers.end;
            let share = Share { layers, has_ends: false };
            let model = Arc::new(model.with_share(share).map_err(|e| e.to_string())?);
            let pool = Pool::new(&[]).unwrap();
            let transformer = Transformer::new(model, Kernels::best(), pool, *plan).unwrap();
            Ok(Box::new(Second { transformer, passes_left }))
        })
    }
}

impl Device for Second {
    fn name(&self) -> &str {
        "second"
    }

    fn model(&self) -> &Model {
        self.transformer.model()
    }

    fn set_plan(&mut self, plan: &Plan) -> Result<(), StartError> {
        self.transformer.set_plan(*plan)
    }

    fn run_layers(
        &mut self,
        spans: &[Span],
        x: &mut [f32],
        _: Option<fn() -> bool>,
    ) -> Result<(), ForwardError> {
        let Some(left) = self.passes_left.checked_sub(1) else {
            return Err(ForwardError::Device("the device is lost".to_owned()));
        };
        self.passes_left = left;
        let dim = self.model().header().dim;
        self.transformer.put_rows(0, Precision::F32, bytemuck::cast_slice(x));
        self.transformer.run_layers(spans)?;
        for (row, x) in x.chunks_exact_mut(dim).enumerate() {
            self.transformer.get_row(row, Precision::F32, bytemuck::cast_slice_mut(x));
        }
        Ok(())
    }

    fn classify(&mut self, _: &[f32], _: &mut [f32]) -> Result<(), ForwardError> {
        unreachable!("its share has no ends")
    }

    fn change_page(&mut self, change: &PageChange) {
        assert!(self.transformer.change_page(change));
    }

    fn read_kv(&mut self, part: KvPlace, out: &mut [u8]) -> bool {
        self.transformer.read_kv(part, out)
    }

    fn write_kv(&mut self, part: KvPlace, first: usize, bytes: &[u8]) -> bool {
        self.transformer.write_kv(part, first, bytes)
    }

    fn read_state(&mut self, part: StatePlace, out: &mut [u8]) -> bool {
        self.transformer.read_state(part, out)
    }

    fn write_state(&mut self, part: StatePlace, bytes: &[u8]) -> bool {
        self.transformer.write_state(part, bytes)
    }

    fn read_state_piece(&mut self, place: PiecePlace, out: &mut [u8]) -> bool {
        self.transformer.read_state_piece(place, out)
    }

    fn write_state_piece(&mut self, place: PiecePlace, first: usize, bytes: &[u8]) -> bool {
        self.transformer.write_state_piece(place, first, bytes)
    }
}

#[cfg(feature = "pickle")]
const INT8: leap::format::model::Weights = leap::format::model::Weights::Q8 { group: 32 };

const IDS: [u32; 40] = {
    let mut ids = [0; 40];
    let mut i = 0;
    while i < 40 {
        ids[i] = (i * i + 3) as u32;
        i += 1;
    }
    ids
};

fn engine(model: &Arc<Model>) -> Engine {
    let options =
        Options { ctx_len: Some(64), batch: Some(8), threads: Some(1), ..Options::default() };
    Engine::new(Arc::clone(model), &options).unwrap()
}

/// A model with attention alone, and models with each form of recurrent layers.
#[cfg(feature = "pickle")]
fn models() -> Vec<Arc<Model>> {
    let recurrent = ["qwen35-tiny", "lfm2-tiny", "granite4h-tiny"];
    [demo()].into_iter().chain(recurrent.map(|name| export(name, INT8))).collect()
}

#[cfg(not(feature = "pickle"))]
fn models() -> Vec<Arc<Model>> {
    vec![demo()]
}

/// Bits of the logits behind each of several pushes.
fn logits(engine: &mut Engine) -> Vec<u32> {
    let mut stream = engine.stream().unwrap();
    let vocab = engine.header().vocab_size as u32;
    let ids = IDS.map(|id| id % vocab);
    ids.chunks(9).flat_map(|ids| bits(engine.push(&mut stream, ids).unwrap())).collect()
}

#[test]
fn a_device_may_have_any_of_the_last_layers() {
    for model in &models() {
        let wanted = logits(&mut engine(model));
        for first in 0..model.header().n_layers {
            let mut engine = engine(model);
            engine.use_device(Second::open(first, usize::MAX)).unwrap();
            let layers = model.header().n_layers - first;
            assert_eq!(engine.device(), Some(("second", layers)));
            let architecture = model.header().architecture;
            assert!(logits(&mut engine) == wanted, "{architecture:?} from layer {first} on");
        }
    }
}

#[test]
fn answers_go_on_without_a_device_that_is_lost() {
    for model in &models() {
        let wanted = logits(&mut engine(model));
        for passes in 0..9 {
            let mut engine = engine(model);
            engine.use_device(Second::open(2, passes)).unwrap();
            let architecture = model.header().architecture;
            assert!(logits(&mut engine) == wanted, "{architecture:?}, {passes} passes");
            assert_eq!(engine.device(), None);
        }
    }
}

/// Boards of rings have a share for a while, then another.
#[test]
fn a_device_follows_when_layers_move() {
    let kv_pages = None;
    let plan =
        Plan { ctx_len: 64, max_batch: 8, max_logits: 1, n_streams: 1, kv: KvKind::F16, kv_pages };
    let pool = Pool::new(&[]).unwrap();
    let mut transformer = Transformer::new(demo(), Kernels::best(), pool, plan).unwrap();
    transformer.use_device(Second::open(2, usize::MAX)).unwrap();
    for (layers, on_device) in [(1..4, 2), (3..4, 1), (0..2, 0)] {
        let share = Share { layers, has_ends: true };
        transformer.set_share(share.clone(), plan).unwrap();
        assert_eq!(transformer.device_beside().map_or(0, |(_, layers)| layers), on_device);
        assert_eq!(transformer.about().share, &share);
    }
}

/// Passes that the device of the ring's worker computes before it is lost.
static WORKERS_PASSES: AtomicUsize = AtomicUsize::new(0);

/// Works with a device that has all layers but the first.
fn work_until_lost(
    telling: Telling,
    (share, place): (Model, WeightsPlace),
    endpoint: Box<dyn Endpoint>,
    is_interrupted: &AtomicBool,
) {
    let first = share.share().layers.start + 1;
    let mut engine = worker(share, &place);
    engine.use_device(Second::open(first, WORKERS_PASSES.load(Ordering::Relaxed))).unwrap();
    work_with(engine, telling, place, endpoint, is_interrupted);
}

/// The boards begin a new epoch, in which the one that lost its device computes all its layers on the CPU.
#[test]
fn a_ring_goes_on_without_a_board_s_device() {
    let recipe = Recipe { n_streams: 2, ..Recipe::demo(&[3]) };
    let jobs: Vec<Job> = [30, 50]
        .map(|n| Job { n_predict: 8, ..Job::new((0..n).map(|i| i * i + 3).collect()) })
        .into();
    let said = |engine: &mut Engine| -> Vec<Vec<u32>> {
        answers(engine, &jobs).into_iter().map(|(ids, _)| ids).collect()
    };
    let wanted = said(&mut recipe.alone());
    for (masters, workers) in
        [(usize::MAX, 0), (usize::MAX, 5), (0, usize::MAX), (4, 9), (9, 4), (6, 6)]
    {
        WORKERS_PASSES.store(workers, Ordering::Relaxed);
        let (mut engine, _workers) = recipe.ring_of(work_until_lost);
        engine.use_device(Second::open(1, masters)).unwrap();
        assert!(said(&mut engine) == wanted, "lost after {masters} and {workers} passes");
        assert_eq!(engine.device().is_none(), masters < usize::MAX);
        let failures = [masters, workers].iter().filter(|passes| **passes < usize::MAX).count();
        assert_eq!(engine.ring().unwrap().setbacks().failures, failures as u64);
    }
}
