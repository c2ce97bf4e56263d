//! Recognises chat templates by what they write.
//!
//! A checkpoint's template is a program in Jinja's language. It is run on a few conversations: if its output equals
//! that of one of LEAP's templates for each of them, character by character, it is that template. Texts that a
//! checkpoint's template adds around the system's text are taken from its output.

use minijinja::{Environment, Error, ErrorKind, Value, context};
use minijinja_contrib::pycompat::unknown_method_callback;

use crate::format::{ChatTemplate, ChatTexts, Date, EFFORT, SystemTexts, filled};
use crate::sys::child;
use crate::tokenizer::jinja::{TEMPLATE_BYTES_MAX, source_of};
use crate::tokenizer::{ChatAnswer, ChatOptions, ChatScript, ChatTurn, Thoughts, TurnKind};

/// Most instructions of one run; published templates take a few thousand.
const FUEL: u64 = 200_000;

/// Placeholders for BOS and EOS, by which older templates are told apart.
const BOS: &str = "<s>";
const EOS: &str = "</s>";

/// A checkpoint's template that LEAP can write.
pub(super) struct Recognised {
    pub(super) template: ChatTemplate,
    pub(super) texts: ChatTexts,
    /// Whether the template writes BOS before the conversation.
    pub(super) writes_bos: bool,
}

/// Whether the template ends with little memory and time. Its language does not guarantee that: a text may double at
/// every step.
pub(super) fn is_harmless(jinja: &str, bos: &str) -> bool {
    const MEMORY_BYTES: u64 = 256 << 20;
    // The work is done again if it is harmless.
    const SECONDS: u32 = 10;
    // A fuzzer limits its own process, and may not have child processes.
    cfg!(fuzzing)
        || child::comes_to_an_end(MEMORY_BYTES, SECONDS, || {
            drop(recognise(jinja, bos));
            let _ = alike(jinja, false);
        })
        .unwrap_or(false)
}

/// Recognises a template by its Jinja text. `bos` is the name of the BOS token, or empty.
pub(super) fn recognise(jinja: &str, bos: &str) -> Option<Recognised> {
    let today = Date::new(2001, 2, 3)?;
    let template = Jinja::new(jinja, bos).ok()?;
    let writes_bos = !bos.is_empty() && template.write(&PROBES[0], None)?.starts_with(bos);
    let bos = if writes_bos { bos } else { "" };
    ChatTemplate::ALL.into_iter().find_map(|name| {
        let texts = |thinks| {
            read_texts(&template, name, bos, ChatOptions { thinks, ..ChatOptions::new(today) })
        };
        let texts =
            ChatTexts { thinking: texts(Some(true))?, quiet: texts(Some(false))?, own: None };
        let is_it = PROBES.iter().all(|probe| {
            let options = ChatOptions {
                thinks: Some(probe.thinks.unwrap_or(true)),
                effort: Some(probe.effort.unwrap_or("medium")),
                ..ChatOptions::new(today)
            };
            let text = ChatScript::new(name, texts.clone(), options)
                .map(|script| [bos, &probe.text(&script)].concat());
            let written = template.write(probe, probe.effort);
            text.is_some()
                && written.and_then(|text| filled(&text, today, options.effort())) == text
        });
        is_it.then_some(Recognised { template: name, texts, writes_bos })
    })
}

/// Checks that a template can run as it is.
pub(super) fn check(jinja: &str) -> Result<(), String> {
    crate::tokenizer::jinja::check(jinja)
}

/// A conversation that distinguishes templates.
struct Probe {
    system: Option<&'static str>,
    /// The turns of user and model.
    said: &'static [&'static str],
    thinks: Option<bool>,
    effort: Option<&'static str>,
}

