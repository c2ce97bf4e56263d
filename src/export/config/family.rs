//! The families of models that LEAP runs, a row each.
//!
//! To add one:
//!
//! - a row of [`FAMILIES`], with a function that takes over what only its configurations say;
//! - if its layers compute what no other family's do, a field of
//!   [`Features`](crate::format::model::Features) and the case in [`Header::layer`];
//! - for tensors that no other family has, rows of the table in
//!   [`format::model`](crate::format::model) and of [`names`](crate::export::names).
//!
//! A family without a row is refused by its name.

mod configure;
mod encoders;
mod gemma4;
mod granite4;
mod recurrent;

use self::configure::*;
use self::encoders::{NOMIC_NAMES, bert, nomic};
use self::gemma4::gemma4;
use self::granite4::granite4;
use self::recurrent::*;
use super::gguf_keys as keys;
use super::model::Extras;
use super::settings::Settings;
use crate::export::error::ExportError;
use crate::format::model::{Architecture, Features, Header};

pub(super) use self::configure::{GRANITE_SCALES, TEMPERATURE, WINDOW_PATTERN};

/// A family, and how checkpoints name it.
pub(super) struct Family {
    pub(super) architecture: Architecture,
    /// `model_type` of a config.json.
    model_type: &'static str,
    /// `model_type` of a vision-language model that has this one as its `text_config`; or empty.
    wrapper: &'static str,
    /// Names in `architectures` of a config.json.
    classes: &'static [&'static str],
    /// `general.architecture` of a GGUF file.
    gguf: &'static str,
    /// Settings that only some families may have, because [`Family::configure`] handles them.
    allows: &'static [&'static str],
    /// Sizes for a config.json that leaves them out.
    pub(super) defaults: &'static [(&'static str, usize)],
    /// Names of settings in this family's config.json, behind the names that others have for them.
    pub(super) aliases: &'static [(&'static str, &'static str)],
    /// Base of the RoPE frequencies if a config.json does not say it.
    pub(super) rope_theta: f64,
    configure: Configure,
}

