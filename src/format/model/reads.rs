//! Bytes of weights that decoding one token reads.

use super::header::Header;
use super::kinds::{TensorKind, TensorRole};
use super::tensors::{Tensor, TensorId};
use super::weights::Encoding;

/// Part of a model whose reads are counted together.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum WeightPart {
    /// The row of the token that is embedded.
    Embedding,
    /// Projections of attention, their biases and sinks.
    Attention,
    /// Projections and convolutions of recurrent layers.
    Recurrence,
    /// Feed-forward layers with their biases; in a mixture of experts, its dense layers.
    FeedForward,
    /// Routers of a mixture of experts, with their biases.
    Router,
    /// Experts that a token uses, with their biases.
    Experts,
    /// Norms.
    Norms,
    /// The classifier, which may be the matrix of the embedding.
    Classifier,
}

/// Bytes that a token reads of one part in one encoding.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct WeightRead {
    /// Part of the model.
    pub part: WeightPart,
    /// Encoding of these weights.
    pub encoding: Encoding,
    /// Number of bytes.
    pub bytes: u64,
}

impl WeightPart {
    /// All parts, in the order of a token's way.
    pub const ALL: [WeightPart; 8] = [
        WeightPart::Embedding,
        WeightPart::Attention,
        WeightPart::Recurrence,
        WeightPart::FeedForward,
        WeightPart::Router,
        WeightPart::Experts,
        WeightPart::Norms,
        WeightPart::Classifier,
    ];

    /// Name of the part in tables and messages.
    pub fn name(self) -> &'static str {
        match self {
            WeightPart::Embedding => "embedding",
            WeightPart::Attention => "attention",
            WeightPart::Recurrence => "recurrence",
            WeightPart::FeedForward => "feed-forward",
            WeightPart::Router => "router",
            WeightPart::Experts => "experts in use",
            WeightPart::Norms => "norms",
            WeightPart::Classifier => "classifier",
        }
    }

    /// Name of the part as a key of JSON.
    pub fn key(self) -> &'static str {
        match self {
            WeightPart::FeedForward => "feed_forward",
            WeightPart::Experts => "experts",
            part => part.name(),
        }
    }
}

impl Header {
    /// Bytes of `tensor` that one token needs: of a mixture only the active experts.
    pub fn active_bytes(&self, tensor: &Tensor) -> u64 {
        match self.features.experts {
            Some(experts) if tensor.id.kind.is_per_expert() => {
                tensor.bytes / experts.n as u64 * experts.n_active as u64
            }
            _ => tensor.bytes,
        }
    }

    /// Part of the values of a tensor of `kind` that one token needs: 1, but of a mixture's experts the active ones.
    pub fn active_part(&self, kind: TensorKind) -> f64 {
        let experts = self.features.experts.filter(|_| kind.is_per_expert());
        experts.map_or(1.0, |experts| experts.n_active as f64 / experts.n as f64)
    }

    /// Bytes that decoding one token reads, among the file's tensors for which `is_held` is true. Each is in one part
    /// and one encoding; the parts are in the order of [`WeightPart::ALL`].
    ///
    /// A token reads one row of the embedding, all rows of the classifier, which may be the same matrix, and in a mixture
    /// the active experts. Keys and values of earlier tokens are not weights, and are not counted; nor is the block
    /// behind the last layer, which only drafts read.
    pub fn reads_per_token(&self, is_held: impl Fn(TensorId) -> bool) -> Vec<WeightRead> {
        let mut reads: Vec<WeightRead> = Vec::new();
        let read = |tensor: &Tensor| is_held(tensor.id) && !self.is_of_next(tensor.id);
        for tensor in self.tensors().filter(read) {
            let encoding = self.encoding(tensor.id);
            for (part, bytes) in self.parts_of(&tensor).into_iter().filter(|read| read.1 > 0) {
                let is_same =
                    |read: &&mut WeightRead| read.part == part && read.encoding == encoding;
                match reads.iter_mut().find(is_same) {
                    Some(read) => read.bytes = read.bytes.saturating_add(bytes),
                    None => reads.push(WeightRead { part, encoding, bytes }),
                }
            }
        }
        reads.sort_by_key(|read| read.part as usize);
        reads
    }

    /// Sum of [`Header::reads_per_token`].
    pub fn bytes_per_token(&self, is_held: impl Fn(TensorId) -> bool) -> u64 {
        let read = |tensor: &Tensor| is_held(tensor.id) && !self.is_of_next(tensor.id);
        self.tensors()
            .filter(read)
            .map(|tensor| self.bytes_per_token_of(&tensor))
            .fold(0, u64::saturating_add)
    }

    /// Bytes of `tensor` that decoding one token reads.
    pub fn bytes_per_token_of(&self, tensor: &Tensor) -> u64 {
        self.parts_of(tensor).into_iter().map(|(_, bytes)| bytes).fold(0, u64::saturating_add)
    }

    /// Bytes of `tensor` that a token reads, by the parts that it belongs to.
    fn parts_of(&self, tensor: &Tensor) -> [(WeightPart, u64); 2] {
        let kind = tensor.id.kind;
        let active = self.active_bytes(tensor);
        let is_multiplied = self.is_multiplied(kind);
        match kind.role() {
            TensorRole::Embedding => {
                let row = self.content_bytes(tensor.id) / tensor.rows.max(1) as u64;
                let whole = if is_multiplied { active } else { 0 };
                [(WeightPart::Embedding, row), (WeightPart::Classifier, whole)]
            }
            _ => [(self.part_of(kind), active), (WeightPart::Classifier, 0)],
        }
    }