const fn probe(system: Option<&'static str>, said: &'static [&'static str]) -> Probe {
    Probe { system, said, thinks: None, effort: None }
}

const fn thinking(thinks: bool, probe: Probe) -> Probe {
    Probe { thinks: Some(thinks), ..probe }
}

const SYSTEM: &str = "Tell 5 facts.";
const PLAIN: &[&str] = &["Hi there?"];
const LONG: &[&str] =
    &["\n One? ", " \n\nYes. \n", "Two?\n", "<think>\nHm\n</think>\n\n No", " Three?"];

/// A conversation without white space.
const WORDS: &[&str] = &["One?", "Yes.", "Two?", "No.", "Three?"];

const PROBES: [Probe; 15] = [
    probe(None, PLAIN),
    probe(Some(SYSTEM), PLAIN),
    probe(Some(""), PLAIN),
    probe(None, LONG),
    probe(Some(" \n Be brief.\t\n"), LONG),
    thinking(true, probe(None, LONG)),
    thinking(true, probe(Some("Be /no_think brief. "), LONG)),
    thinking(true, probe(Some("Be /system_override brief. "), LONG)),
    thinking(false, probe(None, LONG)),
    thinking(false, probe(Some(SYSTEM), LONG)),
    thinking(false, probe(Some("/think "), LONG)),
    Probe { effort: Some("low"), ..probe(None, PLAIN) },
    Probe { effort: Some("high"), ..probe(Some(SYSTEM), LONG) },
    thinking(true, probe(None, PLAIN)),
    thinking(false, probe(None, PLAIN)),
];

impl Probe {
    fn text(&self, script: &ChatScript) -> String {
        let turn = |turn: &[&'static str]| ChatTurn {
            user: turn[0],
            kind: TurnKind::User,
            answer: turn.get(1).map(|&text| ChatAnswer::Text(text)),
        };
        script.text(self.system, &self.said.chunks(2).map(turn).collect::<Vec<_>>())
    }
}

/// A checkpoint's template, ready to be run.
struct Jinja<'a> {
    environment: Environment<'a>,
    bos: &'a str,
    eos: &'a str,
}

impl<'a> Jinja<'a> {
    fn new(jinja: &str, bos: &'a str) -> Result<Jinja<'a>, Error> {
        if jinja.len() > TEMPLATE_BYTES_MAX {
            return Err(ErrorKind::InvalidOperation.into());
        }
        let mut environment = Environment::new();
        // `apply_chat_template` of transformers sets these, too.
        environment.set_trim_blocks(true);
        environment.set_lstrip_blocks(true);
        environment.set_fuel(Some(FUEL));
        environment.set_unknown_method_callback(unknown_method_callback);
        environment.add_function("strftime_now", |format: &str| format!("\u{2}{format}\u{3}"));
        environment.add_function("raise_exception", |_: String| {
            Err::<String, Error>(ErrorKind::InvalidOperation.into())
        });
        environment.add_template_owned("chat", source_of(jinja))?;
        Ok(Jinja { environment, bos, eos: "" })
    }

    /// The output of the template, with marks in place of the date; `None` if it cannot be run.
    fn write(&self, probe: &Probe, effort: Option<&str>) -> Option<String> {
        let system = probe.system.map(|text| ("system", text));
        let roles = ["user", "assistant"].into_iter().cycle();
        let said = system.into_iter().chain(roles.zip(probe.said.iter().copied()));
        let messages: Vec<Value> =
            said.map(|(role, content)| context! { role => role, content => content }).collect();
        let mut variables: Vec<(&str, Value)> = vec![
            ("messages", messages.into()),
            ("bos_token", self.bos.into()),
            ("eos_token", self.eos.into()),
            ("add_generation_prompt", true.into()),
        ];
        variables.extend(probe.thinks.map(|thinks| ("enable_thinking", thinks.into())));
        variables.extend(effort.map(|effort| ("reasoning_effort", effort.into())));
        let variables: Value = variables.into_iter().collect();
        self.environment.get_template("chat").ok()?.render(variables).ok()
    }
}

/// Texts that a checkpoint's template writes around the system's text, if it is `name` with such texts.
fn read_texts(
    template: &Jinja<'_>,
    name: ChatTemplate,
    bos: &str,
    options: ChatOptions,
) -> Option<SystemTexts> {
    let bare = ChatScript::new(name, ChatTexts::default(), options)?;
    let Some([open, close]) = bare.around_system() else { return Some(SystemTexts::default()) };
    let written = |system| {
        let probe = Probe { thinks: options.thinks, ..probe(system, PLAIN) };
        let written = template.write(&probe, Some(&format!("\u{2}{EFFORT}\u{3}")))?;
        Some(written.strip_prefix(bos)?.to_owned())
    };
    let [without, with] = [written(None)?, written(Some(SYSTEM))?];
    let rest = probe(None, PLAIN).text(&bare);
    let prompt = without.rsplit_once(&rest)?.1;
    if !prompt.is_empty() && Thoughts::of(name).is_none_or(|thoughts| thoughts.tags().is_none()) {
        return None;
    }
    let skips_empty = written(Some(""))? == without;
    let rest = [&rest, prompt].concat();
    let (before, with) = (without.strip_suffix(&rest)?, with.strip_suffix(&rest)?);
    let with = if bare.has_head_apart() { with.strip_prefix(before)? } else { with };
    let (head, tail) = with.strip_prefix(open)?.strip_suffix(close)?.split_once(SYSTEM)?;
    let (head, default) = match before {
        head if bare.has_head_apart() => (head, None),
        "" => (head, None),
        text => {
            let text = text.strip_prefix(open)?.strip_prefix(head)?;
            (head, Some(text.strip_suffix(close)?.strip_suffix(tail)?.to_owned()))
        }
    };
    let [head, tail, prompt] = [head, tail, prompt].map(str::to_owned);
    Some(SystemTexts { head, default, skips_empty, tail, prompt })
}

/// The older template that writes these conversations like the checkpoint's, except for white space.
///
/// A template that writes anything else, such as a turn of its own, is a different one. Mistral's versions differ in
/// whether `[INST]` is a token, which the vocabulary shows, and in the user turn that carries the system's text.
pub(super) fn alike(jinja: &str, has_inst_token: bool) -> Option<Older> {
    let template = Jinja { eos: EOS, ..Jinja::new(jinja, BOS).ok()? };
    let mistral = if has_inst_token { ChatTemplate::MistralV3 } else { ChatTemplate::MistralV1 };
    let squeezed = |probe: &Probe| {
        let written: String = template.write(probe, None)?.split_whitespace().collect();
        Some(written.strip_prefix(BOS).map(str::to_owned).unwrap_or(written))
    };
    let bare = squeezed(&probe(None, WORDS))?;
    // Some templates refuse a system text; LEAP then writes it like others of their kind.
    let told = [&WORDS[..1], &WORDS[..3], WORDS]
        .map(|said| (said, squeezed(&probe(Some("Brief."), said))));
    let first = [ChatTemplate::Llama3, ChatTemplate::Llama2, mistral, ChatTemplate::Zephyr];
    let first = first.map(|template| Older { template, tells_last: false });
    let last = Older { template: mistral, tells_last: true };
    first.into_iter().chain([last]).find(|older| {
        let is_told = |(said, text): &(&[&str], Option<String>)| {
            text.as_ref().is_none_or(|text| *text == older.text(Some("Brief."), said))
        };
        bare == older.text(None, WORDS) && told.iter().all(is_told)
    })
}

/// An older template. If it has no system turn, `tells_last` says which user turn carries the system's text.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Older {
    pub(super) template: ChatTemplate,
    pub(super) tells_last: bool,
}

