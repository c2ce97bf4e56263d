//! `--draft`: any drafts give the same text.

use std::fs;

use super::{ANSWER, DEMO, PROMPT, export, pipe, run};
use crate::common::folder::Folder;
use crate::common::models::package;

#[test]
fn texts_are_the_same_with_any_drafts() {
    for sampling in [["--temp", "0"], ["--seed", "7"]] {
        let args = ["run", DEMO, "-p", PROMPT, "-n", "60", "--json", sampling[0], sampling[1]];
        let with = |draft: &str| run(&[&args[..], &["--draft", draft]].concat()).succeeds();
        let plain = with("off").objects().remove(0);
        assert_eq!(plain["passes"], plain["generated_tokens"]);
        assert_eq!((&plain["drafted_tokens"], &plain["drafting_ms"]), (&0.into(), &0.into()));
        for draft in ["auto", "ngram", DEMO] {
            let object = with(draft).objects().remove(0);
            assert_eq!(object["text"], plain["text"], "{draft}");
            let count = |field: &str| object[field].as_u64().unwrap();
            let tokens = count("passes") + count("accepted_tokens");
            assert_eq!(tokens, count("generated_tokens"), "{object}");
            assert!(count("accepted_tokens") <= count("drafted_tokens"), "{object}");
        }
    }
    let chat = ["run", "--chat", "--temp", "0", "-n", "20", "-q", "--draft"];
    let said = |draft: &str| pipe(&[&chat[..], &[draft]].concat(), "Hello\nHello\n").succeeds().out;
    assert_eq!(said(DEMO), said("off"));
}

#[test]
fn answers_of_many_prompts_are_guessed_from_each_other() {
    let args = ["run", DEMO, "--streams", "2", "-n", "20", "--temp", "0", "-q"];
    let prompts = format!("{PROMPT}\n").repeat(5);
    let ran = pipe(&args, prompts).succeeds();
    assert_eq!(ran.out.matches(&format!("{PROMPT}{ANSWER}")).count(), 5, "{ran:?}");
}

#[test]
fn models_that_cannot_guess_are_refused_by_name() {
    let draft = |path: &str| run(&["run", "-p", "a", "--draft", path]);
    draft("").fails(2, "the value is empty");
    draft("no/draft.bin").fails(3, "no/draft.bin");
    draft("Cargo.toml").fails(3, "Cargo.toml");
    let folder = Folder::new();
    let llama = export(folder.path(), "llama.bin", "llama2-meta-tiny");
    draft(&llama).fails(3, "tokens, the model 4096; wanted a model of the same tokenizer");
    // This model has as many tokens, and one of them has another meaning.
    let checkpoint = folder.join("checkpoint");
    fs::create_dir(&checkpoint).unwrap();
    for file in fs::read_dir(package("tests/golden/llama3-tiny")).unwrap() {
        let file = file.unwrap();
        fs::copy(file.path(), checkpoint.join(file.file_name())).unwrap();
    }
    fs::remove_file(checkpoint.join("tokenizer.json")).unwrap();
    let ranks = fs::read_to_string(checkpoint.join("tokenizer.model")).unwrap();
    // "!" becomes a byte that is no character.
    assert!(ranks.starts_with("IQ== 0\n"));
    let other = ranks.replace("\n/w== ", "\nIQ== ").replacen("IQ== 0\n", "/w== 0\n", 1);
    fs::write(checkpoint.join("tokenizer.model"), other).unwrap();
    let out = folder.join("other.bin");
    let [out, from] = [&out, &checkpoint].map(|path| path.to_str().unwrap());
    run(&["export", out, "--meta-llama", from, "--version", "1"]).succeeds();
    draft(out).fails(3, "token 0 is");
}
