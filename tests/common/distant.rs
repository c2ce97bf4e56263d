//! A device of its own: a thread that computes without shared memory, and keeps rows as big-endian bytes.
#![allow(dead_code, reason = "every test crate compiles this module; not all have devices")]

use std::sync::Arc;
use std::sync::mpsc::{Sender, channel};
use std::thread::JoinHandle;

use leap::internals::kernels::Kernels;
use leap::internals::model::{
    Batch, CheckError, ForwardError, GatherError, KvKind, KvPlace, Model, PageChange, Plan,
    Precision, Share, Span, Stage, StageInfo, StartError, Transformer, check_spans,
};
use leap::internals::pool::Pool;

/// A command for the device.
type Command = Box<dyn FnOnce(&mut Device) + Send>;

/// State that only the device's thread sees.
struct Device {
    cores: Transformer,
    /// `[max_batch, dim]`, f32, big-endian.
    rows: Vec<u8>,
}

/// The device, as its host uses it.
pub(crate) struct Distant {
    model: Arc<Model>,
    plan: Plan,
    commands: Option<Sender<Command>>,
    thread: Option<JoinHandle<()>>,
    /// The device loses its stored rows each time it has run this many batches; and the number of batches that it was
    /// to run.
    loses_every: Option<usize>,
    n_run: usize,
}

impl Device {
    fn new(model: Arc<Model>, plan: Plan) -> Device {
        let pool = Pool::new(&[]).unwrap();
        let bytes = plan.max_batch * model.header().dim * 4;
        let cores = Transformer::new(model, Kernels::best(), pool, plan).unwrap();
        Device { cores, rows: vec![0; bytes] }
    }

    /// Converts rows between the device's byte order and the machine's.
    fn turned(rows: &[u8]) -> Vec<u8> {
        rows.as_chunks::<4>().0.iter().flat_map(|b| [b[3], b[2], b[1], b[0]]).collect()
    }

    fn put(&mut self, at: usize, values: &[f32]) {
        let bytes: Vec<u8> = values.iter().flat_map(|x| x.to_be_bytes()).collect();
        self.rows[at * 4..][..bytes.len()].copy_from_slice(&bytes);
    }

    fn run(&mut self, spans: &[Span]) -> Result<(), ForwardError> {
        let row_bytes = self.cores.about().header.dim * 4;
        let n_rows: usize = spans.iter().map(|span| span.n_rows).sum();
        self.cores.put_rows(0, Precision::F32, &Device::turned(&self.rows[..n_rows * row_bytes]));
        self.cores.run_layers(spans)?;
        for (row, out) in self.rows.chunks_exact_mut(row_bytes).take(n_rows).enumerate() {
            let mut bytes = vec![0; row_bytes];
            self.cores.get_row(row, Precision::F32, &mut bytes);
            out.copy_from_slice(&Device::turned(&bytes));
        }
        Ok(())
    }
}

impl Distant {
    /// A device that runs `model`, a range of layers without embedding and classifier.
    pub(crate) fn new(model: Arc<Model>) -> Distant {
        let plan = Plan {
            ctx_len: 1,
            max_batch: 1,
            max_logits: 1,
            n_streams: 1,
            kv: KvKind::for_weights(model.header().weights),
            kv_pages: None,
        };
        let (commands, queue) = channel::<Command>();
        let held = Arc::clone(&model);
        let thread = std::thread::spawn(move || {
            let mut device = Device::new(held, plan);
            queue.iter().for_each(|command| command(&mut device));
        });
        let loses_every = None;
        Distant {
            model,
            plan,
            commands: Some(commands),
            thread: Some(thread),
            loses_every,
            n_run: 0,
        }
    }

    /// A device that loses its stored rows with each `n`-th batch.
    pub(crate) fn losing(model: Arc<Model>, n: usize) -> Distant {
        let mut distant = Distant::new(model);
        distant.loses_every = Some(n);
        distant
    }

    /// Runs `work` on the device, and waits for its result.
    fn call<T: Send + 'static>(&self, work: impl FnOnce(&mut Device) -> T + Send + 'static) -> T {
        let (result, returned) = channel();
        let command: Command = Box::new(move |device| result.send(work(device)).unwrap());
        self.commands.as_ref().unwrap().send(command).unwrap();
        returned.recv().unwrap()
    }
}

