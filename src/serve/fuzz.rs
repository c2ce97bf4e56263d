//! Entry points of the fuzz targets: a server whose model always writes the same text, and its grammars.

use std::io::{Read, Write};
use std::net::Shutdown;
use std::os::unix::net::UnixStream;
use std::sync::atomic::AtomicUsize;
use std::sync::{Arc, LazyLock};
use std::thread;
use std::time::Duration;

use serde_json::Value;

use super::access::AccessLog;
use super::fields::Fields;
use super::grammar::{GrammarFilter, Grammars};
use super::http::{Budget, HttpLimits, Socket};
use super::jobs::{Command, Commands, JobQueue, TokenOdds};
use super::keys::ApiKeys;
use super::lobby::Lobby;
use super::models::Models;
use super::plain;
use super::server::{Place, Server};
use super::service::{House, ModelAbout, ServedModel, Service};
use super::tools::{Course, Tools, Words, learn};
use crate::engine::{Outcome, StopReason, TokenFilter};
use crate::format::tokenizer::{TokenKind, TokenizerFile};
use crate::format::{ChatTemplate, Suggested};
use crate::tokenizer::{Tags, Tokenizer};

/// One template for each format of tools and thoughts, and one without either.
const TEMPLATES: [ChatTemplate; 5] = [
    ChatTemplate::Llama3,
    ChatTemplate::Qwen3,
    ChatTemplate::MistralV3,
    ChatTemplate::Harmony,
    ChatTemplate::Zephyr,
];

/// Special tokens of [`TEMPLATES`] that the demo model's vocabulary lacks.
const SPECIAL: [&str; 13] = [
    "<|im_start|>",
    "<|im_end|>",
    "[INST]",
    "[/INST]",
    "[TOOL_CALLS]",
    "[AVAILABLE_TOOLS]",
    "[/AVAILABLE_TOOLS]",
    "[TOOL_RESULTS]",
    "[/TOOL_RESULTS]",
    "<|start|>",
    "<|channel|>",
    "<|message|>",
    "<|end|>",
];

const PATHS: [&str; 8] = [
    "/v1/chat/completions",
    "/v1/completions",
    "/v1/responses",
    "/api/chat",
    "/api/generate",
    "/api/show",
    "/tokenize",
    "/detokenize",
];

/// The text of every answer.
const TEXT: &str = "<think>\nSo be it.\n</think>\n\nI <b>do</b>.\n<tool_call>\n{\"name\": \"f\", \
                    \"arguments\": {\"x\": [1, \"é\"]}}\n</tool_call>";

/// Most tokens drawn for one grammar.
const N_TOKENS: usize = 48;

static TOKENIZER: LazyLock<Arc<Tokenizer>> = LazyLock::new(|| {
    let bytes = include_bytes!("../../models/demo.tokenizer.bin");
    let mut file = TokenizerFile::parse(bytes, None).expect("the demo model's vocabulary");
    // Harmony templates need texts from a checkpoint.
    file.chat = ChatTemplate::Harmony;
    file.chat_texts.thinking.head.push_str("You are LEAP.");
    for name in SPECIAL {
        file.vocab.push(name.as_bytes(), 0.0, TokenKind::Control).expect("a score of zero");
    }
    Arc::new(Tokenizer::new(file).expect("the same with more tokens"))
});

static SERVERS: LazyLock<Vec<Arc<Server>>> =
    LazyLock::new(|| TEMPLATES.into_iter().map(|template| Arc::new(server(template))).collect());

static GRAMMARS: LazyLock<Grammars> = LazyLock::new(|| {
    Grammars::new(Arc::clone(&TOKENIZER), *VOCAB_SIZE, TOKENIZER.stop_ids())
        .expect("a vocabulary in which a token ends texts")
});

/// Ids of [`TOKENIZER`].
static VOCAB_SIZE: LazyLock<usize> =
    LazyLock::new(|| (0..).take_while(|id| TOKENIZER.token_kind(*id).is_some()).count());

fn server(chat_template: ChatTemplate) -> Server {
    let (queue, commands) = JobQueue::new(64);
    thread::spawn(move || answer(&commands));
    let model = ServedModel {
        about: ModelAbout { name: "demo".to_owned(), ..ModelAbout::default() },
        tokenizer: Arc::clone(&TOKENIZER),
        chat_template,
        stop_ids: TOKENIZER.stop_ids().to_vec(),
        suggested: Suggested::default(),
        embeds: None,
    };
    let service = Service::new(model, (1024, *VOCAB_SIZE), (queue, &Arc::new(House::new(1))));
    Server {
        models: Arc::new(Models::with_one(service, None, Arc::default())),
        keys: ApiKeys::parse(""),
        limits: HttpLimits {
            body_max: 1 << 20,
            budget: Budget::new(1 << 20),
            request_time: Duration::from_secs(5),
            idle_time: Duration::from_secs(5),
            quiet_time: Duration::from_secs(5),
            origins: vec!["http://page.example".to_owned()],
        },
        access_log: AccessLog::default(),
        lost: Box::new(|| None),
        given_up: Arc::default(),
        lobby: Lobby::new(usize::MAX),
        n_answering: AtomicUsize::new(0),
    }
}

