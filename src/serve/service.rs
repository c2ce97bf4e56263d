//! A model that answers, and how a request becomes jobs.

use std::borrow::Cow;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::{SystemTime, UNIX_EPOCH};

use serde_json::Value;

use super::divide::{Calls, Divider};
use super::error::ApiError;
use super::fields::Fields;
use super::grammar::{GrammarFilter, Grammars};
use super::jobs::JobQueue;
use super::messages::{Message, Speech, messages, without_empty_answers};
use super::metrics::Metrics;
use super::own_messages::values;
use super::schema;
use super::tools::{Course, OwnWords, Words};
use super::wish::{Thinking, Wish};
use crate::engine::{Job, ThoughtLimit, TokenFilter};
use crate::format::model::Header;
use crate::format::{ChatTemplate, Date, Suggested};
use crate::sys::clock;
use crate::tokenizer::{
    ChatFormat, ChatOptions, ChatRole, ThoughtFilter, Thoughts, Tokenizer, TokenizerError,
};

/// Most stop strings of a request.
pub(super) const STOPS_MAX: usize = 16;

/// The model that answers.
pub(crate) struct ServedModel {
    /// Its description for clients.
    pub(crate) about: ModelAbout,
    /// Its tokenizer.
    pub(crate) tokenizer: Arc<Tokenizer>,
    /// Template of conversations.
    pub(crate) chat_template: ChatTemplate,
    /// Ids that end a text.
    pub(crate) stop_ids: Vec<u32>,
    /// Settings of answers, where a request says nothing.
    pub(crate) suggested: Suggested,
    /// The model's header, if it computes embeddings and writes no text.
    pub(crate) embeds: Option<Arc<Header>>,
}

/// The served model, and the queue for its answers.
pub(super) struct Service {
    pub(super) model: ServedModel,
    pub(super) ctx_len: usize,
    pub(super) vocab_size: usize,
    /// Compiles grammars; created when the first one is needed.
    pub(super) grammars: OnceLock<Result<Grammars, String>>,
    /// How the checkpoint's own template speaks of tools; learned when it is first needed.
    pub(super) own_words: OnceLock<Option<Arc<OwnWords>>>,
    pub(super) queue: JobQueue,
    pub(super) metrics: Arc<Metrics>,
    pub(super) house: Arc<House>,
}

/// State that all models of a server share.
pub(super) struct House {
    /// Seconds since 1970 at which the server started.
    pub(super) started: u64,
    /// Answers so far. A request that names no seed gets `seed` plus this number.
    pub(super) n_answers: AtomicU64,
    pub(super) seed: u64,
    /// Whether there are several models: then a request's model was found by its name before.
    pub(super) has_several: bool,
    /// Most tokens of thoughts, where a request names no number.
    pub(super) think_tokens: Option<usize>,
}

impl House {
    pub(super) fn new(seed: u64) -> House {
        let n_answers = AtomicU64::new(0);
        House { started: now(), n_answers, seed, has_several: false, think_tokens: None }
    }
}

/// The model's description for clients.
#[derive(Clone, Debug, Default)]
pub(crate) struct ModelAbout {
    /// The model's name.
    pub(crate) name: String,
    /// Length of the model's file.
    pub(crate) bytes: u64,
    /// The model's fingerprint.
    pub(crate) digest: String,
    /// The architecture's name.
    pub(crate) family: String,
    /// Format of the weights.
    pub(crate) quantization: String,
    /// Memory that the model takes where it stays loaded; 0 if that is not known.
    pub(crate) memory: u64,
    /// Part of that memory that is a GPU's own.
    pub(crate) device_memory: u64,
    /// Width of the model, which is that of its embeddings.
    pub(crate) dim: usize,
}

/// The job of a chat answer, and what separates thoughts and calls from that answer.
pub(super) struct ChatJob {
    pub(super) job: Job,
    pub(super) divider: Divider,
}

/// Seconds since 1970.
pub(super) fn now() -> u64 {
    SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |time| time.as_secs())
}

/// `name` without the tag that Ollama's clients add.
pub(crate) fn untagged(name: &str) -> &str {
    name.strip_suffix(":latest").unwrap_or(name)
}

