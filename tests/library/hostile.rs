//! Damaged and malicious model and tokenizer files: each gives one clear error, no panic, and no memory beyond the
//! file's size.

use std::cell::Cell;
use std::path::Path;
use std::process::{Command, Output, Stdio};
use std::sync::Arc;

use crate::allocator::Counting;
use crate::common::folder::Folder;
use crate::common::quick;
use leap::engine::{Engine, Options};
use leap::format::model::{
    Architecture, Encoding, Ends, Features, Ggml, GgmlTypes, HEADER_LEN, Header, TensorId, Weights,
};
use leap::format::tokenizer::{
    Merges, Splitter, TokenKind, TokenizerFile, TokenizerFlags, TokenizerKind, Vocab,
};
use leap::format::{ChatTemplate, ChatTexts};
use leap::internals::model::Model;
use leap::sampler::argmax;
use leap::tokenizer::Tokenizer;

thread_local! {
    /// Bytes that the thread has allocated. Needs no memory and no destructor, so the heap may use it.
    static ALLOCATED: Cell<usize> = const { Cell::new(0) };
}

#[global_allocator]
static COUNTING: Counting = Counting(count);

fn count(bytes: usize) {
    ALLOCATED.set(ALLOCATED.get().saturating_add(bytes));
}

/// The result of `work`, and the bytes that it allocated.
fn counted<T>(work: impl FnOnce() -> T) -> (T, usize) {
    let before = ALLOCATED.get();
    let result = work();
    (result, ALLOCATED.get() - before)
}

/// Reproducible random numbers.
struct Random(u64);

impl Random {
    fn next(&mut self) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0
    }

    fn below(&mut self, end: usize) -> usize {
        (self.next() % end as u64) as usize
    }
}

const VOCAB_SIZE: usize = 272;
const CRC_AT: usize = 192;
const TYPES_CRC_AT: usize = 244;

/// A tokenizer of single bytes and a few merges and control tokens.
fn tokenizer_file() -> TokenizerFile {
    let mut vocab = Vocab::default();
    for byte in 0..=255u8 {
        vocab.push(&[byte], -f32::from(byte), TokenKind::Normal).unwrap();
    }
    for (index, text) in ["th", "the", " a", "an", " an"].iter().enumerate() {
        vocab.push(text.as_bytes(), -300.0 - index as f32, TokenKind::Normal).unwrap();
    }
    while vocab.len() < VOCAB_SIZE {
        let name = format!("<|{}|>", vocab.len());
        vocab.push(name.as_bytes(), -1e9, TokenKind::Control).unwrap();
    }
    TokenizerFile {
        kind: TokenizerKind::ByteLevel,
        splitter: Splitter::Llama3,
        flags: TokenizerFlags::default(),
        vocab,
        merges: Merges::ByScore,
        bos: Some(270),
        stop_ids: vec![271],
        strips_right: Vec::new(),
        strips_left: Vec::new(),
        whole_words: Vec::new(),
        chat: ChatTemplate::None,
        chat_texts: ChatTexts::default(),
    }
}

/// Types of blocks of 32 values: rows of 64 and 96 are whole ones.
const SHORT: [Ggml; 7] =
    [Ggml::Q8_0, Ggml::Q4_0, Ggml::Q4_1, Ggml::Q5_0, Ggml::Q5_1, Ggml::Iq4Nl, Ggml::Mxfp4];

fn header(weights: Weights, has_extension: bool) -> Header {
    let header = untyped(weights, has_extension);
    let of = |TensorId { kind, layer }| Ok::<_, ()>(SHORT[(kind as usize + layer) % SHORT.len()]);
    match weights {
        Weights::Ggml => Header { ggml: header.ggml_types(of).unwrap(), ..header },
        _ => header,
    }
}

