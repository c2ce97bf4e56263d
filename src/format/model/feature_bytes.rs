//! Parses, emits and checks the block of features after a header.

use super::embedding::EmbeddingModel;
use super::features::{
    Activation, DenseLayers, EXPERTS_ACTIVE_MAX, Experts, Features, LongRope, Temperature,
};
use super::header::{Architecture, Header, PACKED_ALIGN, RopeScaling};
use super::layer_set::{LAYER_SET_MAX, LayerSet};
use super::more_features::{MORE_LEN, MoreFeatures};
use super::recurrent::{RECURRENT_LEN, RecurrentLayers};
use crate::format::FormatError;
use crate::format::cursor::Cursor;

/// Length of the block without divisors and dense layers.
const FIXED_LEN: usize = 128;
/// Maximum number of experts that a header may claim.
const EXPERTS_MAX: usize = 4096;

/// Number of known flags.
const FLAGS: u32 = 10;

/// Bit of the block's further parts that stands for recurrent layers.
const HAS_RECURRENT: u32 = 1;

/// Bit of the block's further parts that stands for a temperature.
const HAS_TEMPERATURE: u32 = 1 << 1;
/// Length of a temperature in bytes.
const TEMPERATURE_LEN: usize = 8;

/// Bit of the block's further parts that stands for features of few families.
const HAS_MORE: u32 = 1 << 2;

/// Bit of the block's further parts that stands for a model of embeddings.
const HAS_EMBEDDING: u32 = 1 << 3;

/// Length of a set of layers in bytes.
const SET_LEN: usize = LAYER_SET_MAX / 8;

impl Features {
    fn flags(&self) -> u32 {
        let experts = self.experts.unwrap_or(Experts {
            n: 0,
            n_active: 0,
            is_normalised: false,
            has_biases: false,
            is_sigmoid: false,
        });
        let flags = [
            self.qkv_bias,
            self.output_bias,
            self.qk_norm,
            self.post_norms,
            self.sinks,
            experts.is_normalised,
            experts.has_biases,
            self.ffn_bias,
            self.output_gate,
            experts.is_sigmoid,
        ];
        flags.iter().rev().fold(0, |all, flag| all << 1 | u32::from(*flag))
    }

    /// Length of the block in bytes.
    fn block_len(&self) -> usize {
        let dense = if self.dense.is_some() { SET_LEN } else { 0 };
        let temperature = if self.temperature.is_some() { TEMPERATURE_LEN } else { 0 };
        let recurrent = if self.recurrent.is_some() { RECURRENT_LEN } else { 0 };
        let more = if self.more.is_some() { MORE_LEN } else { 0 };
        let embedding = self.embedding.as_ref().map_or(0, EmbeddingModel::len);
        let parts = dense + temperature + recurrent + more + embedding;
        let len = FIXED_LEN + 4 * self.all_divisors().count() + parts;
        len.next_multiple_of(PACKED_ALIGN as usize)
    }

