//! Model files whose matrices are packed for the kernels of one instruction set.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Output;

use leap::engine::{Cache, Engine, EngineError, Huge, Listener, Options, WeightsIn, WeightsPlace};
use leap::format::model::{Ggml, Header, Packed};
use leap::internals::kernels::{Isa, Kernels};
use leap::internals::model::{Model, PackReport, StartError, layout_number};
use serde_json::Value;

use crate::common::folder::Folder;
use crate::common::models::{bits, package};
use crate::common::quick;
use crate::export::gguf::in_blocks;

/// Version and checkpoint. Some classifiers are the embedding; some row counts fill no panel.
const MODELS: [(&str, &str); 9] = [
    ("2", "llama3-tiny"),
    ("3", "llama3-tiny"),
    ("2", "llama2-meta-tiny"),
    ("3", "mistral-tiny"),
    ("4", "llama3-tiny"),
    // This model has rows of three blocks.
    ("4", "llama2-meta-tiny"),
    ("4-6", "llama3-tiny"),
    ("4-6", "llama2-meta-tiny"),
    // This model has vectors that are no whole number of alignments.
    ("2", "gptoss-tiny"),
];

/// Instruction sets with a layout; if time is short, those of this CPU.
fn isas() -> impl Iterator<Item = Isa> {
    let wanted =
        |isa: &Isa| isa.layout().is_some() && (!quick() || Kernels::for_isa(*isa).is_some());
    Isa::ALL.iter().copied().filter(wanted)
}

fn leap(args: &[&str]) -> Output {
    crate::common::leap().args(args).current_dir(env!("CARGO_MANIFEST_DIR")).output().unwrap()
}

#[track_caller]
fn succeeds(output: &Output) -> (String, String) {
    let text = |bytes: &[u8]| String::from_utf8(bytes.to_vec()).unwrap();
    assert_eq!(output.status.code(), Some(0), "{output:?}");
    (text(&output.stdout), text(&output.stderr))
}

/// Exports a checkpoint with `leap export` and returns the file's path. The version may be followed by the bits of the
/// embedding.
fn export(folder: &Folder, checkpoint: &str, version: &str, isa: Option<Isa>) -> PathBuf {
    let name = isa.map_or("plain", Isa::name);
    let path = folder.join(&format!("{checkpoint}-{version}-{name}.bin"));
    let source = match checkpoint.ends_with(".gguf") {
        true => ["--gguf".to_owned(), folder.join(checkpoint).to_str().unwrap().to_owned()],
        false => ["--meta-llama".to_owned(), format!("tests/golden/{checkpoint}")],
    };
    let (version, bits) =
        version.split_once('-').map_or((version, None), |(version, bits)| (version, Some(bits)));
    let mut args = vec!["export", path.to_str().unwrap(), "--version", version];
    args.extend(source.iter().map(String::as_str));
    if let Some(bits) = bits {
        args.extend(["--embedding-bits", bits]);
    }
    if let Some(isa) = isa {
        args.extend(["--isa", isa.name()]);
    }
    succeeds(&leap(&[&args[..], &["--verify"]].concat()));
    path
}

/// An engine like that of `leap run`, with the kernels that the file is packed for.
fn engine(path: &Path) -> Result<Engine, EngineError> {
    Engine::open(path, &options())
}

fn options() -> Options {
    Options { threads: Some(2), ctx_len: Some(64), ..Options::default() }
}

/// Logits after a prompt in one batch, and after one more token.
fn logits(engine: &mut Engine) -> Vec<u32> {
    let vocab_size = engine.header().vocab_size as u32;
    let ids: Vec<u32> = (0..29).map(|i| i * 37 % vocab_size).collect();
    let mut stream = engine.stream().unwrap();
    let mut all = bits(engine.push(&mut stream, &ids).unwrap());
    all.extend(bits(engine.push(&mut stream, &[1]).unwrap()));
    all
}

