//! Products on a device against those of the CPU.

use std::sync::Arc;

use super::commands::Commands;
use super::device::Handle;
use super::memory::{Memory, Place};
use super::pipelines::{GateForm, Pipelines, Shader};
use super::record::{Gates, On};
use super::recurrent::ControlsPush;
use super::room::Room;
use super::self_test::{N, exact_pipelines, is_same, operands};
use super::tensors::{Loading, Tensor, Transfer};
use crate::format::model::{Header, Weights};
use crate::kernels::{Isa, Kernels, sigmoids};
use crate::model::{KvKind, Matrix, Plan, activation_group, encoding};
use crate::pool::Pool;
use crate::quant::bcml1::BLOCK;
use crate::quant::random::Random;
use crate::quant::{
    Bcml1Matrix, Bcml2Matrix, Bcml6Matrix, Ggml, GgmlMatrix, Q8Activations, Q8Matrix, bcml1, bcml2,
    bcml6,
};

/// Any device that this machine has. On machines of continuous integration there must be one.
pub(super) fn device() -> Option<Arc<Handle>> {
    match Handle::open("any", &|_| true) {
        Ok(handle) => Some(handle),
        Err(error) => {
            // A static program, as the tests for emulated processors are, can open no driver.
            let may_lack = cfg!(target_env = "musl") || std::env::var_os("CI").is_none();
            assert!(may_lack, "no device: {error}");
            None
        }
    }
}

#[test]
fn engines_of_a_process_share_a_device_until_it_fails() {
    let Some(first) = device() else { return };
    let second = device().unwrap();
    assert!(Arc::ptr_eq(&first, &second));
    second.set_failed();
    let third = device().unwrap();
    assert!(!Arc::ptr_eq(&first, &third) && Arc::ptr_eq(&third, &device().unwrap()));
}

const ROWS: usize = 45;
const K: usize = 512;

/// Products of `m` rows `x` by `matrix` on the CPU.
fn on_the_cpu(matrix: &Matrix<'_>, x: &[f32], m: usize) -> Vec<f32> {
    let kernels = Kernels::for_isa(Isa::Scalar).unwrap();
    let mut out = vec![0.0; m * ROWS];
    let mut rows: Vec<&mut [f32]> = out.chunks_exact_mut(ROWS).collect();
    let Some(group) = activation_group(encoding(matrix)) else {
        let Matrix::F32 { w, k } = *matrix else { unreachable!() };
        kernels.matmul_f32(w, k, x, &mut rows);
        return out;
    };
    let (mut q, mut scales) = (vec![0; x.len()], vec![0.0; x.len() / group]);
    kernels.quantize_q8(x, group, &mut q, &mut scales);
    let mut sums = vec![0; x.len() / BLOCK];
    kernels.sum_q8(&q, &mut sums);
    let x = Q8Activations::new(&q, &scales, K, group).unwrap();
    match *matrix {
        Matrix::Q8(w) => kernels.matmul_q8(w, x, &mut rows),
        Matrix::Q4(w) => kernels.matmul_q4(w, x, &sums, &mut rows),
        Matrix::B2(w) => kernels.matmul_b2(w, x, &sums, &mut rows),
        Matrix::B6(w) => kernels.matmul_b6(w, x, &mut rows),
        Matrix::Ggml(w) => kernels.matmul_ggml(w, x, &mut rows),
        _ => unreachable!("this test packs nothing"),
    }
    out
}

/// A device with room for a few rows.
struct Bench {
    handle: Arc<Handle>,
    commands: Commands,
    pipelines: Pipelines,
    transfer: Transfer,
    room: Room,
}

impl Bench {
    fn new() -> Option<Bench> {
        let handle = device()?;
        let mut commands = Commands::new(&handle).unwrap();
        let (pipelines, _) = exact_pipelines(&handle, &mut commands).unwrap();
        let transfer = Transfer::new(&handle).unwrap();
        let plan = Plan {
            ctx_len: 8,
            max_batch: 8,
            max_logits: 1,
            n_streams: 1,
            kv: KvKind::F16,
            kv_pages: None,
        };
        let header = Header { dim: K, ..Header::blank(Weights::F32) };
        let room = Room::new(&handle, &header, &plan, false).unwrap();
        Some(Bench { handle, commands, pipelines, transfer, room })
    }