impl Service {
    /// A model whose answers are asked for by `queue`.
    pub(super) fn new(
        model: ServedModel,
        (ctx_len, vocab_size): (usize, usize),
        (queue, house): (JobQueue, &Arc<House>),
    ) -> Service {
        Service {
            model,
            ctx_len,
            vocab_size,
            grammars: OnceLock::new(),
            own_words: OnceLock::new(),
            queue,
            metrics: Arc::default(),
            house: Arc::clone(house),
        }
    }

    /// Whether `name` is the model's. Ollama's clients may add `:latest`.
    pub(super) fn is_called(&self, name: &str) -> bool {
        let own = self.model.about.name.as_str();
        name == own || untagged(name) == own
    }

    /// Refuses a request for another model.
    pub(super) fn check_model(&self, fields: &Fields<'_>, name: &str) -> Result<(), ApiError> {
        match fields.string(name)? {
            Some(asked) if !self.house.has_several && !self.is_called(asked) => {
                Err(self.unknown_model(asked))
            }
            _ => Ok(()),
        }
    }

    pub(super) fn unknown_model(&self, asked: &str) -> ApiError {
        ApiError::unknown_model(asked, &[&self.model.about.name])
    }

    /// The number of the next answer.
    pub(super) fn next_answer(&self) -> u64 {
        self.house.n_answers.fetch_add(1, Ordering::Relaxed)
    }

    /// The seed that a request names. Without one, or with -1, each answer gets a new seed.
    pub(super) fn seed(&self, fields: &Fields<'_>) -> Result<u64, ApiError> {
        match fields.whole("seed", i64::MIN..=i64::MAX)? {
            Some(seed) if seed != -1 => Ok(seed as u64),
            _ => Ok(self.house.seed.wrapping_add(self.next_answer())),
        }
    }

    /// The chat format of a template with today's date. A template uses the parts of `thinking` that it knows. A template
    /// with channels always thinks, with the least effort if no thinking is wanted.
    fn chat(
        &self,
        template: ChatTemplate,
        thinking: Thinking,
        has_tools: bool,
    ) -> Result<ChatFormat, ApiError> {
        let today = clock::today().and_then(|(year, month, day)| Date::new(year, month, day));
        let today = today.ok_or_else(|| ApiError::new(500, "the server's clock shows no date"))?;
        let default = ChatOptions::new(today);
        let options = ChatOptions {
            thinks: thinking.thinks,
            effort: thinking.effort.or((thinking.thinks == Some(false)).then_some("low")),
            has_tools,
            ..default
        };
        ChatFormat::new(template, &self.model.tokenizer, options)
            .map_err(|e| ApiError::new(400, e.to_string()))
    }

    /// The chat format of conversations without tools, where a request says nothing of thoughts.
    fn plain_chat(&self) -> Result<ChatFormat, ApiError> {
        self.chat(self.model.chat_template, Thinking::default(), false)
    }

    /// Whether conversations can be held.
    pub(super) fn can_chat(&self) -> bool {
        self.plain_chat().is_ok()
    }

    /// Whether answers can call tools.
    pub(super) fn can_call_tools(&self) -> bool {
        cfg!(feature = "forms") && self.words().is_some()
    }

    /// How the model marks its thoughts, if it has any.
    pub(super) fn thoughts(&self) -> Option<Thoughts> {
        self.plain_chat().ok()?.thoughts()
    }

    /// The model's words for tools, if it has any. The checkpoint's own template goes before those that LEAP has names for:
    /// families that share one of these do not always share their tools.
    pub(super) fn words(&self) -> Option<Words> {
        let learn = || {
            let given = self.model.chat_template;
            let is_own = [ChatTemplate::Own, self.model.tokenizer.chat_template()].contains(&given);
            let chat = self.chat(ChatTemplate::Own, Thinking::default(), true);
            let chat = chat.ok().filter(|_| is_own)?;
            OwnWords::learn(&chat, &self.model.tokenizer).map(Arc::new)
        };
        if let Some(own) = self.own_words.get_or_init(learn) {
            return Some(Words::Own(Arc::clone(own)));
        }
        let chat = self.plain_chat().ok()?;
        Words::of(self.model.chat_template).filter(|_| chat.has_tool_tokens())
    }

    fn grammars(&self) -> Result<&Grammars, String> {
        let new = || {
            Grammars::new(Arc::clone(&self.model.tokenizer), self.vocab_size, &self.model.stop_ids)
        };
        self.grammars.get_or_init(new).as_ref().map_err(Clone::clone)
    }