#[test]
fn packed_file_is_the_same_model_and_packs_nothing() {
    let folder = Folder::new();
    for (version, checkpoint) in MODELS {
        let plain = export(&folder, checkpoint, version, None);
        for isa in isas() {
            let packed = export(&folder, checkpoint, version, Some(isa));
            same_model(&plain, &packed, isa, &format!("{checkpoint}, version {version}, {isa:?}"));
        }
    }
}

#[test]
fn blocks_of_a_gguf_file_are_packed() {
    let folder = Folder::new();
    let tied = "tied.gguf";
    let mut gguf = in_blocks(&Ggml::ALL);
    folder.write("own.gguf", gguf.bytes());
    gguf.tensors.retain(|tensor| tensor.name != "output.weight");
    folder.write(tied, gguf.bytes());
    for checkpoint in ["own.gguf", tied] {
        let plain = export(&folder, checkpoint, "5", None);
        let header = Header::parse(&fs::read(&plain).unwrap()).unwrap();
        assert_eq!(header.shared_classifier, checkpoint == tied);
        for isa in isas() {
            let packed = export(&folder, checkpoint, "5", Some(isa));
            same_model(&plain, &packed, isa, &format!("{checkpoint}, {isa:?}"));
        }
    }
}

fn same_model(plain: &Path, packed: &Path, isa: Isa, what: &str) {
    let bytes = fs::read(packed).unwrap();
    let header = Header::parse(&bytes).unwrap();
    assert_eq!(header.verify(&bytes), Ok(true), "{what}");
    let number = layout_number(isa.layout().unwrap(), header.weights);
    assert_eq!(header.packed.unwrap().layout, number);
    let [plain_model, packed_model] = [plain, packed].map(|path| Model::open(path).unwrap());
    assert_eq!(packed_model.fingerprint().unwrap(), plain_model.fingerprint().unwrap(), "{what}");
    assert_eq!(packed_model.packed_for(), Some(isa));
    // An embedding that is also the classifier is there once.
    assert_eq!(header.n_tensors(), plain_model.header().n_tensors(), "{what}");
    if Kernels::for_isa(isa).is_none() {
        let error = engine(packed).err().expect("kernels of another CPU");
        assert!(
            matches!(error, EngineError::Start(StartError::Packed { wanted, .. }) if wanted == isa)
        );
        return;
    }
    let mut engine = engine(packed).unwrap();
    assert_eq!((engine.isa(), engine.packed_bytes()), (isa, None), "{what}");
    let place = WeightsPlace { model: Some(packed.to_owned()), ..WeightsPlace::default() };
    let report = engine.prepare(&place, Listener::NONE).unwrap();
    let PackReport { packed, reused, bytes } = report.unwrap();
    assert!(packed == 0 && reused > 0 && bytes > 0, "{what}");
    let wanted = logits(&mut self::engine(plain).unwrap());
    assert!(logits(&mut engine) == wanted, "{what}");
}

/// The library treats a model like `leap run`.
#[test]
fn an_engine_that_is_opened_packs_once_and_then_reuses() {
    let Some(isa) = Some(Kernels::best().isa()).filter(|isa| isa.layout().is_some()) else {
        return;
    };
    let folder = Folder::new();
    let path = export(&folder, "llama3-tiny", "2", None);
    let wanted = logits(&mut Engine::new(Model::open(&path).unwrap().into(), &options()).unwrap());
    let place = folder.join("packed");
    fs::create_dir(&place).unwrap();
    let options = || Options { cache: Cache::At(place.clone()), ..options() };
    let mut written = Vec::new();
    for _ in 0..2 {
        assert!(logits(&mut Engine::open(&path, &options()).unwrap()) == wanted);
        let file = place.join(format!("llama3-tiny-2-plain.{}.leapw", isa.name()));
        written.push(fs::metadata(&file).unwrap().modified().unwrap());
    }
    assert_eq!(written[0], written[1], "the second start packed again");
}

