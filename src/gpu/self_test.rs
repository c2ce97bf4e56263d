//! Compares a device's operations with the CPU's, at each start.

use bytemuck::{Pod, Zeroable};
use half::f16;
use std::sync::Arc;

use super::commands::Commands;
use super::device::Handle;
use super::error::GpuError;
use super::memory::{Memory, Place};
use super::pipelines::{Pipelines, Shader};
use crate::kernels::{Isa, Kernels};

/// How a device computes fused multiply-adds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Fusing {
    /// By its own instruction.
    Device,
    /// By sums whose errors are known, because its own instruction rounds twice.
    Sums,
}

/// Inputs for each operation.
pub(super) const N: usize = 1 << 14;

/// Operations of `shaders/elements.comp`, in its order.
const OPERATIONS: [&str; 9] = [
    "sum",
    "product",
    "fused multiply-add",
    "division",
    "square root",
    "SwiGLU",
    "conversion of integers",
    "conversion of f16",
    "conversion to f16",
];

/// Index of the one operation that gives an f16.
const TO_HALF: usize = 8;

#[repr(C)]
#[derive(Clone, Copy, Pod, Zeroable)]
struct Push {
    a: u64,
    b: u64,
    c: u64,
    y: u64,
    n: u32,
    operation: u32,
}

/// Operands: `[a, b, c]`.
pub(super) type Operands = [Vec<f32>; 3];

/// Pipelines of a device whose operations give the CPU's bits.
///
/// # Errors
/// If an operation gives other bits in every way there is, or the driver fails.
pub(super) fn exact_pipelines(
    handle: &Arc<Handle>,
    commands: &mut Commands,
) -> Result<(Pipelines, Fusing), GpuError> {
    let operands = operands(1);
    let wanted = all_expected(&operands);
    let mut failed = None;
    for (is_fused, fusing) in [(true, Fusing::Device), (false, Fusing::Sums)] {
        let mut pipelines = Pipelines::new(handle, is_fused)?;
        pipelines.prepare(Shader::Elements)?;
        match first_wrong((handle, commands, &pipelines), &operands, &wanted)? {
            None => return Ok((pipelines, fusing)),
            wrong => failed = wrong,
        }
    }
    let (operation, wrong) = failed.unwrap_or(("arithmetic", 0));
    let device = handle.info.name.clone();
    Err(GpuError::Inexact { device, operation, wrong, tried: N })
}

/// The first operation with other bits than `wanted`, and their number.
fn first_wrong(
    (handle, commands, pipelines): (&Arc<Handle>, &mut Commands, &Pipelines),
    operands: &Operands,
    wanted: &[Vec<u32>],
) -> Result<Option<(&'static str, usize)>, GpuError> {
    let mut memory = Memory::new(handle, 16 * N as u64, Place::Host)?;
    let all = memory.as_mut_slice::<f32>();
    for (operands, to) in operands.iter().zip(all.chunks_exact_mut(N)) {
        to.copy_from_slice(operands);
    }
    for (operation, wanted) in wanted.iter().enumerate() {
        let at = |part: u64| memory.address + part * 4 * N as u64;
        let (n, operation) = (N as u32, operation as u32);
        let push = Push { a: at(0), b: at(1), c: at(2), y: at(3), n, operation };
        commands.run(pipelines, |recorder| {
            recorder.dispatch(Shader::Elements, &push, [N.div_ceil(64), 1]);
        })?;
        let found = &memory.as_mut_slice::<u32>()[3 * N..4 * N];
        let is_half = operation as usize == TO_HALF;
        let wrong = found.iter().zip(wanted).filter(|(a, b)| !is_same(**a, **b, is_half)).count();
        if wrong > 0 {
            return Ok(Some((OPERATIONS[operation as usize], wrong)));
        }
    }
    Ok(None)
}

/// Whether two results are equal. A NaN is a NaN; which one is not promised.
pub(super) fn is_same(a: u32, b: u32, is_half: bool) -> bool {
    let is_nan = |x: u32| match is_half {
        true => x & 0x7fff > 0x7c00,
        false => f32::from_bits(x).is_nan(),
    };
    a == b || (is_nan(a) && is_nan(b))
}

/// The CPU's results of all operations.
fn all_expected(operands: &Operands) -> Vec<Vec<u32>> {
    (0..OPERATIONS.len()).map(|operation| expected(operation, operands)).collect()
}

