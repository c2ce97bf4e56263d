//! Rates of each kernel in each tier of this CPU, next to scalar: `cargo bench --bench kernels`.
//!
//! Weights are those of a 2048 × 2048 matrix. A rate is the best of several runs: a figure of the
//! kernel, not of the machine's other work. `cargo bench -- NAME` runs the kernels whose name
//! contains NAME.
//!
//! Each kernel's limit is measured in the same run: the longer of reading the same bytes without computing, and, for
//! int8 products, the tier's int8 peak. Packed weights for one row of activations (decoding) come from memory,
//! everything else from caches.

use std::hint::black_box;
use std::time::{Duration, Instant};

use half::f16;
use leap::internals::kernels::peak::OPS_PER_ROUND;
use leap::internals::kernels::{
    ActivationRow, Attended, Groups, Isa, Kernels, KvPages, KvStored, MatrixDims, PackedB2,
    PackedQ4, PackedQ8, Q8Tiles, TileParts, TilePartsMut, TileRow,
};
use leap::internals::quant::{
    Bcml1Matrix, Bcml2Matrix, Q8Activations, Q8Matrix, bcml1, bcml2, quantize,
};
use leap::internals::sys::huge::HugeMemory;

const K: usize = 2048;
const ROWS: usize = 2048;
const DIMS: MatrixDims = MatrixDims { rows: ROWS, k: K };
const GROUP: usize = 32;
const HEAD_DIM: usize = 64;
const CTX_LEN: usize = 1024;
/// Positions of a page of the KV cache.
const KV_PAGE: usize = 64;
/// Copies of the matrix that decoding reads: more than a cache holds.
const COPIES: usize = 48;

/// Best time of one call of `f`, over a fifth of a second.
fn time(mut f: impl FnMut()) -> Duration {
    let start = Instant::now();
    let mut best = Duration::MAX;
    while start.elapsed() < Duration::from_millis(200) {
        let call = Instant::now();
        f();
        best = best.min(call.elapsed());
    }
    best
}

struct Report {
    filter: Option<String>,
    /// Each tier with its int8 peak, in operations a nanosecond.
    tiers: Vec<(Kernels, f64)>,
    /// Bytes for measuring how long reading takes.
    bytes: Vec<u8>,
}

/// Least work of a kernel with any code.
#[derive(Clone, Copy)]
struct Needs {
    /// Bytes that the kernel reads.
    bytes: usize,
    /// Int8 multiplications and additions.
    int8_ops: usize,
}

/// Needs of a kernel that reads this many bytes, and whose arithmetic has no known limit.
fn reads(bytes: usize) -> Needs {
    Needs { bytes, int8_ops: 0 }
}

/// Operations a nanosecond at the int8 peak.
fn int8_peak(kernels: Kernels) -> f64 {
    const ROUNDS: usize = 20_000;
    let spin = time(|| {
        black_box(kernels.spin_int8(black_box(ROUNDS)));
    });
    per_nanosecond(ROUNDS * OPS_PER_ROUND, spin)
}

fn per_nanosecond(work: usize, time: Duration) -> f64 {
    work as f64 / time.as_nanos().max(1) as f64
}

impl Report {
    /// Prints the rate of each tier in `unit`s of 10^9 a second, for `work` units per call of `f`.
    fn line(
        &self,
        name: &str,
        (work, unit): (usize, &str),
        needs: Needs,
        mut f: impl FnMut(Kernels),
    ) {
        if !self.wants(name) {
            return;
        }
        let mut scalar = None;
        for (tier, peak) in &self.tiers {
            let took = time(|| f(*tier));
            let scalar = *scalar.get_or_insert(took);
            let limit = self.limit(*tier, *peak, needs);
            row(name, *tier, (per_nanosecond(work, took), unit), [scalar, limit], took);
        }
    }

    fn wants(&self, name: &str) -> bool {
        self.filter.as_ref().is_none_or(|filter| name.contains(filter))
    }

    /// The shortest time for `needs`.
    fn limit(&self, kernels: Kernels, peak: f64, needs: Needs) -> Duration {
        let bytes = &self.bytes[..needs.bytes];
        let reading = time(|| {
            black_box(kernels.read_all(black_box(bytes)));
        });
        reading.max(Duration::from_nanos((needs.int8_ops as f64 / peak) as u64))
    }
}