#[test]
fn packed_matrices_move_to_huge_pages() {
    let folder = Folder::new();
    for (version, checkpoint) in
        [("2", "llama3-tiny"), ("3", "mistral-tiny"), ("4", "mistral-tiny")]
    {
        let Some(isa) = Some(Kernels::best().isa()).filter(|isa| isa.layout().is_some()) else {
            return;
        };
        let path = export(&folder, checkpoint, version, Some(isa));
        let wanted = logits(&mut engine(&path).unwrap());
        let mut engine = engine(&path).unwrap();
        let place = WeightsPlace { huge: Huge::On, ..WeightsPlace::default() };
        engine.prepare(&place, Listener::NONE).unwrap();
        let mut stream = engine.stream().unwrap();
        while engine.about().weights != WeightsIn::Memory {
            stream.clear();
            engine.push(&mut stream, &[1]).unwrap();
        }
        let vocab_size = engine.header().vocab_size as u32;
        let ids: Vec<u32> = (0..29).map(|i| i * 37 % vocab_size).collect();
        stream.clear();
        let mut found = bits(engine.push(&mut stream, &ids).unwrap());
        found.extend(bits(engine.push(&mut stream, &[1]).unwrap()));
        assert!(found == wanted, "{checkpoint}");
    }
}

#[test]
fn every_command_takes_a_packed_file_and_writes_no_other() {
    let Some(isa) = Some(Kernels::best().isa()).filter(|isa| isa.layout().is_some()) else {
        return;
    };
    let folder = Folder::new();
    let plain = export(&folder, "llama3-tiny", "2", None);
    let path = export(&folder, "llama3-tiny", "2", Some(isa));
    let [plain, path] = [&plain, &path].map(|path| path.to_str().unwrap());
    let names = || {
        let names = fs::read_dir(folder.path()).unwrap();
        let mut names: Vec<_> = names.map(|entry| entry.unwrap().file_name()).collect();
        names.sort();
        names
    };
    let before = names();
    let run = ["-p", "The fox", "-n", "8", "--temp", "0"];
    let (wanted, _) = succeeds(&leap(&[&["run", plain][..], &run].concat()));
    for _ in 0..2 {
        let (text, told) = succeeds(&leap(&[&["run", path][..], &run].concat()));
        assert_eq!(text, wanted);
        assert!(!told.contains("reused") && told.contains("packed, in"), "{told}");
        assert!(told.contains(isa.name()), "{told}");
    }
    let (_, told) = succeeds(&leap(&["pack", path]));
    assert!(told.contains("nothing to do"), "{told}");
    let (told, _) = succeeds(&leap(&["info", path, "--verify"]));
    let row = |name: &str| told.lines().find(|line| line.starts_with(name)).unwrap().to_owned();
    assert!(row("packed_for").contains(&format!(" {} (layout ", isa.name())), "{told}");
    assert!(row("checksums").ends_with("match"), "{told}");
    let cases = "tests/golden/llama3-tiny/golden.json";
    let eval = |path| succeeds(&leap(&["eval", path, "--cases", cases, "--json"])).0;
    assert_eq!(eval(path), eval(plain));
    let depths = ["--depth", "0,9999", "--prompt", "16", "--draft"];
    let bench = [&["bench", path, "--threads", "1", "--json"][..], &depths].concat();
    if !crate::common::quick() {
        let (told, notes) = succeeds(&leap(&bench));
        assert!(notes.contains("left out") && notes.contains("decode 9999"), "{notes}");
        assert!(told.contains(&format!("\"isa\": \"{}\"", isa.name())), "{told}");
        // The bandwidth measurement's memory is not part of the model's figure.
        let lines = told.lines().map(|line| serde_json::from_str::<Value>(line).unwrap());
        let (rows, lines): (Vec<Value>, Vec<Value>) =
            lines.partition(|line| line["what"] == "rows");
        let (drafts, lines): (Vec<Value>, Vec<Value>) =
            lines.into_iter().partition(|line| line["what"] == "drafts");
        let last = lines.last().unwrap();
        let figure = |name: &str| last[name].as_f64().unwrap();
        assert!(figure("memory_bytes") < f64::from(128 << 20), "{told}");
        assert!(figure("percent_of_int8_peak") > 0.0 && figure("int8_ops_per_s") > 0.0, "{told}");
        // Sixteen rows are compared with one row and with a long prompt.
        assert!(figure("of_rows_bound") > 0.0, "{told}");
        assert!(rows.iter().map(|pass| &pass["rows"]).eq(&(1..=16).collect::<Vec<_>>()), "{told}");
        assert!(rows.iter().all(|pass| pass["ms"].as_f64() > Some(0.0)), "{told}");
        let per_pass = drafts.iter().map(|text| text["tokens_per_pass"].as_f64().unwrap());
        let per_pass: Vec<f64> = per_pass.collect();
        assert!(per_pass.len() == 3 && per_pass.iter().all(|n| (1.0..16.0).contains(n)), "{told}");
    }
    assert_eq!(names(), before);
}

