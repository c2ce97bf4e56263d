//! Layers that carry a state from token to token, in place of attention.

use super::layer_set::LayerSet;
use crate::format::FormatError;
use crate::format::cursor::Cursor;

/// Bytes of [`RecurrentLayers`] in a file.
pub(super) const RECURRENT_LEN: usize = 96;

/// Most taps of a layer's convolution.
pub const TAPS_MAX: usize = 8;

/// Largest head dimension of keys and values in a state.
const STATE_DIM_MAX: usize = 512;

/// Most rows of the projections of a recurrent layer.
const ROWS_MAX: usize = 1 << 20;

/// Columns of a state that are computed together: value dimensions are multiples of it.
pub const STATE_COLUMNS: usize = 16;

/// The recurrent layers of a model, which all have the same form.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RecurrentLayers {
    /// The recurrent layers; the others have attention.
    pub layers: LayerSet,
    /// Form of the layers.
    pub mixer: Mixer,
}

/// Form of a recurrent layer. Each begins with a depthwise causal convolution along the tokens.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Mixer {
    /// LFM2's gated short convolution: `out · (c ⊙ conv(b ⊙ x))`. The state is the last inputs of the convolution.
    ShortConv {
        /// Taps of the convolution.
        taps: usize,
    },
    /// The gated delta rule of Qwen3.5 (arXiv:2412.06464). The state is a matrix `[key_dim, value_dim]` for each value
    /// head, and the last inputs of the convolution.
    DeltaRule(DeltaRule),
    /// Mamba-2's state space (arXiv:2405.21060), of Granite 4. The state is a matrix `[state_dim, head_dim]` for each
    /// head, and the last inputs of the convolution.
    StateSpace(StateSpace),
}

/// Sizes of a layer of the gated delta rule.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DeltaRule {
    /// Taps of the convolution.
    pub taps: usize,
    /// Number of key heads, and of query heads.
    pub key_heads: usize,
    /// Number of value heads, a multiple of `key_heads`.
    pub value_heads: usize,
    /// Width of a key and of a query.
    pub key_dim: usize,
    /// Width of a value, a multiple of [`STATE_COLUMNS`].
    pub value_dim: usize,
    /// Whether value head `h` has key head `h % key_heads`, the order of GGUF files; otherwise it has key head
    /// `h / (value_heads / key_heads)`.
    pub is_tiled: bool,
}

/// Sizes of a state-space layer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct StateSpace {
    /// Taps of the convolution.
    pub taps: usize,
    /// Number of heads.
    pub heads: usize,
    /// Number of groups of heads, which divides `heads`. Heads of a group write and read the state alike.
    pub groups: usize,
    /// Width of a head, a multiple of [`STATE_COLUMNS`].
    pub head_dim: usize,
    /// Rows of a head's state.
    pub state_dim: usize,
}

impl StateSpace {
    /// Width of all heads together.
    pub fn inner(&self) -> usize {
        self.heads * self.head_dim
    }
}

impl DeltaRule {
    /// Key head of value head `head`.
    pub fn key_head(&self, head: usize) -> usize {
        match self.is_tiled {
            true => head % self.key_heads,
            false => head / self.values_of_key(),
        }
    }

    /// Number of value heads of a key head.
    pub fn values_of_key(&self) -> usize {
        self.value_heads / self.key_heads
    }

    /// Width of all keys together.
    pub fn keys(&self) -> usize {
        self.key_heads * self.key_dim
    }

    /// Width of all values together.
    pub fn values(&self) -> usize {
        self.value_heads * self.value_dim
    }
}

impl Mixer {
    /// Taps of the convolution.
    pub fn taps(&self) -> usize {
        match self {
            Mixer::ShortConv { taps }
            | Mixer::DeltaRule(DeltaRule { taps, .. })
            | Mixer::StateSpace(StateSpace { taps, .. }) => *taps,
        }
    }

