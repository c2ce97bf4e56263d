//! Runs a checkpoint's own chat template.
//!
//! A template makes one text of a conversation, in which it names special tokens. Texts of the conversation may spell
//! the same names, and must not become these tokens. Their characters are therefore told apart from the template's
//! before it runs, not searched for afterwards. Four runs at most decide:
//!
//! 1. The template writes the plain conversation. This is the text that the model reads, whatever comes next.
//! 2. It writes the conversation with each character of its texts masked (`marks`). If the result spells the same
//!    text, all that is not masked in it is the template's.
//! 3. Otherwise the template looks for names in texts, as some do for `</think>`. Now the names in the template are
//!    masked instead (`source`), where it writes them. If the result spells the same text, the masked names in it are
//!    the template's, and all others are text.
//! 4. Otherwise names in its variables stay as they are, and are text.
//!
//! If none of them does, the conversation is refused.

mod environment;
mod format;
mod marks;
mod python;
mod source;
mod thinking;
mod written;

use std::hash::{DefaultHasher, Hash as _, Hasher as _};
use std::io;
use std::sync::atomic::{AtomicU8, AtomicUsize, Ordering};
use std::sync::{Arc, Condvar, Mutex, OnceLock, PoisonError};
use std::time::{Duration, Instant};

use minijinja::{Environment, Value};
use serde_json::{Value as Json, json};

use super::thoughts::{Tags, Thoughts};
use crate::format::Date;
use crate::sys::confined::{self, Limits, Overrun};
use environment::{Fault, value};
use marks::{mask, unmasked};
use source::Marked;
use written::{Written, joined};

pub(crate) use environment::source_of;
pub(super) use format::OwnFormat;

/// Longest template: three times as long as any published one.
pub(crate) const TEMPLATE_BYTES_MAX: usize = 1 << 16;
/// Longest tag, likewise. What nests in it takes stack, and time that grows with the square of its length.
const TAG_BYTES_MAX: usize = 1 << 14;
/// Memory of a run, beside [`MEMORY_FACTOR`] times that of the conversation.
const MEMORY_BYTES: usize = 64 << 20;
/// Masks take four bytes, and templates copy texts that they put together.
const MEMORY_FACTOR: usize = 64;
/// Macros that call each other, and values that nest as deeply as JSON of requests, take less than a quarter of it.
const STACK_BYTES: usize = 32 << 20;
const RUN_TIME: Duration = Duration::from_secs(20);
/// A tag of [`TAG_BYTES_MAX`] nests deeply.
const COMPILING: Limits =
    Limits { memory_bytes: 64 << 20, stack_bytes: 128 << 20, time: TRIAL_TIME };
/// Time to compile a template and to learn how it writes, all together.
const TRIAL_TIME: Duration = Duration::from_secs(20);
/// Most runs at a time.
const RUNS_MAX: usize = 4;
/// Most memory that runs may leave behind, all together. Values that contain themselves are never freed.
const LEFT_BYTES_MAX: usize = 1 << 20;
/// Most runs that took too much time and still go on. None is begun beside them.
const LATE_MAX: usize = 4;

/// Checks that `text` is a template that can run.
///
/// # Errors
/// Why it cannot.
#[cfg(any(feature = "tools", test))]
pub(crate) fn check(text: &str) -> Result<(), String> {
    OwnTemplate::new(text, Default::default(), &|_, _| None).map(drop)
}

/// A conversation for a template.
#[derive(Clone, Debug)]
pub(super) struct Talk {
    /// Objects with `role`, `content` and whatever else the template knows.
    pub(super) messages: Vec<Json>,
    /// Further variables of the template.
    pub(super) variables: Vec<(String, Json)>,
    pub(super) today: Date,
    /// Whether the template writes the start of an answer at the end.
    pub(super) begins_answer: bool,
    /// Whether it is made up to learn how the template writes.
    pub(super) is_trial: bool,
}

/// A checkpoint's template, ready to run.
pub(super) struct OwnTemplate {
    programs: Arc<Programs>,
    facts: OnceLock<Facts>,
    /// Identifies the template among those that are [`stopped`].
    key: u64,
    /// Part of [`TRIAL_TIME`] that is left.
    trial_left: Mutex<Duration>,
    /// Memory that runs have left behind.
    left_bytes: AtomicUsize,
    /// Runs that are waited for.
    runs: Mutex<usize>,
    run_ended: Condvar,
    /// Runs that are not waited for any more.
    late: Arc<AtomicUsize>,
}

/// A run, which its caller waits for or not.
struct Run {
    state: AtomicU8,
    late: Arc<AtomicUsize>,
}