/// Prints a rate, beside the times of scalar and of the limit.
#[expect(clippy::print_stdout, reason = "a program that prints its table")]
fn row(
    name: &str,
    kernels: Kernels,
    (rate, unit): (f64, &str),
    [scalar, limit]: [Duration; 2],
    took: Duration,
) {
    let isa = kernels.isa().name();
    let part = |of: Duration| of.as_secs_f64() / took.as_secs_f64();
    let (times, share) = (part(scalar), 100.0 * part(limit));
    println!(
        "{name:<20} {isa:<10} {rate:>9.2} {unit:<6} {times:>7.2} x scalar {share:>6.1} % of limit"
    );
}

/// Repeatable numbers in -1..1.
fn floats(n: usize) -> Vec<f32> {
    (0..n).map(|i| ((i * 7919 % 2003) as f32 - 1001.0) / 1001.0).collect()
}

fn main() {
    let filter = std::env::args().skip(1).find(|arg| !arg.starts_with('-'));
    let tiers = Isa::ALL.iter().filter_map(|isa| Kernels::for_isa(*isa));
    let tiers = tiers.map(|kernels| (kernels, int8_peak(kernels))).collect();
    let report = Report { filter, tiers, bytes: vec![1; ROWS * K * 4] };
    bench_matmul(&report);
    bench_packed(&report);
    bench_attend(&report);
    bench_elementwise(&report);
}

fn bench_matmul(report: &Report) {
    let w = floats(ROWS * K);
    let (mut wq, mut ws) = (vec![0; w.len()], vec![0.0; w.len() / GROUP]);
    quantize(&w, GROUP, &mut wq, &mut ws);
    let w8 = Q8Matrix::new(&wq, &ws, K, GROUP).expect("consistent lengths");
    let mut blocks = vec![0; w.len() / bcml1::BLOCK * bcml1::BLOCK_BYTES];
    report.line("encode bcml1", (w.len(), "Gval/s"), reads(4 * w.len()), |_| {
        let blocks = bytemuck::cast_slice_mut(&mut blocks);
        bcml1::encode(black_box(&w), blocks).expect("small weights");
    });
    bcml1::encode(&w, bytemuck::cast_slice_mut(&mut blocks)).expect("small weights");
    let w4 = Bcml1Matrix::new(&blocks, K).expect("consistent lengths");
    for m in [1, 4, 32] {
        let x = floats(m * K);
        let (mut xq, mut xs) = (vec![0; m * K], vec![0.0; m * K / GROUP]);
        let bytes = 4 * x.len();
        report.line(&format!("quantize_q8 m={m}"), (bytes, "GB/s"), reads(bytes), |kernels| {
            kernels.quantize_q8(black_box(&x), GROUP, &mut xq, &mut xs);
        });
        // The filter may have left out the loop that quantises them.
        Kernels::best().quantize_q8(&x, GROUP, &mut xq, &mut xs);
        let x8 = Q8Activations::new(&xq, &xs, K, GROUP).expect("consistent lengths");
        let mut out = vec![0.0; m * ROWS];
        let (rows, _) = out.as_chunks_mut::<ROWS>();
        let mut out: Vec<&mut [f32]> = rows.iter_mut().map(|row| &mut row[..]).collect();
        let int8_ops = 2 * m * K * ROWS;
        let work = (int8_ops, "GOP/s");
        let needs = Needs { bytes: wq.len() + 4 * ws.len(), int8_ops };
        report.line(&format!("matmul_q8 m={m}"), work, needs, |kernels| {
            kernels.matmul_q8(black_box(w8), x8, &mut out);
        });
        let group = bcml1::BLOCK;
        let (mut xq, mut xs) = (vec![0; m * K], vec![0.0; m * K / group]);
        let mut sums = vec![0; m * K / bcml1::BLOCK];
        Kernels::best().quantize_q8(&x, group, &mut xq, &mut xs);
        Kernels::best().sum_q8(&xq, &mut sums);
        let x8 = Q8Activations::new(&xq, &xs, K, group).expect("consistent lengths");
        let needs = Needs { bytes: blocks.len(), int8_ops };
        report.line(&format!("matmul_q4 m={m}"), work, needs, |kernels| {
            kernels.matmul_q4(black_box(w4), x8, &sums, &mut out);
        });
        report.line(&format!("matmul_f32 m={m}"), work, reads(4 * w.len()), |kernels| {
            kernels.matmul_f32(black_box(&w), K, &x, &mut out);
        });
    }
}

