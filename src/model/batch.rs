//! The input of a pass: tokens, and their positions in their streams.

use std::fmt;
use std::ops::Range;

use super::plan::Plan;

/// Which rows of a span want logits.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Wants {
    /// No row.
    None,
    /// The last row.
    Last,
    /// All rows.
    All,
}

/// Use of the checkpoints of states by a span. Both are numbers of checkpoints.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct StateUse {
    /// The checkpoint that the span continues; `None` if it continues the stream's own state, or begins a text.
    pub from: Option<u32>,
    /// The checkpoint to keep the state in that follows the span's last row.
    pub to: Option<u32>,
}

/// Rows of a batch that are consecutive positions of one stream.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Span {
    /// Stream whose KV cache the rows read and extend.
    pub stream: usize,
    /// Position of the first row. All earlier positions have been through a pass, or come before it in the
    /// same batch.
    pub pos: usize,
    /// Number of rows.
    pub n_rows: usize,
    /// Rows whose logits are wanted.
    pub wants: Wants,
    /// Whether the text is a long one, which has other RoPE divisors
    /// ([`Features::long_rope`](crate::format::model::Features::long_rope)).
    pub is_long: bool,
    /// Checkpoints of the stream's state, in models with recurrent layers.
    pub state: StateUse,
}

impl Span {
    /// A span of no rows.
    pub const EMPTY: Span = Span {
        stream: 0,
        pos: 0,
        n_rows: 0,
        wants: Wants::None,
        is_long: false,
        state: StateUse { from: None, to: None },
    };

    /// Number of rows that want logits.
    pub fn n_wanted(&self) -> usize {
        self.wanted().len()
    }

    /// Positions of the rows.
    pub(super) fn positions(&self) -> Range<usize> {
        self.pos..self.pos + self.n_rows
    }

    /// Rows that want logits, counted from the span's first.
    fn wanted(&self) -> Range<usize> {
        let start = match self.wants {
            Wants::None => self.n_rows,
            Wants::Last => self.n_rows.saturating_sub(1),
            Wants::All => 0,
        };
        start..self.n_rows
    }
}

/// Tokens of a pass, and their spans in the same order.
#[derive(Debug, Default)]
pub struct Batch {
    spans: Vec<Span>,
    tokens: Vec<u32>,
}

impl Batch {
    /// An empty batch with room for `max_batch` rows.
    pub fn with_capacity(max_batch: usize) -> Batch {
        Batch { spans: Vec::with_capacity(max_batch), tokens: Vec::with_capacity(max_batch) }
    }

    /// Empties the batch.
    pub fn clear(&mut self) {
        self.spans.clear();
        self.tokens.clear();
    }

    /// Appends the rows of `span`, whose ids are `tokens`.
    ///
    /// # Panics
    /// If the number of tokens is not that of the span's rows.
    pub fn push(&mut self, span: Span, tokens: &[u32]) {
        assert_eq!(span.n_rows, tokens.len());
        self.spans.push(span);
        self.tokens.extend_from_slice(tokens);
    }

    /// The spans, in the order of their rows.
    pub fn spans(&self) -> &[Span] {
        &self.spans
    }

    /// Ids of all rows.
    pub fn tokens(&self) -> &[u32] {
        &self.tokens
    }

    /// Checks whether a model with a vocabulary of `vocab_size` ids can compute the batch with `plan`.
    ///
    /// # Errors
    /// The first limit that is exceeded.
    pub fn check(&self, plan: &Plan, vocab_size: usize) -> Result<(), ForwardError> {
        check_spans(&self.spans, plan)?;
        match self.tokens.iter().find(|id| **id as usize >= vocab_size) {
            Some(&id) => Err(ForwardError::Token { id, vocab_size }),
            None => Ok(()),
        }
    }

    /// Number of rows that want logits.
    pub fn n_wanted(&self) -> usize {
        self.spans.iter().map(Span::n_wanted).sum()
    }
}

/// Why a batch was not computed.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum ForwardError {
    /// The id is not in the vocabulary.
    Token {
        /// The id.
        id: u32,
        /// Ids below this exist.
        vocab_size: usize,
    },
    /// A position lies outside the context.
    ContextFull {
        /// Length of the context.
        ctx_len: usize,
    },
    /// More rows, wanted logits or streams than planned.
    Plan,
    /// The state that a stream should continue is not there.
    State {
        /// Index of the stream.
        stream: usize,
        /// Number of tokens before the state.
        pos: usize,
    },
    /// The user ended the work.
    Interrupted,
    /// Parts of other nodes of the team did not arrive.
    Gather(GatherError),
    /// A device beside the CPUs failed, for this reason.
    Device(String),
}