const WAITED_FOR: u8 = 0;
const LATE: u8 = 1;
const OVER: u8 = 2;

impl Run {
    /// The caller waits no more.
    fn give_up(&self) {
        if self.state.swap(LATE, Ordering::Relaxed) == WAITED_FOR {
            self.late.fetch_add(1, Ordering::Relaxed);
        }
    }

    /// The run is over.
    fn end(&self) {
        if self.state.swap(OVER, Ordering::Relaxed) == LATE {
            self.late.fetch_sub(1, Ordering::Relaxed);
        }
    }
}

struct Programs {
    plain: Environment<'static>,
    /// Write masks in place of special tokens; the second not where these are in variables.
    marked: Vec<(Environment<'static>, Marked)>,
    bos: String,
    eos: String,
}

/// Properties of a template that a few conversations show.
#[derive(Clone, Debug)]
pub(super) struct Facts {
    /// Parts behind an answer that is over.
    pub(super) after_answer: Vec<Written>,
    /// Whether there is a place for the system's text.
    pub(super) takes_system: bool,
    pub(super) thoughts: Option<Thoughts>,
    /// The field of messages in which it looks for thoughts.
    pub(super) thought_field: Option<&'static str>,
    /// Text between thoughts and an answer.
    pub(super) after_thoughts: String,
}

impl OwnTemplate {
    /// Compiles a template, with what it calls `bos_token` and `eos_token`. `name_at` tells the special token whose name
    /// stands at a place of a text, by its end.
    pub(super) fn new(
        text: &str,
        [bos, eos]: [String; 2],
        name_at: &dyn Fn(&str, usize) -> Option<usize>,
    ) -> Result<OwnTemplate, String> {
        if text.len() > TEMPLATE_BYTES_MAX {
            return Err(format!("it has more than {TEMPLATE_BYTES_MAX} bytes"));
        }
        let key = key_of(text);
        if let Some(why) = stopped(key) {
            return Err(why.to_owned());
        }
        let text = source_of(text);
        if source::longest_tag(&text) > TAG_BYTES_MAX {
            return Err(format!("it has a tag of more than {TAG_BYTES_MAX} bytes"));
        }
        let compiled = |text: &str| {
            environment::compiled(text).map_err(|e| environment::fault(&e).to_string())
        };
        let marks = [true, false].map(|masks_variables| {
            let mut marks = Marked::new(&text, masks_variables, name_at);
            [&bos, &eos].into_iter().for_each(|name| marks.add(name, name_at));
            marks
        });
        let compile = move || {
            let marked = marks.into_iter().map(|marks| Ok((compiled(marks.text())?, marks)));
            let marked = marked.collect::<Result<_, String>>()?;
            Ok::<_, String>(Programs { plain: compiled(&text)?, marked, bos, eos })
        };
        let begin = Instant::now();
        let programs = match confined::within(COMPILING, compile) {
            Ok(Ok(done)) => Arc::new(done.result?),
            Ok(Err(overrun)) => return Err(stop(key, why(overrun)).to_owned()),
            Err(e) => return Err(no_thread(&e)),
        };
        Ok(OwnTemplate {
            programs,
            facts: OnceLock::new(),
            key,
            trial_left: Mutex::new(TRIAL_TIME.saturating_sub(begin.elapsed())),
            left_bytes: AtomicUsize::new(0),
            runs: Mutex::new(0),
            run_ended: Condvar::new(),
            late: Arc::default(),
        })
    }

    /// The text of a conversation, in parts.
    ///
    /// # Errors
    /// The template's objection to the conversation, or why it fails.
    pub(super) fn write(&self, talk: Talk) -> Result<Vec<Written>, String> {
        let running = || self.runs.lock().unwrap_or_else(PoisonError::into_inner);
        let free = self.run_ended.wait_while(running(), |runs| *runs >= RUNS_MAX);
        *free.unwrap_or_else(PoisonError::into_inner) += 1;
        let written = self.write_now(talk);
        *running() -= 1;
        self.run_ended.notify_one();
        written
    }