fn expected(operation: usize, [a, b, c]: &Operands) -> Vec<u32> {
    let each = |f: &dyn Fn(usize) -> u32| (0..N).map(f).collect();
    match operation {
        0 => each(&|i| (a[i] + b[i]).to_bits()),
        1 => each(&|i| (a[i] * b[i]).to_bits()),
        2 => each(&|i| a[i].mul_add(b[i], c[i]).to_bits()),
        3 => each(&|i| (a[i] / b[i]).to_bits()),
        4 => each(&|i| a[i].sqrt().to_bits()),
        5 => {
            let mut out = vec![0.0; N];
            let kernels = Kernels::for_isa(Isa::Scalar).unwrap_or_else(Kernels::best);
            kernels.swiglu(a, b, &mut out);
            out.iter().map(|x| x.to_bits()).collect()
        }
        6 => each(&|i| (a[i].to_bits() as i32 as f32).to_bits()),
        7 => each(&|i| f16::from_bits(a[i].to_bits() as u16).to_f32().to_bits()),
        _ => each(&|i| u32::from(f16::from_f32(a[i].clamp(-65504.0, 65504.0)).to_bits())),
    }
}

/// Operands of all kinds: special values, subnormal ones, any bits, ordinary ones. Half of the third operands nearly
/// cancel the product of the others: a multiply-add that rounds twice shows there.
pub(super) fn operands(seed: u64) -> Operands {
    let mut random = Random(seed.wrapping_mul(0x9e37_79b9_7f4a_7c15));
    let mut list = || (0..N).map(|_| random.float()).collect::<Vec<f32>>();
    let (a, b, mut c) = (list(), list(), list());
    for i in (0..N).step_by(2) {
        let product = -(a[i] * b[i]);
        if product.is_finite() {
            c[i] = product;
        }
    }
    [a, b, c]
}

/// xorshift64*.
struct Random(u64);

impl Random {
    fn bits(&mut self) -> u32 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        (self.0.wrapping_mul(0x2545_f491_4f6c_dd1d) >> 32) as u32
    }

    fn float(&mut self) -> f32 {
        const SPECIAL: [f32; 12] = [
            0.0,
            -0.0,
            f32::INFINITY,
            f32::NEG_INFINITY,
            f32::NAN,
            1.0,
            -1.0,
            f32::MIN_POSITIVE,
            f32::MAX,
            f32::from_bits(1),
            88.0,
            -87.3,
        ];
        match self.bits() % 10 {
            0 => SPECIAL[self.bits() as usize % SPECIAL.len()],
            1 => f32::from_bits(self.bits() & 0x807f_ffff),
            2..=4 => f32::from_bits(self.bits()),
            5 => f32::from_bits(self.bits() & 0x80ff_ffff | 0x3f00_0000),
            _ => {
                let mantissa = self.bits() as i32 as f32 / 2_147_483_648.0;
                mantissa * f32::from_bits((115 + self.bits() % 24) << 23)
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::gpu::tests::device;

    /// 2^20 inputs for each operation.
    #[test]
    fn operations_give_the_cpus_bits() {
        let Some(handle) = device() else { return };
        let mut commands = Commands::new(&handle).unwrap();
        let (pipelines, _) = exact_pipelines(&handle, &mut commands).unwrap();
        for seed in 2..2 + (1 << 20) / N as u64 {
            let operands = operands(seed);
            let wanted = all_expected(&operands);
            let on = (&handle, &mut commands, &pipelines);
            assert_eq!(first_wrong(on, &operands, &wanted).unwrap(), None, "seed {seed}");
        }
    }

    #[test]
    fn one_other_bit_is_found() {
        let Some(handle) = device() else { return };
        let mut commands = Commands::new(&handle).unwrap();
        let (pipelines, _) = exact_pipelines(&handle, &mut commands).unwrap();
        let operands = operands(7);
        for (operation, name) in OPERATIONS.into_iter().enumerate() {
            let mut wanted = all_expected(&operands);
            let place = wanted[operation].iter().position(|x| *x & 0x7c00 < 0x7800).unwrap();
            wanted[operation][place] ^= 1;
            let on = (&handle, &mut commands, &pipelines);
            let found = first_wrong(on, &operands, &wanted).unwrap();
            assert_eq!(found, Some((name, 1)));
        }
    }
}