/// Packed weights of one tier, [`COPIES`] of them.
struct Packed {
    name: &'static str,
    /// Activations that share a scale.
    group: usize,
    bytes: HugeMemory,
    /// Bytes of one copy.
    one: usize,
}

/// Activations in tiles: values, scales, zeros, sums.
type Tiles = (Vec<i8>, Vec<f32>, Vec<f32>, Vec<f32>);

fn tiles(kernels: Kernels, w: &Packed, m: usize) -> Tiles {
    let (x, group) = (floats(m * K), w.group);
    let cut = match w.name {
        "packed_q8" => kernels.cut_q8(),
        "packed_q4" => kernels.cut_q4(),
        _ => kernels.cut_b2(),
    };
    let (mut q, mut scales) = (vec![0; m * K], vec![0.0; m * K / group]);
    let (mut zeros, mut sums) = (vec![0.0; m * K / group], vec![0.0; m * K / bcml1::BLOCK]);
    for tile in cut.tiles(m) {
        let part = |width: usize| tile.start * width..tile.end * width;
        let (q, scales) = (&mut q[part(K)], &mut scales[part(K / group)]);
        let (zeros, sums) = (&mut zeros[part(K / group)], &mut sums[part(K / bcml1::BLOCK)]);
        for (i, x) in x[part(K)].as_chunks::<K>().0.iter().enumerate() {
            let (place, x) = (TileRow { row: i, rows: tile.len() }, ActivationRow::F32(x));
            match w.name {
                "packed_q8" => {
                    let out = TilePartsMut { q, scales, terms: zeros };
                    kernels.quantize_tile_row(x, place, group, out);
                }
                "packed_q4" => {
                    let out = TilePartsMut { q, scales, terms: sums };
                    kernels.quantize_tile_row_summed(x, place, group, out);
                }
                _ => {
                    let out = TilePartsMut { q, scales, terms: sums };
                    kernels.quantize_tile_row_int_summed(x, place, group, out);
                }
            }
        }
    }
    (q, scales, zeros, sums)
}

/// Memory like that of weights: in huge pages if there are any.
fn memory(bytes: usize) -> HugeMemory {
    HugeMemory::new(bytes).expect("memory for some copies of a matrix")
}

fn bench_packed(report: &Report) {
    let w = floats(ROWS * K);
    let (mut q, mut scales) = (vec![0; w.len()], vec![0.0; w.len() / GROUP]);
    quantize(&w, GROUP, &mut q, &mut scales);
    let w8 = Q8Matrix::new(&q, &scales, K, GROUP).expect("consistent lengths");
    let mut blocks = vec![0; w.len() / bcml1::BLOCK * bcml1::BLOCK_BYTES];
    bcml1::encode(&w, bytemuck::cast_slice_mut(&mut blocks)).expect("small weights");
    let w4 = Bcml1Matrix::new(&blocks, K).expect("consistent lengths");
    let mut rows = vec![0; ROWS * bcml2::row_bytes(K)];
    bcml2::encode(&w, K, &mut rows).expect("small weights");
    let w_b2 = Bcml2Matrix::new(&rows, K).expect("consistent lengths");
    for (kernels, peak) in &report.tiers {
        let Some(layout) = kernels.layout() else { continue };
        let scalar = Kernels::for_isa(Isa::Scalar).expect("scalar code runs everywhere");
        let one = layout.bytes_q8(DIMS, GROUP).expect("a matrix that can be packed");
        let mut bytes = memory(one * COPIES);
        bytes.as_mut_slice().chunks_exact_mut(one).for_each(|out| kernels.pack_q8(w8, out));
        let packed = Packed { name: "packed_q8", group: GROUP, bytes, one };
        report.packed((*kernels, *peak), &packed, &|x, out| scalar.matmul_q8(w8, x, out));
        let one = layout.bytes_q4(DIMS, GROUP).expect("a matrix that can be packed");
        let mut bytes = memory(one * COPIES);
        bytes.as_mut_slice().chunks_exact_mut(one).for_each(|out| kernels.pack_q4(w4, out));
        let packed = Packed { name: "packed_q4", group: bcml1::BLOCK, bytes, one };
        report.packed((*kernels, *peak), &packed, &|x, out| {
            scalar.matmul_q4(w4, x, &sums(x), out);
        });
        let one = layout.bytes_b2(DIMS).expect("a matrix that can be packed");
        let mut bytes = memory(one * COPIES);
        bytes.as_mut_slice().chunks_exact_mut(one).for_each(|out| kernels.pack_b2(w_b2, out));
        let packed = Packed { name: "packed_b2", group: bcml1::BLOCK, bytes, one };
        report.packed((*kernels, *peak), &packed, &|x, out| {
            scalar.matmul_b2(w_b2, x, &sums(x), out);
        });
    }
}