    fn write_now(&self, talk: Talk) -> Result<Vec<Written>, String> {
        if let Some(why) = stopped(self.key) {
            return Err(why.to_owned());
        }
        if self.late.load(Ordering::Relaxed) >= LATE_MAX {
            return Err(why(Overrun::Time).to_owned());
        }
        let run = Run { state: AtomicU8::new(WAITED_FOR), late: Arc::clone(&self.late) };
        let run = Arc::new(run);
        let own = Arc::clone(&run);
        let programs = Arc::clone(&self.programs);
        let (is_trial, begin) = (talk.is_trial, Instant::now());
        let limits = Limits {
            memory_bytes: MEMORY_BYTES
                .saturating_add(text_bytes(&talk).saturating_mul(MEMORY_FACTOR)),
            stack_bytes: STACK_BYTES,
            time: if is_trial { self.trial_left() } else { RUN_TIME },
        };
        let work = move || {
            let written = programs.write(&talk);
            own.end();
            // The conversation's memory is not this thread's.
            (written, talk)
        };
        let done = confined::within(limits, work).map_err(|e| no_thread(&e))?;
        if is_trial {
            self.spend_trial(begin.elapsed());
        }
        match done {
            Ok(done) => {
                let (written, _) = done.result;
                let kept = done.kept_bytes.saturating_sub(bytes_of(&written));
                let left = self.left_bytes.fetch_add(kept, Ordering::Relaxed).saturating_add(kept);
                if left > LEFT_BYTES_MAX {
                    stop(self.key, "it makes values that contain themselves");
                }
                written
            }
            Err(overrun) => {
                match overrun {
                    Overrun::Time => run.give_up(),
                    Overrun::Memory | Overrun::Stack | Overrun::Panic => {
                        stop(self.key, why(overrun));
                    }
                }
                Err(why(overrun).to_owned())
            }
        }
    }

    /// Why the template does not run any more, if it does not.
    pub(super) fn stopped(&self) -> Option<String> {
        stopped(self.key).map(str::to_owned)
    }

    /// Time that is left to learn how the template writes.
    fn trial_left(&self) -> Duration {
        *self.trial_left.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Takes `time` of what is left. A template that takes all of it does not run any more.
    fn spend_trial(&self, time: Duration) {
        let mut left = self.trial_left.lock().unwrap_or_else(PoisonError::into_inner);
        *left = left.saturating_sub(time);
        if left.is_zero() {
            stop(self.key, why(Overrun::Time));
        }
    }

    /// Properties of the template.
    pub(super) fn facts(&self, today: Date) -> &Facts {
        self.facts.get_or_init(|| self.find_facts(today))
    }

    fn find_facts(&self, today: Date) -> Facts {
        const SYSTEM: &str = "Sysq.";
        const ANSWER: &str = "Answq.";
        let say = |role: &str, content: &str| json!({"role": role, "content": content});
        let write = |messages: Vec<Json>, begins_answer| {
            let variables = Vec::new();
            self.write(Talk { messages, variables, today, begins_answer, is_trial: true })
        };
        let told = write(vec![say("system", SYSTEM), say("user", "Userq.")], true);
        let takes_system =
            told.is_ok_and(|parts| parts.iter().any(|part| part.text().contains(SYSTEM)));
        let [first, last] = ["Userq.", "Moreq."].map(|text| say("user", text));
        let answered = write(vec![first, say("assistant", ANSWER), last], false);
        let after = answered.unwrap_or_default().into_iter();
        let after = after.skip_while(|part| !part.text().contains(ANSWER)).skip(1);
        let after_answer = after.take_while(|part| !part.text().contains("Moreq.")).collect();
        let variables: Vec<(String, Json)> =
            ["enable_thinking", "thinking"].map(|name| (name.to_owned(), true.into())).into();
        let think = |answer: Json| {
            let messages = vec![say("user", "Userq."), answer];
            let variables = variables.clone();
            let talk = Talk { messages, variables, today, begins_answer: false, is_trial: true };
            self.write(talk).ok().map(|parts| joined(&parts))
        };
        let learned = thinking::learn(&think);
        let has = |name: &str| self.programs.writes(name);
        let known = || thinking::KNOWN.into_iter().find(|[_, close]| has(close)).map(Tags::of);
        let tags = learned.as_ref().and_then(|learned| learned.tags.clone());
        let learned_after = learned.as_ref().filter(|_| tags.is_some()).map(|l| l.after.clone());
        let thoughts = match has("<|channel|>") && has("<|message|>") {
            true => Some(Thoughts::Channels),
            false => tags.or_else(known).map(Thoughts::Tags),
        };
        let closing = || thoughts.as_ref().map(Thoughts::closing).unwrap_or_default();
        let after_thoughts = learned_after.unwrap_or_else(closing);
        let thought_field = learned.and_then(|learned| learned.field);
        Facts { after_answer, takes_system, thoughts, thought_field, after_thoughts }
    }
}

/// Templates that went beyond a limit, and why. What they took is not given back, so they do not run again, however
/// often a model with one of them is loaded.
static STOPPED: Mutex<Vec<(u64, &'static str)>> = Mutex::new(Vec::new());

fn key_of(text: &str) -> u64 {
    let mut hasher = DefaultHasher::new();
    text.hash(&mut hasher);
    hasher.finish()
}

/// Why a template does not run any more, if it does not.
fn stopped(key: u64) -> Option<&'static str> {
    let stopped = STOPPED.lock().unwrap_or_else(PoisonError::into_inner);
    stopped.iter().find(|(known, _)| *known == key).map(|&(_, why)| why)
}

fn stop(key: u64, why: &'static str) -> &'static str {
    STOPPED.lock().unwrap_or_else(PoisonError::into_inner).push((key, why));
    why
}

/// The words for a template that went beyond a limit.
fn why(overrun: Overrun) -> &'static str {
    match overrun {
        Overrun::Memory => "it takes too much memory",
        Overrun::Stack => "it makes values that nest too deeply",
        Overrun::Panic => "it asks for what cannot be computed",
        Overrun::Time => "it takes too much time",
    }
}

fn no_thread(error: &io::Error) -> String {
    format!("there is no thread for it: {error}")
}

/// Memory of the result of a run.
fn bytes_of(written: &Result<Vec<Written>, String>) -> usize {
    match written {
        Ok(parts) => {
            let texts: usize = parts.iter().map(Written::bytes).sum();
            parts.capacity() * size_of::<Written>() + texts
        }
        Err(what) => what.capacity(),
    }
}

impl Programs {
    fn write(&self, talk: &Talk) -> Result<Vec<Written>, String> {
        let [bos, eos] = [&self.bos, &self.eos].map(String::as_str);
        let text = run(&self.plain, talk, [bos, eos], &str::to_owned)
            .map_err(|fault| fault.to_string())?;
        let masked = run(&self.plain, talk, [bos, eos], &mask);
        if let Some(parts) = masked.ok().map(|masked| unmasked(&masked))
            && joined(&parts) == text
        {
            return Ok(parts);
        }
        let is_free = !any_text(talk, &source::has_mark);
        for (environment, marks) in self.marked.iter().filter(|_| is_free) {
            let [bos, eos] = [bos, eos].map(|name| marks.of(name));
            let marked = run(environment, talk, [&bos, &eos], &str::to_owned);
            if let Some(parts) = marked.ok().map(|marked| marks.parts(&marked))
                && joined(&parts) == text
            {
                return Ok(parts);
            }
        }
        Err("a text of the conversation changes what it writes, so that its special tokens cannot be told from text"
            .to_owned())
    }