    /// Divisors for ordinary texts, then those for long ones.
    fn all_divisors(&self) -> impl Iterator<Item = f32> + '_ {
        let long = self.long_rope.iter().flat_map(|long| &long.divisors);
        self.rope_divisors.iter().chain(long).copied()
    }

    fn emit(&self) -> Vec<u8> {
        let mut out = Vec::with_capacity(self.block_len());
        let (activation, limit) = match self.activation {
            Activation::Silu => (0u32, 0.0),
            Activation::GeluTanh => (1, 0.0),
            Activation::GeluErf => (3, 0.0),
            Activation::ClampedSilu { limit } => (2, limit),
        };
        out.extend(self.flags().to_le_bytes());
        out.extend(activation.to_le_bytes());
        let scale = self.attention_scale.unwrap_or(0.0);
        for float in [limit, self.embedding_scale, scale, self.residual_scale, self.rope_magnitude]
        {
            out.extend(float.to_le_bytes());
        }
        out.extend((self.rotary_dim.unwrap_or(0) as u32).to_le_bytes());
        out.extend(self.local_theta.unwrap_or(0.0).to_le_bytes());
        let experts = self.experts.map_or([0, 0], |experts| [experts.n, experts.n_active]);
        out.extend(experts.iter().flat_map(|n| (*n as u32).to_le_bytes()));
        let sets = [self.full_layers, self.unrotated_layers];
        out.extend(sets.iter().flat_map(|set| set.0).flat_map(u64::to_le_bytes));
        out.extend((self.rope_divisors.len() as u32).to_le_bytes());
        let long_from = self.long_rope.as_ref().map_or(0, |long| long.original_ctx);
        out.extend((long_from as u32).to_le_bytes());
        out.extend((self.dense.map_or(0, |dense| dense.ffn_dim) as u32).to_le_bytes());
        let parts = [
            (HAS_RECURRENT, self.recurrent.is_some()),
            (HAS_TEMPERATURE, self.temperature.is_some()),
            (HAS_MORE, self.more.is_some()),
            (HAS_EMBEDDING, self.embedding.is_some()),
        ];
        let parts =
            parts.iter().filter(|(_, is_there)| *is_there).fold(0, |all, (bit, _)| all | bit);
        out.extend(parts.to_le_bytes());
        out.extend(self.all_divisors().flat_map(f32::to_le_bytes));
        out.extend(self.dense.iter().flat_map(|d| d.layers.0).flat_map(u64::to_le_bytes));
        if let Some(Temperature { slope, original_ctx }) = self.temperature {
            out.extend(slope.to_le_bytes());
            out.extend((original_ctx as u32).to_le_bytes());
        }
        out.extend(self.recurrent.iter().flat_map(RecurrentLayers::emit));
        if self.more.is_some() {
            out.extend(self.more.emit());
        }
        out.extend(self.embedding.iter().flat_map(EmbeddingModel::emit));
        out.resize(self.block_len(), 0);
        out
    }

    fn parse(block: &[u8]) -> Result<Features, FormatError> {
        let mut r = Cursor::new(block);
        let flags = r.u32("feature flags")?;
        if flags >> FLAGS != 0 {
            return Err(FormatError::Unsupported(format!("feature flags {flags:#x}")));
        }
        let is = |bit: u32| flags >> bit & 1 == 1;
        let activation = parse_activation(&mut r)?;
        let embedding_scale = r.f32("embedding_scale")?;
        let attention_scale = Some(r.f32("attention_scale")?).filter(|scale| *scale != 0.0);
        let residual_scale = r.f32("residual_scale")?;
        let rope_magnitude = r.f32("rope_magnitude")?;
        let rotary_dim = Some(r.u32("rotary_dim")? as usize).filter(|dim| *dim != 0);
        let local_theta = Some(r.f64("local_theta")?).filter(|theta| *theta != 0.0);
        let (n, n_active) = (r.u32("n_experts")? as usize, r.u32("n_active_experts")? as usize);
        let experts =
            Experts { n, n_active, is_normalised: is(5), has_biases: is(6), is_sigmoid: is(9) };
        let full_layers = parse_set(&mut r, "full_layers")?;
        let unrotated_layers = parse_set(&mut r, "unrotated_layers")?;
        let n_divisors = r.u32("number of rope_divisors")? as usize;
        let original_ctx = r.u32("context of rope_divisors")? as usize;
        let dense_ffn_dim = r.u32("width of dense layers")? as usize;
        let parts = r.u32("further parts")?;
        let rope_divisors = parse_divisors(&mut r, n_divisors)?;
        let long_rope = parse_long_rope(&mut r, original_ctx, n_divisors)?;
        let dense = parse_dense(&mut r, dense_ffn_dim)?;
        let features = Features {
            qkv_bias: is(0),
            output_bias: is(1),
            qk_norm: is(2),
            post_norms: is(3),
            sinks: is(4),
            ffn_bias: is(7),
            output_gate: is(8),
            activation,
            embedding_scale,
            attention_scale,
            residual_scale,
            full_layers,
            unrotated_layers,
            local_theta,
            rotary_dim,
            rope_magnitude,
            rope_divisors,
            long_rope,
            temperature: parse_temperature(&mut r, parts)?,
            experts: Some(experts).filter(|experts| *experts != Experts { n: 0, ..*experts }),
            dense,
            recurrent: parse_recurrent(&mut r, parts)?,
            more: parse_more(&mut r, parts)?,
            embedding: parse_embedding(&mut r, parts)?,
        };
        // Emitting again shows that the rest is zero, and that the block has its only valid form.
        match features.emit() == block {
            true => Ok(features),
            false => {
                Err(FormatError::Unsupported("a block of features with unknown fields".into()))
            }
        }
    }
}

fn parse_activation(r: &mut Cursor<'_>) -> Result<Activation, FormatError> {
    let id = r.u32("activation")?;
    let limit = r.f32("activation limit")?;
    match id {
        0 => Ok(Activation::Silu),
        1 => Ok(Activation::GeluTanh),
        3 => Ok(Activation::GeluErf),
        2 => Ok(Activation::ClampedSilu { limit }),
        id => Err(FormatError::Unsupported(format!("activation {id}"))),
    }
}

