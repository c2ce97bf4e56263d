//! The part of a recurrent layer that one board of a team computes.

use std::ops::Range;

use super::header::Header;
use super::recurrent::{DeltaRule, Mixer, StateSpace};

/// Some consecutive parts of a recurrent layer. A part is what needs no other part between the layer's first projections
/// and its last: a key head with its value heads, a head of a state space, a channel of a short convolution.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MixParts {
    whole: Mixer,
    dim: usize,
    /// First of the parts, and the part after the last.
    start: usize,
    end: usize,
}

/// Which rows of a layer's matrices, or values in its rows.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum MixRows {
    /// Rows of the projection to the convolution's inputs.
    Inputs,
    /// Channels of the convolution.
    Channels,
    /// Rows of the projection to the output's gate, and columns of the output projection.
    Values,
}

impl MixParts {
    /// `parts` of each recurrent layer of the model of `header`; `None` if it has no such layers.
    pub fn new(header: &Header, Range { start, end }: Range<usize>) -> Option<MixParts> {
        let whole = header.features.recurrent?.mixer;
        Some(MixParts { whole, dim: header.dim, start, end })
    }

    /// All parts of each recurrent layer of the model of `header`.
    pub fn all(header: &Header) -> Option<MixParts> {
        let none = MixParts::new(header, 0..0)?;
        Some(MixParts { end: none.n_all(), ..none })
    }

    /// First part, and the part after the last.
    pub fn parts(&self) -> Range<usize> {
        self.start..self.end
    }

    /// Number of parts of a layer.
    fn n_all(&self) -> usize {
        match self.whole {
            Mixer::ShortConv { .. } => self.dim,
            Mixer::DeltaRule(rule) => rule.key_heads,
            Mixer::StateSpace(space) => space.heads,
        }
    }

    /// Form of the layers in the whole model.
    pub fn whole(&self) -> Mixer {
        self.whole
    }

    /// Values of a row that has only these parts, of `which`.
    pub fn width(&self, which: MixRows) -> usize {
        self.ranges(which).map(|range| range.len()).sum()
    }

    /// Form of a layer that has only these parts. A state space keeps all of its groups.
    pub fn mixer(&self) -> Mixer {
        let n = self.parts().len();
        match self.whole {
            short @ Mixer::ShortConv { .. } => short,
            Mixer::DeltaRule(rule) => {
                let value_heads = n * rule.values_of_key();
                Mixer::DeltaRule(DeltaRule { key_heads: n, value_heads, ..rule })
            }
            Mixer::StateSpace(space) => Mixer::StateSpace(StateSpace { heads: n, ..space }),
        }
    }

    /// Number of the layer's head that is head `own` of [`MixParts::mixer`].
    pub fn head(&self, own: usize) -> usize {
        let n = self.parts().len();
        match self.whole {
            Mixer::DeltaRule(rule) if rule.is_tiled => {
                own / n * rule.key_heads + self.start + own % n
            }
            Mixer::DeltaRule(rule) => self.start * rule.values_of_key() + own,
            Mixer::ShortConv { .. } | Mixer::StateSpace(_) => self.start + own,
        }
    }

    /// Group of a state space's head that is head `own` of [`MixParts::mixer`].
    pub fn group(&self, own: usize) -> usize {
        match self.whole {
            Mixer::StateSpace(space) => self.head(own) / (space.heads / space.groups),
            Mixer::ShortConv { .. } | Mixer::DeltaRule(_) => 0,
        }
    }

    /// Consecutive values of a part.
    pub fn value_width(&self) -> usize {
        match self.whole {
            Mixer::ShortConv { .. } => 1,
            Mixer::DeltaRule(rule) if rule.is_tiled => rule.value_dim,
            Mixer::DeltaRule(rule) => rule.values_of_key() * rule.value_dim,
            Mixer::StateSpace(space) => space.head_dim,
        }
    }

    /// The parts' ranges of `which`, in the order in which a row of these parts alone has them.
    pub fn ranges(&self, which: MixRows) -> impl Iterator<Item = Range<usize>> + use<> {
        let of = *self;
        let all = match which {
            MixRows::Inputs => of.whole.in_rows(of.dim),
            MixRows::Channels => of.whole.channels(of.dim),
            MixRows::Values => of.whole.out_cols(of.dim),
        };
        // All rows are one range, which is whole panels in any matrix.
        let is_all = of.parts() == (0..of.n_all());
        let n = match of.parts().is_empty() {
            true => 0,
            false if is_all => 1,
            false => of.n_ranges(which),
        };
        (0..n).map(move |index| if is_all { 0..all } else { of.range(which, index) })
    }

    /// Number of ranges if these are neither all parts nor none.
    fn n_ranges(&self, which: MixRows) -> usize {
        match (self.whole, which) {
            (Mixer::DeltaRule(rule), MixRows::Values) if rule.is_tiled => rule.values_of_key(),
            (Mixer::DeltaRule(_), MixRows::Inputs | MixRows::Channels) => {
                2 + self.n_ranges(MixRows::Values)
            }
            (Mixer::ShortConv { .. }, MixRows::Inputs) => 3,
            (Mixer::StateSpace(_), MixRows::Inputs | MixRows::Channels) => 2,
            (_, MixRows::Channels | MixRows::Values) => 1,
        }
    }

