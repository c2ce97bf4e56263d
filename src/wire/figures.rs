//! What a node says of its work on a batch.

/// Bytes of a node's figures.
pub const FIGURES_LEN: usize = 8;
/// Stands for an energy that the node does not know.
const UNKNOWN: u32 = u32::MAX;

/// What a node says of its work on a batch.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct WorkFigures {
    /// Microseconds of computing.
    pub compute_us: u32,
    /// What the node has spent so far, if it knows, in hundredths of a joule; begins anew after
    /// [`WorkFigures::ENERGY_RANGE`].
    pub energy: Option<u32>,
}

impl WorkFigures {
    /// Energies are below this.
    pub const ENERGY_RANGE: u32 = UNKNOWN;

    /// Of a node that has spent so many joules.
    pub fn new(compute_us: u32, joules: Option<f64>) -> WorkFigures {
        let hundredths = |joules: f64| (joules * 1e2) as u64 % u64::from(WorkFigures::ENERGY_RANGE);
        WorkFigures { compute_us, energy: joules.map(|joules| hundredths(joules) as u32) }
    }

    pub(super) fn parse(bytes: &[u8; FIGURES_LEN]) -> WorkFigures {
        let [a, b, c, d, energy @ ..] = *bytes;
        let energy = Some(u32::from_le_bytes(energy)).filter(|&energy| energy != UNKNOWN);
        WorkFigures { compute_us: u32::from_le_bytes([a, b, c, d]), energy }
    }

    pub(super) fn emit(&self, out: &mut [u8; FIGURES_LEN]) {
        let (compute_us, energy) = out.split_at_mut(4);
        compute_us.copy_from_slice(&self.compute_us.to_le_bytes());
        energy.copy_from_slice(&self.energy.unwrap_or(UNKNOWN).to_le_bytes());
    }
}