fn untyped(weights: Weights, has_extension: bool) -> Header {
    Header {
        weights,
        ggml: GgmlTypes::default(),
        dim: 64,
        ffn_dim: 96,
        n_layers: 2,
        n_heads: 2,
        n_kv_heads: 1,
        vocab_size: VOCAB_SIZE,
        max_seq_len: 256,
        shared_classifier: false,
        head_dim: 32,
        norm_eps: 1e-5,
        rope_theta: 1e4,
        rope_scaling: None,
        sliding_window: None,
        architecture: Architecture::Llama,
        features: Features::default(),
        bos: has_extension.then_some(270),
        stop_ids: if has_extension { vec![271] } else { vec![] },
        chat_template: ChatTemplate::None,
        tokenizer_hash: 0,
        has_extension,
        packed: None,
        share: None,
    }
}

/// A valid model file with random weights.
fn model_file(header: &Header) -> Vec<u8> {
    let mut random = Random(0x0dd0_5eed);
    let mut file = header.emit().to_vec();
    let mut checksums = Vec::new();
    for tensor in header.tensors() {
        let start = file.len();
        let len = tensor.rows * tensor.cols;
        let float = |random: &mut Random| (random.below(2001) as f32 - 1000.0) / 8000.0;
        match header.weights {
            Weights::Q8 { group } if !tensor.id.kind.is_vector() => {
                file.extend((0..len).map(|_| random.next() as u8));
                file.extend((0..len / group).flat_map(|_| 1e-3f32.to_le_bytes()));
            }
            Weights::B2 { .. } if !tensor.id.kind.is_vector() => {
                for _ in 0..tensor.rows {
                    file.extend(1e-5f32.to_le_bytes());
                    let rest = tensor.bytes as usize / tensor.rows - 4;
                    file.extend((0..rest).map(|_| random.next() as u8));
                }
            }
            Weights::Ggml if !tensor.id.kind.is_vector() => {
                let Encoding::Ggml(kind) = header.encoding(tensor.id) else { unreachable!() };
                for _ in 0..len / kind.len() {
                    let block = file.len();
                    file.extend((0..kind.bytes()).map(|_| random.next() as u8));
                    // Scales that are small numbers.
                    match kind {
                        Ggml::Mxfp4 => file[block] = 110,
                        _ => (file[block + 1], file[block + 3]) = (0x10, 0x10),
                    }
                }
                file.resize(start + tensor.bytes as usize, 0);
            }
            _ => file.extend((0..len).flat_map(|_| float(&mut random).to_le_bytes())),
        }
        assert_eq!(file.len() - start, tensor.bytes as usize);
        checksums.extend(crc32(&file[start..]).to_le_bytes());
    }
    if header.has_extension {
        file.extend(checksums);
    }
    file
}

/// CRC-32 as in zip files, bit by bit.
fn crc32(bytes: &[u8]) -> u32 {
    let shift = |crc: u32, _| if crc & 1 == 1 { crc >> 1 ^ 0xedb8_8320 } else { crc >> 1 };
    !bytes.iter().fold(!0, |crc, &byte| (0..8).fold(crc ^ u32::from(byte), shift))
}

/// Corrects the header's own checksum.
fn seal(file: &mut [u8]) {
    file[CRC_AT..CRC_AT + 4].fill(0);
    let crc = crc32(&file[..HEADER_LEN]);
    file[CRC_AT..CRC_AT + 4].copy_from_slice(&crc.to_le_bytes());
}

/// Each kind of model file: name, bytes, and whether it has the extension.
fn models() -> Vec<(String, Vec<u8>, bool)> {
    let mut models = Vec::new();
    let [two_levels, six] =
        [Ends::FourBits, Ends::SixBits].map(|ends| Weights::B2 { group: 32, ends });
    for weights in [Weights::F32, Weights::Q8 { group: 32 }, two_levels, six, Weights::Ggml] {
        // The extension holds the kinds of embedding and classifier, and the types of blocks.
        let needs_extension = weights == six || weights == Weights::Ggml;
        for has_extension in [true, false].into_iter().filter(|has| *has || !needs_extension) {
            let file = model_file(&header(weights, has_extension));
            models.push((format!("{weights}, extension {has_extension}"), file, has_extension));
        }
    }
    models
}

