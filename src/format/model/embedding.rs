//! Properties of models of embeddings: vectors of whole texts instead of next tokens.

use crate::format::FormatError;
use crate::format::cursor::Cursor;

/// Length in a file of [`EmbeddingModel`] without prompts.
pub(super) const EMBEDDING_LEN: usize = 32;
/// Longest prompts of a model in all, with their names.
pub const PROMPTS_MAX: usize = 1 << 14;

/// Number of known flags.
const FLAGS: u32 = 6;

/// How the vectors of a text's tokens become one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u32)]
pub enum Pooling {
    /// Their mean.
    Mean = 1,
    /// The first token's.
    First = 2,
    /// The last token's.
    Last = 3,
}

impl Pooling {
    /// All forms.
    pub const ALL: [Pooling; 3] = [Pooling::Mean, Pooling::First, Pooling::Last];

    /// Name of the form: sentence-transformers' in part.
    pub fn name(self) -> &'static str {
        match self {
            Pooling::Mean => "mean",
            Pooling::First => "cls",
            Pooling::Last => "last",
        }
    }

    /// The form called `name`.
    pub fn of_name(name: &str) -> Option<Pooling> {
        Pooling::ALL.into_iter().find(|pooling| pooling.name() == name)
    }
}

/// Properties of a model of embeddings.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct EmbeddingModel {
    /// How a text's vector comes from those of its tokens.
    pub pooling: Pooling,
    /// Whether vectors get the length 1.
    pub is_normalised: bool,
    /// Whether tokens attend to later tokens, too.
    pub is_bidirectional: bool,
    /// Layers like BERT's; `None` for those of language models.
    pub encoder: Option<Encoder>,
    /// Width between the two dense layers behind pooling; 0 if there are none.
    pub dense_dim: usize,
    /// Id before a text.
    pub first: Option<u32>,
    /// Id behind a text.
    pub last: Option<u32>,
    /// Texts that go before a text, by their names. One without a name goes before texts of no named purpose.
    pub prompts: Vec<Prompt>,
}

impl EmbeddingModel {
    /// The text that goes before a text of this purpose, or before any if there is no name; `None` if there is none.
    pub fn prompt(&self, name: Option<&str>) -> Option<&str> {
        let prompt = self.prompts.iter().find(|prompt| prompt.name == name.unwrap_or_default());
        prompt.map(|prompt| prompt.text.as_str())
    }

    /// The purposes that have a prompt.
    pub fn prompt_names(&self) -> Vec<&str> {
        let names = self.prompts.iter().map(|prompt| prompt.name.as_str());
        names.filter(|name| !name.is_empty()).collect()
    }
}

/// Layers like BERT's: LayerNorm behind attention and behind the feed-forward layer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Encoder {
    /// Number of learned positions; 0 if there are none.
    pub n_positions: usize,
    /// Whether the feed-forward layer has a gate.
    pub is_gated: bool,
}

/// A text that goes before a text of some purpose.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Prompt {
    /// Name of the purpose.
    pub name: String,
    /// The text.
    pub text: String,
}

impl EmbeddingModel {
    /// Length in a file.
    pub(super) fn len(&self) -> usize {
        let of = |prompt: &Prompt| 8 + prompt.name.len() + prompt.text.len();
        EMBEDDING_LEN + self.prompts.iter().map(of).sum::<usize>()
    }

    pub(super) fn emit(&self) -> Vec<u8> {
        let flags = [
            self.is_normalised,
            self.is_bidirectional,
            self.encoder.is_some(),
            self.encoder.is_some_and(|encoder| encoder.is_gated),
            self.first.is_some(),
            self.last.is_some(),
        ];
        let flags = flags.iter().rev().fold(0, |all, flag| all << 1 | u32::from(*flag));
        let n_positions = self.encoder.map_or(0, |encoder| encoder.n_positions);
        let fields = [
            self.pooling as u32,
            flags,
            n_positions as u32,
            self.dense_dim as u32,
            self.first.unwrap_or(0),
            self.last.unwrap_or(0),
            self.prompts.len() as u32,
            0,
        ];
        let mut out: Vec<u8> = fields.iter().flat_map(|field| field.to_le_bytes()).collect();
        for text in self.prompts.iter().flat_map(|prompt| [&prompt.name, &prompt.text]) {
            out.extend((text.len() as u32).to_le_bytes());
            out.extend(text.as_bytes());
        }
        out
    }

