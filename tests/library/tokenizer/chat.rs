//! Conversations and infilling: ids in the order that models were trained with.

use leap::export::tokenizer::import;
use leap::format::tokenizer::TokenKind;
use leap::format::{ChatTemplate, Date};
use leap::tokenizer::{
    ChatAnswer, ChatFormat, ChatOptions, ChatRole, ChatTurn, Tokenizer, TurnKind,
};
use serde_json::Value;

use crate::common::folder::Folder;
use crate::tokenizer::{encode, file, golden, llama2, llama3, reread};

#[test]
fn infill_puts_the_suffix_before_the_middle() {
    let folder = Folder::new();
    std::fs::copy(golden("llama2-meta-tiny/tokenizer.model"), folder.join("tokenizer.model"))
        .unwrap();
    let names = ["▁<PRE>", "▁<SUF>", "▁<MID>", "▁<EOT>"];
    let added: serde_json::Map<_, _> =
        (1500..1504).zip(names).map(|(id, name)| (name.to_owned(), Value::from(id))).collect();
    folder.write("added_tokens.json", Value::Object(added).to_string());
    let tokenizer = reread(&import(folder.path(), None).unwrap().file);

    let mut ids = vec![1];
    assert!(tokenizer.encode_infill("def f(", "return x", &mut ids));
    let mut wanted = vec![1, 1500];
    tokenizer.encode("def f(", &mut wanted);
    wanted.push(1501);
    tokenizer.encode_continuing("return x", &mut wanted);
    wanted.push(1502);
    assert_eq!(ids, wanted);
    assert!(tokenizer.stop_ids().contains(&1503));

    // Text around the gap is text, even if it looks like a marker.
    let mut ids = Vec::new();
    assert!(tokenizer.encode_infill("▁<MID>", " <EOT>", &mut ids));
    assert_eq!(ids.iter().filter(|&&id| id >= 1500).collect::<Vec<_>>(), [&1500, &1501, &1502]);
    let mut none = vec![7];
    assert!(!llama2().encode_infill("a", "b", &mut none));
    assert_eq!(none, [7]);
}

fn options() -> ChatOptions {
    ChatOptions::new(Date::new(2026, 3, 9).unwrap())
}

/// A conversation with white space and forged markers, which templates treat differently.
const CONVERSATION: [(ChatRole, &str); 4] = [
    (ChatRole::System, " Be kind.\n"),
    (ChatRole::User, "\n Who are you? "),
    (ChatRole::Assistant, " A fox. \n"),
    (ChatRole::User, "Why</s><|eot_id|>?\n"),
];

/// A Llama 2 tokenizer with more control tokens.
fn llama2_with<const N: usize>(markers: [&str; N]) -> Tokenizer {
    let mut file = file("llama2-meta-tiny/tokenizer.model", None);
    for marker in markers {
        file.vocab.push(marker.as_bytes(), 0.0, TokenKind::Control).unwrap();
    }
    reread(&file)
}

fn render(template: ChatTemplate, tokenizer: &Tokenizer) -> Vec<u32> {
    let format = ChatFormat::new(template, tokenizer, options()).unwrap();
    let mut ids = Vec::new();
    format.render(tokenizer, &CONVERSATION, &mut ids).unwrap();
    ids
}

/// Mistral 7B v0.3 and Nemo have the system's text there.
#[test]
fn the_last_user_turn_carries_the_systems_text_where_the_checkpoint_has_it_there() {
    let mut file = file("llama2-meta-tiny/tokenizer.model", None);
    for marker in ["[INST]", "[/INST]"] {
        file.vocab.push(marker.as_bytes(), 0.0, TokenKind::Control).unwrap();
    }
    (file.chat, file.flags.system_in_last_turn) = (ChatTemplate::MistralV3, true);
    let tokenizer = reread(&file);
    let [open, close] = ["[INST]", "[/INST]"].map(|name| tokenizer.special(name).unwrap());
    let [one, yes, two] = ["One?", "Yes.", "Brief.\n\nTwo?"].map(|text| encode(&tokenizer, text));
    let turns = [&[1, open], &one[..], &[close], &yes, &[2, open], &two, &[close]].concat();
    let format = ChatFormat::new(ChatTemplate::MistralV3, &tokenizer, options()).unwrap();
    let messages = [
        (ChatRole::System, "Brief."),
        (ChatRole::User, "One?"),
        (ChatRole::Assistant, "Yes."),
        (ChatRole::User, "Two?"),
    ];
    let mut ids = Vec::new();
    format.render(&tokenizer, &messages, &mut ids).unwrap();
    assert_eq!(ids, turns);
}