fn parse_divisors(r: &mut Cursor<'_>, n: usize) -> Result<Vec<f32>, FormatError> {
    let bytes = r.take("rope_divisors", n.saturating_mul(4))?;
    Ok(bytes.as_chunks().0.iter().map(|bytes| f32::from_le_bytes(*bytes)).collect())
}

fn parse_long_rope(
    r: &mut Cursor<'_>,
    original_ctx: usize,
    n_divisors: usize,
) -> Result<Option<LongRope>, FormatError> {
    if original_ctx == 0 {
        return Ok(None);
    }
    Ok(Some(LongRope { original_ctx, divisors: parse_divisors(r, n_divisors)? }))
}

fn parse_dense(r: &mut Cursor<'_>, ffn_dim: usize) -> Result<Option<DenseLayers>, FormatError> {
    if ffn_dim == 0 {
        return Ok(None);
    }
    Ok(Some(DenseLayers { layers: parse_set(r, "dense layers")?, ffn_dim }))
}

fn parse_recurrent(r: &mut Cursor<'_>, parts: u32) -> Result<Option<RecurrentLayers>, FormatError> {
    if parts & HAS_RECURRENT == 0 {
        return Ok(None);
    }
    let layers = parse_set(r, "recurrent layers")?;
    RecurrentLayers::parse(r, layers).map(Some)
}

fn parse_temperature(r: &mut Cursor<'_>, parts: u32) -> Result<Option<Temperature>, FormatError> {
    if parts & HAS_TEMPERATURE == 0 {
        return Ok(None);
    }
    let slope = r.f32("slope of the temperature")?;
    Ok(Some(Temperature { slope, original_ctx: r.u32("context of the temperature")? as usize }))
}

fn parse_more(r: &mut Cursor<'_>, parts: u32) -> Result<MoreFeatures, FormatError> {
    match parts & HAS_MORE {
        0 => Ok(MoreFeatures::default()),
        _ => MoreFeatures::parse(r),
    }
}

fn parse_embedding(r: &mut Cursor<'_>, parts: u32) -> Result<Option<EmbeddingModel>, FormatError> {
    match parts & HAS_EMBEDDING {
        0 => Ok(None),
        _ => EmbeddingModel::parse(r).map(Some),
    }
}

fn parse_set(r: &mut Cursor<'_>, name: &'static str) -> Result<LayerSet, FormatError> {
    let mut words = [0; LAYER_SET_MAX / 64];
    for word in &mut words {
        *word = r.u64(name)?;
    }
    Ok(LayerSet(words))
}

impl Header {
    /// Whether the file has a block of features. Llama and Mistral models need none.
    pub(super) fn has_block(&self) -> bool {
        let is_new = !matches!(self.architecture, Architecture::Llama | Architecture::Mistral);
        let is_new_rope =
            matches!(self.rope_scaling, Some(RopeScaling::Yarn { .. } | RopeScaling::Divisors));
        is_new || is_new_rope || self.features != Features::default()
    }

    /// Length of the block of features; 0 if there is none.
    pub(super) fn block_len(&self) -> usize {
        if self.has_block() { self.features.block_len() } else { 0 }
    }

    /// The block of features; empty if there is none.
    pub(super) fn emit_block(&self) -> Vec<u8> {
        if self.has_block() { self.features.emit() } else { Vec::new() }
    }

    /// Reads the block of features from `file`; length and checksum come from the header.
    pub(super) fn parse_block(
        &mut self,
        file: &[u8],
        (len, crc): (u32, u32),
    ) -> Result<(), FormatError> {
        let mut r = Cursor::new(file);
        r.take("header", super::header::HEADER_LEN)?;
        let block = r.take("block of features", len as usize)?;
        if crc32fast::hash(block) != crc {
            return Err(FormatError::Checksum { what: "block of features".to_owned() });
        }
        self.features = Features::parse(block)?;
        match self.has_block() {
            true => Ok(()),
            false => Err(FormatError::Unsupported("a block of features that says nothing".into())),
        }
    }