    /// Part that tensors of `kind` belong to.
    fn part_of(&self, kind: TensorKind) -> WeightPart {
        use TensorKind::*;
        match kind {
            Embedding => WeightPart::Embedding,
            Classifier => WeightPart::Classifier,
            Wq | Wk | Wv | Wo | Bq | Bk | Bv | Bo | Sinks | OutputGate => WeightPart::Attention,
            FullWq | FullWk | FullWv | FullWo => WeightPart::Attention,
            MixIn | MixGate | MixOut | MixControls | MixConv | MixDecay | MixStepBias
            | MixConvBias | MixSkip => WeightPart::Recurrence,
            InputTable => WeightPart::Embedding,
            InputProjection | InputGate | InputOut => WeightPart::FeedForward,
            RouterNorm | ExpertScale => WeightPart::Router,
            TokenType | PositionTable => WeightPart::Embedding,
            PooledIn | PooledOut | NextJoin => WeightPart::FeedForward,
            NextEmbeddingNorm | NextHiddenNorm | NextNorm => WeightPart::Norms,
            EmbeddingNorm | EmbeddingNormBias | AttentionNormBias | FfnNormBias => {
                WeightPart::Norms
            }
            FullQNorm | FullKNorm | LayerScale | InputNorm | InputPostNorm | MixtureNorm
            | MixturePostNorm | DensePostNorm => WeightPart::Norms,
            W1 | W2 | W3 | B1 | B2 | B3 if self.features.experts.is_some() => WeightPart::Experts,
            W1 | W2 | W3 | B1 | B2 | B3 | DenseW1 | DenseW2 | DenseW3 => WeightPart::FeedForward,
            Router | RouterBias | ChoiceBias | SharedGate => WeightPart::Router,
            AttentionNorm | FfnNorm | FinalNorm | QNorm | KNorm | AttentionPostNorm
            | FfnPostNorm | MixNorm => WeightPart::Norms,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::tests::{B2, B2_SIX, Q4, featured, partly_dense, small};
    use super::super::{FileShare, Weights};
    use super::*;

    /// Name of the part, name of the encoding, bytes.
    fn reads(header: &Header) -> Vec<(&'static str, &'static str, u64)> {
        let reads = header.reads_per_token(|_| true);
        assert_eq!(
            reads.iter().map(|read| read.bytes).sum::<u64>(),
            header.bytes_per_token(|_| true)
        );
        reads.iter().map(|read| (read.part.name(), read.encoding.name(), read.bytes)).collect()
    }

    #[test]
    fn parts_of_each_version_are_counted_in_their_encodings() {
        let norms = ("norms", "f32", 4 * (2 * 2 * 64 + 64));
        let of = |weights, encodings: [&'static str; 2], bytes: [u64; 4]| {
            let [ends, layers] = encodings;
            let [embedding, attention, feed_forward, classifier] = bytes;
            let wanted = [
                ("embedding", ends, embedding),
                ("attention", layers, attention),
                ("feed-forward", layers, feed_forward),
                norms,
                ("classifier", ends, classifier),
            ];
            assert_eq!(reads(&small(weights)), wanted);
        };
        // Values: 64 of the embedded row, 2 * 24576 of attention, 2 * 18432 of the feed-forward layers, 40 * 64.
        of(Weights::F32, ["f32", "f32"], [256, 196_608, 147_456, 10_240]);
        of(Weights::Q8 { group: 32 }, ["int8", "int8"], [72, 55_296, 41_472, 2880]);
        of(Q4, ["int8", "BCML1"], [72, 30_720, 23_040, 2880]);
        of(B2, ["int8", "BCML2"], [72, 30_208, 23_040, 2880]);
        of(B2_SIX, ["BCML6", "BCML2"], [56, 30_208, 23_040, 2240]);
    }

    #[test]
    fn shared_classifier_is_read_beside_the_embedded_row() {
        let own = small(Weights::Q8 { group: 32 });
        let shared = Header { shared_classifier: true, ..own.clone() };
        assert_eq!(reads(&shared), reads(&own));
        assert!(shared.tensors().count() < own.tensors().count());
    }

    #[test]
    fn only_experts_in_use_are_counted() {
        // Three of four experts are active.
        let header = featured(Weights::Q8 { group: 32 });
        let found = reads(&header);
        let bytes = |part: &str, encoding: &str| {
            found.iter().find(|read| (read.0, read.1) == (part, encoding)).map(|read| read.2)
        };
        assert_eq!(bytes("experts in use", "int8"), Some(2 * 3 * 3 * 96 * 64 * 9 / 8));
        // Biases of gate and up, 96 values, and of down, 64.
        assert_eq!(bytes("experts in use", "f32"), Some(2 * 3 * (2 * 96 + 64) * 4));
        assert_eq!(bytes("router", "f32"), Some(2 * 4 * (4 * 64 + 4)));
        assert_eq!(bytes("feed-forward", "int8"), None);
        // Biases of queries, keys, values and the output, and a sink for each head.
        assert_eq!(bytes("attention", "f32"), Some(2 * 4 * (128 + 64 + 64 + 64 + 4)));

        let found = reads(&partly_dense(Weights::F32));
        let bytes = |part: &str| found.iter().find(|read| read.0 == part).map(|read| read.2);
        assert_eq!(bytes("feed-forward"), Some(2 * 3 * 160 * 64 * 4));
        assert_eq!(bytes("router"), Some(4 * (4 * 64 + 4)));
    }

    #[test]
    fn shares_of_a_model_read_together_as_much_as_the_whole() {
        let whole = featured(B2);
        let of = |layers, has_ends| {
            let share = FileShare { layers, has_ends, fingerprint: 7, slice: None };
            Header { share: Some(share), ..whole.clone() }.bytes_per_token(|_| true)
        };
        assert_eq!(of(0..1, true) + of(1..2, false), whole.bytes_per_token(|_| true));
    }
}