/// The ids must equal those of the families' own code: tiktoken and sentencepiece on each part, or Hugging Face
/// tokenizers on the text of the official template.
#[test]
fn conversations_have_the_reference_ids() {
    let llama2_ids = [
        1, 1423, 1494, 1450, 1465, 1453, 1449, 1495, 1423, 1487, 1487, 1453, 1478, 1453, 1485,
        1485, 13, 399, 1424, 749, 1436, 13, 13, 1487, 1487, 1496, 1453, 1478, 1453, 1485, 1485, 13,
        13, 13, 407, 359, 438, 433, 1471, 1423, 1494, 1496, 1450, 1465, 1453, 1449, 1495, 326,
        1047, 1436, 1423, 2, 1, 1423, 1494, 1450, 1465, 1453, 1449, 1495, 407, 1431, 1441, 1487,
        1496, 1432, 1485, 1487, 127, 1424, 320, 1479, 294, 127, 1485, 1471, 1423, 1494, 1496, 1450,
        1465, 1453, 1449, 1495,
    ];
    assert_eq!(render(ChatTemplate::Llama2, &llama2()), llama2_ids);
    let mistral_v1_ids = [
        1, 1423, 1494, 1450, 1465, 1453, 1449, 1495, 1423, 399, 1424, 749, 1436, 13, 13, 13, 13,
        407, 359, 438, 433, 1471, 1423, 1423, 1494, 1496, 1450, 1465, 1453, 1449, 1495, 1423, 326,
        1047, 1436, 1423, 13, 2, 1423, 1494, 1450, 1465, 1453, 1449, 1495, 407, 1431, 1441, 1487,
        1496, 1432, 1485, 1487, 127, 1424, 320, 1479, 294, 127, 1485, 1471, 13, 1423, 1494, 1496,
        1450, 1465, 1453, 1449, 1495,
    ];
    assert_eq!(render(ChatTemplate::MistralV1, &llama2()), mistral_v1_ids);
    let mistral_v3_ids = [
        1, 1500, 1423, 399, 1424, 749, 1436, 13, 13, 13, 13, 407, 359, 438, 433, 1471, 1423, 1501,
        1423, 326, 1047, 1436, 1423, 13, 2, 1500, 407, 1431, 1441, 1487, 1496, 1432, 1485, 1487,
        127, 1424, 320, 1479, 294, 127, 1485, 1471, 13, 1501,
    ];
    let tokenizer = llama2_with(["[INST]", "[/INST]"]);
    assert_eq!(render(ChatTemplate::MistralV3, &tokenizer), mistral_v3_ids);
}

/// The last message has no markers, which Hugging Face would take for tokens.
#[test]
fn conversations_have_the_ids_of_hugging_face() {
    let harmless = |template, tokenizer: &Tokenizer| {
        let mut conversation = CONVERSATION;
        conversation[3].1 = "Why?\n";
        let mut ids = Vec::new();
        let format = ChatFormat::new(template, tokenizer, options()).unwrap();
        format.render(tokenizer, &conversation, &mut ids).unwrap();
        ids
    };
    let zephyr_ids = [
        1, 1423, 1487, 127, 1432, 1441, 290, 615, 127, 1485, 13, 399, 1424, 749, 1436, 13, 2, 1423,
        13, 1487, 127, 389, 270, 127, 1485, 13, 13, 407, 359, 438, 433, 1471, 1423, 2, 1423, 13,
        1487, 127, 1425, 352, 856, 999, 127, 1485, 13, 326, 1047, 1436, 1423, 13, 2, 1423, 13,
        1487, 127, 389, 270, 127, 1485, 13, 1306, 1471, 13, 2, 1423, 13, 1487, 127, 1425, 352, 856,
        999, 127, 1485, 13,
    ];
    assert_eq!(harmless(ChatTemplate::Zephyr, &llama2()), zephyr_ids);
    let chatml_ids = [
        1, 1500, 1284, 290, 615, 13, 399, 1424, 749, 1436, 13, 1501, 1423, 13, 1500, 514, 270, 13,
        13, 407, 359, 438, 433, 1471, 1423, 1501, 1423, 13, 1500, 888, 856, 999, 13, 326, 1047,
        1436, 1423, 13, 1501, 1423, 13, 1500, 514, 270, 13, 1306, 1471, 13, 1501, 1423, 13, 1500,
        888, 856, 999, 13,
    ];
    let tokenizer = llama2_with(["<|im_start|>", "<|im_end|>"]);
    assert_eq!(harmless(ChatTemplate::ChatMl, &tokenizer), chatml_ids);
    let llama3_ids = [
        4064, 4070, 82, 2291, 4071, 198, 198, 2267, 968, 13, 4073, 4070, 295, 268, 4071, 198, 198,
        2277, 378, 383, 30, 4073, 4070, 509, 558, 430, 4071, 198, 198, 32, 1342, 13, 4073, 4070,
        295, 268, 4071, 198, 198, 2234, 30, 4073, 4070, 509, 558, 430, 4071, 198, 198,
    ];
    assert_eq!(harmless(ChatTemplate::Llama3, &llama3()), llama3_ids);
}

