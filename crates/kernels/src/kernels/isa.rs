//! The instruction sets that kernels are written for.

use super::packed::layout::Layout;

/// An instruction set that kernels are written for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum Isa {
    /// Plain Rust: runs everywhere and defines the right answer.
    Scalar,
    /// ARMv8.0 Advanced SIMD: Cortex-A53, A72.
    Neon,
    /// NEON with the dot product instructions: Cortex-A55, A76, A78AE.
    NeonDot,
    /// NEON with int8 matrix products too: Neoverse, Cortex-A510 and later.
    NeonI8mm,
    /// AVX2 with FMA and F16C: Haswell, Zen, N100.
    Avx2,
    /// AVX2 with AVX-VNNI: Alder Lake, N100.
    AvxVnni,
    /// AVX-512 with VNNI: Zen 4 and 5, servers.
    Avx512Vnni,
}

impl Isa {
    /// Every instruction set; the better ones of an architecture come later.
    pub const ALL: &[Isa] = &[
        Isa::Scalar,
        Isa::Neon,
        Isa::NeonDot,
        Isa::NeonI8mm,
        Isa::Avx2,
        Isa::AvxVnni,
        Isa::Avx512Vnni,
    ];

    /// Name of the instruction set, as in `LEAP_ISA`.
    pub fn name(self) -> &'static str {
        match self {
            Isa::Scalar => "scalar",
            Isa::Neon => "neon",
            Isa::NeonDot => "neondot",
            Isa::NeonI8mm => "neoni8mm",
            Isa::Avx2 => "avx2",
            Isa::AvxVnni => "avxvnni",
            Isa::Avx512Vnni => "avx512vnni",
        }
    }

    /// Packed layout of the instruction set's kernels; `None` if they take weights unpacked.
    pub fn layout(self) -> Option<Layout> {
        match self {
            Isa::Scalar => None,
            Isa::Neon => Some(Layout::NEON),
            Isa::NeonDot => Some(Layout::NEON_DOT),
            Isa::NeonI8mm => Some(Layout::NEON_I8MM),
            Isa::Avx2 => Some(Layout::AVX2),
            Isa::AvxVnni => Some(Layout::AVX_VNNI),
            Isa::Avx512Vnni => Some(Layout::AVX512_VNNI),
        }
    }

    /// The instruction set whose layout has this id.
    pub fn from_layout(id: u32) -> Option<Isa> {
        let has_id = |isa: &Isa| isa.layout().is_some_and(|layout| layout.id() == id);
        Isa::ALL.iter().copied().find(has_id)
    }

    /// The instruction set called `name`.
    pub fn from_name(name: &str) -> Option<Isa> {
        Isa::ALL.iter().copied().find(|isa| isa.name() == name)
    }
}