/// Parses a header, which must not take more memory than the file's size justifies.
fn parse(file: &[u8], name: &str) -> Result<Header, leap::format::FormatError> {
    let (result, bytes) = counted(|| Header::parse(file));
    assert!(bytes <= 4096, "{name}: {bytes} bytes allocated");
    if let Err(e) = &result {
        let text = e.to_string();
        assert!(!text.is_empty() && !text.contains('\n'), "{name}: {text:?}");
    }
    result
}

/// Runs a model whose header was accepted; its output need not make sense.
fn run(file: &[u8], folder: &Folder, name: &str) {
    let path = folder.write("model.bin", file);
    let model = Arc::new(Model::open(&path).unwrap());
    let options =
        Options { ctx_len: Some(8), batch: Some(4), threads: Some(1), ..Options::default() };
    let options = Options { ctx_len: Some(model.header().max_seq_len.min(8)), ..options };
    let (ids, limit) = (&[1, 2, 3, 4, 5][..], model.header().vocab_size as u32);
    let ids: Vec<u32> = ids.iter().map(|id| id % limit).collect();
    let (engine, bytes) = counted(|| Engine::new(model, &options));
    // Buffers are rows of at most the file's width, several times over.
    assert!(bytes <= 4 * file.len() + (1 << 20), "{name}: {bytes} bytes allocated");
    let mut engine = engine.unwrap_or_else(|e| panic!("{name}: {e}"));
    let mut stream = engine.stream().unwrap();
    match engine.push(&mut stream, &ids) {
        Ok(logits) => drop(argmax(logits)),
        Err(e) => assert!(engine.ctx_len() < 5, "{name}: {e}"),
    }
}

/// A 32-bit field of the header.
struct Field {
    name: &'static str,
    at: usize,
    /// Values that are legal in any valid file.
    legal: &'static [i32],
}

/// Every field; 64-bit fields count as two.
const FIELDS: &[Field] = &[
    Field { name: "magic", at: 0, legal: &[] },
    Field { name: "version", at: 4, legal: &[] },
    Field { name: "dim", at: 8, legal: &[] },
    Field { name: "ffn_dim", at: 12, legal: &[] },
    Field { name: "n_layers", at: 16, legal: &[] },
    Field { name: "n_heads", at: 20, legal: &[] },
    Field { name: "n_kv_heads", at: 24, legal: &[] },
    Field { name: "vocab_size", at: 28, legal: &[] },
    Field { name: "max_seq_len", at: 32, legal: &[1 << 20] },
];

const GROUP_SIZE: Field = Field { name: "group_size", at: 37, legal: &[] };

const TYPES_CRC: Field = Field { name: "checksum of types", at: TYPES_CRC_AT, legal: &[] };

const ANY: &[i32] = &VALUES;
const VALUES: [i32; 6] = [0, -1, i32::MAX, i32::MIN, 1 << 20, 0x7f80_0000];

const FLAGS_AT: usize = 76;

const EXTENSION: &[Field] = &[
    Field { name: "extension magic", at: 64, legal: &[] },
    Field { name: "extension version", at: 68, legal: &[] },
    Field { name: "extension length", at: 72, legal: &[] },
    Field { name: "flags", at: FLAGS_AT, legal: &[0] },
    Field { name: "head_dim", at: 80, legal: &[] },
    // These bits read as floats are zero, NaN, NaN, -0, a tiny number, infinity.
    Field { name: "norm_eps", at: 84, legal: &[0, i32::MIN, 1 << 20] },
    Field { name: "rope_theta, low half", at: 88, legal: ANY },
    // The last value is a huge number.
    Field { name: "rope_theta, high half", at: 92, legal: &[0x7f80_0000] },
    Field { name: "rope scaling", at: 96, legal: &[0] },
    Field { name: "rope original context", at: 100, legal: ANY },
    Field { name: "rope factor", at: 104, legal: ANY },
    Field { name: "rope low_freq_factor", at: 108, legal: ANY },
    Field { name: "rope high_freq_factor", at: 112, legal: ANY },
    Field { name: "sliding window", at: 116, legal: ANY },
    Field { name: "architecture", at: 120, legal: &[0] },
    Field { name: "bos", at: 124, legal: &[0, -1] },
    Field { name: "number of stop ids", at: 128, legal: &[0] },
    Field { name: "stop id", at: 132, legal: &[0] },
    Field { name: "unused stop id", at: 136, legal: ANY },
    Field { name: "chat template", at: 164, legal: &[0] },
    Field { name: "tokenizer fingerprint", at: 168, legal: ANY },
    Field { name: "checksum table offset", at: 176, legal: &[] },
    Field { name: "checksum table offset, high half", at: 180, legal: &[0] },
    Field { name: "checksum table length", at: 184, legal: &[] },
    Field { name: "checksum table length, high half", at: 188, legal: &[0] },
];