    /// Products of `m` rows `x` by `matrix`, added to 1.
    fn multiply(&mut self, matrix: &Matrix<'_>, x: &[f32], m: usize) -> Vec<f32> {
        let Bench { handle, commands, pipelines, transfer, room } = self;
        let pool = Pool::new(&[]).unwrap();
        let mut loading = Loading {
            transfer: &mut *transfer,
            commands: &mut *commands,
            pipelines: &*pipelines,
            pool: &pool,
        };
        let tensor = Tensor::new(&mut loading, matrix, K).unwrap();
        tensor.prepare(pipelines, false).unwrap();
        let bytes = bytemuck::cast_slice(x);
        transfer.send((&mut *commands, &*pipelines), bytes, (&room.inputs, 0)).unwrap();
        let mut y = Memory::new(handle, 4 * (m * ROWS) as u64, Place::Host).unwrap();
        y.as_mut_slice::<f32>()[..m * ROWS].fill(1.0);
        commands
            .run(pipelines, |recorder| {
                On { recorder, room, m, blocks: 0 }.project(&[&tensor], y.address, true);
            })
            .unwrap();
        y.as_mut_slice::<f32>()[..m * ROWS].to_vec()
    }
}

#[test]
fn products_by_weights_of_every_kind_have_the_cpus_bits() {
    let Some(mut bench) = Bench::new() else { return };
    let mut random = Random(11);
    let floats = random.floats(ROWS * K);
    let bytes = random.bytes(ROWS * K, -128);
    let scales = random.floats(ROWS * K / 32);
    let mut blocks = vec![bytemuck::Zeroable::zeroed(); ROWS * K / BLOCK];
    bcml1::encode(&floats, &mut blocks).unwrap();
    let mut two_levels = vec![0; ROWS * bcml2::row_bytes(K)];
    bcml2::encode(&floats, K, &mut two_levels).unwrap();
    let mut six = vec![0; ROWS * bcml6::row_bytes(K)];
    bcml6::encode(&floats, K, &mut six).unwrap();
    let ggml = Ggml::ALL.map(|kind| random.blocks(kind, ROWS * K / kind.len()));

    let mut all = vec![("f32".to_owned(), Matrix::F32 { w: &floats, k: K })];
    for group in [32, 64, 256] {
        let scales = &scales[..ROWS * K / group];
        let matrix = Q8Matrix::new(&bytes, scales, K, group).unwrap();
        all.push((format!("int8 in groups of {group}"), Matrix::Q8(matrix)));
    }
    let blocks = bytemuck::cast_slice(&blocks);
    all.push(("BCML1".to_owned(), Matrix::Q4(Bcml1Matrix::new(blocks, K).unwrap())));
    all.push(("BCML2".to_owned(), Matrix::B2(Bcml2Matrix::new(&two_levels, K).unwrap())));
    all.push(("BCML6".to_owned(), Matrix::B6(Bcml6Matrix::new(&six, K).unwrap())));
    for (kind, bytes) in Ggml::ALL.into_iter().zip(&ggml) {
        let matrix = GgmlMatrix::new(kind, bytes, K).unwrap();
        all.push((kind.name().to_owned(), Matrix::Ggml(matrix)));
    }
    for (name, matrix) in &all {
        for m in [1, 4, 7] {
            let x = random.floats(m * K);
            let wanted: Vec<u32> =
                on_the_cpu(matrix, &x, m).iter().map(|y| (1.0 + y).to_bits()).collect();
            let found = bench.multiply(matrix, &x, m);
            let found: Vec<u32> = found.iter().map(|y| y.to_bits()).collect();
            assert_eq!(found, wanted, "{name}, {m} rows");
        }
    }
}

fn assert_same(found: &[f32], wanted: &[f32], what: &str) {
    let bits = |x: &f32| x.to_bits();
    let both = found.iter().map(bits).zip(wanted.iter().map(bits));
    let wrong = both.filter(|(found, wanted)| !is_same(*found, *wanted, false)).count();
    assert_eq!(wrong, 0, "{what}");
}