/// The sum of each block of activations.
fn sums(x: Q8Activations<'_>) -> Vec<i32> {
    let q: Vec<i8> = (0..x.m()).flat_map(|row| x.row(row).q).copied().collect();
    let mut sums = vec![0; q.len() / bcml1::BLOCK];
    Kernels::for_isa(Isa::Scalar).expect("scalar code runs everywhere").sum_q8(&q, &mut sums);
    sums
}

impl Report {
    /// Prints one tier's rates with packed weights: decoding, then prompts. `plain` multiplies the
    /// same weights unpacked in scalar code.
    fn packed(&self, (kernels, peak): (Kernels, f64), w: &Packed, plain: Plain<'_>) {
        if !self.wants(w.name) {
            return;
        }
        let (x, mut out) = (tiles(kernels, w, 1), vec![0.0; ROWS]);
        let [mut read, mut decode] = [Duration::MAX; 2];
        for _ in 0..8 {
            let start = Instant::now();
            for bytes in w.bytes.as_slice().chunks_exact(w.one) {
                black_box(kernels.read_all(black_box(bytes)));
            }
            read = read.min(start.elapsed());
            let start = Instant::now();
            for bytes in w.bytes.as_slice().chunks_exact(w.one) {
                multiply(kernels, w, bytes, &x, &mut out);
            }
            decode = decode.min(start.elapsed());
        }
        let scalar = scalar_time(1, w.group, plain) * COPIES as u32;
        let rate = (per_nanosecond(w.one * COPIES, decode), "GB/s");
        row(&format!("{} m=1", w.name), kernels, rate, [scalar, read], decode);
        for m in [8, 128] {
            let (x, mut out) = (tiles(kernels, w, m), vec![0.0; m * ROWS]);
            let int8_ops = 2 * m * K * ROWS;
            let one = &w.bytes.as_slice()[..w.one];
            let took = time(|| multiply(kernels, w, one, &x, &mut out));
            let limit = self.limit(kernels, peak, Needs { bytes: w.one, int8_ops });
            let rate = (per_nanosecond(int8_ops, took), "GOP/s");
            let name = format!("{} m={m}", w.name);
            row(&name, kernels, rate, [scalar_time(m, w.group, plain), limit], took);
        }
    }
}