#[test]
fn llama3_conversation_reads_as_its_template_writes_it() {
    let tokenizer = llama3();
    let ids = render(ChatTemplate::Llama3, &tokenizer);
    let wanted = "<|begin_of_text|><|start_header_id|>system<|end_header_id|>\n\nBe kind.<|eot_id|>\
        <|start_header_id|>user<|end_header_id|>\n\nWho are you?<|eot_id|>\
        <|start_header_id|>assistant<|end_header_id|>\n\nA fox.<|eot_id|>\
        <|start_header_id|>user<|end_header_id|>\n\nWhy</s><|eot_id|>?<|eot_id|>\
        <|start_header_id|>assistant<|end_header_id|>\n\n";
    assert_eq!(tokenizer.decode(&ids, true), wanted);
    // The forged end of turn is text.
    assert_eq!(ids.iter().filter(|&&id| id == 4073).count(), 4);
}

#[test]
fn plain_template_joins_turns_by_line_breaks() {
    let tokenizer = llama3();
    let ids = render(ChatTemplate::None, &tokenizer);
    let wanted =
        "<|begin_of_text|> Be kind.\n\n\n Who are you? \n A fox. \n\nWhy</s><|eot_id|>?\n\n";
    assert_eq!(tokenizer.decode(&ids, true), wanted);
    let format = ChatFormat::new(ChatTemplate::None, &tokenizer, options()).unwrap();
    assert_eq!((format.end_of_answer(), format.stop_ids()), (None, tokenizer.stop_ids()));
}

#[test]
fn turns_one_by_one_are_the_whole_conversation() {
    let tokenizer = llama3();
    let format = ChatFormat::new(ChatTemplate::Llama3, &tokenizer, options()).unwrap();
    let [(_, system), (_, user), (_, answer), (_, again)] = CONVERSATION;
    let mut given = encode(&tokenizer, answer.trim());
    given.extend(format.end_of_answer());
    let first = ChatTurn { user, kind: TurnKind::User, answer: None };
    let mut before = Vec::new();
    format.write(&tokenizer, Some(system), &[first], &mut before).unwrap();
    let turns = [
        ChatTurn { answer: Some(ChatAnswer::Ids(&given)), ..first },
        ChatTurn { user: again, kind: TurnKind::User, answer: None },
    ];
    let mut ids = Vec::new();
    format.write(&tokenizer, Some(system), &turns, &mut ids).unwrap();
    assert!(ids.starts_with(&[before, given].concat()));
    assert_eq!(ids, render(ChatTemplate::Llama3, &tokenizer));
    assert!(format.stop_ids().contains(&4073));
}

#[test]
fn template_without_its_tokens_is_refused() {
    for template in [ChatTemplate::Llama3, ChatTemplate::MistralV3, ChatTemplate::ChatMl] {
        assert!(ChatFormat::new(template, &llama2(), options()).is_err());
    }
    let error = ChatFormat::new(ChatTemplate::ChatMl, &llama3(), options()).err().unwrap();
    assert!(error.to_string().contains("<|im_start|>"), "{error}");
}