/// `file` with every absurd value in every field, and with a right checksum.
fn absurd_fields(file: &[u8], has_extension: bool) -> Vec<(String, Vec<u8>, bool)> {
    let (is_q8, is_ggml) = (file[4] == 2, file[4] == 5);
    // Without its flags, the file's tensors have other lengths.
    let has_flags = file[FLAGS_AT] != 0;
    let mut fields: Vec<&Field> = FIELDS.iter().collect();
    fields.extend(is_q8.then_some(&GROUP_SIZE));
    fields.extend(is_ggml.then_some(&TYPES_CRC));
    fields.extend(EXTENSION.iter().filter(|_| has_extension));
    let mut absurd = Vec::new();
    for field in fields {
        for value in VALUES {
            let mut file = file.to_vec();
            file[field.at..field.at + 4].copy_from_slice(&value.to_le_bytes());
            if has_extension {
                seal(&mut file);
            }
            let is_legal = field.legal.contains(&value) && !(field.at == FLAGS_AT && has_flags);
            absurd.push((format!("{} = {value}", field.name), file, is_legal));
        }
    }
    absurd
}

#[test]
fn absurd_header_fields_are_refused() {
    let folder = Folder::new();
    for (name, file, has_extension) in models() {
        parse(&file, &name).unwrap();
        run(&file, &folder, &name);
        for (field, file, is_legal) in absurd_fields(&file, has_extension) {
            let name = format!("{name}, {field}");
            let result = parse(&file, &name);
            assert_eq!(result.is_ok(), is_legal, "{name}: {result:?}");
            if is_legal {
                run(&file, &folder, &name);
            }
        }
    }
}

#[test]
fn scaled_rope_with_absurd_factors_is_refused() {
    let sound = model_file(&header(Weights::Q8 { group: 32 }, true));
    let mut refused = 0;
    for kind in [1, 2] {
        for at in [104, 108, 112] {
            for value in [0.0, -1.0, f32::NAN, f32::INFINITY] {
                let mut file = sound.clone();
                file[96] = kind;
                for (at, value) in [(104, 8.0f32), (108, 1.0), (112, 4.0), (at, value)] {
                    file[at..at + 4].copy_from_slice(&value.to_le_bytes());
                }
                seal(&mut file);
                // Linear scaling has only one factor.
                let is_legal = kind == 1 && at != 104;
                let name = format!("kind {kind}, {at} = {value}");
                assert_eq!(parse(&file, &name).is_ok(), is_legal, "{name}");
                refused += u32::from(!is_legal);
            }
        }
    }
    assert_eq!(refused, 16);
}

#[test]
fn model_cut_anywhere_or_longer_is_refused() {
    for (name, file, _) in models() {
        let step = if quick() { 970 } else { 97 };
        for len in (0..300).chain((300..file.len()).step_by(step)).chain([file.len() - 1]) {
            assert!(parse(&file[..len], &name).is_err(), "{name}, {len} bytes");
        }
        assert!(parse(&[&file[..], &[0]].concat(), &name).is_err(), "{name}, a byte more");
    }
}

/// `file` with one to three flipped bits of `range`.
fn flip(file: &[u8], range: std::ops::Range<usize>, random: &mut Random) -> Vec<u8> {
    let mut file = file.to_vec();
    for _ in 0..1 + random.below(3) {
        file[range.start + random.below(range.len())] ^= 1 << random.below(8);
    }
    file
}

