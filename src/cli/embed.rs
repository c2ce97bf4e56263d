//! `leap embed`: vectors of texts.

use std::fmt::Write as _;
use std::fs;
use std::io::{self, BufRead, BufReader, Write};
use std::path::{Path, PathBuf};

use argh::{ArgsInfo, FromArgs};

use super::model_files::{self, Loaded};
use super::weights::{self, Words};
use super::{Failure, options, overwritten, stdout_failure};
use crate::engine::{
    Cache, EmbedError, Embedder, Huge, Options, TextIds, VectorForm, WeightsPlace,
};
use crate::format::json::JsonObject;
use crate::format::model::{EmbeddingModel, Header, Pooling};
use crate::model::{ForwardError, KvKind};
use crate::sys::signal;
use crate::tokenizer::Tokenizer;

/// Texts whose vectors are computed at once, so that long inputs need little memory.
const TEXTS: usize = 256;
/// Longest line of an input.
const LINE_MAX: u64 = 16 << 20;

/// Computes embeddings: a vector for each text.
#[derive(ArgsInfo, FromArgs)]
#[argh(subcommand, name = "embed")]
pub(super) struct Embed {
    #[cfg_attr(
        feature = "tools",
        doc = "model file, or a GGUF file or a checkpoint's folder, which is converted once, or a name as \
               for run; models of embeddings, and any other with --pooling"
    )]
    #[cfg_attr(
        not(feature = "tools"),
        doc = "model file of embeddings, or any other with --pooling"
    )]
    #[argh(positional)]
    model: PathBuf,
    /// text; without it and --file, each line of stdin is one
    #[argh(option, short = 'p')]
    prompt: Option<String>,
    /// file with a text a line
    #[argh(option, short = 'f')]
    file: Option<PathBuf>,
    /// purpose of the texts, a name that the model has for a text before them: as query or document
    #[argh(option)]
    prompt_name: Option<String>,
    /// how many values of each vector are kept (all)
    #[argh(option, from_str_fn(options::count))]
    dimensions: Option<usize>,
    /// how a text's vector is made of its tokens': mean, cls or last (the model's)
    #[argh(option, from_str_fn(pooling))]
    pooling: Option<Pooling>,
    /// leave vectors as long as they are, instead of length 1
    #[argh(switch)]
    no_normalize: bool,
    /// cut texts that are longer than the context, instead of refusing them
    #[argh(switch)]
    truncate: bool,
    /// print one JSON object instead of a line of numbers for each text
    #[argh(switch)]
    json: bool,
    #[cfg(feature = "tools")]
    /// weights of a converted checkpoint, as for export: 1 for f32, 2 for int8, 3 or 4 for 4 bits, 5 for
    /// a GGUF file's own (default for GGUF files, int8 for others)
    #[argh(option)]
    version: Option<u32>,
    /// tokenizer.bin; by default the one beside the model
    #[argh(option, short = 't')]
    tokenizer: Option<PathBuf>,
    /// longest text in tokens (the model's, up to 4096)
    #[argh(option, from_str_fn(options::count))]
    ctx: Option<usize>,
    /// tokens that go through the model at once (512)
    #[argh(option, from_str_fn(options::count))]
    batch: Option<usize>,
    /// how keys and values are kept: f16, f32 (default for f32 models), or int8
    #[argh(option, from_str_fn(options::kv_type))]
    kv: Option<KvKind>,
    /// number of threads (one for each fast core that a quota of CPU time pays for)
    #[argh(option, from_str_fn(options::count))]
    threads: Option<usize>,
    /// cores to run on, as in 4-7 or 0,2
    #[argh(option, from_str_fn(options::cores))]
    cores: Option<options::Cores>,
    /// packed weights: auto (beside the model, or in the cache folder), a file, a folder, or off
    #[argh(option, from_str_fn(weights::cache), default = "Cache::Auto")]
    cache: Cache,
    /// print no progress
    #[argh(switch, short = 'q')]
    quiet: bool,
}

fn pooling(value: &str) -> Result<Pooling, String> {
    Pooling::of_name(value).ok_or_else(|| format!("{value:?} is none of mean, cls and last"))
}

