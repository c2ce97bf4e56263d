//! Real checkpoints in 4 bits: the error of their weights, and equal results on every tier.

use std::fs;
use std::path::{Path, PathBuf};

use leap::engine::{Engine, EngineError, Options};
use leap::export;
use leap::format::model::{Encoding, Ends, Header, Weights};
use leap::internals::kernels::{Isa, Kernels};
use leap::internals::model::Model;
use leap::internals::quant::{self, Bcml2Matrix, Bcml6Matrix, bcml1, bcml2, bcml6};

use crate::common::folder::Folder;
use crate::export::checkpoint;

/// Every fixture that has safetensors: Llama 3 (bf16, tied), Llama 2 (f16, Meta's layout) and
/// Mistral (f16, sliding window).
const FIXTURES: [&str; 3] = ["llama3-tiny", "llama2-meta-tiny", "mistral-tiny"];

fn fixture(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/golden").join(name)
}

/// Exports a fixture to `folder` and returns the file's path.
fn export(name: &str, weights: Weights, folder: &Folder) -> PathBuf {
    let options = export::ExportOptions { weights, ctx: None, verify: true };
    let path = folder.join(&format!("{name}-{}.bin", weights.version()));
    let plan = export::ExportPlan::open(&fixture(name), &options).unwrap();
    plan.write(&path, |_| std::ops::ControlFlow::Continue(())).unwrap();
    path
}

/// Squared error of rounding to sixteen steps from the least value to the largest.
fn range_error(w: &[f32]) -> f64 {
    let low = w.iter().copied().fold(f32::MAX, f32::min);
    let high = w.iter().copied().fold(f32::MIN, f32::max);
    let round = |x| f64::from(half::f16::from_f32(x).to_f32());
    let (step, first) = (round((high - low) / 15.0), round(low));
    let value = |w: f64| ((w - first) / step).round().clamp(0.0, 15.0) * step + first;
    w.iter().map(|w| (f64::from(*w) - value(f64::from(*w))).powi(2)).sum()
}

#[test]
fn no_tensor_is_further_off_than_with_plain_ranges() {
    for name in FIXTURES {
        let folder = Folder::new();
        let plain = fs::read(export(name, Weights::F32, &folder)).unwrap();
        for weights in kinds(false).into_iter().chain([SIX_BIT_ENDS]) {
            check_errors(name, &plain, &fs::read(export(name, weights, &folder)).unwrap());
        }
    }
}

/// The weights of a quantised tensor.
fn decode(encoding: Encoding, cols: usize, bytes: &[u8], w: &mut [f32]) {
    match encoding {
        Encoding::F32 => w.copy_from_slice(&bytemuck::pod_collect_to_vec::<u8, f32>(bytes)),
        Encoding::Q8 { group } => {
            let (q, scales) = bytes.split_at(w.len());
            let scales: Vec<f32> = bytemuck::pod_collect_to_vec(scales);
            quant::dequantize(bytemuck::cast_slice(q), &scales, group, w);
        }
        Encoding::Ggml(kind) => kind.widen(bytes, w),
        Encoding::Bcml1 => bcml1::decode(bytemuck::cast_slice(bytes), w),
        Encoding::Bcml2 => {
            let matrix = Bcml2Matrix::new(bytes, cols).unwrap();
            for (row, w) in w.chunks_exact_mut(cols).enumerate() {
                bcml2::decode(matrix.row(row), w);
            }
        }
        Encoding::Bcml6 => {
            let matrix = Bcml6Matrix::new(bytes, cols).unwrap();
            for (row, w) in w.chunks_exact_mut(cols).enumerate() {
                bcml6::decode(matrix.row(row), w);
            }
        }
    }
}

