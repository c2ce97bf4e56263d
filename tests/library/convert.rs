//! Checkpoints instead of a model file.

use std::fs;
use std::path::Path;
use std::process::{Command, Stdio};

use leap::internals::kernels::{Isa, Kernels};
use serde_json::Value;

use crate::common::folder::Folder;
use crate::common::gguf::whole_gguf;
use crate::common::leap;
use crate::common::models::package;
use crate::common::ran::Ran;

const FOLDER: &str = "tests/golden/llama3-tiny";

/// A person with a cache folder of their own.
struct Person {
    cache: Folder,
}

impl Person {
    fn new() -> Person {
        Person { cache: Folder::new() }
    }

    fn command(&self, args: &[&str]) -> Command {
        let mut command = leap();
        command.args(args).env("XDG_CACHE_HOME", self.cache.path());
        command.current_dir(env!("CARGO_MANIFEST_DIR")).stdin(Stdio::null());
        command
    }

    fn run(&self, args: &[&str]) -> Ran {
        Ran::new(self.command(args).output().unwrap())
    }

    /// Generates with the model at `path`; returns the answer, and the messages beside it.
    #[track_caller]
    fn tell(&self, path: &str, more: &[&str]) -> (Value, String) {
        let args = ["run", path, "-p", "The fox", "-n", "8", "--temp", "0", "--json"];
        let ran = self.run(&[&args[..], more].concat());
        assert_eq!(ran.code, Some(0), "{ran:?}");
        (serde_json::from_str(&ran.out).unwrap(), ran.err)
    }

    /// Names of the kept files.
    fn kept(&self) -> Vec<String> {
        let entries = fs::read_dir(self.cache.join("leap")).into_iter().flatten();
        let mut names: Vec<String> =
            entries.map(|e| e.unwrap().file_name().into_string().unwrap()).collect();
        names.sort();
        names
    }
}

/// The instruction set of this CPU that a converted model is packed for, as the names of files have it.
fn tier() -> String {
    let isa = Some(Kernels::best().isa()).filter(|isa| isa.layout().is_some());
    isa.map_or(String::new(), |isa| format!(".{}", isa.name()))
}

fn copy(from: &str, to: &Path) {
    fs::create_dir_all(to).unwrap();
    for entry in fs::read_dir(package(from)).unwrap() {
        let entry = entry.unwrap();
        fs::copy(entry.path(), to.join(entry.file_name())).unwrap();
    }
}

#[test]
fn gguf_file_is_converted_once() {
    let person = Person::new();
    let folder = Folder::new();
    let path = folder.write("model.gguf", whole_gguf());
    let path = path.to_str().unwrap();
    let (first, err) = person.tell(path, &[]);
    assert!(err.contains(&format!("converting {path} once, to ")), "{err}");
    let kept = person.kept();
    assert_eq!(kept.len(), 2, "{kept:?}");
    assert!(
        kept[0].starts_with("model-") && kept[0].ends_with(&format!(".own{}.bin", tier())),
        "{kept:?}"
    );
    assert!(kept[1].ends_with(&format!(".own{}.tokenizer.bin", tier())), "{kept:?}");
    let (again, err) = person.tell(path, &[]);
    assert_eq!((&again["text"], &*err), (&first["text"], ""));
    assert_eq!(person.kept(), kept);

    // A file that this version cannot use is made again.
    let damaged = person.cache.join("leap").join(&kept[0]);
    let whole = fs::read(&damaged).unwrap();
    fs::write(&damaged, &whole[..300]).unwrap();
    let (again, err) = person.tell(path, &[]);
    assert!(again["text"] == first["text"] && err.contains("converting"), "{err}");
    assert!(fs::read(&damaged).unwrap() == whole);

    // The converted file answers like the exported file, and has the same bytes.
    let exported = folder.join("m.bin");
    let mut export = vec!["export", exported.to_str().unwrap(), "--gguf", path];
    let tier = tier();
    if let Some(isa) = tier.strip_prefix('.') {
        export.extend(["--isa", isa]);
    }
    let ran = person.run(&export);
    assert_eq!(ran.code, Some(0), "{ran:?}");
    let model = person.cache.join("leap").join(&kept[0]);
    assert_eq!(fs::read(model).unwrap(), fs::read(&exported).unwrap());
    assert_eq!(person.tell(exported.to_str().unwrap(), &[]).0["text"], first["text"]);
    let ran = person.run(&["run", path, "-c", "--chat-template", "llama2", "-p", "Hi", "-n", "3"]);
    assert_eq!(ran.code, Some(0), "{ran:?}");
}