    /// Reads what [`EmbeddingModel::emit`] writes; unknown bytes show when the block is emitted again.
    pub(super) fn parse(r: &mut Cursor<'_>) -> Result<EmbeddingModel, FormatError> {
        let unsupported = |what: String| Err(FormatError::Unsupported(what));
        let id = r.u32("pooling")?;
        let Some(pooling) = Pooling::ALL.into_iter().find(|of| *of as u32 == id) else {
            return unsupported(format!("pooling {id}"));
        };
        let flags = r.u32("flags of embeddings")?;
        if flags >> FLAGS != 0 {
            return unsupported(format!("flags {flags:#x} of embeddings"));
        }
        let is = |bit: u32| flags >> bit & 1 == 1;
        let n_positions = r.u32("number of positions")? as usize;
        let dense_dim = r.u32("width of dense layers behind pooling")? as usize;
        let (first, last) = (r.u32("first id of texts")?, r.u32("last id of texts")?);
        let n_prompts = r.u32("number of prompts")? as usize;
        r.take("zeros", 4)?;
        if n_prompts > PROMPTS_MAX / 8 {
            return unsupported(format!("{n_prompts} prompts of embeddings"));
        }
        let mut prompts = Vec::new();
        for _ in 0..n_prompts {
            let (name, text) = (parse_text(r)?, parse_text(r)?);
            prompts.push(Prompt { name, text });
        }
        Ok(EmbeddingModel {
            pooling,
            is_normalised: is(0),
            is_bidirectional: is(1),
            encoder: is(2).then_some(Encoder { n_positions, is_gated: is(3) }),
            dense_dim,
            first: is(4).then_some(first),
            last: is(5).then_some(last),
            prompts,
        })
    }
}

fn parse_text(r: &mut Cursor<'_>) -> Result<String, FormatError> {
    let len = r.u32("length of a prompt")? as usize;
    let bytes = r.take("prompt", len)?;
    let text = std::str::from_utf8(bytes);
    text.map(str::to_owned)
        .map_err(|_| FormatError::Unsupported("a prompt of embeddings that is not UTF-8".into()))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn model() -> EmbeddingModel {
        let prompt = |name: &str, text: &str| Prompt { name: name.into(), text: text.into() };
        EmbeddingModel {
            pooling: Pooling::Mean,
            is_normalised: true,
            is_bidirectional: true,
            encoder: Some(Encoder { n_positions: 512, is_gated: false }),
            dense_dim: 96,
            first: Some(101),
            last: None,
            prompts: vec![prompt("query", "query: "), prompt("ümlaut", "")],
        }
    }

    #[test]
    fn emitted_properties_are_read_back_and_every_truncation_is_refused() {
        let bytes = model().emit();
        assert_eq!(bytes.len(), model().len());
        assert_eq!(EmbeddingModel::parse(&mut Cursor::new(&bytes)).unwrap(), model());
        for len in 0..bytes.len() {
            assert!(EmbeddingModel::parse(&mut Cursor::new(&bytes[..len])).is_err(), "{len}");
        }
    }

    #[test]
    fn unknown_pooling_flags_and_counts_are_refused() {
        for (at, value) in [(0, 0u32), (0, 4), (4, 1 << 6), (24, u32::MAX), (32, u32::MAX)] {
            let mut bytes = model().emit();
            bytes[at..at + 4].copy_from_slice(&value.to_le_bytes());
            assert!(EmbeddingModel::parse(&mut Cursor::new(&bytes)).is_err(), "{at}: {value}");
        }
    }
}