    /// Properties of the model's template that shape a conversation.
    pub(super) fn speech(&self) -> Speech {
        let chat = self.plain_chat();
        let joins_system = chat.is_ok_and(|chat| chat.joins_system());
        Speech { words: self.words(), joins_system }
    }

    /// The messages in the field `messages` of a request. A last message of the assistant is continued,
    /// unless `continue_final_message` says otherwise.
    pub(super) fn messages(&self, fields: &Fields<'_>) -> Result<Vec<Message>, ApiError> {
        let goes_on = fields.flag("continue_final_message")?;
        let begins = fields.flag("add_generation_prompt")?;
        let values = fields.array("messages")?.unwrap_or_default();
        let messages = messages(values, self.speech(), goes_on.unwrap_or(true))?;
        let is_begun = messages.last().is_some_and(|last| last.role == ChatRole::Begun);
        for (name, is_needed) in [
            ("continue_final_message", goes_on == Some(true)),
            ("add_generation_prompt", begins == Some(false)),
        ] {
            if is_needed && !is_begun {
                return Err(fields.bad(name, "needs a last message of the assistant's"));
            }
        }
        Ok(messages)
    }

    /// The job of an answer in a conversation. Its text is what `leap run --chat` gives for the same messages.
    /// Without instructions it gets those that come with the model.
    pub(super) fn chat_job(&self, messages: &[Message], wish: &Wish) -> Result<ChatJob, ApiError> {
        let n_given = messages.len();
        let messages = &*self.with_instructions(messages);
        let words = self.words_of(messages, wish)?;
        let template = match &words {
            Some(Words::Own(_)) => ChatTemplate::Own,
            _ => self.model.chat_template,
        };
        let chat = self.chat(template, self.thinking(wish)?, wish.tools.is_some())?;
        let tokenizer = &self.model.tokenizer;
        let mut ids = self.prompt(&chat, (messages, wish), words.as_ref())?;
        self.check_instructions(messages.len() > n_given, ids.len())?;
        let first = messages.first().filter(|first| first.role == ChatRole::System);
        let last = messages.last().filter(|last| last.role == ChatRole::Begun);
        let begun = last.map_or("", |last| last.text.as_str());
        let is_begun = !begun.is_empty();
        let system = first.map(|first| first.text.as_str());
        let mut begins_thinking = !is_begun && chat.opens_thoughts(tokenizer, &ids, system);
        if begins_thinking && (wish.is_formed() || wish.thinking.thinks == Some(false)) {
            begins_thinking = !chat.end_thoughts(tokenizer, &mut ids);
        }
        let tools = wish.tools.as_ref().zip(words.as_ref());
        let thoughts = chat.thoughts();
        let tags = thoughts.as_ref().and_then(Thoughts::tags);
        let course = Course { begins_thinking, tags, stop_ids: chat.stop_ids() };
        let mut filter = self.filter((wish, begun), words.as_ref(), course)?;
        let limit = wish.thinking.max_tokens.or(self.house.think_tokens);
        let can_limit = !is_begun && !wish.is_formed();
        if let Some(limit) = limit.filter(|&limit| can_limit && limit < usize::MAX) {
            let rest = filter.clone();
            let limited = ThoughtLimit::new((&chat, tokenizer), begins_thinking, limit, rest);
            filter = limited.map_or(filter, |limited| Some(Box::new(limited)));
        }
        let job = Job {
            stop_ids: chat.stop_ids().to_vec(),
            starts_text: !is_begun,
            names_special: chat.names_special(tokenizer)
                || tools.is_some_and(|(_, words)| words.names_special(tokenizer)),
            filter,
            ..self.job(ids, wish)
        };
        // A call that has to come is a message in a channel, too.
        let is_divided = |thoughts: &Thoughts| thoughts.tags().is_none() || !wish.is_formed();
        let thoughts = thoughts.filter(is_divided);
        let divider = Divider {
            thoughts: thoughts.map(|kind| match is_begun {
                true => ThoughtFilter::within_answer(kind),
                false => ThoughtFilter::new(kind, begins_thinking),
            }),
            calls: tools.map_or(Calls::None, |(tools, words)| tools.calls(words)),
        };
        Ok(ChatJob { job, divider })
    }