/// Kernels that take weights in no order of their own use the file that every kernel can use, and so do other boards.
#[test]
fn a_model_is_packed_for_the_kernels_in_use() {
    let run = ["run", FOLDER, "-p", "The fox", "-n", "8", "--temp", "0", "-q"];
    let mut texts = Vec::new();
    for isa in Isa::ALL.iter().filter(|isa| Kernels::for_isa(**isa).is_some()) {
        let person = Person::new();
        let output = person.command(&run).env("LEAP_ISA", isa.name()).output().unwrap();
        texts.push(Ran::new(output).succeeds().out);
        let kept = person.kept();
        let wanted = match isa.layout() {
            Some(_) => format!(".v2.{}.bin", isa.name()),
            None => ".v2.bin".to_owned(),
        };
        assert!(kept.len() == 2 && kept[0].ends_with(&wanted), "{kept:?}");
    }
    texts.dedup();
    assert_eq!(texts.len(), 1);
    let person = Person::new();
    let key = person.cache.write("key", [7; 32]);
    let boards = ["--boards", "127.0.0.1:1", "--key", key.to_str().unwrap()];
    let ran = person.run(&[&run[..], &boards].concat());
    assert_ne!(ran.code, Some(0), "{ran:?}");
    let kept = person.kept();
    assert!(kept.iter().any(|name| name.ends_with(".v2.bin")), "{kept:?} {ran:?}");
}

#[test]
fn folder_and_its_files_are_one_checkpoint() {
    let person = Person::new();
    let (first, err) = person.tell(FOLDER, &["-q"]);
    assert_eq!(err, "", "--quiet says nothing");
    let kept = person.kept();
    let whole = package(FOLDER).to_str().unwrap().to_owned();
    let parts = ["/", "/../llama3-tiny", "/config.json", "/model-00001-of-00004.safetensors"];
    for name in parts.map(|part| format!("{FOLDER}{part}")).into_iter().chain([whole]) {
        let (again, err) = person.tell(&name, &[]);
        assert_eq!((&again["text"], &*err), (&first["text"], ""), "{name}");
    }
    assert_eq!(person.kept(), kept);
    // Another version is another file.
    let (_, err) = person.tell(FOLDER, &["--version", "1"]);
    assert!(err.contains(".v1.bin"), "{err}");
    assert_eq!(person.kept().len(), 4);
    let [eight, six] = ["8", "6"].map(|bits| {
        let (_, err) = person.tell(FOLDER, &["--version", "4", "--embedding-bits", bits]);
        err
    });
    let is_of = |told: &str, version: &str| told.contains(&format!(".{version}{}.bin", tier()));
    assert!(is_of(&eight, "v4") && is_of(&six, "v4-6"), "{eight} {six}");
    let ran = person.run(&["run", FOLDER, "--chat", "-p", "Hello", "-n", "3"]);
    assert_eq!(ran.code, Some(0), "{ran:?}");
}

#[test]
fn changed_checkpoint_is_converted_again() {
    let person = Person::new();
    let checkpoint = Folder::new();
    copy(FOLDER, checkpoint.path());
    let path = checkpoint.path().to_str().unwrap();
    person.tell(path, &[]);
    let before = person.kept();
    let leftover = format!(".{}.1-0.tmp", before[0]);
    fs::write(person.cache.join("leap").join(leftover), "of one that was killed").unwrap();
    fs::write(person.cache.join("leap").join("another-model.bin"), "").unwrap();

    let config = checkpoint.join("config.json");
    let text = fs::read_to_string(&config).unwrap();
    fs::write(&config, text + "\n").unwrap();
    let (_, err) = person.tell(path, &[]);
    assert!(err.contains("converting "), "{err}");
    let after = person.kept();
    // Files of the former state are gone, and no others.
    assert_eq!(after.len(), 3, "{after:?}");
    assert!(after.iter().all(|name| !before.contains(name)), "{after:?}");
    assert!(after.contains(&"another-model.bin".to_owned()));
}

