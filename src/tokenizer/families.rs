//! The chat templates that have names, as data: a family is a row of [`family`].
//!
//! ```text
//! llama2      <s>[INST] <<SYS>>↵S↵<</SYS>>↵↵U [/INST] A </s><s>[INST] U [/INST]
//! mistral-v1  <s>[INST] S↵↵U [/INST] A</s> [INST] U [/INST]
//! mistral-v3  <s>[INST] S↵↵U[/INST] A</s>[AVAILABLE_TOOLS] T[/AVAILABLE_TOOLS][INST] U[/INST]
//!             [TOOL_CALLS] C</s>[TOOL_RESULTS] R[/TOOL_RESULTS]
//! zephyr      <s><|system|>↵S</s>↵<|user|>↵U</s>↵<|assistant|>↵A</s>↵
//! none        S↵U↵A↵
//! llama3      <|start_header_id|>R<|end_header_id|>↵↵S<|eot_id|>         (no line breaks between)
//!             with tools the system's begins with: Environment: ipython↵   (R of results: ipython)
//! chatml      <|im_start|>R↵S<|im_end|>↵
//! qwen3       the same; answers lose what stands before the last </think>
//! smollm3     the same, but for the system: <|im_start|>system↵ HEAD S TAIL
//! granite     <|start_of_role|>R<|end_of_role|>S<|end_of_text|>↵
//! gemma       <start_of_turn>user↵S↵↵U<end_of_turn>↵<start_of_turn>model↵A<end_of_turn>↵
//! phi3        <|R|>↵S<|end|>↵                                     (phi4: no line breaks)
//! harmony     HEAD<|start|>developer<|message|># Instructions↵↵S TAIL<|end|>
//!             <|start|>user<|message|>U<|end|><|start|>assistant<|channel|>final<|message|>A<|end|>
//! ```
//!
//! HEAD, TAIL and what stands for a missing system text come from the checkpoint's template
//! ([`ChatTexts`](crate::format::ChatTexts)), in all families whose turns stand between markers.

use crate::format::ChatTemplate;

/// Signs in a family's texts.
pub(super) mod sign {
    /// The model's token at the beginning of texts, if it has one.
    pub(in super::super) const BOS: char = '\u{f8f0}';
    /// The model's token at the end of texts.
    pub(in super::super) const EOS: char = '\u{f8f1}';
    /// The text behind it becomes tokens as if nothing stood before it.
    pub(in super::super) const NEW: char = '\u{f8f2}';
    /// The text behind it becomes tokens by itself, but goes on with the text before it.
    pub(in super::super) const ON: char = '\u{f8f3}';
    pub(in super::super) const ALL: [char; 4] = [BOS, EOS, NEW, ON];
}

/// Texts of a family around the messages of a conversation. Special tokens are named in them. Where turns do not stand
/// between markers, they have signs of [`sign`], too.
pub(super) struct Family {
    /// Special tokens that the vocabulary has to have. The last one ends an answer, unless [`sign::EOS`] does.
    pub(super) markers: &'static [&'static str],
    pub(super) system: System,
    pub(super) user: User,
    pub(super) answer: Answer,
    pub(super) tools: Tools,
}