impl fmt::Display for ForwardError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            ForwardError::Token { id, vocab_size } => {
                write!(f, "token id {id} is not below the vocabulary's size {vocab_size}")
            }
            ForwardError::ContextFull { ctx_len } => {
                write!(f, "the context of {ctx_len} tokens is full")
            }
            ForwardError::Plan => write!(f, "the batch is larger than planned"),
            ForwardError::State { stream, pos } => {
                write!(f, "stream {stream} has no state behind {pos} tokens")
            }
            ForwardError::Interrupted => write!(f, "interrupted"),
            ForwardError::Gather(error) => error.fmt(f),
            ForwardError::Device(why) => f.write_str(why),
        }
    }
}

impl std::error::Error for ForwardError {}

/// Why a team's pass failed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum GatherError {
    /// This node of the team is lost.
    Lost {
        /// Index of the node; the lead is 0.
        node: usize,
    },
    /// The lead has started a new team.
    Superseded,
}

impl fmt::Display for GatherError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            GatherError::Lost { node } => write!(f, "node {node} of the team is lost"),
            GatherError::Superseded => f.write_str("the team's lead has begun anew"),
        }
    }
}

impl std::error::Error for GatherError {}

/// Checks whether the rows of `spans` fit `plan`.
///
/// # Errors
/// The first limit that is exceeded.
pub fn check_spans(spans: &[Span], plan: &Plan) -> Result<(), ForwardError> {
    let sum = |count: fn(&Span) -> usize| spans.iter().map(count).fold(0, usize::saturating_add);
    let (n_rows, n_wanted) = (sum(|span| span.n_rows), sum(Span::n_wanted));
    let has_stream = |span: &Span| span.stream < plan.n_streams;
    if n_rows > plan.max_batch || n_wanted > plan.max_logits || !spans.iter().all(has_stream) {
        return Err(ForwardError::Plan);
    }
    let is_inside = |span: &Span| span.n_rows <= plan.ctx_len.saturating_sub(span.pos);
    match spans.iter().all(is_inside) {
        true => Ok(()),
        false => Err(ForwardError::ContextFull { ctx_len: plan.ctx_len }),
    }
}

/// The rows of a batch of `spans` that want logits.
pub(super) fn wanted_rows(spans: &[Span]) -> impl Iterator<Item = usize> {
    let mut end = 0;
    spans.iter().flat_map(move |span| {
        let start = end;
        end += span.n_rows;
        span.wanted().map(move |row| start + row)
    })
}

/// The span of a batch that has row `row`, and the row's position; `None` if there is none.
pub(super) fn position(spans: &[Span], row: usize) -> Option<(&Span, usize)> {
    let mut first = 0;
    spans.iter().find_map(|span| {
        let index = row - first;
        first += span.n_rows;
        (row < first).then_some((span, span.pos + index))
    })
}

/// The parts of `spans` that contain rows `rows` of their batch.
pub(super) fn part(spans: &[Span], rows: Range<usize>) -> impl Iterator<Item = Span> {
    let mut end = 0;
    let cut = move |span: &Span| {
        let start = end;
        end += span.n_rows;
        let (first, last) = (rows.start.clamp(start, end), rows.end.clamp(start, end));
        Span { pos: span.pos + (first - start), n_rows: last - first, ..*span }
    };
    spans.iter().map(cut).filter(|span| span.n_rows > 0)
}

#[cfg(test)]
mod tests {
    use super::*;

    const SPANS: [Span; 4] = [
        Span { stream: 3, pos: 5, n_rows: 2, wants: Wants::Last, ..Span::EMPTY },
        Span { stream: 70_000, pos: 0, n_rows: 4, wants: Wants::None, ..Span::EMPTY },
        Span { stream: 0, pos: 9, n_rows: 0, wants: Wants::Last, ..Span::EMPTY },
        Span { stream: 3, pos: 7, n_rows: 3, wants: Wants::All, ..Span::EMPTY },
    ];

    #[test]
    fn wanted_rows_are_counted_over_all_spans() {
        assert_eq!(wanted_rows(&SPANS).collect::<Vec<_>>(), [1, 6, 7, 8]);
        assert_eq!(SPANS.map(|span| span.n_wanted()), [1, 0, 0, 3]);
    }

    #[test]
    fn a_part_of_a_batch_holds_the_rows_asked_for() {
        let places = |spans: &mut dyn Iterator<Item = Span>| -> Vec<(usize, usize)> {
            spans.flat_map(|span| span.positions().map(move |pos| (span.stream, pos))).collect()
        };
        let all = places(&mut SPANS.into_iter());
        for start in 0..=all.len() {
            for end in start..=all.len() {
                let part = places(&mut part(&SPANS, start..end));
                assert_eq!(part, all[start..end], "{start}..{end}");
            }
        }
    }
}
