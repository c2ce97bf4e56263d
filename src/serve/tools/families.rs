//! The marks of families whose templates do not show them.

use std::borrow::Cow::{self, Borrowed};

use super::marks::{Arguments, Marks, Pairs, Values};

/// Hermes 2, Qwen 2.5 and 3, SmolLM3.
pub(super) const HERMES: Marks = Marks {
    sign: Borrowed("<tool_call>"),
    is_whole: false,
    head: Borrowed("\n{\"name\": "),
    quotes_names: true,
    middle: Borrowed(", \"arguments\": "),
    arguments: Arguments::Json,
    tail: None,
    next: Some(Borrowed("}\n</tool_call>\n<tool_call>\n{\"name\": ")),
    end: Borrowed("}\n</tool_call>"),
};

/// Llama 3.1 to 3.3.
pub(super) const LLAMA3: Marks = Marks {
    sign: Borrowed("{\"name\":"),
    is_whole: true,
    head: Borrowed(" "),
    quotes_names: true,
    middle: Borrowed(", \"parameters\": "),
    arguments: Arguments::Json,
    tail: None,
    next: None,
    end: Borrowed("}"),
};

/// Mistral's models of 2024.
pub(super) const MISTRAL: Marks = Marks {
    sign: Borrowed("[TOOL_CALLS]"),
    is_whole: false,
    head: Borrowed(" [{\"name\": "),
    quotes_names: true,
    middle: Borrowed(", \"arguments\": "),
    arguments: Arguments::Json,
    tail: Some(Borrowed(", \"id\": \"\u{1}\"")),
    next: Some(Borrowed("}, {\"name\": ")),
    end: Borrowed("}]"),
};

/// Granite 3, and Phi-4-mini with another token behind the calls.
pub(super) const GRANITE: Marks = Marks {
    sign: Borrowed("<|tool_call|>"),
    is_whole: false,
    head: Borrowed("[{\"name\": "),
    quotes_names: true,
    middle: Borrowed(", \"arguments\": "),
    arguments: Arguments::Json,
    tail: None,
    next: Some(Borrowed("}, {\"name\": ")),
    end: Borrowed("}]"),
};

/// LFM2: calls of Python's functions.
pub(super) const LFM2: Marks = Marks {
    sign: Borrowed("<|tool_call_start|>"),
    is_whole: false,
    head: Borrowed("["),
    quotes_names: false,
    middle: Borrowed("("),
    arguments: Arguments::Pairs(Pairs {
        open: EMPTY,
        equals: [Borrowed("="), Borrowed("=")],
        close: EMPTY,
        comma: Borrowed(", "),
        values: Values::Python,
    }),
    tail: None,
    next: Some(Borrowed("), ")),
    end: Borrowed(")]<|tool_call_end|>"),
};

/// gpt-oss: messages to functions, in a channel of their own.
pub(super) const CHANNELS: Marks = Marks {
    sign: Borrowed(" to=functions."),
    is_whole: false,
    head: EMPTY,
    quotes_names: false,
    middle: Borrowed("<|message|>"),
    arguments: Arguments::Message,
    tail: None,
    next: None,
    end: Borrowed("<|call|>"),
};

const EMPTY: Cow<'static, str> = Borrowed("");