    /// Whether the template's text has `name` in it.
    fn writes(&self, name: &str) -> bool {
        self.marked.iter().any(|(_, marks)| marks.source().contains(name))
    }
}

/// Runs a template on a conversation, whose texts are changed by `text` first.
fn run(
    environment: &Environment<'static>,
    talk: &Talk,
    [bos, eos]: [&str; 2],
    text: &dyn Fn(&str) -> String,
) -> Result<String, Fault> {
    let messages: Vec<Value> = talk.messages.iter().map(|json| value(json, "", text)).collect();
    let mut variables: Vec<(&str, Value)> = vec![
        ("messages", messages.into()),
        ("add_generation_prompt", talk.begins_answer.into()),
        (environment::TODAY, talk.today.format("%Y-%m-%d").into()),
    ];
    for (name, token) in [("bos_token", bos), ("eos_token", eos)] {
        variables.extend((!token.is_empty()).then(|| (name, token.into())));
    }
    let further = talk.variables.iter().map(|(name, json)| (name.as_str(), value(json, "", text)));
    variables.extend(further);
    environment::run(environment, variables.into_iter().collect())
}

/// Whether `is_one` holds for any text of the conversation.
fn any_text(talk: &Talk, is_one: &dyn Fn(&str) -> bool) -> bool {
    fn any(json: &Json, is_one: &dyn Fn(&str) -> bool) -> bool {
        match json {
            Json::String(text) => is_one(text),
            Json::Array(list) => list.iter().any(|json| any(json, is_one)),
            Json::Object(map) => map.iter().any(|(key, json)| is_one(key) || any(json, is_one)),
            _ => false,
        }
    }
    let further = talk.variables.iter().map(|(_, json)| json);
    talk.messages.iter().chain(further).any(|json| any(json, is_one))
}

fn text_bytes(talk: &Talk) -> usize {
    let bytes = std::cell::Cell::new(0_usize);
    any_text(talk, &|text| {
        bytes.set(bytes.get().saturating_add(text.len() + 64));
        false
    });
    bytes.get()
}

#[cfg(test)]
mod tests;
