//! The line of figures after an answer, and the JSON object instead of it.

use crate::cli::json_object::JsonObject;
use crate::engine::{Engine, Outcome};
use crate::sys::{huge, memory};

/// What the figures are about besides the answer.
pub(super) struct Setting<'a> {
    pub(super) engine: &'a Engine,
    pub(super) model: &'a str,
}

/// One line for people.
pub(super) fn line(outcome: &Outcome, engine: &Engine) -> String {
    let figures = &outcome.figures;
    let memory = memory::peak_resident_bytes().unwrap_or(0) as f64 / f64::from(1 << 20);
    format!(
        "prompt {} tokens, {:.1} tokens/s; generated {} tokens, {:.1} tokens/s; \
         first token after {:.1} ms; memory {memory:.1} MiB; {}, {} threads, weights {}",
        figures.prompt_tokens,
        figures.prompt_tokens_per_s(),
        figures.generated_tokens,
        figures.generated_tokens_per_s(),
        figures.ttft.as_secs_f64() * 1e3,
        engine.transformer().kernels().isa().name(),
        engine.transformer().threads(),
        weights(engine),
    )
}

/// Where the weights are read from.
fn weights(engine: &Engine) -> &'static str {
    let transformer = engine.transformer();
    match (transformer.is_packed(), transformer.is_in_memory()) {
        (false, _) => "as in the model file",
        (true, false) => "packed, in a mapped file",
        (true, true) if huge::is_available() => "packed, in huge pages",
        (true, true) => "packed, in memory",
    }
}

/// One object for machines.
pub(super) fn json(outcome: &Outcome, setting: &Setting<'_>, prompt: &str, text: &str) -> String {
    let figures = &outcome.figures;
    let transformer = setting.engine.transformer();
    JsonObject::new()
        .string("model", setting.model)
        .string("prompt", prompt)
        .string("text", text)
        .string("stop_reason", outcome.reason.name())
        .number("prompt_tokens", figures.prompt_tokens as f64)
        .number("generated_tokens", figures.generated_tokens as f64)
        .number("prompt_tokens_per_s", figures.prompt_tokens_per_s())
        .number("generated_tokens_per_s", figures.generated_tokens_per_s())
        .number("ttft_ms", figures.ttft.as_secs_f64() * 1e3)
        .number("memory_bytes", memory::peak_resident_bytes().unwrap_or(0) as f64)
        .number("arena_bytes", transformer.arena_bytes() as f64)
        .number("ctx_len", setting.engine.ctx_len() as f64)
        .string("isa", transformer.kernels().isa().name())
        .string("kv", transformer.plan().kv.name())
        .number("threads", transformer.threads() as f64)
        .string("weights", weights(setting.engine))
        .finish()
}