fn check_errors(name: &str, plain: &[u8], coded: &[u8]) {
    let (plain_header, header) = (Header::parse(plain).unwrap(), Header::parse(coded).unwrap());
    for (plain_tensor, tensor) in plain_header.tensors().zip(header.tensors()) {
        let bytes = |file: &[u8], tensor: &leap::format::model::Tensor| {
            file[tensor.offset as usize..][..tensor.bytes as usize].to_vec()
        };
        let (plain, coded) = (bytes(plain, &plain_tensor), bytes(coded, &tensor));
        let encoding = header.encoding(tensor.id);
        if encoding == Encoding::F32 {
            assert_eq!(plain, coded, "{}", tensor.id);
            continue;
        }
        let w: Vec<f32> = bytemuck::pod_collect_to_vec(&plain);
        let mut decoded = vec![0.0; w.len()];
        decode(encoding, tensor.cols, &coded, &mut decoded);
        let off = w.iter().zip(&decoded).map(|(w, d)| f64::from(*w) - f64::from(*d));
        let found = off.map(|off| off * off).sum::<f64>();
        let allowed = w.as_chunks::<32>().0.iter().map(|w| range_error(w)).sum::<f64>();
        assert!(found <= 0.9 * allowed, "{name} {} {encoding:?}: {found} {allowed}", tensor.id);
    }
}

/// Logits at the last of 40 positions, for a prompt in one batch and token by token.
fn last_logits(path: &Path, isa: Isa) -> [Vec<u32>; 2] {
    let options = Options { isa: Some(isa), threads: Some(2), ..Options::default() };
    let ids: Vec<u32> = (0..40).map(|i| i * 7 % 89).collect();
    let bits = |logits: &[f32]| logits.iter().map(|x| x.to_bits()).collect();
    let mut engine = Engine::new(Model::open(path).unwrap().into(), &options).unwrap();
    let mut stream = engine.stream().unwrap();
    let together = bits(engine.push(&mut stream, &ids).unwrap());
    stream.clear();
    let mut last = Vec::new();
    for id in ids {
        last = bits(engine.push(&mut stream, &[id]).unwrap());
    }
    [together, last]
}

/// Both kinds of 4-bit weights.
fn kinds(int8_embedding: bool) -> [Weights; 2] {
    let ends = if int8_embedding { Ends::Int8 } else { Ends::FourBits };
    [Weights::Q4 { group: 64, int8_embedding }, Weights::B2 { group: 64, ends }]
}

/// Weights of two levels with an embedding and classifier of 6 bits.
const SIX_BIT_ENDS: Weights = Weights::B2 { group: 64, ends: Ends::SixBits };

#[test]
fn every_tier_and_batch_gives_the_same_logits() {
    let all = [("llama3-tiny", true), ("mistral-tiny", false), ("llama2-meta-tiny", false)];
    let kinds = all.into_iter().flat_map(|(name, is_int8)| kinds(is_int8).map(|kind| (name, kind)));
    let six = FIXTURES.map(|name| (name, SIX_BIT_ENDS));
    for (name, weights) in kinds.chain(six) {
        let folder = Folder::new();
        let path = export(name, weights, &folder);
        let wanted = last_logits(&path, Isa::Scalar);
        assert_eq!(wanted[0], wanted[1], "{name}");
        assert!(wanted[0].iter().all(|bits| f32::from_bits(*bits).is_finite()));
        for isa in Isa::ALL.iter().copied().filter(|isa| Kernels::for_isa(*isa).is_some()) {
            assert_eq!(last_logits(&path, isa), wanted, "{name} {isa:?}");
        }
    }
}

/// Writes the model with decoded weights as a version 1 file.
fn decoded(path: &Path, folder: &Folder) -> PathBuf {
    let file = fs::read(path).unwrap();
    let header = Header::parse(&file).unwrap();
    let mut out = Header { weights: Weights::F32, ..header.clone() }.emit().to_vec();
    for tensor in header.tensors() {
        let bytes = &file[tensor.offset as usize..][..tensor.bytes as usize];
        let mut w = vec![0.0; tensor.rows * tensor.cols];
        decode(header.encoding(tensor.id), tensor.cols, bytes, &mut w);
        out.extend(w.iter().flat_map(|w| w.to_le_bytes()));
    }
    // Checksums may be zeros because they are not read here.
    out.resize(out.len() + 4 * header.n_tensors(), 0);
    let path = folder.join("decoded.bin");
    fs::write(&path, out).unwrap();
    path
}

