//! Places of a model's tensors in a GGUF file, and the order of their values there.

use std::collections::HashMap;

use crate::export::error::ExportError;
use crate::export::gguf::{F32, GgufHead};
use crate::export::job::{Change, GroupedHeads, Order, Runs, TensorJob};
use crate::export::names::{Naming, Place};
use crate::export::plan::ExportPlan;
use crate::format::model::{DeltaRule, Encoding, Header, Mixer, Tensor, TensorId, TensorKind};

/// The tensors of a GGUF file that have a tensor's rows.
struct Target<'a> {
    /// Names of the tensors, one if the rows are all in one.
    names: &'a [String],
    /// Rows of each of them.
    rows: usize,
    /// The first row.
    first: usize,
    /// Rows that stand together, and from the start of one such run to the start of the next.
    runs: Option<[usize; 2]>,
}

impl<'a> Target<'a> {
    /// The target of `tensor`, whose place is `place`; `None` if a GGUF file has no such place.
    fn new(place: &'a Place, tensor: &Tensor) -> Option<Target<'a>> {
        let (rows, names) = (tensor.rows, place.names());
        let whole = Target { names, rows, first: 0, runs: None };
        match place {
            Place::Whole(_) | Place::Flat(..) | Place::Taps(_) | Place::FirstRow(_) => Some(whole),
            Place::Rows(_, own, all) => Some(Target { rows: *all, first: own.start, ..whole }),
            Place::HeadParts(_, n, (part, of)) => {
                let height = rows / n;
                let runs = Some([height, of * height]);
                Some(Target { rows: of * rows, first: part * height, runs, ..whole })
            }
            Place::Stacked(_) => Some(Target { rows: rows / names.len(), ..whole }),
            Place::Zeros(_) | Place::Transposed(..) | Place::Blocks(..) => None,
        }
    }

    /// The shape of each tensor, columns first.
    fn shape(&self, place: &Place, tensor: &Tensor, header: &Header) -> Vec<usize> {
        let (kind, cols, n_ffns) = (tensor.id.kind, tensor.cols, header.n_ffns());
        match place {
            Place::Flat(_, n) => vec![cols / n, *n],
            Place::FirstRow(_) => vec![cols, 1],
            _ if header.rows_of_one(kind).is_some() => match kind.is_vector() {
                true => vec![cols / n_ffns, n_ffns],
                false => vec![cols, self.rows / n_ffns, n_ffns],
            },
            _ if kind.is_vector() => vec![cols],
            _ => vec![cols, self.rows],
        }
    }
}

impl ExportPlan {
    /// Gives the jobs their places in the data of a GGUF file, and adds its tensors to `head`. Their values get the
    /// order that such a file of this family has.
    pub(super) fn place_in_gguf<'a>(
        &'a self,
        header: &Header,
        jobs: &mut Vec<TensorJob<'a>>,
        head: &mut GgufHead,
    ) -> Result<(), ExportError> {
        jobs.retain(|job| !self.are_keys(job.tensor.id));
        let mut offsets = HashMap::new();
        for job in jobs {
            let id = job.tensor.id;
            let place = Naming::Gguf.place(id, header);
            self.order_as_in_gguf(job, (&place, header))?;
            let encoding = job.encoding(header);
            let TensorJob { tensor, runs, .. } = job;
            let (row_bytes, kind) = match encoding {
                Encoding::Ggml(kind) => (kind.row_bytes(tensor.cols), kind.id()),
                _ => (size_of::<f32>() * tensor.cols, F32),
            };
            let target = Target::new(&place, tensor).ok_or_else(|| {
                let (name, path) = (place.names().concat(), self.config_path.clone());
                let what = format!("a GGUF file with the tensor {name}");
                ExportError::Unsupported { path, what }
            })?;
            let shape = target.shape(&place, tensor, header);
            let bytes = (target.rows * row_bytes) as u64;
            let mut add = |name: &String| head.tensor(name, (&shape, kind), bytes);
            let names = target.names.iter().cloned();
            let starts: Vec<u64> =
                names.map(|name| *offsets.entry(name).or_insert_with_key(&mut add)).collect();
            *runs = match (target.runs, &starts[..]) {
                (Some([rows, step]), _) => Some(Runs { rows, step: (step * row_bytes) as u64 }),
                (None, [first, second, ..]) => {
                    Some(Runs { rows: target.rows, step: second - first })
                }
                (None, _) => None,
            };
            tensor.offset = starts[0] + (target.first * row_bytes) as u64;
            tensor.bytes = (tensor.rows * row_bytes) as u64;
        }
        Ok(())
    }

    /// Whether tensor `id` is a projection of values that is that of keys, too. GGUF files have it once.
    fn are_keys(&self, id: TensorId) -> bool {
        let keys = TensorId { kind: TensorKind::FullWk, ..id };
        id.kind == TensorKind::FullWv && self.place(id).names() == self.place(keys).names()
    }

    /// Makes a job's values those of a GGUF file, in their order.
    fn order_as_in_gguf<'a>(
        &'a self,
        job: &mut TensorJob<'a>,
        (place, header): (&Place, &Header),
    ) -> Result<(), ExportError> {
        let id = job.tensor.id;
        if Naming::Gguf.has_halved_heads(id.kind, header) {
            // They stand so in each checkpoint of such a family.
            (job.rows, job.cols) = (Order::Same, Order::Same);
        }
        // The divisor of the logits is a field, and a router's norm has its weights alone.
        if let Change::Linear { divisor, .. } = &mut job.change {
            *divisor = 1.0;
        }
        if let (Place::Taps(_), Place::Taps(name)) = (place, self.place(id)) {
            // Checkpoints have a row for each channel.
            job.source = self.checkpoint.tensor(&name)?;
            (job.tensor.rows, job.tensor.cols) = (job.tensor.cols, job.tensor.rows);
        }
        match header.mixer(id.layer) {
            Some(Mixer::DeltaRule(rule)) => order_value_heads(job, rule),
            Some(Mixer::StateSpace(_)) if id.kind == TensorKind::MixControls => {
                // They are rows of the tensor of all inputs.
                let inputs = TensorId { kind: TensorKind::MixIn, ..id };
                if let Encoding::Ggml(kind) = header.encoding(inputs) {
                    job.stored_as = Some(kind);
                }
            }
            _ => {}
        }
        Ok(())
    }
}

/// Puts value heads into the order of GGUF files.
fn order_value_heads(job: &mut TensorJob<'_>, rule: DeltaRule) {
    let DeltaRule { key_heads, value_heads, value_dim, is_tiled, .. } = rule;
    if is_tiled || key_heads == value_heads {
        return;
    }
    let heads =
        |start, width| Order::Grouped(GroupedHeads { start, width, key_heads, value_heads });
    match job.tensor.id.kind {
        TensorKind::MixIn | TensorKind::MixConv => job.rows = heads(2 * rule.keys(), value_dim),
        TensorKind::MixGate => job.rows = heads(0, value_dim),
        TensorKind::MixControls => job.rows = heads(0, 1),
        TensorKind::MixDecay | TensorKind::MixStepBias => job.cols = heads(0, 1),
        TensorKind::MixOut => job.cols = heads(0, value_dim),
        _ => {}
    }
}
