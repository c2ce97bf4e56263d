//! Commands that judge by their exit code.

use std::fs;
use std::path::Path;

use super::common::folder::Folder;
use super::common::models::package;
use super::{DEMO, export, run};

#[test]
fn doctor_names_what_mends_and_judges_by_its_exit_code() {
    let ran = run(&["doctor", DEMO, "--json", "--ring"]);
    let findings = ran.objects();
    let has = |what: &str| findings.iter().any(|finding| finding["what"] == what);
    for what in ["cores", "governor", "pages", "memory", "bandwidth", "cache", "module", "port"] {
        assert!(has(what), "{what}: {ran:?}");
    }
    for finding in &findings {
        assert_eq!(finding["state"] != "good", finding["mend"].is_string(), "{finding}");
    }
    let is_fit = findings.iter().all(|finding| finding["state"] != "bad");
    assert_eq!(ran.code, Some(if is_fit { 0 } else { 1 }), "{ran:?}");

    // Somebody with one board is not bothered with what a ring needs.
    let alone = run(&["doctor", DEMO]);
    for what in ["module", "port", "network", "buffers"] {
        let is_told = alone.out.lines().any(|line| line.split_whitespace().nth(1) == Some(what));
        assert!(!is_told, "{what}: {alone:?}");
    }
    assert!(alone.err.contains("leap doctor --ring"), "{alone:?}");
    run(&["doctor", "--port", "9999"]).fails(2, "--ring");

    let long = run(&["doctor", DEMO, "--ctx", "999999"]);
    assert!(long.code == Some(1) && long.out.contains("--ctx 1024"), "{long:?}");
    run(&["doctor", "no-such-model.bin"]).fails(3, "no-such-model.bin");
    run(&["doctor", "README.md"]).fails(3, "README.md");
}

#[test]
fn eval_judges_by_its_exit_code() {
    let folder = Folder::new();
    let model = export(folder.path(), "m.bin", "llama2-meta-tiny");
    let cases = "tests/golden/llama2-meta-tiny/golden.json";
    let eval = |more: &[&str]| run(&[&["eval", &model, "--cases", cases][..], more].concat());
    let strict = ["--max-drift", "2e-4", "--min-top1", "1", "--greedy", "--json"];
    let ran = eval(&strict).succeeds();
    let report = &ran.objects()[0];
    assert_eq!(report["greedy_match"], report["greedy_tokens"]);
    assert_eq!(report["top1_agreement"], 1.0);
    assert!(report["max_drift"].as_f64().unwrap() < 1e-4, "{report}");
    eval(&["--max-drift", "1e-9"]).fails(1, "drift");
    eval(&["--kv", "f16", "--max-drift", "1e-7"]).fails(1, "drift");
    // The cases of another vocabulary.
    let other = "tests/golden/llama3-tiny/golden.json";
    run(&["eval", &model, "--cases", other]).fails(3, "golden.json");
    run(&["eval", "no.bin", "--cases", cases]).fails(3, "no.bin");
    run(&["eval", &model, "--ids", "Cargo.toml"]).fails(3, "Cargo.toml");
}

/// The first ids of the demo model's validation text, in whole windows of 256 and one more.
fn validation_ids() -> Vec<u32> {
    let text = fs::read_to_string(package("tests/golden/demo-validation-ids.json")).unwrap();
    serde_json::from_str(&text).unwrap()
}

#[test]
fn demo_model_is_as_good_as_its_f32_original() {
    // `leap eval` of the checkpoint exported with `--version 1`, on these ids in windows of 256.
    // `scripts/eval-demo.sh` does so for the whole text.
    const F32_PERPLEXITY: f64 = 1.547_690_297_506;
    let folder = Folder::new();
    let ids = &validation_ids()[..];
    assert_eq!(ids.len() % 256, 1, "the last id is only predicted");
    let path = folder.write("ids.json", serde_json::to_string(ids).unwrap());
    let ran = run(&["eval", DEMO, "--ids", path.to_str().unwrap(), "--json"]).succeeds();
    let report = &ran.objects()[0];
    assert_eq!(report["parts"], ids.len() / 256);
    let perplexity = report["perplexity"].as_f64().unwrap();
    let worse = perplexity / F32_PERPLEXITY - 1.0;
    assert!(worse.abs() <= 1e-3, "perplexity {perplexity}, f32 has {F32_PERPLEXITY}");

    // A rest that fills no window changes nothing; one alone is measured.
    let rest = folder.write("rest.json", serde_json::to_string(&ids[..300]).unwrap());
    let first = folder.write("first.json", serde_json::to_string(&ids[..257]).unwrap());
    let nll = |path: &Path| {
        let ran = run(&["eval", DEMO, "--ids", path.to_str().unwrap(), "--json"]).succeeds();
        ran.objects()[0]["nll"].as_f64().unwrap()
    };
    assert_eq!(nll(&rest), nll(&first));
    let short = folder.write("short.json", "[4064, 589, 598]");
    assert!(nll(&short) > 0.0);
}
