//! What all requests share: the model's words, and how a request becomes jobs.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{SystemTime, UNIX_EPOCH};

use serde_json::Value;

use super::error::ApiError;
use super::fields::Fields;
use super::jobs::Desk;
use super::metrics::Metrics;
use crate::engine::Job;
use crate::format::{ChatTemplate, Date};
use crate::sampler::Sampling;
use crate::sys::clock;
use crate::tokenizer::{ChatFormat, ChatOptions, ChatRole, ThoughtFilter, Thoughts, Tokenizer};

/// Most stop strings of a request.
pub(super) const STOPS_MAX: usize = 16;

/// The served model, and where its answers come from.
pub(super) struct Service {
    pub(super) about: ModelAbout,
    pub(super) tokenizer: Arc<Tokenizer>,
    /// How conversations are written.
    pub(super) chat_template: ChatTemplate,
    /// Ids that end a text.
    pub(super) stop_ids: Vec<u32>,
    pub(super) ctx_len: usize,
    pub(super) desk: Desk,
    pub(super) metrics: Arc<Metrics>,
    /// Seconds since 1970 at which the server started.
    pub(super) started: u64,
    /// Answers so far, and the first seed of those that name none.
    pub(super) n_answers: AtomicU64,
    pub(super) seed: u64,
}

/// What clients are told of the model.
#[derive(Clone, Debug, Default)]
pub(crate) struct ModelAbout {
    /// What it is called.
    pub(crate) name: String,
    /// How long its file is.
    pub(crate) bytes: u64,
    /// The model's fingerprint.
    pub(crate) digest: String,
    /// The architecture's name.
    pub(crate) family: String,
    /// How its weights are kept.
    pub(crate) quantization: String,
}

/// How a text goes on, as a request says.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Wish {
    pub(super) sampling: Sampling,
    pub(super) n_predict: usize,
    pub(super) stop_strings: Vec<String>,
    pub(super) thinking: Thinking,
}

/// What a request says of the model's thoughts; of each field nothing, as a rule.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Thinking {
    /// Whether the model may think.
    pub(super) thinks: Option<bool>,
    /// How much.
    pub(super) effort: Option<&'static str>,
}

/// A job of a conversation, and what divides its thoughts from its answer.
pub(super) struct ChatJob {
    pub(super) job: Job,
    pub(super) thoughts: Option<ThoughtFilter>,
}

/// Seconds since 1970.
pub(super) fn now() -> u64 {
    SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |time| time.as_secs())
}

impl Service {
    /// Refuses a request for another model. Ollama's clients may add `:latest`.
    pub(super) fn check_model(&self, fields: &Fields<'_>, name: &str) -> Result<(), ApiError> {
        match fields.string(name)? {
            None => Ok(()),
            Some(asked) if asked.strip_suffix(":latest").unwrap_or(asked) == self.about.name => {
                Ok(())
            }
            Some(asked) => Err(self.unknown_model(asked)),
        }
    }

    pub(super) fn unknown_model(&self, asked: &str) -> ApiError {
        let message = format!("there is no model {asked:?} here; this is {:?}", self.about.name);
        let field = Some("model".to_owned());
        ApiError { field, code: Some("model_not_found"), ..ApiError::new(404, message) }
    }

    /// A number for the next answer.
    pub(super) fn next_answer(&self) -> u64 {
        self.n_answers.fetch_add(1, Ordering::Relaxed)
    }

    /// The seed that a request names, else another one each time.
    pub(super) fn seed(&self, fields: &Fields<'_>) -> Result<u64, ApiError> {
        match fields.whole("seed", i64::MIN..=i64::MAX)? {
            Some(seed) => Ok(seed as u64),
            None => Ok(self.seed.wrapping_add(self.next_answer())),
        }
    }