    /// The messages, behind the model's instructions if they begin without any.
    fn with_instructions<'m>(&self, messages: &'m [Message]) -> Cow<'m, [Message]> {
        let has = |role| messages.iter().any(|message| message.role == role);
        // Some templates write instructions into the first user's turn.
        let is_wanted = has(ChatRole::User) && !has(ChatRole::System);
        match self.model.suggested.system.as_deref().filter(|_| is_wanted) {
            Some(system) => {
                let mut all = vec![Message::new(ChatRole::System, system)];
                all.extend_from_slice(messages);
                all.into()
            }
            None => messages.into(),
        }
    }

    /// Refuses a prompt of `n` tokens that is too long, if it has the model's own instructions: its client cannot know.
    fn check_instructions(&self, has_own: bool, n: usize) -> Result<(), ApiError> {
        let limit = self.ctx_len;
        if !has_own || n <= limit {
            return Ok(());
        }
        let message = format!(
            "the prompt has {n} tokens with the model's own instructions, the context {limit}: send a system message, \
             or start the server with a larger --ctx"
        );
        Err(ApiError { code: Some("context_length_exceeded"), ..ApiError::new(400, message) })
    }

    /// The model's words for tools, if they come up in a conversation.
    fn words_of(&self, messages: &[Message], wish: &Wish) -> Result<Option<Words>, ApiError> {
        let has_calls = messages.iter().any(|message| !message.calls.is_empty());
        match &wish.tools {
            Some(_) => self.words().map(Some).ok_or_else(|| self.no_words()),
            None => Ok(self.words().filter(|_| has_calls)),
        }
    }

    /// The ids of a conversation up to the answer.
    fn prompt(
        &self,
        chat: &ChatFormat,
        (messages, wish): (&[Message], &Wish),
        words: Option<&Words>,
    ) -> Result<Vec<u32>, ApiError> {
        let problem = |e: TokenizerError| ApiError::field("messages", e.to_string());
        if chat.template() == ChatTemplate::Own {
            let own = match words {
                Some(Words::Own(own)) => Some(&**own),
                _ => None,
            };
            let given = self.own_prompt(chat, (messages, wish), own);
            // Some templates refuse an empty answer, such as one that was cut short at its first token.
            let filled = if given.is_err() { without_empty_answers(messages) } else { None };
            let filled = filled.map(|filled| self.own_prompt(chat, (&filled, wish), own));
            return filled.and_then(Result::ok).map_or(given, Ok).map_err(problem);
        }
        let mut turns: Vec<(ChatRole, String)> =
            messages.iter().map(|message| (message.role, message.text.clone())).collect();
        if let (Some(tools), Some(words)) = (&wish.tools, words) {
            tools.tell(words, self.default_instructions(), &mut turns);
        }
        let turns: Vec<(ChatRole, &str)> =
            turns.iter().map(|(role, text)| (*role, text.as_str())).collect();
        let mut ids = Vec::new();
        chat.render(&self.model.tokenizer, &turns, &mut ids).map_err(problem)?;
        Ok(ids)
    }

    /// The ids of a conversation in the checkpoint's own template, whose words for tools are `own`.
    fn own_prompt(
        &self,
        chat: &ChatFormat,
        (messages, wish): (&[Message], &Wish),
        own: Option<&OwnWords>,
    ) -> Result<Vec<u32>, TokenizerError> {
        let (messages, begun) = values(messages, chat, own);
        let write = |definitions: Option<(&OwnWords, Vec<Value>)>| {
            let mut variables = wish.template_variables.clone();
            variables.extend(definitions.map(|(own, all)| (own.variable().to_owned(), all.into())));
            let mut ids = Vec::new();
            chat.render_values(&self.model.tokenizer, &messages, &variables, begun, &mut ids)?;
            Ok(ids)
        };
        let Some((tools, own)) = wish.tools.as_ref().zip(own) else { return write(None) };
        // Some templates fail where a definition lacks what clients may leave out.
        write(Some((own, tools.definitions().to_vec())))
            .or_else(|e| write(Some((own, tools.filled_definitions()))).map_err(|_| e))
    }

    /// How the model thinks: not at all if the answer has to have a form from its start on.
    fn thinking(&self, wish: &Wish) -> Result<Thinking, ApiError> {
        match (wish.is_formed(), self.thoughts(), &wish.form) {
            (true, Some(Thoughts::Tags(_)), _) => {
                Ok(Thinking { thinks: Some(false), ..wish.thinking })
            }
            (true, Some(Thoughts::Channels), Some(form)) => {
                let field = form.field;
                let problem = "is not supported with this model: its answers come in channels";
                Err(ApiError::field(field, format!("{field} {problem}")))
            }
            _ => Ok(wish.thinking),
        }
    }

    fn no_words(&self) -> ApiError {
        let template = self.model.chat_template.name();
        let problem = format!("the model's chat template, {template}, has no words for tools");
        ApiError::field("tools", problem)
    }

    /// Instructions of the checkpoint's template, for requests that give none.
    fn default_instructions(&self) -> Option<&str> {
        let is_own = self.model.tokenizer.chat_template() == self.model.chat_template;
        self.model.tokenizer.chat_texts().thinking.default.as_deref().filter(|_| is_own)
    }

    /// The filter that keeps an answer in the form that `wish` asks for.
    fn filter(
        &self,
        (wish, begun): (&Wish, &str),
        words: Option<&Words>,
        course: Course<'_>,
    ) -> Result<Option<Box<dyn TokenFilter>>, ApiError> {
        let form = wish.form.as_ref();
        let schema = form.map(|form| schema::closed(form.schema.clone()));
        let problem = |field: &str, e: String| {
            ApiError::field(field, format!("{field} cannot be followed: {e}"))
        };
        let of_form = |filter: Result<GrammarFilter, String>| {
            filter.map_err(|e| problem(form.map_or("", |form| form.field), e))
        };
        let filter = match (&schema, &wish.tools) {
            (None, None) => return Ok(None),
            (Some(schema), None) => of_form(self.form(schema, course.stop_ids))?,
            (schema, Some(tools)) => {
                // An unsupported form is reported under its own name, not as a fault of the tools.
                if let Some(schema) = schema {
                    of_form(self.form(schema, course.stop_ids))?;
                }
                let words = words.ok_or_else(|| self.no_words())?;
                let place = (words, &*self.model.tokenizer);
                let filter = |grammars| tools.filter(place, grammars, (course, schema.as_ref()));
                self.grammars().and_then(filter).map_err(|e| problem("tools", e))?
            }
        };
        let field = form.map_or("tools", |form| form.field);
        let filter = filter.behind(begun).map_err(|e| problem(field, e))?;
        Ok(Some(Box::new(filter)))
    }

    /// The filter that keeps a text in the form of a schema. The error names the unsupported part of the schema, and
    /// why.
    fn form(&self, schema: &Value, stop_ids: &[u32]) -> Result<GrammarFilter, String> {
        let grammars = self.grammars()?;
        grammars.schema(schema, stop_ids).map_err(|cause| {
            let follow = |part: &Value| grammars.schema(part, stop_ids).map(drop);
            match schema::fault(schema, &follow) {
                Some((path, cause)) if !path.is_empty() => format!("{path}: {cause}"),
                _ => cause,
            }
        })
    }

    /// The job that continues `prompt`. Its text is what `leap run -p` gives.
    pub(super) fn text_job(
        &self,
        prompt: &str,
        suffix: Option<&str>,
        wish: &Wish,
    ) -> Result<Job, ApiError> {
        let mut ids: Vec<u32> = self.model.tokenizer.bos().into_iter().collect();
        match suffix {
            None => self.model.tokenizer.encode(prompt, &mut ids),
            Some(suffix) if self.model.tokenizer.encode_infill(prompt, suffix, &mut ids) => {}
            Some(_) => {
                let problem = "this model's vocabulary has no tokens for filling in";
                return Err(ApiError::field("suffix", problem));
            }
        }
        let starts_text = prompt.is_empty() && suffix.is_none();
        let words = wish.tools.as_ref().and_then(|_| self.words());
        let course = Course { begins_thinking: false, tags: None, stop_ids: &self.model.stop_ids };
        Ok(Job {
            starts_text,
            filter: self.filter((wish, ""), words.as_ref(), course)?,
            ..self.job(ids, wish)
        })
    }

    /// The job that continues `ids`.
    pub(super) fn job(&self, ids: Vec<u32>, wish: &Wish) -> Job {
        Job {
            sampling: wish.sampling,
            rules: wish.rules.clone(),
            n_likeliest: wish.n_likeliest,
            n_predict: wish.n_predict,
            stop_ids: self.model.stop_ids.clone(),
            stop_strings: match wish.stop_strings.is_empty() {
                true => self.model.suggested.stop_strings.clone(),
                false => wish.stop_strings.clone(),
            },
            ..Job::new(ids)
        }
    }
}