impl Drop for Distant {
    fn drop(&mut self) {
        drop(self.commands.take());
        self.thread.take().unwrap().join().unwrap();
    }
}

impl Stage for Distant {
    fn about(&self) -> StageInfo<'_> {
        StageInfo {
            header: self.model.header(),
            share: self.model.share(),
            plan: &self.plan,
            device: "distant",
            threads: 1,
        }
    }

    fn bytes_per_token(&self) -> u64 {
        self.model.bytes_per_token()
    }

    fn set_plan(&mut self, plan: Plan) -> Result<(), StartError> {
        self.call(move |device| {
            device.cores.set_plan(plan)?;
            device.rows = vec![0; plan.max_batch * device.cores.about().header.dim * 4];
            Ok(())
        })?;
        self.plan = plan;
        Ok(())
    }

    fn set_share(&mut self, share: Share, plan: Plan) -> Result<(), StartError> {
        let model = Arc::new(self.model.with_share(share.clone()).map_err(StartError::Share)?);
        self.call(move |device| device.cores.set_share(share, plan))?;
        self.model = model;
        self.set_plan(plan)
    }

    fn check_weights(&self, is_interrupted: &dyn Fn() -> bool) -> Result<(), CheckError> {
        match is_interrupted() {
            true => Err(CheckError::Interrupted),
            false => self.call(|device| device.cores.check_weights(&|| false)),
        }
    }

    fn interrupt_by(&mut self, is_interrupted: fn() -> bool) {
        self.call(move |device| device.cores.interrupt_by(is_interrupted));
    }

    fn embed(&mut self, _: &Batch) -> Result<(), ForwardError> {
        unreachable!("its share has no ends")
    }

    fn run_layers(&mut self, spans: &[Span]) -> Result<(), ForwardError> {
        check_spans(spans, &self.plan)?;
        self.n_run += 1;
        if self.loses_every.is_some_and(|n| self.n_run.is_multiple_of(n)) {
            self.set_plan(self.plan).unwrap();
            return Err(ForwardError::Gather(GatherError::Lost { node: 1 }));
        }
        let spans = spans.to_vec();
        self.call(move |device| device.run(&spans))
    }

    fn put_rows(&mut self, first: usize, precision: Precision, bytes: &[u8]) {
        let mut values = vec![0.0; bytes.len() / precision.bytes()];
        precision.read(bytes, &mut values);
        let at = first * self.model.header().dim;
        self.call(move |device| device.put(at, &values));
    }

    fn get_row(&mut self, row: usize, precision: Precision, out: &mut [u8]) {
        let dim = self.model.header().dim;
        let bytes =
            self.call(move |device| Device::turned(&device.rows[row * dim * 4..][..dim * 4]));
        let mut values = vec![0.0; dim];
        Precision::F32.read(&bytes, &mut values);
        precision.write(&values, out);
    }

    fn change_page(&mut self, change: &PageChange) -> bool {
        let change = *change;
        self.call(move |device| device.cores.change_page(&change))
    }

    fn is_windowed(&self, layer: usize) -> bool {
        self.call(move |device| device.cores.is_windowed(layer))
    }

    fn kv_part_bytes(&self, layer: usize) -> Option<usize> {
        self.call(move |device| device.cores.kv_part_bytes(layer))
    }

    fn read_kv(&mut self, part: KvPlace, out: &mut [u8]) -> bool {
        let mut bytes = vec![0; out.len()];
        let (is_read, bytes) = self.call(move |device| {
            let is_read = device.cores.read_kv(part, &mut bytes);
            (is_read, bytes)
        });
        out.copy_from_slice(&bytes);
        is_read
    }

    fn write_kv(&mut self, part: KvPlace, first: usize, bytes: &[u8]) -> bool {
        let bytes = bytes.to_vec();
        self.call(move |device| device.cores.write_kv(part, first, &bytes))
    }

    fn classify(&mut self, _: Precision, _: &[u8]) -> Result<&mut [f32], ForwardError> {
        unreachable!("its share has no ends")
    }
}
