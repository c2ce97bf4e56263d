//! A node's figures about its work on a batch.
//!
//! ```text
//! 0  u24  microseconds of computing
//! 3  u8   degrees Celsius, 0 to 126, plus 128 if heat slows the machine down; 255 if unknown
//! 4  u32  hundredths of a joule; 0xffffffff if unknown
//! ```

/// Bytes of a node's figures.
pub const FIGURES_LEN: usize = 8;
/// Value of an unknown energy. The next constant is that of an unknown temperature.
const UNKNOWN: u32 = u32::MAX;
const UNKNOWN_DEGREES: u8 = u8::MAX;
/// Flag of a machine that heat slows down.
const SLOWED: u8 = 0x80;

/// A node's figures about its work on a batch.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct WorkFigures {
    /// Microseconds of computing, at most [`WorkFigures::COMPUTE_MAX`].
    pub compute_us: u32,
    /// Temperature of the machine, if known.
    pub heat: Option<Heat>,
    /// Energy that the node has spent so far, in hundredths of a joule, if known; wraps at
    /// [`WorkFigures::ENERGY_RANGE`].
    pub energy: Option<u32>,
}

/// Readings of a node's machine.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct MachineReading {
    /// Joules that the machine has spent so far, if known.
    pub joules: Option<f64>,
    /// Temperature of the machine, if known.
    pub heat: Option<Heat>,
}

/// Temperature of a machine.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Heat {
    /// Whole degrees Celsius of its warmest part; frames hold at most [`Heat::DEGREES_MAX`].
    pub degrees: u8,
    /// Whether its system slows the machine down because of the heat.
    pub is_slowed: bool,
}

impl Heat {
    /// Most degrees that a frame can hold.
    pub const DEGREES_MAX: u8 = SLOWED - 2;

    fn parse(byte: u8) -> Option<Heat> {
        let heat = Heat { degrees: byte & !SLOWED, is_slowed: byte & SLOWED != 0 };
        (byte != UNKNOWN_DEGREES).then_some(heat)
    }

    fn emit(self) -> u8 {
        self.degrees.min(Heat::DEGREES_MAX) | if self.is_slowed { SLOWED } else { 0 }
    }
}

impl WorkFigures {
    /// Longest time of computing that a frame can hold, in microseconds: 16.8 s.
    pub const COMPUTE_MAX: u32 = (1 << 24) - 1;
    /// Upper bound of energies in a frame, exclusive.
    pub const ENERGY_RANGE: u32 = UNKNOWN;

    /// The figures of a node that computed for `compute_us`, with its machine's reading.
    pub fn new(compute_us: u32, machine: MachineReading) -> WorkFigures {
        let hundredths = |joules: f64| (joules * 1e2) as u64 % u64::from(WorkFigures::ENERGY_RANGE);
        WorkFigures {
            compute_us: compute_us.min(WorkFigures::COMPUTE_MAX),
            heat: machine.heat,
            energy: machine.joules.map(|joules| hundredths(joules) as u32),
        }
    }

    pub(super) fn parse(bytes: &[u8; FIGURES_LEN]) -> WorkFigures {
        let [a, b, c, heat, energy @ ..] = *bytes;
        WorkFigures {
            compute_us: u32::from_le_bytes([a, b, c, 0]),
            heat: Heat::parse(heat),
            energy: Some(u32::from_le_bytes(energy)).filter(|&energy| energy != UNKNOWN),
        }
    }

    pub(super) fn emit(&self, out: &mut [u8; FIGURES_LEN]) {
        let (compute_us, energy) = out.split_at_mut(4);
        compute_us.copy_from_slice(&self.compute_us.to_le_bytes());
        compute_us[3] = self.heat.map_or(UNKNOWN_DEGREES, Heat::emit);
        energy.copy_from_slice(&self.energy.unwrap_or(UNKNOWN).to_le_bytes());
    }
}