#[test]
fn flipped_bits_of_the_header_are_refused_or_harmless() {
    let folder = Folder::new();
    let n = if quick() { 100 } else { 2000 };
    for (name, sound, has_extension) in models() {
        for seed in 1..=n {
            let name = format!("{name}, seed {seed}");
            let mut file = flip(&sound, 0..HEADER_LEN, &mut Random(seed));
            if has_extension && file != sound {
                assert!(parse(&file, &name).is_err(), "{name}");
                seal(&mut file);
            }
            if parse(&file, &name).is_ok() {
                run(&file, &folder, &name);
            }
        }
    }
}

#[test]
fn flipped_bits_of_weights_are_found_and_do_no_harm() {
    let folder = Folder::new();
    let n = if quick() { 20 } else { 200 };
    for (name, sound, has_extension) in models() {
        for seed in 1..=n {
            let name = format!("{name}, seed {seed}");
            let file = flip(&sound, HEADER_LEN..sound.len(), &mut Random(seed));
            let header = parse(&file, &name).unwrap();
            match header.verify(&file) {
                Ok(is_checked) => assert!(!is_checked || file == sound, "{name}"),
                Err(e) => assert!(e.to_string().starts_with("checksum of "), "{name}: {e}"),
            }
            assert_eq!(header.has_extension, has_extension);
            run(&file, &folder, &name);
        }
    }
}

/// Corrects the checksums of the block of types and of the header.
fn seal_types(file: &mut [u8], types: std::ops::Range<usize>) {
    let crc = crc32(&file[types]);
    file[TYPES_CRC_AT..TYPES_CRC_AT + 4].copy_from_slice(&crc.to_le_bytes());
    seal(file);
}

#[test]
fn any_type_of_blocks_is_refused_or_runs() {
    let folder = Folder::new();
    let header = header(Weights::Ggml, true);
    let sound = model_file(&header);
    let types = HEADER_LEN..header.len_bytes();
    let mut n_taken = 0;
    for at in types.clone() {
        for byte in (0..=255).filter(|byte| !quick() || *byte < 48) {
            let name = format!("byte {} of the types = {byte}", at - HEADER_LEN);
            let mut file = sound.clone();
            file[at] = byte;
            assert!(parse(&file, &name).is_err() || file == sound, "{name}: no checksum");
            seal_types(&mut file, types.clone());
            if parse(&file, &name).is_ok() {
                n_taken += 1;
                run(&file, &folder, &name);
            }
        }
    }
    // Blocks of Q4_0 and of IQ4_NL are equally long.
    assert!(n_taken > types.len(), "{n_taken}");
}

#[test]
fn blocks_of_any_bytes_do_no_harm() {
    let folder = Folder::new();
    for kind in Ggml::ALL {
        let wide = Header { dim: 256, ffn_dim: 512, n_heads: 8, ..untyped(Weights::Ggml, true) };
        let header = Header { ggml: wide.ggml_types(|_| Ok::<_, ()>(kind)).unwrap(), ..wide };
        for seed in 1..=3 {
            let mut random = Random(seed);
            let mut file = model_file(&header);
            for byte in &mut file[header.len_bytes()..header.tensors_end() as usize] {
                *byte = random.next() as u8;
            }
            let name = format!("{} of any bytes", kind.name());
            match parse(&file, &name) {
                Ok(_) => run(&file, &folder, &name),
                Err(e) => assert!(e.to_string().contains("in blocks of type"), "{name}: {e}"),
            }
        }
    }
}

/// Parses a tokenizer and uses it if it is valid.
fn use_tokenizer(file: &[u8], vocab_size: Option<usize>, name: &str) -> Result<(), String> {
    let (result, bytes) = counted(|| {
        let file = TokenizerFile::parse(file, vocab_size).map_err(|e| e.to_string())?;
        Tokenizer::new(file).map_err(|e| e.to_string())
    });
    // Tables for looking tokens up, and vectors that double as they grow.
    assert!(bytes <= 40 * file.len() + (1 << 16), "{name}: {bytes} bytes allocated");
    let tokenizer = result?;
    let mut ids = Vec::new();
    tokenizer.encode("then an é\u{1f600}\0", &mut ids);
    tokenizer.encode_with_special("<|270|> the<|271|>", &mut ids);
    ids.extend([0, 255, 271, 300, u32::MAX]);
    tokenizer.decode(&ids, true);
    Ok(())
}