/// Plays the engine: answers each job with [`TEXT`].
fn answer(commands: &Commands) {
    for command in &commands.receiver {
        let Command::Submit(job, answers, index) = command else { continue };
        if job.n_likeliest.is_some() {
            let likeliest = (0..3).map(|id| (id, -1.0)).collect();
            answers.put_token(index, TokenOdds { id: 5, logprob: -0.5, likeliest });
        }
        answers.put(index, TEXT);
        answers.end(index, Ok(Outcome { reason: StopReason::Length, ..Outcome::INTERRUPTED }));
    }
}

/// Everything that the server answers to `bytes`. With `is_all` the client then stops sending.
fn exchange(server: &Arc<Server>, bytes: &[u8], is_all: bool) -> Vec<u8> {
    let (mut client, socket) = UnixStream::pair().expect("a pair of sockets");
    let place = Place::take(server, Socket::Unix(socket)).expect("a place");
    thread::scope(|scope| {
        scope.spawn(move || place.serve());
        let mut reader = client.try_clone().expect("a second handle");
        let read = scope.spawn(move || {
            let mut answer = Vec::new();
            // A server that refuses a request may close with bytes unread, which is an error here.
            let _ = reader.read_to_end(&mut answer);
            answer
        });
        // For the same reason the server may not take all bytes.
        let _ = client.write_all(bytes);
        if is_all {
            let _ = client.shutdown(Shutdown::Write);
        }
        read.join().expect("it reads alone")
    })
}

/// Sends `bytes` as a client that then stops sending.
pub fn connection(bytes: &[u8]) {
    exchange(&SERVERS[0], bytes, true);
}

/// Sends a body. The first byte of `bytes` selects the endpoint, the second one the template; the rest is the body.
pub fn request(bytes: &[u8]) {
    let Some(([path, template], body)) = bytes.split_first_chunk() else { return };
    let path = PATHS[usize::from(*path) % PATHS.len()];
    let head = format!(
        "POST {path} HTTP/1.1\r\nHost: a\r\nConnection: close\r\nContent-Length: {}\r\n\r\n",
        body.len()
    );
    let server = &SERVERS[usize::from(*template) % TEMPLATES.len()];
    let answer = exchange(server, &[head.as_bytes(), body].concat(), false);
    let answer = String::from_utf8(answer).expect("answers are text");
    let (head, text) = answer.split_once("\r\n\r\n").expect("an answer");
    let known = [200, 400, 404, 429].map(|status| format!("HTTP/1.1 {status} "));
    assert!(known.iter().any(|known| head.starts_with(known)), "{answer}");
    if !head.contains("chunked") {
        serde_json::from_str::<Value>(text).expect("JSON");
    }
}

/// Draws tokens that a schema, or the tools of a request, allow. The first byte selects which; the second one is the
/// seed.
pub fn form(bytes: &[u8]) {
    let Some(([kind, seed], json)) = bytes.split_first_chunk() else { return };
    let Ok(value) = plain::parse(json) else { return };
    let stop_ids = TOKENIZER.stop_ids();
    let templates =
        [ChatTemplate::None, ChatTemplate::Qwen3, ChatTemplate::Llama3, ChatTemplate::MistralV3];
    let filter = match Words::of(templates[usize::from(*kind) % templates.len()]) {
        None => GRAMMARS.schema(&value, stop_ids).ok(),
        Some(words) => tools(&value, &words),
    };
    if let Some(filter) = filter {
        follow(filter, u64::from(*seed));
    }
}

fn tools(value: &Value, words: &Words) -> Option<GrammarFilter> {
    let fields = Fields::of(value, "").ok()?;
    let tools = Tools::read(&fields).ok()??;
    tools.tell(words, None, &mut Vec::new());
    let course =
        Course { begins_thinking: false, tags: Some(&Tags::THINK), stop_ids: TOKENIZER.stop_ids() };
    tools.filter((words, &TOKENIZER), &GRAMMARS, (course, None)).ok()
}

/// Learns the marks of calls from a template of these bytes, and draws tokens that the grammar with them allows.
pub fn marks(bytes: &[u8]) {
    let Some(grammar) = learn(bytes, &TOKENIZER) else { return };
    if let Ok(filter) = GRAMMARS.lark(grammar, None, TOKENIZER.stop_ids()) {
        follow(filter, 7);
    }
}

/// Takes allowed tokens until the text is complete, or [`N_TOKENS`] are taken.
fn follow(mut filter: GrammarFilter, seed: u64) {
    let mut state = seed | 1;
    for _ in 0..N_TOKENS {
        let mut logits: Vec<f32> = (0..*VOCAB_SIZE).map(|_| drawn(&mut state)).collect();
        if filter.restrict(&mut logits).is_err() {
            return;
        }
        let best = logits.iter().enumerate().max_by(|a, b| a.1.total_cmp(b.1));
        let (id, logit) = best.expect("a vocabulary");
        assert!(logit.is_finite(), "nothing may come");
        match filter.take(id as u32) {
            Ok(false) => {}
            Ok(true) | Err(_) => return,
        }
    }
}

fn drawn(state: &mut u64) -> f32 {
    *state ^= *state << 13;
    *state ^= *state >> 7;
    *state ^= *state << 17;
    (*state >> 40) as f32
}