    /// Channels of the convolution, in a model of width `dim`.
    pub fn channels(&self, dim: usize) -> usize {
        match self {
            Mixer::ShortConv { .. } => dim,
            Mixer::DeltaRule(rule) => 2 * rule.keys() + rule.values(),
            Mixer::StateSpace(space) => space.inner() + 2 * space.groups * space.state_dim,
        }
    }

    /// Rows of the projection to the convolution's inputs; for a short convolution to b, c and x.
    pub fn in_rows(&self, dim: usize) -> usize {
        match self {
            Mixer::ShortConv { .. } => 3 * dim,
            Mixer::DeltaRule(_) | Mixer::StateSpace(_) => self.channels(dim),
        }
    }

    /// Rows of the projection to the output's gate; 0 if there is none.
    pub fn gate_rows(&self) -> usize {
        match self {
            Mixer::ShortConv { .. } => 0,
            Mixer::DeltaRule(rule) => rule.values(),
            Mixer::StateSpace(space) => space.inner(),
        }
    }

    /// Values that steer each token's update of the state: for the delta rule a strength and a decay for each value
    /// head, for a state space a step for each head.
    pub fn n_controls(&self) -> usize {
        match self {
            Mixer::ShortConv { .. } => 0,
            Mixer::DeltaRule(rule) => 2 * rule.value_heads,
            Mixer::StateSpace(space) => space.heads,
        }
    }

    /// Columns of the output projection, in a model of width `dim`.
    pub fn out_cols(&self, dim: usize) -> usize {
        match self {
            Mixer::ShortConv { .. } => dim,
            Mixer::DeltaRule(rule) => rule.values(),
            Mixer::StateSpace(space) => space.inner(),
        }
    }

    /// Number of heads with a matrix as state.
    pub fn state_heads(&self) -> usize {
        match self {
            Mixer::ShortConv { .. } => 0,
            Mixer::DeltaRule(rule) => rule.value_heads,
            Mixer::StateSpace(space) => space.heads,
        }
    }

    /// Rows and columns of a head's matrix.
    pub fn state_dims(&self) -> [usize; 2] {
        match self {
            Mixer::ShortConv { .. } => [0, STATE_COLUMNS],
            Mixer::DeltaRule(rule) => [rule.key_dim, rule.value_dim],
            Mixer::StateSpace(space) => [space.state_dim, space.head_dim],
        }
    }

    /// Width of the norm of the recurrence's output; 0 if there is none.
    pub fn norm_dim(&self) -> usize {
        match self {
            Mixer::ShortConv { .. } => 0,
            Mixer::DeltaRule(rule) => rule.value_dim,
            Mixer::StateSpace(space) => space.inner(),
        }
    }
}

impl RecurrentLayers {
    pub(super) fn emit(&self) -> Vec<u8> {
        let (id, sizes) = match self.mixer {
            Mixer::ShortConv { taps } => (1u32, [taps, 0, 0, 0, 0, 0]),
            Mixer::DeltaRule(DeltaRule {
                taps,
                key_heads,
                value_heads,
                key_dim,
                value_dim,
                is_tiled,
            }) => (2, [taps, key_heads, value_heads, key_dim, value_dim, usize::from(is_tiled)]),
            Mixer::StateSpace(StateSpace { taps, heads, groups, head_dim, state_dim }) => {
                (3, [taps, groups, heads, state_dim, head_dim, 0])
            }
        };
        let mut out: Vec<u8> = self.layers.0.iter().flat_map(|word| word.to_le_bytes()).collect();
        out.extend(id.to_le_bytes());
        out.extend(sizes.iter().flat_map(|size| (*size as u32).to_le_bytes()));
        out.resize(RECURRENT_LEN, 0);
        out
    }