#[test]
fn conversion_that_fails_leaves_nothing_and_names_a_way() {
    let person = Person::new();
    // A disk without room for the model.
    let full = person.command(&["run", FOLDER, "-p", "a"]);
    let mut shell = Command::new("sh");
    shell.args(["-c", "ulimit -f 64; exec \"$@\"", "sh"]).arg(full.get_program());
    shell.args(full.get_args()).env("XDG_CACHE_HOME", person.cache.path());
    let output = shell.current_dir(env!("CARGO_MANIFEST_DIR")).stdin(Stdio::null()).output();
    let ran = Ran::new(output.unwrap());
    assert_eq!(ran.code, Some(1), "{ran:?}");
    let last = ran.err.lines().last().unwrap();
    assert!(
        last.contains("cannot write") && last.contains("leap export llama3-tiny.bin"),
        "{ran:?}"
    );
    assert_eq!(person.kept(), [""; 0]);

    let without = Person::new();
    without.cache.write("leap", "a file where the folder should be");
    let ran = without.run(&["run", FOLDER, "-p", "a", "-n", "1", "--temp", "0"]).succeeds();
    assert!(ran.err.contains("the converted model is not kept"), "{ran:?}");
    let gguf = "tests/golden/gguf/model.gguf";
    person.run(&["run", gguf, "-p", "a"]).fails(3, "has no tokenizer; name one with -t");

    let mistral = "tests/golden/mistral-tiny";
    person.run(&["run", mistral, "-p", "a"]).fails(3, "has no tokenizer; name one with -t");
    assert_eq!(person.kept(), [""; 0]);

    // The last file of the checkpoint is missing.
    let damaged = Folder::new();
    copy("tests/golden/llama3-tiny", damaged.path());
    fs::remove_file(damaged.join("model-00004-of-00004.safetensors")).unwrap();
    let path = damaged.path().to_str().unwrap();
    person.run(&["run", path, "-p", "a"]).fails(3, "model-00004-of-00004");
    assert_eq!(person.kept(), [""; 0]);
}

#[test]
fn every_command_takes_a_checkpoint() {
    let folder = Folder::new();
    let gguf = folder.write("model.gguf", whole_gguf());
    for path in crate::common::sample([gguf.to_str().unwrap(), FOLDER]) {
        let person = Person::new();
        let info: Value =
            serde_json::from_str(&person.run(&["info", path, "--json"]).succeeds().out).unwrap();
        assert_eq!(person.kept(), [""; 0], "{path}: nothing is converted to look at it");
        person.run(&["info", path, "--verify"]).fails(2, "is a checkpoint and has no checksums");
        let figures = "desk 127.0.0.1:9711 read=10 int8=100 memory=4 rtt=100 wire=100\n";
        let board = folder.write("boards", figures);
        let plan = ["plan", path, "--boards", board.to_str().unwrap()];
        let planned = person.run(&plan).succeeds().out;
        assert_eq!(person.kept(), [""; 0], "{path}: nor to plan with it, {planned}");

        person.run(&["pack", path]).succeeds();
        let kept = person.kept();
        assert_eq!(kept.len(), 2, "{path}: {kept:?}");
        let bench = ["bench", path, "--threads", "1", "--depth", "0", "--prompt", "2"];
        assert!(person.run(&bench).succeeds().out.contains("decode"));
        let ids = folder.write("ids.json", "[1, 2, 3, 4, 5, 6]");
        person.run(&["eval", path, "--ids", ids.to_str().unwrap()]).succeeds();
        let doctor = person.run(&["doctor", path]);
        assert!(doctor.out.contains("tokens"), "{doctor:?}");
        let made = person.cache.join("leap").join(&kept[0]);
        let shown = person.run(&["info", made.to_str().unwrap(), "--json"]).succeeds().out;
        let shown: Value = serde_json::from_str(&shown).unwrap();
        assert_eq!((person.kept(), &shown["weights"]), (kept, &info["weights"]));
    }
}

#[test]
fn versions_are_for_checkpoints() {
    let person = Person::new();
    let demo = "models/demo.bin";
    person.run(&["run", demo, "-p", "a", "--version", "3"]).fails(2, "--version is for");
    person.run(&["run", FOLDER, "-p", "a", "--version", "7"]).fails(2, "--version is 7");
    person
        .run(&["run", demo, "-p", "a", "--embedding-bits", "6"])
        .fails(2, "--embedding-bits is for");
    person.run(&["run", FOLDER, "-p", "a", "--embedding-bits", "6"]).fails(2, "for --version 4");
}
