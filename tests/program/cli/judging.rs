//! Commands that judge by their exit code.

use std::fs;
use std::path::Path;

use super::{DEMO, export, run};
use crate::common::folder::Folder;
use crate::common::models::package;

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

    // Without `--ring`, the needs of a ring are not reported.
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
    // These cases are for another vocabulary.
    let other = "tests/golden/llama3-tiny/golden.json";
    run(&["eval", &model, "--cases", other]).fails(3, "golden.json");
    run(&["eval", "no.bin", "--cases", cases]).fails(3, "no.bin");
    run(&["eval", &model, "--ids", "Cargo.toml"]).fails(3, "Cargo.toml");
    let stranger = folder.write("stranger.json", "[1, 2, 99999]");
    let ids = stranger.to_str().unwrap();
    run(&["eval", DEMO, "--ids", ids]).fails(3, "99999 is not in the vocabulary of 4096 tokens");
}

/// The first ids of the demo model's validation text: whole windows of 256, and one more id.
fn validation_ids() -> Vec<u32> {
    let text = fs::read_to_string(package("tests/golden/demo-validation-ids.json")).unwrap();
    serde_json::from_str(&text).unwrap()
}

#[test]
fn demo_model_is_as_good_as_its_f32_original() {
    // Result of `leap eval` for the checkpoint exported with `--version 1`, on these ids in windows of 256.
    // `scripts/eval-demo.sh` evaluates the whole text.
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

    // A rest that fills no window changes nothing; a rest alone is measured.
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

#[test]
fn eval_of_two_models_is_a_table_for_people_and_keys_for_programs() {
    let folder = Folder::new();
    let [f32, int8] = [("f32.bin", "1"), ("int8.bin", "2")].map(|(name, version)| {
        let path = folder.join(name);
        let path = path.to_str().unwrap();
        run(&["export", path, "--meta-llama", "tests/golden/llama3-tiny", "--version", version])
            .succeeds();
        path.to_owned()
    });
    let text = folder.write("text", "It rained for a week, and then the sun came out.\n".repeat(9));
    let text = text.to_str().unwrap();
    let eval = |more: &[&str]| {
        run(&[&["eval", &int8, "--against", &f32, "--window", "32"][..], more].concat()).succeeds()
    };
    let report = &eval(&["--text", text, "--json"]).objects()[0];
    let figure = |key: &str| report[key].as_f64().unwrap_or_else(|| panic!("{key}: {report}"));
    let ratio = figure("perplexity") / figure("reference_perplexity");
    assert!((figure("perplexity_ratio") - ratio).abs() < 1e-9, "{report}");
    assert!(figure("mean_kl") > 0.0 && figure("p99_kl") >= figure("median_kl"), "{report}");
    assert_eq!(figure("positions"), 32.0 * figure("parts"), "{report}");

    let table = eval(&["--text", text]).out;
    let rows: Vec<&str> = table.lines().collect();
    let names = [
        "perplexity",
        "reference perplexity",
        "ratio of the two",
        "mean KL",
        "median KL",
        "99 % KL",
        "top-1 agreement",
        "max drift",
        "positions",
    ];
    assert_eq!(rows.len(), names.len(), "{table}");
    rows.iter().zip(names).for_each(|(row, name)| assert!(row.starts_with(name), "{table}"));
    let mean = format!("{:.3e} nats", figure("mean_kl"));
    assert!(rows[3].ends_with(&mean), "{table}");
    let positions = format!("{} in {} windows", figure("positions"), figure("parts"));
    assert!(rows[8].ends_with(&positions), "{table}");
}

#[test]
fn eval_counts_the_positions_it_is_asked_for() {
    let folder = Folder::new();
    let ids = &validation_ids()[..512];
    let eval = |name: &str, ids: String, more: &[&str]| {
        let path = folder.write(name, ids);
        let args = ["eval", DEMO, "--ids", path.to_str().unwrap(), "--json"];
        run(&[&args[..], more].concat()).succeeds().objects()[0].clone()
    };
    let json = |ids: &[u32]| serde_json::to_string(ids).unwrap();
    // Separate texts have windows of their own; the last id of a window is only predicted.
    let halves: Vec<&[u32]> = ids.chunks(256).collect();
    let both = eval("both.json", serde_json::to_string(&halves).unwrap(), &["--skip", "128"]);
    assert_eq!((&both["parts"], &both["positions"]), (&2.into(), &(2 * 127).into()));
    let nll = |name: &str, ids: &[u32]| {
        eval(name, json(ids), &["--skip", "128"])["nll"].as_f64().unwrap()
    };
    let mean = (nll("first.json", halves[0]) + nll("second.json", halves[1])) / 2.0;
    assert!((both["nll"].as_f64().unwrap() - mean).abs() < 1e-9, "{both}");
    // Skipped positions are still computed.
    let all = eval("all.json", json(halves[0]), &[])["nll"].as_f64().unwrap();
    let begun = eval("begun.json", json(&halves[0][..129]), &[])["nll"].as_f64().unwrap();
    let rest = nll("rest.json", halves[0]);
    assert!((255.0 * all - 128.0 * begun - 127.0 * rest).abs() < 1e-4, "{all} {begun} {rest}");

    let short = folder.write("short.json", json(&ids[..129]));
    let short = short.to_str().unwrap();
    run(&["eval", DEMO, "--ids", short, "--skip", "128"]).fails(3, "fewer than 130 tokens");
    run(&["eval", DEMO, "--ids", short, "--skip", "256"]).fails(2, "--skip");
}