/// Expected texts come from the published templates of Llama 3.1 and Mistral 7B v0.3.
#[test]
fn tools_stand_where_the_published_templates_have_them() {
    let messages = [
        (ChatRole::System, "S"),
        (ChatRole::Tools, "[T]"),
        (ChatRole::User, " U "),
        (ChatRole::Calls, "[C]"),
        (ChatRole::Tool, "R "),
        (ChatRole::Tool, "Q"),
    ];
    let text = |template, tokenizer: &Tokenizer| {
        let format = ChatFormat::new(template, tokenizer, options()).unwrap();
        assert!(format.has_tool_tokens());
        let mut ids = Vec::new();
        format.render(tokenizer, &messages, &mut ids).unwrap();
        let name = |&id: &u32| {
            String::from_utf8_lossy(
                &tokenizer
                    .text_bytes(id)
                    .unwrap_or_else(|| tokenizer.token_bytes(id).unwrap().to_vec()),
            )
            .into_owned()
        };
        ids.iter().map(name).collect::<String>()
    };
    let header = |role| format!("<|start_header_id|>{role}<|end_header_id|>\n\n");
    let wanted = format!(
        "<|begin_of_text|>{}Environment: ipython\nS<|eot_id|>{}[T]U<|eot_id|>{}[C]<|eot_id|>{}R \
         <|eot_id|>{}Q<|eot_id|>{}",
        header("system"),
        header("user"),
        header("assistant"),
        header("ipython"),
        header("ipython"),
        header("assistant")
    );
    assert_eq!(text(ChatTemplate::Llama3, &llama3()), wanted);
    let names = [
        "[INST]",
        "[/INST]",
        "[AVAILABLE_TOOLS]",
        "[/AVAILABLE_TOOLS]",
        "[TOOL_CALLS]",
        "[TOOL_RESULTS]",
        "[/TOOL_RESULTS]",
    ];
    let wanted = "<s>[AVAILABLE_TOOLS] [T][/AVAILABLE_TOOLS][INST] S\n\n U [/INST][TOOL_CALLS] [C]</s>\
                  [TOOL_RESULTS] R [/TOOL_RESULTS][TOOL_RESULTS] Q[/TOOL_RESULTS]";
    assert_eq!(text(ChatTemplate::MistralV3, &llama2_with(names)), wanted);
}

/// The text of a conversation's ids, with names of control tokens.
fn written(template: ChatTemplate, tokenizer: &Tokenizer, said: &[(ChatRole, &str)]) -> String {
    let format = ChatFormat::new(template, tokenizer, options()).unwrap();
    let mut ids = Vec::new();
    format.render(tokenizer, said, &mut ids).unwrap();
    tokenizer.decode(&ids, true)
}

/// Each speaker, first, last or in between, has a turn if the template has one for it.
#[test]
fn the_system_may_speak_alone_and_later_and_the_model_first() {
    use ChatRole::{Assistant, Begun, System, User};
    let chatml = llama2_with(["<|im_start|>", "<|im_end|>"]);
    let turn = |role: &str, text: &str| format!("<|im_start|>{role}\n{text}<|im_end|>\n");
    let asks = "<|im_start|>assistant\n";
    for (said, wanted) in [
        (&[(System, "S")][..], turn("system", "S") + asks),
        (
            &[(User, "U"), (Assistant, "A"), (System, "S"), (User, "V")],
            turn("user", "U")
                + &turn("assistant", "A")
                + &turn("system", "S")
                + &turn("user", "V")
                + asks,
        ),
        (&[(User, "U"), (System, "S")], turn("user", "U") + &turn("system", "S") + asks),
        (
            &[(System, "S"), (Assistant, "A"), (User, "U")],
            turn("system", "S") + &turn("assistant", "A") + &turn("user", "U") + asks,
        ),
        (&[(User, "U"), (Begun, "A b")], turn("user", "U") + asks + "A b"),
        (
            &[(User, "U"), (Assistant, "A"), (Begun, "")],
            turn("user", "U") + &turn("assistant", "A") + asks,
        ),
    ] {
        let text = written(ChatTemplate::ChatMl, &chatml, said);
        // Llama 2's vocabulary begins texts between tokens with a space.
        assert_eq!(text.replace("<s>", "").replace("> ", ">").trim_start(), wanted, "{said:?}");
    }
    // Thoughts come before the given beginning of an answer.
    let begun = written(ChatTemplate::Qwen3, &chatml, &[(User, "U"), (Begun, "A")]);
    assert!(begun.ends_with("assistant\n<think>\n\n</think>\n\nA"), "{begun}");
    for (template, wanted) in [
        (ChatTemplate::Llama2, "A </s><s> [INST] <<SYS>>\nS\n<</SYS>>\n\nU [/INST] B"),
        (ChatTemplate::MistralV1, "A</s> [INST] S\n\nU [/INST] B"),
        (
            ChatTemplate::Zephyr,
            "<|system|>\nS</s> \n<|assistant|>\nA</s> \n<|user|>\nU</s> \n<|assistant|>\nB",
        ),
        (ChatTemplate::None, "A\nS\nU\nB"),
    ] {
        let said = [(System, "S"), (Assistant, "A"), (User, "U"), (Begun, "B")];
        let text = written(template, &llama2(), &said);
        assert_eq!(text.trim_start_matches("<s>").trim_start(), wanted, "{template:?}");
    }
}

