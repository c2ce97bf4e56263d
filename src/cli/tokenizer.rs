//! `leap tokenizer`: converts and applies tokenizers.

mod chat;

use std::fs;
use std::io::{self, BufRead, ErrorKind, Write};
use std::path::{Path, PathBuf};

use argh::{ArgsInfo, FromArgs};
use serde_json::Value;

use super::options::ChatChoice;
use super::{Failure, names, note, options};
use crate::export::tokenizer as import;
use crate::format::json;
use crate::format::tokenizer::{TokenizerFile, TokenizerKind};
use crate::format::{ChatTemplate, Date, text_without_mark};
use crate::sys::file::{AtomicFile, read_file};
use crate::tokenizer as text;

/// Converts a tokenizer to tokenizer.bin, or encodes and decodes with one.
#[derive(ArgsInfo, FromArgs)]
#[argh(subcommand, name = "tokenizer")]
pub(super) struct Tokenizer {
    /// tokenizer.model, tokenizer.json, tokenizer.bin, or the folder that holds one
    #[argh(positional)]
    input: PathBuf,

    /// file to write (default: tokenizer.bin beside the input)
    #[argh(option, short = 'o')]
    output: Option<PathBuf>,

    /// encode: stdin has a JSON string a line, stdout its ids
    #[argh(switch)]
    encode: bool,

    /// decode: stdin has a JSON array of ids a line, stdout its text
    #[argh(switch)]
    decode: bool,

    /// encode conversations: stdin has a JSON object a line, with messages (role and content each)
    /// and, if need be, enable_thinking, reasoning_effort and now, stdout their ids; a checkpoint's
    /// own template gets whatever else is there
    #[argh(switch)]
    chat: bool,

    /// with --chat: the text that the ids stand for, as a JSON string
    #[argh(switch)]
    text: bool,

    /// chat template instead of the checkpoint's, as for run
    #[argh(option, from_str_fn(options::chat_template))]
    chat_template: Option<ChatChoice>,

    /// recognise special tokens in the text, and write their names
    #[argh(switch)]
    special: bool,
}

impl Tokenizer {
    pub(super) fn execute(mut self) -> Result<(), Failure> {
        let usage = |message: &str| Err(Failure::Usage(message.to_owned()));
        let n_modes =
            [self.encode, self.decode, self.chat].into_iter().filter(|&mode| mode).count();
        let applies = n_modes > 0;
        if n_modes > 1 {
            return usage("--encode, --decode and --chat exclude each other");
        }
        if self.text && !self.chat {
            return usage("--text belongs to --chat");
        }
        if !applies && self.output.is_none() && names::parsed(&self.input)?.is_some() {
            return usage(
                "a model's name has no place beside it for a tokenizer: give one with -o",
            );
        }
        self.input = names::path(&self.input)?;
        let file = read(&self.input)?;
        if applies { self.apply(file) } else { self.convert(file) }
    }

    fn convert(self, file: TokenizerFile) -> Result<(), Failure> {
        let output = match self.output {
            Some(output) => output,
            None => beside(&self.input),
        };
        let is_input = |path: &Path| {
            let same = fs::canonicalize(path).ok().zip(fs::canonicalize(&self.input).ok());
            same.is_some_and(|(path, input)| path == input)
        };
        if is_input(&output) {
            let message = format!("{} is the input; name another file with -o", output.display());
            return Err(Failure::Usage(message));
        }
        // A tokenizer that cannot be used is not worth writing.
        let tokenizer = use_file(&self.input, file.clone())?;
        let failed =
            |e: io::Error| Failure::Runtime(format!("cannot write {}: {e}", output.display()));
        let mut out = AtomicFile::create(&output).map_err(failed)?;
        out.write_all(&file.to_bytes()).map_err(failed)?;
        out.commit().map_err(failed)?;
        let kind = match tokenizer.kind() {
            TokenizerKind::ByteLevel => "byte-level BPE",
            TokenizerKind::SentencePiece => "SentencePiece BPE",
            TokenizerKind::WordPiece => "WordPiece",
        };
        let (path, n_vocab) = (output.display(), tokenizer.vocab_len());
        let chat = tokenizer.chat_template().name();
        tell(&format!("{path}: {n_vocab} tokens, {kind}, chat template {chat}"));
        Ok(())
    }