    /// How conversations are written today.
    fn chat(&self, thinking: Thinking) -> Result<ChatFormat, ApiError> {
        let thoughts = Thoughts::of(self.chat_template);
        let is_channels = thoughts == Some(Thoughts::Channels);
        if (thinking.thinks == Some(true) && thoughts.is_none())
            || (thinking.thinks == Some(false) && is_channels)
            || (thinking.effort.is_some() && !is_channels)
        {
            return Err(ApiError::new(400, "the model's template has no such way of thinking"));
        }
        let today = clock::today().and_then(|(year, month, day)| Date::new(year, month, day));
        let today = today.ok_or_else(|| ApiError::new(500, "the server's clock shows no date"))?;
        let default = ChatOptions::new(today);
        let options = ChatOptions {
            thinks: thinking.thinks.unwrap_or(default.thinks),
            effort: thinking.effort.unwrap_or(default.effort),
            ..default
        };
        ChatFormat::new(self.chat_template, &self.tokenizer, options)
            .map_err(|e| ApiError::new(400, e.to_string()))
    }

    /// Whether conversations can be held.
    pub(super) fn can_chat(&self) -> bool {
        self.chat(Thinking::default()).is_ok()
    }

    /// The job of an answer in a conversation: what `leap run --chat` gives for the same messages.
    pub(super) fn chat_job(&self, messages: &[Message], wish: &Wish) -> Result<ChatJob, ApiError> {
        let chat = self.chat(wish.thinking)?;
        let turns: Vec<(ChatRole, &str)> =
            messages.iter().map(|message| (message.role, &*message.text)).collect();
        let mut ids = Vec::new();
        chat.render(&self.tokenizer, &turns, &mut ids);
        let system = turns.first().filter(|turn| turn.0 == ChatRole::System).map(|turn| turn.1);
        let begins_thinking = chat.begins_thinking(system);
        let job = Job {
            stop_ids: chat.stop_ids().to_vec(),
            starts_text: true,
            names_special: chat.thoughts() == Some(Thoughts::Channels),
            ..self.job(ids, wish)
        };
        let thoughts = chat.thoughts().map(|kind| ThoughtFilter::new(kind, begins_thinking));
        Ok(ChatJob { job, thoughts })
    }

    /// The job of what follows `prompt`: what `leap run -p` gives.
    pub(super) fn text_job(
        &self,
        prompt: &str,
        suffix: Option<&str>,
        wish: &Wish,
    ) -> Result<Job, ApiError> {
        let mut ids: Vec<u32> = self.tokenizer.bos().into_iter().collect();
        match suffix {
            None => self.tokenizer.encode(prompt, &mut ids),
            Some(suffix) if self.tokenizer.encode_infill(prompt, suffix, &mut ids) => {}
            Some(_) => {
                let problem = "this model's vocabulary has no tokens for filling in";
                return Err(ApiError::field("suffix", problem));
            }
        }
        let starts_text = prompt.is_empty() && suffix.is_none();
        Ok(Job { starts_text, ..self.job(ids, wish) })
    }

    /// The job of what follows `ids`.
    pub(super) fn job(&self, ids: Vec<u32>, wish: &Wish) -> Job {
        Job {
            sampling: wish.sampling,
            n_predict: wish.n_predict,
            stop_ids: self.stop_ids.clone(),
            stop_strings: wish.stop_strings.clone(),
            ..Job::new(ids)
        }
    }
}

/// A message of a conversation.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Message {
    pub(super) role: ChatRole,
    pub(super) text: String,
}

