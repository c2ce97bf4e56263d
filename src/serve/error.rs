//! Errors of a request, in the words of the protocols.

use serde_json::{Value, json};

use super::http::{HttpError, Reply};
use super::jobs::Refusal;
use crate::engine::JobError;

/// Most names of models in a message.
const NAMES_MAX: usize = 8;

/// Seconds after which a refused client may ask again.
const RETRY_S: u32 = 2;

/// Why a request gets no answer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct ApiError {
    pub(super) status: u16,
    /// Path of the body's field at fault, such as `messages[0].role`.
    pub(super) field: Option<String>,
    pub(super) message: String,
    /// Error code for programs.
    pub(super) code: Option<&'static str>,
    /// Further fields of the reply's head, a line each.
    pub(super) fields: &'static str,
}

impl ApiError {
    pub(super) fn new(status: u16, message: impl Into<String>) -> ApiError {
        ApiError { status, field: None, message: message.into(), code: None, fields: "" }
    }

    /// An error about the value of a body's field.
    pub(super) fn field(field: impl Into<String>, message: impl Into<String>) -> ApiError {
        ApiError { field: Some(field.into()), ..ApiError::new(400, message) }
    }

    /// The error for a model that there is not, beside those that there are.
    pub(super) fn unknown_model(asked: &str, names: &[&str]) -> ApiError {
        let names: Vec<String> = names.iter().take(NAMES_MAX).map(|n| format!("{n:?}")).collect();
        let others = match &names[..] {
            [] => "there is none yet".to_owned(),
            [name] => format!("this is {name}"),
            names => format!("there are {}", names.join(", ")),
        };
        ApiError::no_model(format!("there is no model {asked:?} here; {others}"))
    }

    /// An error about the name of a model.
    pub(super) fn no_model(message: impl Into<String>) -> ApiError {
        let field = Some("model".to_owned());
        ApiError { field, code: Some("model_not_found"), ..ApiError::new(404, message) }
    }

    /// OpenAI's name of this kind of error.
    fn kind(&self) -> &'static str {
        match self.status {
            401 => "authentication_error",
            403 => "permission_error",
            404 => "not_found_error",
            429 => "rate_limit_error",
            500.. => "server_error",
            _ => "invalid_request_error",
        }
    }

    /// The object `error` of OpenAI's protocol.
    pub(super) fn object(&self) -> Value {
        let ApiError { field, message, code, .. } = self;
        json!({"error": {"message": message, "type": self.kind(), "param": field, "code": code}})
    }

    /// The answer of OpenAI's protocol, or of Ollama's.
    pub(super) fn reply(&self, is_ollama: bool) -> Reply {
        let body = match is_ollama {
            true => json!({"error": self.message}),
            false => self.object(),
        };
        let retry_after = matches!(self.status, 429 | 503).then_some(RETRY_S);
        Reply { retry_after, fields: self.fields, ..Reply::json(self.status, &body) }
    }
}

impl From<HttpError> for ApiError {
    fn from(error: HttpError) -> ApiError {
        ApiError::new(error.status, error.problem)
    }
}

impl From<Refusal> for ApiError {
    fn from(refusal: Refusal) -> ApiError {
        match refusal {
            Refusal::Full => ApiError::new(429, "too many requests wait: try again later"),
            Refusal::Ending => ApiError::new(503, "the server is about to end"),
        }
    }
}

impl From<JobError> for ApiError {
    fn from(error: JobError) -> ApiError {
        let message = error.to_string();
        match error {
            JobError::TooLong { .. } => {
                ApiError { code: Some("context_length_exceeded"), ..ApiError::new(400, message) }
            }
            JobError::EmptyPrompt | JobError::UnknownId { .. } | JobError::Filter(_) => {
                ApiError::new(400, message)
            }
            JobError::Step(error) if error.is_lost() => ApiError::new(503, message),
            _ => ApiError::new(500, message),
        }
    }
}