impl Embed {
    pub(super) fn execute(self) -> Result<(), Failure> {
        if self.prompt.is_some() && self.file.is_some() {
            return Err(Failure::Usage("--prompt and --file exclude each other".to_owned()));
        }
        signal::install().map_err(|e| Failure::runtime(&e))?;
        let path = self.converted()?;
        let Loaded { model, tokenizer, .. } =
            model_files::load(Some(&path), self.tokenizer.as_deref())?;
        overwritten::watch(Some(&path), &model);
        if model.header().embedding().is_none() && self.pooling.is_none() {
            let what =
                "this model writes text: --pooling mean or last says how its vectors are made";
            return Err(Failure::Usage(what.to_owned()));
        }
        let prompt = self.prompt_text(model.header())?;
        let mut embedder =
            Embedder::new(model, &self.options()?).map_err(options::engine_failure)?;
        let place = WeightsPlace { model: Some(path), cache: self.cache.clone(), huge: Huge::Auto };
        let words = if self.quiet { Words::None } else { Words::Progress };
        weights::prepare_embedder(&mut embedder, &place, words)?;
        embedder.interrupt_by(|| signal::interrupted() != 0);
        let mut printer = Printer::new(self.json);
        match self.embed((&mut embedder, &tokenizer), &prompt, &mut printer) {
            Ok(()) => printer.finish(None),
            Err(failure) => {
                // The failure that is told is the first one.
                let _ = printer.finish(Some(&failure));
                Err(failure)
            }
        }
    }

    /// Prints the vectors of all texts.
    fn embed(
        &self,
        (embedder, tokenizer): (&mut Embedder, &Tokenizer),
        prompt: &str,
        printer: &mut Printer,
    ) -> Result<(), Failure> {
        let form = self.form(embedder.form());
        for texts in self.texts()? {
            let texts = texts?;
            let ids = TextIds {
                tokenizer,
                header: embedder.header(),
                limit: embedder.ctx_len(),
                truncates: self.truncate,
            };
            let mut all = Vec::with_capacity(texts.len());
            for (number, text) in &texts {
                all.push(ids.of(prompt, text).map_err(|e| self.failure(*number, &e))?);
            }
            let n_tokens: usize = all.iter().map(Vec::len).sum();
            let mut told = Ok(());
            let result = embedder.embed(&all, form, &mut |_, vector| {
                told = printer.put(vector);
                told.is_ok()
            });
            told?;
            printer.n_tokens += n_tokens;
            result.map_err(|e| self.failure(texts[0].0, &e))?;
        }
        Ok(())
    }

    /// The model file, converted if need be.
    #[cfg(feature = "tools")]
    fn converted(&self) -> Result<PathBuf, Failure> {
        let wanted = super::convert::Wanted {
            version: self.version,
            ends: None,
            has_boards: false,
            needs_tokenizer: self.tokenizer.is_none(),
            is_quiet: self.quiet,
        };
        let path = super::names::path(&self.model)?;
        let found = super::convert::model_file(Some(path.clone()), wanted)?;
        Ok(found.unwrap_or(path))
    }

    #[cfg(not(feature = "tools"))]
    fn converted(&self) -> Result<PathBuf, Failure> {
        Ok(self.model.clone())
    }

    fn options(&self) -> Result<Options, Failure> {
        Ok(Options {
            ctx_len: self.ctx,
            batch: self.batch,
            kv: self.kv,
            ..options::of_cores(self.threads, self.cores.as_ref())?
        })
    }

    fn form(&self, own: VectorForm) -> VectorForm {
        VectorForm {
            pooling: self.pooling.unwrap_or(own.pooling),
            is_normalised: own.is_normalised && !self.no_normalize,
            dimensions: self.dimensions,
        }
    }

    /// The model's text for the purpose that the user names.
    fn prompt_text(&self, header: &Header) -> Result<String, Failure> {
        let embedding = header.embedding();
        let prompt = embedding.and_then(|of| of.prompt(self.prompt_name.as_deref()));
        let Some(wanted) = self.prompt_name.as_ref().filter(|_| prompt.is_none()) else {
            return Ok(prompt.unwrap_or_default().to_owned());
        };
        let names = embedding.map(EmbeddingModel::prompt_names).unwrap_or_default();
        Err(Failure::Usage(match names.is_empty() {
            true => format!("--prompt-name {wanted:?}: the model has no prompts"),
            false => format!("--prompt-name {wanted:?}: the model has {}", names.join(", ")),
        }))
    }

    /// The texts with their numbers, some at a time.
    fn texts(&self) -> Result<Texts, Failure> {
        if let Some(text) = &self.prompt {
            return Ok(Box::new(std::iter::once(Ok(vec![(1, text.clone())]))));
        }
        let (input, name): (Box<dyn io::Read>, PathBuf) = match self.file.as_deref() {
            None => (Box::new(io::stdin()), PathBuf::from("stdin")),
            Some(path) if path == Path::new("-") => (Box::new(io::stdin()), PathBuf::from("stdin")),
            Some(path) => {
                let file = fs::File::open(path).map_err(|e| Failure::unreadable(path, &e))?;
                (Box::new(file), path.to_owned())
            }
        };
        let mut lines = Lines { input: BufReader::new(input), name, n: 0 };
        Ok(Box::new(std::iter::from_fn(move || {
            let mut texts = Vec::new();
            while texts.len() < TEXTS {
                match lines.next_text() {
                    Ok(Some(text)) => texts.push(text),
                    Ok(None) => break,
                    Err(failure) => return Some(Err(failure)),
                }
            }
            (!texts.is_empty()).then_some(Ok(texts))
        })))
    }