/// Texts around the system's text.
pub(super) struct System {
    pub(super) place: Place,
    /// Around the first one and what the checkpoint adds to it, or before and behind it in the user's turn.
    pub(super) around: [&'static str; 2],
    /// Around one to which nothing is added.
    pub(super) alone: [&'static str; 2],
    /// Words in it that choose how the model answers.
    pub(super) words: Option<Words>,
    /// Whether the checkpoint's own texts are needed.
    pub(super) needs_texts: bool,
}

/// Place of the system's text.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Place {
    /// It has a turn of its own.
    Turn,
    /// It has a turn of its own, behind another one for what the checkpoint adds.
    Behind,
    /// A user's turn carries it.
    User,
}

/// Words in a system's text that choose how the model answers. They are taken out of it, with white space at its end; an
/// empty rest is left out.
#[derive(Clone, Copy)]
pub(super) struct Words {
    pub(super) think: &'static str,
    pub(super) no_think: &'static str,
    /// Nothing is added to the text.
    pub(super) alone: &'static str,
}

/// Texts around a user's text.
pub(super) struct User {
    /// Before the first turn of a conversation, and before others.
    pub(super) before: [&'static str; 2],
    pub(super) around: [&'static str; 2],
    pub(super) trims: Trims,
}

/// Texts that lose white space at both ends.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Trims {
    Nothing,
    /// A user's texts.
    User,
    /// The texts of user and system.
    All,
    /// A turn's text, with the system's if it carries that, and results.
    Turn,
}

/// Texts around an answer.
pub(super) struct Answer {
    /// Before an answer that begins the conversation, and before others.
    pub(super) before: [&'static str; 2],
    pub(super) around: [&'static str; 2],
    /// Text behind which the model writes its answer.
    pub(super) prompt: &'static str,
    /// Before the beginning of an answer that is to go on.
    pub(super) begun: &'static str,
    /// Behind the prompt, if the model should not think.
    pub(super) quiet: &'static str,
    pub(super) loses: Loses,
    pub(super) thoughts: Thinks,
    /// Tokens after which an answer is over, if they are others than the last marker.
    pub(super) stops: Option<&'static [&'static str]>,
}

/// Parts that an answer loses once another message follows.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Loses {
    Nothing,
    /// White space at both ends.
    White,
    /// Spaces at its end.
    Spaces,
    /// Line breaks at its start.
    Breaks,
    /// Thoughts, and line breaks behind them.
    Thoughts,
}

/// Marks of a model's thoughts.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Thinks {
    Never,
    /// `<think>` and `</think>`.
    InTags,
    /// Channels. The last marker ends one of them, and the next one follows.
    InChannels,
}

/// Texts around tools.
pub(super) struct Tools {
    /// Special tokens without which tools have no texts of their own.
    pub(super) markers: &'static [&'static str],
    /// Around their description, which otherwise stands before the user's text in its turn.
    pub(super) around: Option<[&'static str; 2]>,
    /// At the start of the system's turn.
    pub(super) system: &'static str,
    /// Before calls, if not the same as before other answers.
    pub(super) calls: Option<&'static str>,
    /// Around a result, if not the same as around a user's text.
    pub(super) result: Option<[&'static str; 2]>,
}

const NO_TOOLS: Tools = Tools { markers: &[], around: None, system: "", calls: None, result: None };

/// A family whose turns stand between markers.
const fn marked(
    markers: &'static [&'static str],
    [system, user, assistant]: [[&'static str; 2]; 3],
) -> Family {
    Family {
        markers,
        system: System {
            place: Place::Turn,
            around: system,
            alone: system,
            words: None,
            needs_texts: false,
        },
        user: User { before: ["", ""], around: user, trims: Trims::Nothing },
        answer: Answer {
            before: ["", ""],
            around: assistant,
            prompt: assistant[0],
            begun: "",
            quiet: "",
            loses: Loses::Nothing,
            thoughts: Thinks::Never,
            stops: None,
        },
        tools: NO_TOOLS,
    }
}

/// A family in which a user's turn carries the system's text, and the end token ends answers.
const fn plain(
    markers: &'static [&'static str],
    [system, user]: [[&'static str; 2]; 2],
    (between, close, loses): (&'static str, &'static str, Loses),
) -> Family {
    let marked = marked(markers, [system, user, ["", close]]);
    Family {
        system: System { place: Place::User, ..marked.system },
        user: User { before: ["\u{f8f2}", between], ..marked.user },
        answer: Answer { before: ["\u{f8f2}", "\u{f8f2}"], loses, ..marked.answer },
        ..marked
    }
}

const CHATML: Family = marked(
    &["<|im_start|>", "<|im_end|>"],
    [
        ["<|im_start|>system\n", "<|im_end|>\n"],
        ["<|im_start|>user\n", "<|im_end|>\n"],
        ["<|im_start|>assistant\n", "<|im_end|>\n"],
    ],
);
const QWEN3: Family = Family {
    answer: Answer {
        quiet: "<think>\n\n</think>\n\n",
        loses: Loses::Thoughts,
        thoughts: Thinks::InTags,
        ..CHATML.answer
    },
    ..CHATML
};
const SMOLLM3: Family = Family {
    system: System {
        around: ["<|im_start|>system\n", ""],
        words: Some(Words { think: "/think", no_think: "/no_think", alone: "/system_override" }),
        needs_texts: true,
        ..CHATML.system
    },
    answer: Answer { loses: Loses::Breaks, thoughts: Thinks::InTags, ..CHATML.answer },
    ..CHATML
};

const BARE_LLAMA3: Family = marked(
    &["<|start_header_id|>", "<|end_header_id|>", "<|eot_id|>"],
    [
        ["<|start_header_id|>system<|end_header_id|>\n\n", "<|eot_id|>"],
        ["<|start_header_id|>user<|end_header_id|>\n\n", "<|eot_id|>"],
        ["<|start_header_id|>assistant<|end_header_id|>\n\n", "<|eot_id|>"],
    ],
);
const LLAMA3: Family = Family {
    user: User { trims: Trims::All, ..BARE_LLAMA3.user },
    answer: Answer {
        loses: Loses::White,
        stops: Some(&["<|eom_id|>", "<|eot_id|>"]),
        ..BARE_LLAMA3.answer
    },
    tools: Tools {
        system: "Environment: ipython\n",
        result: Some(["<|start_header_id|>ipython<|end_header_id|>\n\n", "<|eot_id|>"]),
        ..NO_TOOLS
    },
    ..BARE_LLAMA3
};

const GRANITE: Family = marked(
    &["<|start_of_role|>", "<|end_of_role|>", "<|end_of_text|>"],
    [
        ["<|start_of_role|>system<|end_of_role|>", "<|end_of_text|>\n"],
        ["<|start_of_role|>user<|end_of_role|>", "<|end_of_text|>\n"],
        ["<|start_of_role|>assistant<|end_of_role|>", "<|end_of_text|>\n"],
    ],
);

const BARE_GEMMA: Family = marked(
    &["<start_of_turn>", "<end_of_turn>"],
    [
        ["", "\n\n"],
        ["<start_of_turn>user\n", "<end_of_turn>\n"],
        ["<start_of_turn>model\n", "<end_of_turn>\n"],
    ],
);
const GEMMA: Family = Family {
    system: System { place: Place::User, ..BARE_GEMMA.system },
    user: User { trims: Trims::User, ..BARE_GEMMA.user },
    answer: Answer { loses: Loses::White, ..BARE_GEMMA.answer },
    ..BARE_GEMMA
};

const PHI_MARKERS: &[&str] = &["<|system|>", "<|user|>", "<|assistant|>", "<|end|>"];
const PHI3: Family = marked(
    PHI_MARKERS,
    [["<|system|>\n", "<|end|>\n"], ["<|user|>\n", "<|end|>\n"], ["<|assistant|>\n", "<|end|>\n"]],
);
const PHI4: Family = marked(
    PHI_MARKERS,
    [["<|system|>", "<|end|>"], ["<|user|>", "<|end|>"], ["<|assistant|>", "<|end|>"]],
);

const BARE_HARMONY: Family = marked(
    &["<|start|>", "<|channel|>", "<|message|>", "<|end|>"],
    [
        ["<|start|>developer<|message|># Instructions\n\n", "<|end|>"],
        ["<|start|>user<|message|>", "<|end|>"],
        ["<|start|>assistant<|channel|>final<|message|>", "<|end|>"],
    ],
);
const HARMONY: Family = Family {
    system: System { place: Place::Behind, needs_texts: true, ..BARE_HARMONY.system },
    answer: Answer {
        prompt: "<|start|>assistant",
        thoughts: Thinks::InChannels,
        stops: Some(&["<|return|>", "<|call|>"]),
        ..BARE_HARMONY.answer
    },
    ..BARE_HARMONY
};

const BARE_LLAMA2: Family = plain(
    &[],
    [["<<SYS>>\n", "\n<</SYS>>\n\n"], ["[INST] ", " [/INST]"]],
    ("\u{f8f0}\u{f8f2}", " \u{f8f1}", Loses::White),
);
const LLAMA2: Family =
    Family { user: User { trims: Trims::Turn, ..BARE_LLAMA2.user }, ..BARE_LLAMA2 };

const MISTRAL_V1: Family =
    plain(&[], [["", "\n\n"], ["[INST] ", " [/INST]"]], ("\u{f8f2}", "\u{f8f1}", Loses::Spaces));

const BARE_MISTRAL_V3: Family = plain(
    &["[INST]", "[/INST]"],
    [["", "\n\n"], ["[INST]\u{f8f2}", "[/INST]"]],
    ("", "\u{f8f1}", Loses::Spaces),
);
const MISTRAL_V3: Family = Family {
    tools: Tools {
        markers: &[
            "[AVAILABLE_TOOLS]",
            "[/AVAILABLE_TOOLS]",
            "[TOOL_CALLS]",
            "[TOOL_RESULTS]",
            "[/TOOL_RESULTS]",
        ],
        around: Some(["[AVAILABLE_TOOLS]\u{f8f2}", "[/AVAILABLE_TOOLS]"]),
        system: "",
        calls: Some("[TOOL_CALLS]\u{f8f2}"),
        result: Some(["[TOOL_RESULTS]\u{f8f2}", "[/TOOL_RESULTS]"]),
    },
    ..BARE_MISTRAL_V3
};

const BARE_ZEPHYR: Family = marked(
    &[],
    [
        ["<|system|>\n", "\u{f8f1}"],
        ["<|user|>\n", "\u{f8f1}"],
        ["<|assistant|>\n\u{f8f3}", "\u{f8f1}"],
    ],
);
const ZEPHYR: Family = Family {
    user: User { before: ["\u{f8f2}", "\n"], ..BARE_ZEPHYR.user },
    answer: Answer { before: ["\u{f8f2}", "\n"], ..BARE_ZEPHYR.answer },
    ..BARE_ZEPHYR
};

const BARE_NONE: Family = plain(&[], [["", "\n"], ["", "\n"]], ("\u{f8f3}\n", "", Loses::Nothing));
const NONE: Family = Family {
    answer: Answer { before: ["\u{f8f2}", "\u{f8f3}"], begun: "\u{f8f3}", ..BARE_NONE.answer },
    ..BARE_NONE
};

/// The row of a template; `None` of the checkpoint's own.
pub(super) fn family(template: ChatTemplate) -> Option<&'static Family> {
    Some(match template {
        ChatTemplate::None => &NONE,
        ChatTemplate::Llama2 => &LLAMA2,
        ChatTemplate::Llama3 => &LLAMA3,
        ChatTemplate::MistralV1 => &MISTRAL_V1,
        ChatTemplate::MistralV3 => &MISTRAL_V3,
        ChatTemplate::Zephyr => &ZEPHYR,
        ChatTemplate::ChatMl => &CHATML,
        ChatTemplate::Qwen3 => &QWEN3,
        ChatTemplate::SmolLm3 => &SMOLLM3,
        ChatTemplate::Granite => &GRANITE,
        ChatTemplate::Gemma => &GEMMA,
        ChatTemplate::Phi3 => &PHI3,
        ChatTemplate::Phi4 => &PHI4,
        ChatTemplate::Harmony => &HARMONY,
        ChatTemplate::Own => return None,
    })
}

impl Family {
    /// Whether turns stand between markers, so that a checkpoint's own texts have a place in them.
    pub(super) fn is_marked(&self) -> bool {
        !self.markers.is_empty() && !self.ends_by_eos()
    }

    /// Whether the family's texts name this special token.
    pub(super) fn names(&self, token: &str) -> bool {
        self.markers.contains(&token) || self.tools.markers.contains(&token)
    }

    /// Whether the model's token at the end of texts ends an answer.
    pub(super) fn ends_by_eos(&self) -> bool {
        self.answer.around[1].contains(sign::EOS)
    }
}
