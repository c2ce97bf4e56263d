//! The families of models that LEAP runs, a row each.
//!
//! To add one:
//!
//! - a row of [`FAMILIES`], with a function that takes over what only its configurations say;
//! - if its layers compute something else, the case in [`Header::layer`];
//! - for tensors that no other family has, rows of the table in
//!   [`format::model`](crate::format::model) and of [`names`](crate::export::names).
//!
//! A family without a row is refused by its name.

use super::settings::Settings;
use crate::export::error::ExportError;
use crate::format::model::{Architecture, Header};

/// A family, and how checkpoints name it.
pub(super) struct Family {
    pub(super) architecture: Architecture,
    /// `model_type` of a config.json.
    model_type: &'static str,
    /// What stands in `architectures` of a config.json.
    classes: &'static [&'static str],
    /// `general.architecture` of a GGUF file.
    gguf: &'static str,
    configure: fn(&Settings<'_>, &mut Header, &mut Vec<String>) -> Result<(), ExportError>,
}

static FAMILIES: [&Family; 2] = [&LLAMA, &MISTRAL];

static LLAMA: Family = Family {
    architecture: Architecture::Llama,
    model_type: "llama",
    classes: &["LlamaForCausalLM", "LLaMAForCausalLM"],
    gguf: "llama",
    configure: llama,
};

static MISTRAL: Family = Family {
    architecture: Architecture::Mistral,
    model_type: "mistral",
    classes: &["MistralForCausalLM"],
    gguf: "llama",
    configure: mistral,
};

impl Family {
    /// The family whose config.json has this `model_type`.
    pub(super) fn of_type(model_type: &str) -> Option<&'static Family> {
        FAMILIES.into_iter().find(|family| family.model_type == model_type)
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
            Architecture::Mistral => Some(family),
        }
    }

    /// The family of a params.json, which names none.
    pub(super) fn of_params(is_mistral: bool) -> &'static Family {
        if is_mistral { &MISTRAL } else { &LLAMA }
    }

    /// Takes over what only this family's configurations say, and notes what a user should know.
    pub(super) fn configure(
        &self,
        settings: &Settings<'_>,
        header: &mut Header,
        notes: &mut Vec<String>,
    ) -> Result<(), ExportError> {
        header.architecture = self.architecture;
        (self.configure)(settings, header, notes)
    }
}

fn llama(
    settings: &Settings<'_>,
    _: &mut Header,
    notes: &mut Vec<String>,
) -> Result<(), ExportError> {
    if settings.window()?.is_some() {
        notes.push("sliding_window is ignored: Llama has none".to_owned());
    }
    Ok(())
}

fn mistral(
    settings: &Settings<'_>,
    header: &mut Header,
    _: &mut Vec<String>,
) -> Result<(), ExportError> {
    header.sliding_window = settings.window()?;
    Ok(())
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
        }
        assert_eq!(of(Family::of_gguf("llama", false)), Some(Architecture::Llama));
        assert_eq!(of(Family::of_gguf("llama", true)), Some(Architecture::Mistral));
        assert!(Family::of_gguf("mistral", true).is_none() && Family::of_type("qwen2").is_none());
    }
}