    fn apply(&self, file: TokenizerFile) -> Result<(), Failure> {
        let mut tokenizer = use_file(&self.input, file)?;
        let chosen = ChatChoice::apply(self.chat_template.as_ref(), &mut tokenizer)?;
        let template = chosen.unwrap_or(tokenizer.chat_template());
        let today = options::today()?;
        if self.chat {
            // Reports a template that cannot be used before the first line, which is not at fault.
            let options = text::ChatOptions::new(today);
            text::ChatFormat::new(template, &tokenizer, options)
                .map_err(|e| Failure::Input(format!("{}: {e}", self.input.display())))?;
        }
        let mut stdout = io::stdout().lock();
        for (number, line) in (1..).zip(io::stdin().lock().lines()) {
            let line = line.map_err(|e| match e.kind() {
                ErrorKind::InvalidData => Failure::Input(format!("stdin line {number}: not UTF-8")),
                _ => Failure::Runtime(format!("cannot read stdin: {e}")),
            })?;
            let line = if number == 1 { text_without_mark(&line) } else { &line };
            let answer = self
                .answer((&tokenizer, template), today, line)
                .map_err(|message| Failure::Input(format!("stdin line {number}: {message}")))?;
            match writeln!(stdout, "{}", on_one_line(&answer)).and_then(|()| stdout.flush()) {
                // The reader has gone: there is nothing more to do.
                Err(e) if e.kind() == ErrorKind::BrokenPipe => return Ok(()),
                Err(e) => return Err(Failure::Runtime(format!("cannot write to stdout: {e}"))),
                Ok(()) => {}
            }
        }
        Ok(())
    }

    fn answer(
        &self,
        (tokenizer, template): (&text::Tokenizer, ChatTemplate),
        today: Date,
        line: &str,
    ) -> Result<Value, String> {
        if self.chat {
            return chat::read((tokenizer, template), today, line, self.text);
        }
        if self.decode {
            let ids: Vec<u32> =
                serde_json::from_str(line).map_err(|e| format!("not a JSON array of ids: {e}"))?;
            let is_unknown = |id: &&u32| tokenizer.token_kind(**id).is_none();
            if let Some(id) = ids.iter().find(is_unknown) {
                let n_vocab = tokenizer.vocab_len();
                return Err(format!("id {id} is not in the vocabulary of {n_vocab}"));
            }
            return Ok(tokenizer.decode(&ids, self.special).into());
        }
        let line: String =
            serde_json::from_str(line).map_err(|e| format!("not a JSON string: {e}"))?;
        let mut ids = Vec::new();
        if self.special {
            tokenizer.encode_with_special(&line, &mut ids);
        } else {
            tokenizer.encode(&line, &mut ids);
        }
        Ok(ids.into())
    }
}

/// JSON without characters that some readers take for a line's end.
fn on_one_line(value: &Value) -> String {
    let mut line = json::compact(value);
    for (c, escape) in [('\u{85}', "\\u0085"), ('\u{2028}', "\\u2028"), ('\u{2029}', "\\u2029")] {
        if line.contains(c) {
            line = line.replace(c, escape);
        }
    }
    line
}

/// Path of tokenizer.bin in the folder that `input` is, or lies in.
fn beside(input: &Path) -> PathBuf {
    if input.is_dir() { input.join("tokenizer.bin") } else { input.with_file_name("tokenizer.bin") }
}

/// Reads tokenizer.bin, or converts another format. A folder may hold nothing but a tokenizer.bin.
fn read(input: &Path) -> Result<TokenizerFile, Failure> {
    let own = input.join("tokenizer.bin");
    if input.extension().is_some_and(|extension| extension == "bin") {
        return read_own(input);
    }
    if input.is_dir() && !import::is_in(input) && own.is_file() {
        return read_own(&own);
    }
    let imported = import::import(input, None).map_err(|e| Failure::input(&e))?;
    for hint in &imported.notes {
        tell(&format!("{}: {hint}", imported.source.display()));
    }
    Ok(imported.file)
}

fn read_own(path: &Path) -> Result<TokenizerFile, Failure> {
    let failed = |e: &dyn std::fmt::Display| Failure::Input(format!("{}: {e}", path.display()));
    let bytes = read_file(path).map_err(|e| Failure::unreadable(path, &e))?;
    TokenizerFile::parse(&bytes, None).map_err(|e| failed(&e))
}

fn use_file(path: &Path, file: TokenizerFile) -> Result<text::Tokenizer, Failure> {
    text::Tokenizer::new(file).map_err(|e| Failure::Input(format!("{}: {e}", path.display())))
}

/// Shows a message that is not the command's result.
fn tell(message: &str) {
    note(&format!("leap: {message}"));
}