/// Reads `messages`: the system's, if there are any, before all others, then the user and the model in
/// turn, and the user last. Messages of one role that follow each other are one, with an empty line
/// between.
pub(super) fn messages(values: &[Value]) -> Result<Vec<Message>, ApiError> {
    let mut messages: Vec<Message> = Vec::new();
    for (index, value) in values.iter().enumerate() {
        let fields = Fields::of(value, &format!("messages[{index}]"))?;
        let role = match fields.string("role")? {
            Some("system" | "developer") => ChatRole::System,
            Some("user") => ChatRole::User,
            Some("assistant") => ChatRole::Assistant,
            Some("tool" | "function") => {
                return Err(fields.bad("role", "is that of a tool: there are none"));
            }
            _ => return Err(fields.bad("role", "is none of system, developer, user and assistant")),
        };
        for name in ["tool_calls", "function_call", "images", "audio"] {
            fields.only(name, |value| value.as_array().is_some_and(Vec::is_empty))?;
        }
        let text = content(&fields)?;
        match messages.last_mut() {
            Some(last) if last.role == role => last.text += &format!("\n\n{text}"),
            Some(_) if role == ChatRole::System => {
                return Err(
                    fields.bad("role", "is system behind another one: instructions come first")
                );
            }
            last => {
                let follows_user = last.is_some_and(|last| last.role == ChatRole::User);
                if role == ChatRole::Assistant && !follows_user {
                    return Err(
                        fields.bad("role", "is assistant, but no user's message comes before")
                    );
                }
                messages.push(Message { role, text });
            }
        }
    }
    match messages.last() {
        Some(last) if last.role == ChatRole::User => Ok(messages),
        Some(_) => Err(ApiError::field("messages", "the last message is not the user's")),
        None => Err(ApiError::field("messages", "there are no messages")),
    }
}

/// The text of a message: a string, or parts that are texts.
fn content<'v>(fields: &Fields<'v>) -> Result<String, ApiError> {
    match fields.get("content") {
        Some(Value::String(text)) => Ok(text.clone()),
        Some(Value::Array(parts)) => {
            let part = |(index, part): (usize, &'v Value)| {
                let part = Fields::of(part, &fields.path_of(&format!("content[{index}]")))?;
                match (part.string("type")?, part.string("text")?) {
                    (Some("text"), Some(text)) => Ok(text),
                    _ => Err(part.bad("type", "is not text: nothing else is read")),
                }
            };
            parts.iter().enumerate().map(part).collect()
        }
        _ => Err(fields.bad("content", "is neither a string nor an array of parts")),
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn read(value: Value) -> Result<Vec<(ChatRole, String)>, String> {
        let messages = messages(value.as_array().unwrap());
        let pair = |message: Message| (message.role, message.text);
        messages.map(|all| all.into_iter().map(pair).collect()).map_err(|e| e.field.unwrap())
    }

    #[test]
    fn messages_of_one_role_are_one() {
        let value = json!([
            {"role": "system", "content": "a"},
            {"role": "developer", "content": "b"},
            {"role": "user", "content": [{"type": "text", "text": "c"}, {"type": "text", "text": "d"}]},
        ]);
        let wanted = vec![(ChatRole::System, "a\n\nb".into()), (ChatRole::User, "cd".into())];
        assert_eq!(read(value), Ok(wanted));
    }

    #[test]
    fn what_has_no_place_in_a_conversation_is_refused_by_name() {
        let user = json!({"role": "user", "content": "x"});
        for (value, wanted) in [
            (json!([]), "messages"),
            (json!([{"role": "system", "content": "x"}]), "messages"),
            (json!([user, {"role": "assistant", "content": "x"}]), "messages"),
            (json!([{"role": "assistant", "content": "x"}]), "messages[0].role"),
            (json!([user, {"role": "system", "content": "x"}, user]), "messages[1].role"),
            (json!([user, {"role": "tool", "content": "x"}]), "messages[1].role"),
            (json!([{"role": "user"}]), "messages[0].content"),
            (
                json!([{"role": "user", "content": [{"type": "image_url"}]}]),
                "messages[0].content[0].type",
            ),
            (json!([{"role": "user", "content": "x", "images": ["y"]}]), "messages[0].images"),
        ] {
            assert_eq!(read(value.clone()), Err(wanted.to_owned()), "{value}");
        }
    }
}