type Configure = fn(&Settings<'_>, &mut Header, &mut Extras) -> Result<(), ExportError>;

static FAMILIES: [&Family; 21] = [
    &LLAMA,
    &INTERNLM,
    &MISTRAL,
    &QWEN2,
    &QWEN3,
    &QWEN3_MOE,
    &SMOLLM3,
    &GRANITE,
    &GEMMA3,
    &GEMMA_EMBEDDING,
    &PHI3,
    &GPT_OSS,
    &GRANITE4,
    &MINISTRAL3,
    &LFM2,
    &LFM2_MOE,
    &QWEN35,
    &QWEN35_MOE,
    &GEMMA4,
    &BERT,
    &NOMIC_BERT,
];

static LLAMA: Family = LIKE_LLAMA;

const LIKE_LLAMA: Family = Family {
    architecture: Architecture::Llama,
    model_type: "llama",
    wrapper: "",
    classes: &["LlamaForCausalLM", "LLaMAForCausalLM"],
    gguf: "llama",
    allows: &[],
    defaults: &[],
    aliases: &[],
    rope_theta: 10_000.0,
    configure: llama,
};

/// Llama with biases of attention, by another name.
static INTERNLM: Family = Family {
    model_type: "internlm",
    classes: &["InternLMForCausalLM"],
    configure: internlm,
    ..LIKE_LLAMA
};

static MISTRAL: Family = Family {
    architecture: Architecture::Mistral,
    model_type: "mistral",
    classes: &["MistralForCausalLM"],
    configure: mistral,
    ..LIKE_LLAMA
};

static QWEN2: Family = Family {
    architecture: Architecture::Qwen2,
    model_type: "qwen2",
    classes: &["Qwen2ForCausalLM"],
    gguf: "qwen2",
    configure: qwen2,
    ..LIKE_LLAMA
};

static QWEN3: Family = Family {
    architecture: Architecture::Qwen3,
    model_type: "qwen3",
    classes: &["Qwen3ForCausalLM", "Qwen3Model"],
    gguf: "qwen3",
    defaults: &[("head_dim", 128)],
    configure: qwen3,
    ..LIKE_LLAMA
};

static QWEN3_MOE: Family = Family {
    architecture: Architecture::Qwen3Moe,
    model_type: "qwen3_moe",
    classes: &["Qwen3MoeForCausalLM"],
    gguf: "qwen3moe",
    allows: &["num_experts", "num_local_experts", keys::EXPERTS, keys::LEADING_DENSE],
    configure: qwen3_moe,
    ..LIKE_LLAMA
};

static SMOLLM3: Family = Family {
    architecture: Architecture::SmolLm3,
    model_type: "smollm3",
    classes: &["SmolLM3ForCausalLM"],
    gguf: "smollm3",
    rope_theta: 2e6,
    configure: smollm3,
    ..LIKE_LLAMA
};

static GRANITE: Family = Family {
    architecture: Architecture::Granite,
    model_type: "granite",
    classes: &["GraniteForCausalLM"],
    gguf: "granite",
    allows: &["logit_scale", "residual_scale", "embedding_scale", "attention.scale"],
    configure: granite,
    ..LIKE_LLAMA
};

static GEMMA3: Family = Family {
    architecture: Architecture::Gemma3,
    model_type: "gemma3_text",
    wrapper: "gemma3",
    classes: &["Gemma3ForCausalLM"],
    gguf: "gemma3",
    allows: &["hidden_act"],
    defaults: &[
        ("head_dim", 256),
        ("num_attention_heads", 8),
        ("num_key_value_heads", 4),
        ("vocab_size", 262_208),
        ("max_position_embeddings", 131_072),
    ],
    rope_theta: 1e6,
    configure: gemma3,
    ..LIKE_LLAMA
};

/// EmbeddingGemma's name in GGUF files; a config.json calls it Gemma 3.
static GEMMA_EMBEDDING: Family = Family {
    gguf: "gemma-embedding",
    classes: &["Gemma3TextModel"],
    allows: &["hidden_act", keys::CAUSAL],
    configure: gemma_embedding,
    ..GEMMA3
};

static BERT: Family = Family {
    architecture: Architecture::Bert,
    model_type: "bert",
    classes: &["BertModel", "BertForMaskedLM", "BertForPreTraining"],
    gguf: "bert",
    allows: &["hidden_act", keys::CAUSAL],
    configure: bert,
    ..LIKE_LLAMA
};

static NOMIC_BERT: Family = Family {
    architecture: Architecture::NomicBert,
    model_type: "nomic_bert",
    classes: &["NomicBertModel"],
    gguf: "nomic-bert",
    allows: &[keys::CAUSAL, "num_experts"],
    aliases: NOMIC_NAMES,
    rope_theta: 1000.0,
    configure: nomic,
    ..LIKE_LLAMA
};

static PHI3: Family = Family {
    architecture: Architecture::Phi3,
    model_type: "phi3",
    classes: &["Phi3ForCausalLM"],
    gguf: "phi3",
    allows: &["partial_rotary_factor", keys::ROTARY_DIM],
    configure: phi3,
    ..LIKE_LLAMA
};

static GPT_OSS: Family = Family {
    architecture: Architecture::GptOss,
    model_type: "gpt_oss",
    classes: &["GptOssForCausalLM"],
    gguf: "gpt-oss",
    allows: &["num_local_experts", keys::EXPERTS, "mxfp4"],
    rope_theta: 150_000.0,
    configure: gpt_oss,
    ..LIKE_LLAMA
};

/// Granite 4. GGUF files of models without Mamba layers are those of Granite.
static GRANITE4: Family = Family {
    architecture: Architecture::Granite4,
    model_type: "granitemoehybrid",
    classes: &["GraniteMoeHybridForCausalLM"],
    gguf: "granitehybrid",
    allows: &[
        "logit_scale",
        "residual_scale",
        "embedding_scale",
        "attention.scale",
        keys::KV_HEADS,
        "num_local_experts",
        keys::EXPERTS,
    ],
    configure: granite4,
    ..LIKE_LLAMA
};

static MINISTRAL3: Family = Family {
    architecture: Architecture::Mistral,
    model_type: "ministral3",
    wrapper: "mistral3",
    classes: &["Ministral3ForCausalLM"],
    gguf: "mistral3",
    allows: &["llama_4_scaling_beta", "attention.temperature_scale", YARN_LOG_MULTIPLIER],
    configure: ministral3,
    ..LIKE_LLAMA
};

static GEMMA4: Family = Family {
    architecture: Architecture::Gemma4,
    model_type: "gemma4_text",
    wrapper: "gemma4",
    classes: &["Gemma4ForCausalLM"],
    gguf: "gemma4",
    allows: &[
        "hidden_act",
        "num_experts",
        "proportional",
        keys::EXPERTS,
        keys::LOGIT_CAP,
        keys::KV_HEADS,
    ],
    defaults: &[("head_dim", 256), ("global_head_dim", 512)],
    rope_theta: 1e6,
    configure: gemma4,
    ..LIKE_LLAMA
};

/// Setting of GGUF files that takes back YaRN's factor of cosines and sines.
pub(super) const YARN_LOG_MULTIPLIER: &str = "rope.scaling.yarn_log_multiplier";

static LFM2: Family = Family {
    architecture: Architecture::Lfm2,
    model_type: "lfm2",
    classes: &["Lfm2ForCausalLM"],
    gguf: "lfm2",
    allows: &[keys::KV_HEADS],
    rope_theta: 1e6,
    configure: lfm2,
    ..LIKE_LLAMA
};

static LFM2_MOE: Family = Family {
    model_type: "lfm2_moe",
    classes: &["Lfm2MoeForCausalLM"],
    gguf: "lfm2moe",
    allows: &[keys::KV_HEADS, "num_experts", keys::EXPERTS, keys::LEADING_DENSE],
    configure: lfm2_moe,
    ..LFM2
};

static QWEN35_MOE: Family = Family {
    model_type: "qwen3_5_moe_text",
    wrapper: "qwen3_5_moe",
    classes: &["Qwen3_5MoeForCausalLM"],
    gguf: "qwen35moe",
    allows: &[
        "partial_rotary_factor",
        keys::ROTARY_DIM,
        "num_experts",
        keys::EXPERTS,
        "expert_shared_count",
    ],
    configure: qwen35_moe,
    ..QWEN35
};

static QWEN35: Family = Family {
    architecture: Architecture::Qwen35,
    model_type: "qwen3_5_text",
    wrapper: "qwen3_5",
    classes: &["Qwen3_5ForCausalLM"],
    gguf: "qwen35",
    allows: &["partial_rotary_factor", keys::ROTARY_DIM],
    defaults: &[("head_dim", 256)],
    rope_theta: 1e7,
    configure: qwen35,
    ..LIKE_LLAMA
};

impl Family {
    /// The family whose config.json has this `model_type`.
    pub(super) fn of_type(model_type: &str) -> Option<&'static Family> {
        FAMILIES.into_iter().find(|family| family.model_type == model_type)
    }

    /// Whether a config.json of this `model_type` has a family's as its `text_config`.
    pub(super) fn is_wrapper(model_type: &str) -> bool {
        !model_type.is_empty() && FAMILIES.into_iter().any(|family| family.wrapper == model_type)
    }

    /// The family whose config.json has this class among its `architectures`.
    pub(super) fn of_class(class: &str) -> Option<&'static Family> {
        FAMILIES.into_iter().find(|family| family.classes.contains(&class))
    }

    /// The family of a GGUF file of this `general.architecture`. Mistral's files say llama, and
    /// have a window.
    pub(super) fn of_gguf(architecture: &str, has_window: bool) -> Option<&'static Family> {
        let family = FAMILIES.into_iter().find(|family| family.gguf == architecture)?;
        match family.architecture {
            Architecture::Llama => Some(Family::of_params(has_window)),
            _ => Some(family),
        }
    }

    /// Names of the families in GGUF files, or in config.json files, for messages.
    pub(super) fn names(in_gguf: bool) -> String {
        let name = |family: &Family| if in_gguf { family.gguf } else { family.model_type };
        let mut names = FAMILIES.map(name).to_vec();
        names.dedup();
        names.join(", ")
    }

    /// The family of a model of `header` in GGUF files. They call Granite 4 without recurrent layers and experts
    /// Granite.
    pub(super) fn written(header: &Header) -> Option<&'static Family> {
        let Features { recurrent, experts, .. } = &header.features;
        let is_plain = recurrent.is_none() && experts.is_none();
        match header.architecture {
            Architecture::Granite4 if is_plain => Some(&GRANITE),
            Architecture::Gemma3 if header.is_bidirectional() => Some(&GEMMA_EMBEDDING),
            _ => Family::of_header(header),
        }
    }

    /// The family of a model of `header`. Only Ministral 3 has a temperature, and of two families of one architecture
    /// the second one has experts.
    fn of_header(header: &Header) -> Option<&'static Family> {
        let is_one = |family: &&Family| family.architecture == header.architecture;
        let has_experts = |family: &&Family| is_one(family) && family.allows(keys::EXPERTS);
        let of_mixture =
            header.features.experts.and_then(|_| FAMILIES.into_iter().find(has_experts));
        match header.features.temperature {
            Some(_) => Some(&MINISTRAL3),
            None => of_mixture.or_else(|| FAMILIES.into_iter().find(is_one)),
        }
    }

    /// Name in a config.json of the family of a model of `header`.
    pub(super) fn name_of(header: &Header) -> &'static str {
        match Family::of_header(header) {
            Some(family) => family.model_type,
            None => "this family",
        }
    }

    /// `general.architecture` of this family's GGUF files.
    pub(super) fn in_gguf(&self) -> &'static str {
        self.gguf
    }

    /// The family of a params.json, which names none.
    pub(super) fn of_params(is_mistral: bool) -> &'static Family {
        if is_mistral { &MISTRAL } else { &LLAMA }
    }

    /// Whether models of this family are encoders like BERT.
    pub(super) fn is_encoder(&self) -> bool {
        matches!(self.architecture, Architecture::Bert | Architecture::NomicBert)
    }

    /// Whether this family may have the setting `name`, which others may not.
    pub(super) fn allows(&self, name: &str) -> bool {
        self.allows.contains(&name)
    }

    /// Takes over what only this family's configurations say, and notes what a user should know.
    pub(super) fn configure(
        &self,
        settings: &Settings<'_>,
        header: &mut Header,
        extras: &mut Extras,
    ) -> Result<(), ExportError> {
        header.architecture = self.architecture;
        (self.configure)(settings, header, extras)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_name_leads_to_its_family_and_no_other_to_any() {
        let of = |found: Option<&Family>| found.map(|family| family.architecture);
        for family in FAMILIES {
            let wanted = Some(family.architecture);
            assert_eq!(of(Family::of_type(family.model_type)), wanted);
            assert!(family.classes.iter().all(|class| of(Family::of_class(class)) == wanted));
            if family.gguf != "llama" {
                assert_eq!(of(Family::of_gguf(family.gguf, false)), wanted);
            }
        }
        assert_eq!(of(Family::of_gguf("llama", false)), Some(Architecture::Llama));
        assert_eq!(of(Family::of_gguf("llama", true)), Some(Architecture::Mistral));
        assert!(Family::of_gguf("mistral", true).is_none() && Family::of_type("gemma2").is_none());
        assert!(Family::of_gguf("", false).is_none());
    }
}