/// Length of the trailer and footer of [`tokenizer_file`], read from the footer.
fn trailer_bytes(file: &[u8]) -> usize {
    let footer = &file[file.len() - 12..];
    12 + u32::from_le_bytes(footer[..4].try_into().unwrap()) as usize
}

#[test]
fn tokenizer_cut_or_flipped_anywhere_is_refused() {
    let sound = tokenizer_file().to_bytes();
    let entries = sound.len() - trailer_bytes(&sound);
    for vocab_size in [Some(VOCAB_SIZE), None] {
        use_tokenizer(&sound, vocab_size, "sound").unwrap();
        for len in 0..sound.len() {
            let name = format!("{len} bytes of {vocab_size:?}");
            let result = use_tokenizer(&sound[..len], vocab_size, &name);
            // All entries without the trailer are a file of the published format. So are the first few entries, if the
            // number of entries is not given.
            let may_be_whole = len == entries || (len < entries && vocab_size.is_none());
            assert!(result.is_err() || may_be_whole, "{name}");
        }
        for seed in 1..=if quick() { 100 } else { 3000 } {
            let name = format!("seed {seed} of {vocab_size:?}");
            let file = flip(&sound, 0..sound.len(), &mut Random(seed));
            let result = use_tokenizer(&file, vocab_size, &name);
            assert!(result.is_err() || file == sound, "{name}");
        }
    }
    let wrong = use_tokenizer(&sound, Some(VOCAB_SIZE + 1), "another vocabulary");
    assert!(wrong.unwrap_err().contains("n_vocab"));
}

#[test]
fn trailer_with_a_right_checksum_may_say_anything() {
    let sound = tokenizer_file().to_bytes();
    let footer_at = sound.len() - 12;
    let reseal = |file: &mut [u8]| {
        let crc = crc32(&file[..footer_at]);
        file[footer_at + 4..footer_at + 8].copy_from_slice(&crc.to_le_bytes());
    };
    let trailer_at = sound.len() - trailer_bytes(&sound);
    let mut refused = 0;
    for at in trailer_at..footer_at + 4 - 3 {
        for value in VALUES {
            let mut file = sound.clone();
            file[at..at + 4].copy_from_slice(&value.to_le_bytes());
            reseal(&mut file);
            let name = format!("trailer byte {} = {value}", at - trailer_at);
            refused += u32::from(use_tokenizer(&file, Some(VOCAB_SIZE), &name).is_err());
        }
    }
    for seed in 1..=if quick() { 100 } else { 3000 } {
        let mut file = flip(&sound, 0..footer_at, &mut Random(seed));
        reseal(&mut file);
        let name = format!("seed {seed}, checksum right");
        refused += u32::from(use_tokenizer(&file, Some(VOCAB_SIZE), &name).is_err());
    }
    assert!(refused > 200, "{refused}");
}

#[test]
fn published_tokenizer_cut_or_flipped_is_refused_or_harmless() {
    let with_trailer = tokenizer_file().to_bytes();
    let sound = &with_trailer[..with_trailer.len() - trailer_bytes(&with_trailer)];
    use_tokenizer(sound, Some(VOCAB_SIZE), "sound").unwrap();
    for len in 0..sound.len() {
        let name = format!("{len} bytes");
        assert!(use_tokenizer(&sound[..len], Some(VOCAB_SIZE), &name).is_err(), "{name}");
        // Without the model's size, a file that ends after an entry is whole.
        let _ = use_tokenizer(&sound[..len], None, &name);
    }
    for at in (0..sound.len() - 3).step_by(if quick() { 11 } else { 1 }) {
        for value in VALUES {
            let mut file = sound.to_vec();
            file[at..at + 4].copy_from_slice(&value.to_le_bytes());
            // Scores and token bytes may be anything.
            let _ = use_tokenizer(&file, Some(VOCAB_SIZE), &format!("byte {at} = {value}"));
        }
    }
}