impl Older {
    /// The output of the template, without its first BOS and without white space.
    fn text(self, system: Option<&str>, said: &[&str]) -> String {
        let template = self.template;
        let told_at = if self.tells_last { said.len().div_ceil(2).saturating_sub(1) } else { 0 };
        let turn = |role: &str, text: &str| match template {
            ChatTemplate::Llama3 => {
                format!("<|start_header_id|>{role}<|end_header_id|>{text}<|eot_id|>")
            }
            _ => format!("<|{role}|>{text}{EOS}"),
        };
        let is_in_turns = matches!(template, ChatTemplate::Llama3 | ChatTemplate::Zephyr);
        let mut out =
            system.filter(|_| is_in_turns).map_or(String::new(), |text| turn("system", text));
        for (index, texts) in said.chunks(2).enumerate() {
            let told = system.filter(|_| index == told_at && !is_in_turns).unwrap_or_default();
            match (template, texts) {
                (ChatTemplate::Llama2, _) if !told.is_empty() => {
                    out += &format!("[INST]<<SYS>>{told}<</SYS>>{}[/INST]", texts[0]);
                }
                (ChatTemplate::Llama2, _) if index > 0 => {
                    out += &format!("{BOS}[INST]{}[/INST]", texts[0]);
                }
                _ if is_in_turns => out += &turn("user", texts[0]),
                _ => out += &format!("[INST]{told}{}[/INST]", texts[0]),
            }
            match (texts.get(1), template) {
                (Some(answer), _) if is_in_turns => out += &turn("assistant", answer),
                (Some(answer), _) => out += &[answer, EOS].concat(),
                (None, ChatTemplate::Llama3) => {
                    out += "<|start_header_id|>assistant<|end_header_id|>";
                }
                (None, ChatTemplate::Zephyr) => out += "<|assistant|>",
                (None, _) => {}
            }
        }
        out
    }
}

/// The template that a vocabulary was made for, if no file names one.
pub(super) fn implied(has_token: impl Fn(&str) -> bool) -> ChatTemplate {
    let is_for = |template| ChatScript::markers(template).iter().all(|name| has_token(name));
    [ChatTemplate::Llama3, ChatTemplate::MistralV3]
        .into_iter()
        .find(|&template| is_for(template))
        .unwrap_or_default()
}
