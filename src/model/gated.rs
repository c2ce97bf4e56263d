//! Fuses gate and up projections of few rows with quantising the inputs of the down projection.

use super::activation::activate;
use super::inputs::{Inputs, Prepared};
use super::matrix::Matrix;
use super::project::{PIECE_ROWS, Projector};
use super::units::Units;
use super::zeros::zeros;
use crate::format::model::Activation;
use crate::kernels::PACKED_GROUP_MAX;
use crate::pool::{Pairs, UNITS_MAX};

/// Columns of gate and up that a thread turns into inputs of the down projection at a time.
const UNIT: usize = PACKED_GROUP_MAX;

const _: () = assert!(UNIT.is_multiple_of(PIECE_ROWS));

/// Minimum number of rows. For fewer, the pause in reading weights costs more than the fusion saves.
const FEWEST: usize = 4;

/// The fused computation from gate and up of few rows to the inputs of the down projection.
pub(super) struct Gating {
    units: Units,
    pairs: Pairs,
    m: usize,
}

impl Gating {
    /// The fused computation for `m` rows of inputs of `down`, `k` long. `None` if the rows are too few or
    /// too many, or do not divide into units.
    pub(super) fn new(
        projector: Projector<'_>,
        (down, k): (&Matrix<'_>, usize),
        m: usize,
    ) -> Option<Gating> {
        let units = Units::new(projector, (down, k), m, UNIT)?;
        let pairs = Pairs { width: k, step: PIECE_ROWS, unit: UNIT };
        let fits = m >= FEWEST && pairs.units() <= UNITS_MAX;
        fits.then_some(Gating { units, pairs, m })
    }

    /// Computes gate and up of `inputs`, side by side in `gate_up`, and from them the inputs of the down
    /// projection, in `room`.
    pub(super) fn run<'i>(
        &self,
        projector: Projector<'_>,
        (inputs, matrices): (Prepared<'_>, [Matrix<'_>; 2]),
        activation: Activation,
        gate_up: &mut [f32],
        room: Inputs<'i>,
    ) -> Prepared<'i> {
        let Gating { units, pairs, m } = self;
        let (multiplier, kernels) = (projector.multiplier(), projector.kernels);
        let gate_up = &mut gate_up[..m * 2 * pairs.width];
        let job = |matrix: usize, columns, _, parts: &mut [&mut [f32]]| {
            multiplier.multiply(&matrices[matrix].slice_rows(columns), inputs, parts);
        };
        units.write(room, |chunks| {
            projector.pool.run_pairs(gate_up, *pairs, &job, chunks, &|_, rows, unit| {
                units.quantize(kernels, unit, |row, give| {
                    let [gate, up] = &rows[row];
                    let mut acts = zeros::<UNIT>();
                    let acts = &mut acts[..gate.len()];
                    activate(kernels, activation, (gate, up), acts);
                    give(acts);
                });
            });
        })
    }
}