/// Runs the program on the files in `folder`, with little memory if that can be limited.
fn leap_run(folder: &Path) -> Output {
    let leap = crate::common::leap();
    let is_native = std::env::var("LEAP_TEST_RUNNER").is_err();
    // An emulator reserves more address space than its program.
    let limit = if is_native { "ulimit -v 300000; " } else { "" };
    let mut command = Command::new("sh");
    command.args(["-c", &format!("{limit}exec \"$@\""), "sh"]);
    command.arg(leap.get_program()).args(leap.get_args()).arg("run").arg(folder.join("model.bin"));
    command.args(["-p", "the", "-n", "4", "--temp", "0", "--threads", "1"]);
    command.stdin(Stdio::null()).output().unwrap()
}

/// Checks that the program exits with one of `codes`, and with one line if it fails.
fn check_run(folder: &Folder, codes: &[i32], name: &str) {
    let output = leap_run(folder.path());
    // A program that a signal ended has no code.
    let code = output.status.code().unwrap_or_else(|| panic!("{name}: {output:?}"));
    let text = String::from_utf8(output.stderr).unwrap();
    assert!(codes.contains(&code), "{name}: code {code}, {text}");
    let is_one_line = text.starts_with("leap: ") && text.trim_end().lines().count() == 1;
    assert!(code == 0 || is_one_line, "{name}: {text}");
}

#[test]
fn program_ends_with_code_3_for_bad_models() {
    let folder = Folder::new();
    folder.write("tokenizer.bin", tokenizer_file().to_bytes());
    let sparse = if quick() { 8 } else { 1 };
    for (name, file, has_extension) in models() {
        folder.write("model.bin", &file);
        check_run(&folder, &[0], &name);
        let fields = absurd_fields(&file, has_extension);
        for (field, file, is_legal) in fields.iter().step_by(3 * sparse) {
            folder.write("model.bin", file);
            // The tokenizer beside the model fits its vocabulary and fingerprint.
            let codes: &[i32] = if *is_legal { &[0, 3] } else { &[3] };
            check_run(&folder, codes, &format!("{name}, {field}"));
        }
        for len in (0..file.len()).step_by(file.len() / if quick() { 2 } else { 12 }) {
            folder.write("model.bin", &file[..len]);
            check_run(&folder, &[3], &format!("{name}, {len} bytes"));
        }
        for seed in 1..=(8 / sparse as u64) {
            let flipped = flip(&file, 0..HEADER_LEN, &mut Random(seed));
            folder.write("model.bin", flipped);
            let codes: &[i32] = if has_extension { &[3] } else { &[0, 3] };
            check_run(&folder, codes, &format!("{name}, header, seed {seed}"));
            // Without checksums, damaged weights run until the text ends or numbers become NaN.
            let codes: &[i32] = if has_extension { &[3] } else { &[0, 1] };
            let flipped = flip(&file, HEADER_LEN..file.len(), &mut Random(seed));
            folder.write("model.bin", flipped);
            check_run(&folder, codes, &format!("{name}, weights, seed {seed}"));
        }
    }
}

#[test]
fn program_ends_with_code_3_for_bad_tokenizers() {
    let folder = Folder::new();
    folder.write("model.bin", model_file(&header(Weights::Q8 { group: 32 }, true)));
    let sound = tokenizer_file().to_bytes();
    let n = if quick() { 3 } else { 25 };
    for len in (0..sound.len()).step_by(sound.len() / n) {
        folder.write("tokenizer.bin", &sound[..len]);
        check_run(&folder, &[3], &format!("{len} bytes"));
    }
    for seed in 1..=n as u64 {
        folder.write("tokenizer.bin", flip(&sound, 0..sound.len(), &mut Random(seed)));
        check_run(&folder, &[3], &format!("seed {seed}"));
    }
}
