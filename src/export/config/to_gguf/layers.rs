//! Fields of layers that not all families have, and sizes of layers that may differ.

use crate::export::config::field_writer::FieldWriter;
use crate::export::config::gguf_keys as keys;
use crate::format::model::{
    Architecture, DeltaRule, DenseLayers, Experts, Header, Mixer, RecurrentLayers, StateSpace,
};

/// Key and value heads of each layer. Some families say with a 0 that a layer is recurrent.
pub(super) fn kv_heads(header: &Header) -> Vec<usize> {
    let says_recurrent = matches!(header.architecture, Architecture::Lfm2 | Architecture::Granite4);
    let of = |layer: usize| match header.mixer(layer) {
        Some(_) if says_recurrent => 0,
        _ => header.layer(layer).n_kv_heads,
    };
    (0..header.n_layers).map(of).collect()
}

/// Width of each layer's feed-forward layer; beside mixtures it is that of the layers without experts.
pub(super) fn ffn_dims(header: &Header) -> Vec<usize> {
    let features = &header.features;
    let beside = features.more.parallel_ffn.filter(|_| !features.more.is_shared_expert);
    let of = |layer: usize| match features.dense {
        Some(DenseLayers { ffn_dim, .. }) if features.experts.is_some() => ffn_dim,
        Some(DenseLayers { ffn_dim, .. }) if header.is_dense(layer) => ffn_dim,
        _ => beside.unwrap_or(header.ffn_dim),
    };
    (0..header.n_layers).map(of).collect()
}

/// Adds what mixtures of experts have.
pub(super) fn write_experts(header: &Header, fields: &mut FieldWriter<'_>) {
    let features = &header.features;
    let Some(Experts { n, n_active, is_sigmoid, .. }) = features.experts else { return };
    fields.number(keys::EXPERTS, n);
    fields.number(keys::ACTIVE_EXPERTS, n_active);
    fields.number(keys::EXPERT_FFN, header.ffn_dim);
    if is_sigmoid {
        fields.number(keys::GATING, keys::SIGMOID);
    }
    if header.architecture == Architecture::Lfm2 {
        let n_dense = (0..header.n_layers).take_while(|layer| header.is_dense(*layer)).count();
        fields.number(keys::LEADING_DENSE, n_dense);
    }
    if let Some(width) = features.more.parallel_ffn.filter(|_| features.more.is_shared_expert) {
        fields.number(keys::SHARED_FFN, width);
    }
}

/// Adds what families with recurrent layers have.
pub(super) fn write_recurrent(header: &Header, fields: &mut FieldWriter<'_>) {
    let Some(RecurrentLayers { mixer, .. }) = header.features.recurrent else { return };
    match mixer {
        Mixer::ShortConv { taps } => fields.number(keys::SHORT_TAPS, taps),
        Mixer::DeltaRule(rule) => {
            let DeltaRule { taps, key_heads, value_heads, key_dim, .. } = rule;
            write_state(fields, [taps, key_dim, key_heads, value_heads, rule.values()]);
            write_kinds(header, fields);
            fields.numbers(keys::ROPE_SECTIONS, &rope_sections(header.rotary_dim() / 2));
        }
        Mixer::StateSpace(space) => {
            let StateSpace { taps, heads, groups, state_dim, .. } = space;
            write_state(fields, [taps, state_dim, groups, heads, space.inner()]);
            let is_unrotated = |layer| header.features.unrotated_layers.contains(layer);
            fields.flag(keys::ROPE_FINETUNED, !(0..header.n_layers).all(is_unrotated));
        }
    }
}

/// Adds sizes of layers with a state.
fn write_state(fields: &mut FieldWriter<'_>, sizes: [usize; 5]) {
    let names =
        [keys::SSM_TAPS, keys::SSM_STATE, keys::SSM_GROUPS, keys::SSM_HEADS, keys::SSM_INNER];
    names.into_iter().zip(sizes).for_each(|(name, size)| fields.number(name, size));
}

/// Adds which layers are recurrent; also as a distance if one says so, which is all that older programs read.
fn write_kinds(header: &Header, fields: &mut FieldWriter<'_>) {
    let is_recurrent = |layer: usize| header.mixer(layer).is_some();
    let flags: Vec<bool> = (0..header.n_layers_and_next()).map(is_recurrent).collect();
    fields.flags(keys::RECURRENT_LAYERS, &flags);
    let fits = |interval: &usize| {
        (0..header.n_layers)
            .all(|layer| is_recurrent(layer) != (layer + 1).is_multiple_of(*interval))
    };
    if let Some(interval) = (1..=header.n_layers).find(fits) {
        fields.number(keys::FULL_INTERVAL, interval);
    }
}

/// How many of `pairs` belong to each dimension of an image: every third one, from the first, second and third on.
fn rope_sections(pairs: usize) -> [usize; 4] {
    [pairs.div_ceil(3), (pairs + 1) / 3, pairs / 3, 0]
}

/// Adds the number of blocks behind the last layer, if there is one.
pub(super) fn write_next(header: &Header, fields: &mut FieldWriter<'_>) {
    if header.next_layer().is_some() {
        fields.number(keys::NEXT_LAYERS, 1);
    }
}

/// Adds what a family has whose layers with a window have heads of their own.
pub(super) fn write_two_kinds(header: &Header, fields: &mut FieldWriter<'_>) {
    let more = &header.features.more;
    if more.full_heads.is_none() {
        return;
    }
    let sizes = [
        (keys::LOCAL_HEAD_DIM, header.head_dim),
        (keys::LOCAL_VALUE_DIM, header.head_dim),
        (keys::LOCAL_ROTARY_DIM, header.head_dim),
        (keys::SHARED_KV, more.n_shared_kv),
        (keys::LAYER_INPUT_DIM, more.layer_input_dim),
    ];
    sizes.into_iter().for_each(|(name, size)| fields.number(name, size));
    fields.float(keys::LOGIT_CAP, more.logit_cap.unwrap_or(0.0));
}