/// Multiplies weights by activations into rows.
type Plain<'a> = &'a dyn Fn(Q8Activations<'_>, &mut [&mut [f32]]);

/// Time that scalar code takes for `m` rows of activations.
fn scalar_time(m: usize, group: usize, plain: Plain<'_>) -> Duration {
    let x = floats(m * K);
    let (mut q, mut scales) = (vec![0; m * K], vec![0.0; m * K / group]);
    quantize(&x, group, &mut q, &mut scales);
    let mut out = vec![0.0; m * ROWS];
    let (rows, _) = out.as_chunks_mut::<ROWS>();
    let mut out: Vec<&mut [f32]> = rows.iter_mut().map(|row| &mut row[..]).collect();
    let x = || Q8Activations::new(&q, &scales, K, group).expect("consistent lengths");
    time(|| plain(black_box(x()), &mut out))
}

/// Multiplies into `out`, `[m, ROWS]`.
fn multiply(kernels: Kernels, w: &Packed, bytes: &[u8], x: &Tiles, out: &mut [f32]) {
    let layout = kernels.layout().expect("a tier that packs");
    let (q, scales, zeros, sums) = x;
    let groups = Groups { k: K, group: w.group };
    let (rows, _) = out.as_chunks_mut::<ROWS>();
    let mut out: Vec<&mut [f32]> = rows.iter_mut().map(|row| &mut row[..]).collect();
    if w.name == "packed_q8" {
        let panels = PackedQ8::new(bytes, DIMS, GROUP, layout).expect("packed so");
        let x = Q8Tiles::new(TileParts { q, scales, terms: zeros }, groups, kernels.cut_q8());
        kernels.matmul_packed_q8(panels, x, &mut out);
    } else if w.name == "packed_q4" {
        let panels = PackedQ4::new(bytes, DIMS, GROUP, layout).expect("packed so");
        let x = Q8Tiles::summed(TileParts { q, scales, terms: sums }, groups, kernels.cut_q4());
        kernels.matmul_packed_q4(panels, x, &mut out);
    } else {
        let panels = PackedB2::new(bytes, DIMS, layout).expect("packed so");
        let x = Q8Tiles::int_summed(TileParts { q, scales, terms: sums }, groups, kernels.cut_b2());
        kernels.matmul_packed_b2(panels, x, &mut out);
    }
    black_box(out);
}

fn bench_attend(report: &Report) {
    let computed = floats(CTX_LEN * HEAD_DIM);
    let mut stored = vec![f16::ZERO; computed.len()];
    let bytes = 4 * computed.len();
    report.line("store_kv", (bytes, "GB/s"), reads(bytes), |kernels| {
        kernels.store_kv(black_box(&computed), &mut stored);
    });
    // The last positions of a context: a single one, and several of a prompt.
    for (rows, n_q) in [(1, 1), (1, 8), (4, 8), (32, 1)] {
        let q = floats(rows * n_q * HEAD_DIM);
        let q: Vec<&[f32]> = q.chunks(n_q * HEAD_DIM).collect();
        let mut out = vec![0.0; rows * n_q * HEAD_DIM];
        let mut out: Vec<&mut [f32]> = out.chunks_mut(n_q * HEAD_DIM).collect();
        let work = (4 * rows * n_q * CTX_LEN * HEAD_DIM, "GOP/s");
        let (pos, window, head_dim, scale) = (CTX_LEN - rows, usize::MAX, HEAD_DIM, 0.125);
        let table: Vec<u32> = (0..(CTX_LEN / KV_PAGE) as u32).collect();
        let pages = |stored| KvPages {
            stored,
            table: &table,
            page_shift: KV_PAGE.ilog2(),
            page_step: KV_PAGE * HEAD_DIM,
            keys_at: 0,
            values_at: 0,
        };
        report.line(&format!("attend f16 {rows}x{n_q}"), work, reads(bytes), |kernels| {
            let kv = pages(KvStored::F16(black_box(&stored)));
            kernels.attend(
                &q,
                &Attended { kv, pos, window, end: None, head_dim, scale, sinks: &[] },
                &mut out,
            );
        });
        report.line(&format!("attend f32 {rows}x{n_q}"), work, reads(2 * bytes), |kernels| {
            let kv = pages(KvStored::F32(black_box(&computed)));
            kernels.attend(
                &q,
                &Attended { kv, pos, window, end: None, head_dim, scale, sinks: &[] },
                &mut out,
            );
        });
    }
}

fn bench_elementwise(report: &Report) {
    let (x, y) = (floats(8192), floats(8192));
    let mut out = vec![0.0; x.len()];
    let (values, one, two) = ((x.len(), "Gval/s"), reads(4 * x.len()), reads(8 * x.len()));
    report.line("rms_norm", values, two, |kernels| {
        kernels.rms_norm(black_box(&x), &y, 1e-5, &mut out);
    });
    report.line("rope", values, one, |kernels| {
        kernels.rope(black_box(&mut out), HEAD_DIM, &x[..HEAD_DIM / 2], &y[..HEAD_DIM / 2]);
        out.copy_from_slice(&x);
    });
    report.line("swiglu", values, two, |kernels| {
        kernels.swiglu(black_box(&x), &y, &mut out);
    });
    report.line("add", values, two, |kernels| {
        kernels.add(black_box(&mut out), &y);
        out.copy_from_slice(&x);
    });
}