    /// Checks that the features fit together and fit the rest of the header.
    pub(super) fn check_features(&self) -> Result<(), FormatError> {
        let Features { full_layers, unrotated_layers, rotary_dim, temperature, .. } =
            &self.features;
        let unsupported = |what: String| Err(FormatError::Unsupported(what));
        let is_factor = |factor: f32| factor.is_finite() && factor > 0.0;
        let limit = match self.features.activation {
            Activation::ClampedSilu { limit } => limit,
            Activation::Silu | Activation::GeluTanh | Activation::GeluErf => 1.0,
        };
        for (name, value) in [
            ("activation limit", limit),
            ("embedding_scale", self.features.embedding_scale),
            ("attention_scale", self.features.attention_scale.unwrap_or(1.0)),
            ("residual_scale", self.features.residual_scale),
            ("rope_magnitude", self.features.rope_magnitude),
            ("slope of the temperature", temperature.map_or(1.0, |of| of.slope)),
        ] {
            if !is_factor(value) {
                return unsupported(format!("{name} {value}"));
            }
        }
        for (field, set) in [("full_layers", full_layers), ("unrotated_layers", unrotated_layers)] {
            if set.end() > self.n_layers {
                let wanted = format!("layers below n_layers {}", self.n_layers);
                return Err(FormatError::field(field, set.end() as u32 - 1, wanted));
            }
        }
        if let Some(theta) = self.features.local_theta.filter(|x| !(x.is_finite() && *x >= 1.0)) {
            return unsupported(format!("local_theta {theta}"));
        }
        if let Some(dim) = rotary_dim.filter(|dim| dim % 2 == 1 || *dim > self.head_dim) {
            let wanted = format!("an even number up to head_dim {}", self.head_dim);
            return Err(FormatError::field("rotary_dim", dim as u32, wanted));
        }
        if temperature.is_some_and(|of| of.original_ctx == 0) {
            let wanted = "above 0".to_owned();
            return Err(FormatError::field("context of the temperature", 0, wanted));
        }
        self.check_more()?;
        self.check_embedding()?;
        self.check_divisors()?;
        self.check_experts()?;
        self.check_dense()?;
        match &self.features.recurrent {
            Some(recurrent) => recurrent.check(self.n_layers),
            None => Ok(()),
        }
    }

    /// Checks that the dense layers are some of the model's, but not all.
    fn check_dense(&self) -> Result<(), FormatError> {
        let Features { dense, experts, ffn_bias, .. } = &self.features;
        if *ffn_bias && (experts.is_some() || dense.is_some()) {
            let what = "ffn_bias in a mixture of experts, or in layers that differ";
            return Err(FormatError::Unsupported(what.to_owned()));
        }
        let Some(DenseLayers { layers, ffn_dim }) = dense else { return Ok(()) };
        let n = (0..self.n_layers).filter(|layer| layers.contains(*layer)).count();
        if layers.end() > self.n_layers || n == 0 || n == self.n_layers {
            let wanted = format!("some of {} layers, not all", self.n_layers);
            return Err(FormatError::field("dense layers", layers.end() as u32, wanted));
        }
        match *ffn_dim <= i32::MAX as usize {
            true => Ok(()),
            false => Err(FormatError::field(
                "width of dense layers",
                *ffn_dim as u32,
                "below 2^31".to_owned(),
            )),
        }
    }

    fn check_divisors(&self) -> Result<(), FormatError> {
        let short = &self.features.rope_divisors;
        let long = self.features.long_rope.as_ref().map_or(short, |long| &long.divisors);
        let is_used = self.rope_scaling == Some(RopeScaling::Divisors);
        let rotary_dim = match self.full_head_dim() {
            0 => self.rotary_dim(),
            full => full,
        };
        let wanted = if is_used { rotary_dim / 2 } else { 0 };
        if let Some(divisors) = [short, long].into_iter().find(|of| of.len() != wanted) {
            let found = u32::try_from(divisors.len()).unwrap_or(u32::MAX);
            return Err(FormatError::field("rope_divisors", found, format!("{wanted} of them")));
        }
        match short.iter().chain(long).find(|divisor| !(divisor.is_finite() && **divisor > 0.0)) {
            Some(divisor) => Err(FormatError::Unsupported(format!("a rope_divisor of {divisor}"))),
            None => Ok(()),
        }
    }

    fn check_experts(&self) -> Result<(), FormatError> {
        let Some(Experts { n, n_active, .. }) = self.features.experts else { return Ok(()) };
        let widest = self.ffn_dim.max(self.dim);
        if n > EXPERTS_MAX || n == 0 || n.checked_mul(widest).is_none_or(|n| n > i32::MAX as usize)
        {
            let wanted = format!("1 to {EXPERTS_MAX}, with fewer than 2^31 rows in all");
            return Err(FormatError::field("n_experts", n as u32, wanted));
        }
        let most = n.min(EXPERTS_ACTIVE_MAX);
        match (1..=most).contains(&n_active) {
            true => Ok(()),
            false => {
                let wanted = format!("1 to {most}");
                Err(FormatError::field("n_active_experts", n_active as u32, wanted))
            }
        }
    }
}