    fn range(&self, which: MixRows, index: usize) -> Range<usize> {
        // Items of `width` values, one for each part, from item `first` of a section that begins at `at`.
        let (at, first, width) = match (self.whole, which) {
            (Mixer::ShortConv { .. }, _) => (index * self.dim, 0, 1),
            (Mixer::DeltaRule(rule), MixRows::Inputs | MixRows::Channels) => match index {
                0 | 1 => (index * rule.keys(), 0, rule.key_dim),
                _ => {
                    let Range { start, end } = self.range(MixRows::Values, index - 2);
                    return 2 * rule.keys() + start..2 * rule.keys() + end;
                }
            },
            (Mixer::DeltaRule(rule), MixRows::Values) => {
                (0, index * rule.key_heads, self.value_width())
            }
            // Each head may read what its group writes.
            (Mixer::StateSpace(space), _) if index == 1 => {
                return space.inner()..self.whole.channels(self.dim);
            }
            (Mixer::StateSpace(space), _) => (0, 0, space.head_dim),
        };
        let place = |part: usize| at + (first + part) * width;
        place(self.start)..place(self.end)
    }

    /// Smallest number of parts whose rows are whole panels of `panel` rows, a power of two; all parts if no smaller
    /// number is.
    pub fn unit(&self, panel: usize) -> usize {
        let (places, widths) = match self.whole {
            Mixer::ShortConv { .. } => ([self.dim; 2], [1; 2]),
            Mixer::DeltaRule(rule) => {
                let width = self.value_width();
                ([rule.keys(), rule.key_heads * width], [rule.key_dim, width])
            }
            Mixer::StateSpace(space) => ([space.inner(); 2], [space.head_dim; 2]),
        };
        let is_panels =
            |n: usize| widths.into_iter().all(|width| (n * width).is_multiple_of(panel));
        let units = (0..=panel.ilog2()).map(|bit| 1 << bit).filter(|n| is_panels(*n));
        let are_places = places.into_iter().all(|place| place.is_multiple_of(panel));
        units.min().filter(|_| are_places).unwrap_or(self.n_all()).max(1)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::format::model::tests::small;
    use crate::format::model::{Features, LayerSet, RecurrentLayers, Weights};

    const RULE: DeltaRule = DeltaRule {
        taps: 4,
        key_heads: 6,
        value_heads: 18,
        key_dim: 32,
        value_dim: 16,
        is_tiled: false,
    };
    const SPACE: StateSpace =
        StateSpace { taps: 4, heads: 12, groups: 3, head_dim: 16, state_dim: 32 };

    fn header(mixer: Mixer) -> Header {
        let layers = LayerSet::new(0..1).unwrap();
        let recurrent = Some(RecurrentLayers { layers, mixer });
        Header { features: Features { recurrent, ..Features::default() }, ..small(Weights::F32) }
    }

    fn mixers() -> [Mixer; 4] {
        let tiled = DeltaRule { is_tiled: true, ..RULE };
        let short = Mixer::ShortConv { taps: 3 };
        [Mixer::DeltaRule(RULE), Mixer::DeltaRule(tiled), Mixer::StateSpace(SPACE), short]
    }

    /// The parts of three boards, of which one has none.
    fn boards(header: &Header) -> Vec<MixParts> {
        let n = MixParts::all(header).unwrap().parts().end;
        let cuts = [0..n / 3, n / 3..n / 3, n / 3..n];
        cuts.into_iter().map(|parts| MixParts::new(header, parts).unwrap()).collect()
    }

    #[test]
    fn boards_have_all_rows_and_share_only_what_groups_write() {
        for mixer in mixers() {
            let header = header(mixer);
            for which in [MixRows::Inputs, MixRows::Channels, MixRows::Values] {
                let n = MixParts::all(&header).unwrap().width(which);
                let mut counts = vec![0; n];
                for board in boards(&header) {
                    board.ranges(which).flatten().for_each(|row| counts[row] += 1);
                    let own = board.mixer();
                    let wanted = match which {
                        // A short convolution has as many channels as the board has parts.
                        _ if matches!(mixer, Mixer::ShortConv { .. }) => board.width(which),
                        _ if board.parts().is_empty() => 0,
                        MixRows::Inputs | MixRows::Channels => own.in_rows(header.dim),
                        MixRows::Values => own.out_cols(header.dim),
                    };
                    assert_eq!(board.width(which), wanted, "{mixer:?}, {which:?}");
                }
                let of_all = match mixer {
                    Mixer::StateSpace(space) if which != MixRows::Values => space.inner(),
                    _ => n,
                };
                assert!(counts[..of_all].iter().all(|n| *n == 1), "{mixer:?}, {which:?}");
                assert!(counts[of_all..].iter().all(|n| *n == 2), "{mixer:?}, {which:?}");
            }
        }
    }

    #[test]
    fn heads_are_those_whose_values_a_board_has() {
        for mixer in mixers() {
            let header = header(mixer);
            let [_, width] = mixer.state_dims();
            for board in boards(&header) {
                let own = board.mixer();
                let values: Vec<usize> = board.ranges(MixRows::Values).flatten().collect();
                for head in 0..own.state_heads() {
                    assert_eq!(values[head * width], board.head(head) * width, "{mixer:?}");
                    let (Mixer::DeltaRule(all), Mixer::DeltaRule(own)) = (mixer, own) else {
                        continue;
                    };
                    let key = board.parts().start + own.key_head(head);
                    assert_eq!(all.key_head(board.head(head)), key, "{mixer:?}");
                }
            }
        }
    }

    #[test]
    fn units_are_whole_panels() {
        let unit = |mixer, panel| MixParts::all(&header(mixer)).unwrap().unit(panel);
        // 48 values for each key head, or 16 in each range.
        assert_eq!(mixers().map(|mixer| unit(mixer, 32)), [2, 2, 2, 32]);
        assert_eq!(mixers().map(|mixer| unit(mixer, 1)), [1; 4]);
        // Keys end within a panel: one board has all.
        let odd = DeltaRule { key_heads: 3, key_dim: 16, value_heads: 3, ..RULE };
        assert_eq!(unit(Mixer::DeltaRule(odd), 32), 3);
    }
}