    fn failure(&self, number: usize, error: &EmbedError) -> Failure {
        let line = if self.prompt.is_some() { String::new() } else { format!("line {number}: ") };
        match error {
            EmbedError::TooLong { .. } if self.truncate => {
                Failure::Usage(format!("{line}{error}, too few for any text"))
            }
            EmbedError::TooLong { .. } => {
                Failure::Usage(format!("{line}{error}; --truncate cuts it"))
            }
            EmbedError::Empty => Failure::Usage(format!("{line}{error}")),
            EmbedError::Dimensions { .. } => Failure::Usage(format!("--dimensions: {error}")),
            EmbedError::NotFinite => Failure::input(error),
            EmbedError::Forward(ForwardError::Interrupted) => {
                Failure::Runtime("interrupted".to_owned())
            }
            _ => Failure::runtime(error),
        }
    }
}

/// Texts with their numbers, some at a time.
type Texts = Box<dyn Iterator<Item = Result<Vec<(usize, String)>, Failure>>>;

/// Lines of an input.
struct Lines {
    input: BufReader<Box<dyn io::Read>>,
    name: PathBuf,
    n: usize,
}

impl Lines {
    /// The next line and its number.
    fn next_text(&mut self) -> Result<Option<(usize, String)>, Failure> {
        let mut line = Vec::new();
        let mut limited = io::Read::take(&mut self.input, LINE_MAX);
        let read = limited.read_until(b'\n', &mut line);
        read.map_err(|e| Failure::unreadable(&self.name, &e))?;
        if line.is_empty() {
            return Ok(None);
        }
        self.n += 1;
        let place = format!("{}, line {}", self.name.display(), self.n);
        if line.len() as u64 == LINE_MAX && !line.ends_with(b"\n") {
            return Err(Failure::Input(format!("{place}: longer than {} MiB", LINE_MAX >> 20)));
        }
        while line.ends_with(b"\n") || line.ends_with(b"\r") {
            line.pop();
        }
        match String::from_utf8(line) {
            Ok(text) => Ok(Some((self.n, text))),
            Err(_) => Err(Failure::Input(format!("{place}: not UTF-8"))),
        }
    }
}

/// Writes vectors to stdout.
struct Printer {
    out: io::BufWriter<io::Stdout>,
    is_json: bool,
    n_vectors: usize,
    n_tokens: usize,
    line: String,
}

impl Printer {
    fn new(is_json: bool) -> Printer {
        let out = io::BufWriter::new(io::stdout());
        Printer { out, is_json, n_vectors: 0, n_tokens: 0, line: String::new() }
    }

    fn put(&mut self, vector: &[f32]) -> Result<(), Failure> {
        self.line.clear();
        let (start, between, end) = match (self.is_json, self.n_vectors) {
            (true, 0) => ("{\"embeddings\":[[", ",", "]"),
            (true, _) => (",\n[", ",", "]"),
            (false, _) => ("", " ", "\n"),
        };
        self.line.push_str(start);
        for (index, x) in vector.iter().enumerate() {
            // Writing to a string cannot fail. The shortest digits that lead back to the same number have no exponent.
            let _ = write!(self.line, "{}{x}", if index == 0 { "" } else { between });
        }
        self.line.push_str(end);
        self.n_vectors += 1;
        self.out.write_all(self.line.as_bytes()).or_else(|e| unless_closed(&e))
    }

    /// Ends the object. After a failure it has the vectors that were there, and an `error`; without any there is no
    /// object.
    fn finish(mut self, failure: Option<&Failure>) -> Result<(), Failure> {
        if self.is_json && (self.n_vectors > 0 || failure.is_none()) {
            let start = if self.n_vectors == 0 { "{\"embeddings\":[" } else { "" };
            let end = match failure {
                None => "}".to_owned(),
                Some(failure) => {
                    format!(",{}", &JsonObject::new().string("error", failure.text()).text()[1..])
                }
            };
            let end = format!("{start}],\"tokens\":{}{end}\n", self.n_tokens);
            self.out.write_all(end.as_bytes()).or_else(|e| unless_closed(&e))?;
        }
        self.out.flush().or_else(|e| unless_closed(&e))
    }
}

/// A reader that went away is not a failure.
fn unless_closed(error: &io::Error) -> Result<(), Failure> {
    match error.kind() {
        io::ErrorKind::BrokenPipe => Ok(()),
        _ => Err(stdout_failure(error)),
    }
}