#[test]
fn logits_are_those_of_the_decoded_weights() {
    let folder = Folder::new();
    let floats = |path: &Path| -> Vec<f32> {
        let [logits, _] = last_logits(path, Kernels::best().isa());
        logits.into_iter().map(f32::from_bits).collect()
    };
    let all = [&kinds(false)[..], &kinds(true), &[SIX_BIT_ENDS]].concat();
    for (name, weights) in FIXTURES.iter().flat_map(|name| all.iter().map(move |w| (*name, *w))) {
        let path = export(name, weights, &folder);
        let (found, wanted) = (floats(&path), floats(&decoded(&path, &folder)));
        let dot = |a: &[f32], b: &[f32]| -> f64 {
            a.iter().zip(b).map(|(a, b)| f64::from(*a) * f64::from(*b)).sum()
        };
        // The only difference is that activations are rounded to int8.
        let cosine = dot(&wanted, &found) / (dot(&wanted, &wanted) * dot(&found, &found)).sqrt();
        assert!(cosine > 0.99, "{name}: {cosine}");
    }
}

/// Twelve tokens after a prompt.
fn greedy(path: &Path, isa: Isa) -> Vec<u32> {
    let options = Options { isa: Some(isa), ..Options::default() };
    let mut engine = Engine::open(path, &options).unwrap();
    let mut stream = engine.stream().unwrap();
    let mut ids = vec![1, 2, 3, 5, 8, 13, 21];
    for at in 0..12 {
        let from = if at == 0 { 0 } else { ids.len() - 1 };
        let logits = engine.push(&mut stream, &ids[from..]).unwrap();
        let best = (0..logits.len()).max_by(|a, b| logits[*a].total_cmp(&logits[*b]));
        ids.push(best.unwrap() as u32);
    }
    ids.split_off(7)
}

#[test]
fn greedy_tokens_are_pinned() {
    let folder = Folder::new();
    let wanted = [
        [1022, 3288, 2099, 3124, 218, 3629, 360, 2707, 1317, 3328, 1190, 199],
        [1022, 3288, 2099, 3124, 218, 1221, 4076, 3188, 3368, 4032, 3122, 3506],
    ];
    for (weights, wanted) in kinds(true).into_iter().zip(wanted) {
        let path = export("llama3-tiny", weights, &folder);
        for isa in Isa::ALL.iter().copied().filter(|isa| Kernels::for_isa(*isa).is_some()) {
            assert_eq!(greedy(&path, isa), wanted, "{weights} {isa:?}");
        }
    }
}

#[test]
fn damaged_four_bit_file_is_refused() {
    for version in [3, 4] {
        check_damaged(version);
    }
}

fn check_damaged(version: i32) {
    let folder = Folder::new();
    checkpoint::Checkpoint::hugging_face("F16", checkpoint::SMALL).write(&folder);
    let bytes = checkpoint::export(&folder, &checkpoint::options(version)).unwrap();
    let path = folder.join("damaged.bin");
    let step = if crate::common::quick() { 9973 } else { 997 };
    for len in (0..300).step_by(13).chain((300..bytes.len()).step_by(step)) {
        fs::write(&path, &bytes[..len]).unwrap();
        assert!(Engine::open(&path, &Options::default()).is_err(), "{len} bytes");
    }
    // Any bits may be weights: the model runs, and gives numbers or NaN.
    let mut wild = bytes.clone();
    let header = Header::parse(&bytes).unwrap();
    for tensor in header.tensors() {
        wild[tensor.offset as usize..][..tensor.bytes as usize].fill(0xff);
    }
    fs::write(&path, &wild).unwrap();
    for isa in Isa::ALL.iter().copied().filter(|isa| Kernels::for_isa(*isa).is_some()) {
        let options = Options { isa: Some(isa), ..Options::default() };
        let refused = Engine::open(&path, &options).err();
        assert!(matches!(refused, Some(EngineError::Weights(_))), "{refused:?}");
        // The weights are used without a comparison with their checksums.
        let mut engine = Engine::new(Model::open(&path).unwrap().into(), &options).unwrap();
        let mut stream = engine.stream().unwrap();
        let logits = engine.push(&mut stream, &[1, 2, 3]).unwrap();
        assert!(logits.iter().all(|x| x.is_nan()), "{isa:?}");
    }
}