#[test]
fn norms_of_groups_have_the_cpus_bits() {
    let Some(mut bench) = Bench::new() else { return };
    let kernels = Kernels::for_isa(Isa::Scalar).unwrap();
    let (rows, groups, n, eps) = (3, 5, 48, 1e-6);
    let len = rows * groups * n;
    let mut memory = Memory::new(&bench.handle, 12 * len as u64, Place::Host).unwrap();
    let mut random = Random(5);
    let (x, weights) = (random.floats(len), random.floats(groups * n));
    bench.pipelines.prepare(Shader::Norm).unwrap();
    for step in [0, n] {
        let all = memory.as_mut_slice::<f32>();
        all[..len].copy_from_slice(&x);
        all[len..len + weights.len()].copy_from_slice(&weights);
        let at = |part: usize| memory.address + (4 * part * len) as u64;
        let Bench { commands, pipelines, room, .. } = &mut bench;
        let run = commands.run(pipelines, |recorder| {
            let mut on = On { recorder, room, m: rows, blocks: 0 };
            on.norm((at(0), at(1), at(2)), (n, eps), ([rows, groups], step));
        });
        run.unwrap();
        let mut wanted = vec![0.0; len];
        for (index, out) in wanted.chunks_exact_mut(n).enumerate() {
            let weight = &weights[index % groups * step..][..n];
            kernels.rms_norm(&x[index * n..][..n], weight, eps, out);
        }
        assert_same(&memory.as_mut_slice()[2 * len..], &wanted, "norms");
    }
}

/// Special values, subnormal ones and any bits.
#[test]
fn steps_between_the_products_of_recurrent_layers_have_the_cpus_bits() {
    let Some(mut bench) = Bench::new() else { return };
    let kernels = Kernels::for_isa(Isa::Scalar).unwrap();
    let mut memory = Memory::new(&bench.handle, 16 * N as u64, Place::Host).unwrap();
    let at = |part: usize| memory.address + (4 * part * N) as u64;
    let [x, decay, bias, y] = [0, 1, 2, 3].map(at);
    for seed in 1..8 {
        let operands = operands(seed);
        let [values, decays, biases] = &operands;
        for n_strengths in [0, N / 2] {
            let shader = Shader::Controls;
            bench.pipelines.prepare(shader).unwrap();
            let all = memory.as_mut_slice::<f32>();
            all[..3 * N].copy_from_slice(&operands.concat());
            let push =
                ControlsPush { x, decay, bias, n: N as u32, n_strengths: n_strengths as u32 };
            let groups = [N.div_ceil(64), 1];
            bench.commands.run(&bench.pipelines, |on| on.dispatch(shader, &push, groups)).unwrap();
            let mut wanted = values.clone();
            match n_strengths {
                0 => kernels.steps(&mut wanted, biases),
                n => kernels.delta_controls(&mut wanted, &decays[..n], &biases[..n]),
            }
            assert_same(&memory.as_mut_slice()[..N], &wanted, "values that steer updates");
        }
        for form in [GateForm::Plain, GateForm::Sigmoid, GateForm::Silu, GateForm::OfRow] {
            bench.pipelines.prepare(Shader::Gate(form)).unwrap();
            memory.as_mut_slice::<f32>()[..3 * N].copy_from_slice(&operands.concat());
            let Bench { commands, pipelines, room, .. } = &mut bench;
            let [x, gates, y] = [x, decay, y].map(|address| (address, N, 0));
            let run = commands.run(pipelines, |recorder| {
                let mut on = On { recorder, room, m: 1, blocks: 0 };
                on.gate(form, Gates { x, gates, y }, N);
            });
            run.unwrap();
            let mut wanted = values.clone();
            let each = wanted.iter_mut().zip(decays);
            let mut factor = [decays[0]];
            match form {
                GateForm::Plain => each.for_each(|(x, gate)| *x *= gate),
                GateForm::Sigmoid => kernels.gate(decays, &mut wanted),
                GateForm::Silu => kernels.swiglu(decays, values, &mut wanted),
                GateForm::OfRow => {
                    sigmoids(&mut factor);
                    wanted.iter_mut().for_each(|x| *x *= factor[0]);
                }
            }
            assert_same(&memory.as_mut_slice()[3 * N..4 * N], &wanted, "gates");
        }
    }
}