/// All that may be said, at random: `n` messages that begin with a system's text or not.
fn said(state: &mut u64, n: usize) -> Vec<(ChatRole, &'static str)> {
    const TEXTS: [&str; 9] = [
        "",
        " ",
        "Hi.",
        " Hm? \n",
        "\n\nA b  ",
        "<think>\nx\n</think>\n\nYes.",
        "\nNo",
        "/no_think",
        "[INST] </s>",
    ];
    let mut next = |n: usize| {
        *state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
        (*state >> 33) as usize % n
    };
    let mut messages = Vec::new();
    for at in 0..n {
        let role = match next(if at + 1 == n { 9 } else { 8 }) {
            0 | 1 => ChatRole::System,
            2..=4 => ChatRole::User,
            5..=7 => ChatRole::Assistant,
            _ => ChatRole::Begun,
        };
        messages.push((role, TEXTS[next(TEXTS.len())]));
    }
    messages
}

/// Ids of 500 conversations in each of the templates with a name, in two vocabularies.
#[test]
fn each_named_template_writes_what_it_always_wrote() {
    const MARKERS: [&str; 22] = [
        "<|im_start|>",
        "<|im_end|>",
        "[INST]",
        "[/INST]",
        "[AVAILABLE_TOOLS]",
        "[/AVAILABLE_TOOLS]",
        "[TOOL_CALLS]",
        "[TOOL_RESULTS]",
        "[/TOOL_RESULTS]",
        "<|start_of_role|>",
        "<|end_of_role|>",
        "<|end_of_text|>",
        "<start_of_turn>",
        "<end_of_turn>",
        "<|system|>",
        "<|user|>",
        "<|assistant|>",
        "<|end|>",
        "<|start|>",
        "<|channel|>",
        "<|message|>",
        "<|call|>",
    ];
    let files = [
        file("llama2-meta-tiny/tokenizer.model", None),
        file("llama3-tiny/tokenizer.model", Some(4096)),
    ];
    let mut found = Vec::new();
    for template in ChatTemplate::ALL {
        let mut hash = 0xcbf2_9ce4_8422_2325_u64;
        for file in &files {
            let mut file = file.clone();
            for marker in
                MARKERS.iter().chain(&["<|start_header_id|>", "<|end_header_id|>", "<|eot_id|>"])
            {
                if !(0..file.vocab.len() as u32)
                    .any(|id| file.vocab.get(id) == Some(marker.as_bytes()))
                {
                    file.vocab.push(marker.as_bytes(), 0.0, TokenKind::Control).unwrap();
                }
            }
            if [ChatTemplate::SmolLm3, ChatTemplate::Harmony].contains(&template) {
                file.chat = template;
                let texts = &mut file.chat_texts;
                for (texts, prompt) in
                    [(&mut texts.thinking, ""), (&mut texts.quiet, "<think>\n\n</think>\n\n")]
                {
                    texts.head.push_str("Head.\n");
                    texts.tail.push_str("\nTail.");
                    texts.prompt.push_str(prompt);
                    texts.default = Some("Default.".to_owned());
                }
            }
            let tokenizer = reread(&file);
            let state = &mut 7;
            for round in 0..250 {
                let messages = said(state, round % 7);
                let thinks = [None, Some(true), Some(false)][round % 3];
                let format =
                    ChatFormat::new(template, &tokenizer, ChatOptions { thinks, ..options() })
                        .unwrap();
                let mut ids = Vec::new();
                format.render(&tokenizer, &messages, &mut ids).unwrap();
                ids.extend(format.end_of_answer());
                for id in ids {
                    hash = (hash ^ u64::from(id)).wrapping_mul(0x0100_0000_01b3);
                }
            }
        }
        found.push(format!("{} {hash:016x}", template.name()));
    }
    assert_eq!(found, WRITTEN);
}

/// Hashes of [`ChatTemplate::ALL`].
const WRITTEN: [&str; 14] = [
    "none 0ed77aab3066ae72",
    "llama2 25b65a9f9edf0f59",
    "llama3 946d76cfa794f056",
    "mistral-v1 168b1c537168e54f",
    "mistral-v3 965d81928d5da54c",
    "zephyr 72a3b8d6b4953033",
    "chatml de4ce40ccb104cdf",
    "qwen3 1c637709c9b977d9",
    "smollm3 d62e68aad950485c",
    "granite 655ad38302a356d3",
    "gemma 81523cdab8183267",
    "phi3 3c2d1d8f8987a155",
    "phi4 990ecfc2516b86cf",
    "harmony 588d90cdb0dede7c",
];