#[test]
fn kernels_of_another_cpu_are_refused_in_one_line() {
    let folder = Folder::new();
    let other = Isa::ALL.iter().copied().find(|isa| Kernels::for_isa(*isa).is_none());
    let path = export(&folder, "llama3-tiny", "2", other);
    let path = path.to_str().unwrap();
    for command in [&["run", path, "-p", "x"][..], &["pack", path], &["bench", path]] {
        let output = leap(command);
        let told = String::from_utf8(output.stderr).unwrap();
        assert_eq!(output.status.code(), Some(3), "{command:?}: {told}");
        assert_eq!(told.lines().count(), 1, "{told}");
        assert!(told.contains(other.unwrap().name()) && told.contains("without --isa"), "{told}");
    }
    // `leap info` reads the file on any machine.
    succeeds(&leap(&["info", path, "--verify"]));
    // The file's kernels cannot be overridden by force either.
    let path = export(&folder, "mistral-tiny", "2", Some(Isa::Avx2));
    let mut forced = crate::common::leap();
    let output = forced.arg("run").arg(path).env("LEAP_ISA", "scalar").output().unwrap();
    assert_eq!(output.status.code(), Some(3), "{output:?}");
}

#[test]
fn layouts_that_do_not_exist_are_refused() {
    let folder = Folder::new();
    let path = export(&folder, "mistral-tiny", "2", Some(Isa::NeonDot));
    let bytes = fs::read(path).unwrap();
    let header = Header::parse(&bytes).unwrap();
    let packed = header.packed.unwrap();
    for (layout, panel_rows) in [(0x7777, packed.panel_rows), (0x0221, packed.panel_rows)] {
        let packed = Packed { layout, panel_rows, ..packed };
        let header = Header { packed: Some(packed), ..header.clone() };
        let file = [&header.emit()[..], &bytes[256..]].concat();
        let error = Model::open(&folder.write("other.bin", file)).err().unwrap();
        let told = std::error::Error::source(&error).unwrap().to_string();
        assert!(told.contains("layout 0x") && told.contains("export"), "{told}");
    }
}

#[test]
fn weights_that_cannot_be_packed_are_a_usage_error() {
    let folder = Folder::new();
    let out = folder.join("m.bin");
    let checkpoint = package("tests/golden/mistral-tiny");
    let (out, checkpoint) = (out.to_str().unwrap(), checkpoint.to_str().unwrap());
    for (more, what) in [
        (&["--isa", "scalar"][..], "avx2"),
        (&["--isa", "sse"], "neondot"),
        (&["--isa", "avx2", "--version", "1"], "int8"),
    ] {
        let output = leap(&[&["export", out, "--meta-llama", checkpoint][..], more].concat());
        let told = String::from_utf8(output.stderr).unwrap();
        assert_eq!(output.status.code(), Some(2), "{told}");
        assert!(told.contains(what), "{told}");
    }
    assert!(!Path::new(out).exists());
}