    /// Reads what [`RecurrentLayers::emit`] writes; unknown bytes behind it show when the block is emitted again.
    pub(super) fn parse(
        r: &mut Cursor<'_>,
        layers: LayerSet,
    ) -> Result<RecurrentLayers, FormatError> {
        let mut next = |what| Ok(r.u32(what)? as usize);
        let id = next("form of recurrent layers")?;
        let taps = next("taps")?;
        let rule = DeltaRule {
            taps,
            key_heads: next("key heads")?,
            value_heads: next("value heads")?,
            key_dim: next("key dim")?,
            value_dim: next("value dim")?,
            is_tiled: next("order of value heads")? == 1,
        };
        r.take("zeros", RECURRENT_LEN - 32 - 7 * 4)?;
        let mixer = match id {
            1 => Mixer::ShortConv { taps },
            2 => Mixer::DeltaRule(rule),
            3 => Mixer::StateSpace(StateSpace {
                taps,
                heads: rule.value_heads,
                groups: rule.key_heads,
                head_dim: rule.value_dim,
                state_dim: rule.key_dim,
            }),
            id => return Err(FormatError::Unsupported(format!("form {id} of recurrent layers"))),
        };
        Ok(RecurrentLayers { layers, mixer })
    }

    /// Checks that the layers are some of a model's `n_layers`, and that their sizes fit together.
    pub(super) fn check(&self, n_layers: usize) -> Result<(), FormatError> {
        let RecurrentLayers { layers, mixer } = *self;
        if layers.is_empty() || layers.end() > n_layers {
            let wanted = format!("some of {n_layers} layers");
            return Err(FormatError::field("recurrent layers", layers.end() as u32, wanted));
        }
        if !(2..=TAPS_MAX).contains(&mixer.taps()) {
            let wanted = format!("2 to {TAPS_MAX}");
            return Err(FormatError::field("taps", mixer.taps() as u32, wanted));
        }
        let (groups, heads) = match mixer {
            Mixer::ShortConv { .. } => return Ok(()),
            Mixer::DeltaRule(rule) => (rule.key_heads, rule.value_heads),
            Mixer::StateSpace(space) => (space.groups, space.heads),
        };
        let [rows, columns] = mixer.state_dims();
        let is_dim =
            |dim: usize| dim.is_multiple_of(STATE_COLUMNS) && (1..=STATE_DIM_MAX).contains(&dim);
        if !is_dim(rows) || !is_dim(columns) {
            let what = format!(
                "a state of {rows} by {columns}, wanted multiples of \
                                {STATE_COLUMNS} up to {STATE_DIM_MAX}"
            );
            return Err(FormatError::Unsupported(what));
        }
        let is_fit = groups > 0 && heads > 0 && heads.is_multiple_of(groups);
        if !is_fit || heads > ROWS_MAX / STATE_DIM_MAX {
            let what = format!("{heads} recurrent heads in {groups} groups");
            return Err(FormatError::Unsupported(what));
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::super::tests::{B2, Q4, file, small, typed};
    use super::super::{Architecture, Features, Header, TensorId, TensorKind, Weights};
    use super::*;

    const F32: Weights = Weights::F32;

    const RULE: DeltaRule = DeltaRule {
        taps: 4,
        key_heads: 2,
        value_heads: 4,
        key_dim: 32,
        value_dim: 32,
        is_tiled: true,
    };

    /// A header whose first layer is recurrent.
    fn recurrent(mixer: Mixer, weights: Weights) -> Header {
        let layers = LayerSet::new(0..1).unwrap();
        let recurrent = Some(RecurrentLayers { layers, mixer });
        let features = Features { recurrent, output_gate: true, ..Features::default() };
        typed(Header { features, architecture: Architecture::Qwen35, ..small(weights) })
    }

    #[test]
    fn recurrent_layers_come_back_from_their_block_and_have_tensors_of_their_own() {
        let space = StateSpace { taps: 4, heads: 6, groups: 2, head_dim: 16, state_dim: 32 };
        let mixers =
            [Mixer::ShortConv { taps: 3 }, Mixer::DeltaRule(RULE), Mixer::StateSpace(space)];
        for mixer in mixers {
            for weights in [F32, Weights::Q8 { group: 32 }, Q4, B2, Weights::Ggml] {
                let header = recurrent(mixer, weights);
                let bytes = file(&header);
                assert_eq!(Header::parse(&bytes), Ok(header.clone()));
                let has = |kind, layer| header.tensors().any(|t| t.id == TensorId { kind, layer });
                assert!(has(TensorKind::MixIn, 0) && !has(TensorKind::MixIn, 1));
                assert!(has(TensorKind::Wq, 1) && !has(TensorKind::Wq, 0));
                assert!(has(TensorKind::OutputGate, 1) && !has(TensorKind::OutputGate, 0));
                assert!(has(TensorKind::FfnNorm, 0) && has(TensorKind::FfnNorm, 1));
            }
        }
    }

    #[test]
    fn the_block_behind_the_last_layer_has_tensors_of_its_own_that_shares_lack() {
        for weights in [F32, Weights::Q8 { group: 32 }, Q4, B2, Weights::Ggml] {
            let plain =
                Header { sliding_window: None, ..recurrent(Mixer::DeltaRule(RULE), weights) };
            let mut header = plain.clone();
            header.features.more.has_next = true;
            let header = typed(header);
            let bytes = file(&header);
            assert_eq!(Header::parse(&bytes), Ok(header.clone()));
            assert_eq!(header.n_tensors(), header.tensors().count());
            let n = header.n_layers;
            let kinds = |layer| {
                let of = header
                    .tensors()
                    .filter(move |t| t.id.kind.is_per_layer() && t.id.layer == layer);
                of.map(|t| t.id.kind).collect::<Vec<_>>()
            };
            // A layer with attention, and four more.
            let own: Vec<TensorKind> =
                kinds(n).into_iter().filter(|kind| !kind.is_of_next()).collect();
            assert_eq!((own, kinds(n).len()), (kinds(1), kinds(1).len() + 4));
            assert_eq!(header.bytes_per_token(|_| true), plain.bytes_per_token(|_| true));
            let whole = Header { has_extension: true, ..header.clone() };
            let part = whole.part(1..n, None, 7).unwrap();
            assert!(part.header.tensors().all(|tensor| tensor.id.layer < n));
            let all = whole.part(0..n, None, 7).unwrap();
            assert_eq!(all.header.n_tensors(), header.n_tensors());
        }
        let mut header = recurrent(Mixer::DeltaRule(RULE), F32);
        header.features.more.has_next = true;
        header.sliding_window = Some(64);
        let error = header.check().unwrap_err().to_string();
        assert!(error.contains("a block behind the last layer"), "{error}");
    }

    #[test]
    fn impossible_recurrent_layers_are_refused_by_name() {
        let rules = [
            (DeltaRule { taps: 1, ..RULE }, "taps"),
            (DeltaRule { taps: 9, ..RULE }, "taps"),
            (DeltaRule { key_heads: 0, ..RULE }, "recurrent heads"),
            (DeltaRule { key_heads: 3, ..RULE }, "recurrent heads"),
            (DeltaRule { value_heads: 0, ..RULE }, "recurrent heads"),
            (DeltaRule { value_heads: 1 << 30, ..RULE }, "recurrent heads"),
            (DeltaRule { key_dim: 24, ..RULE }, "a state of 24 by 32"),
            (DeltaRule { value_dim: 0, ..RULE }, "a state of 32 by 0"),
            (DeltaRule { value_dim: 1 << 20, ..RULE }, "a state of"),
        ];
        for (rule, what) in rules {
            let error = recurrent(Mixer::DeltaRule(rule), F32).check().unwrap_err().to_string();
            assert!(error.contains(what), "{rule:?}: {error}");
        }
        let mut header = recurrent(Mixer::ShortConv { taps: 3 }, F32);
        let mixer = Mixer::ShortConv { taps: 3 };
        for layers in [LayerSet::default(), LayerSet::new(2..3).unwrap()] {
            header.features.recurrent = Some(RecurrentLayers { layers, mixer });
            let error = header.check().unwrap_err().to_string();
            assert!(error.contains("recurrent layers"), "{error}");
        }
    }
}
