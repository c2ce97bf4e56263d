//! Bytes that a token reads, as `leap info`, `doctor` and `bench` tell them.

use serde_json::Value;

use super::{DEMO, run};
use crate::common::folder::Folder;
use crate::common::ran::Ran;

/// Bytes of `object`, an object of numbers.
fn sum(object: &Value) -> u64 {
    object.as_object().unwrap().values().map(|bytes| bytes.as_u64().unwrap()).sum()
}

/// The object that `leap info` prints, with sums that agree.
fn info(path: &str) -> Value {
    let told = run(&["info", path, "--json"]).succeeds().objects().remove(0);
    let parts = told["reads"].as_object().unwrap();
    assert_eq!(told["bytes_per_token"].as_u64().unwrap(), parts.values().map(sum).sum::<u64>());
    assert_eq!(told["bytes_per_token"].as_u64().unwrap(), sum(&told["reads_by_encoding"]));
    for (encoding, bytes) in told["reads_by_encoding"].as_object().unwrap() {
        let of_parts = parts.values().filter_map(|part| part.get(encoding)?.as_u64());
        assert_eq!(bytes.as_u64().unwrap(), of_parts.sum::<u64>(), "{encoding}: {told}");
    }
    told
}

/// Rows of the table of reads among the lines of `ran`, as words.
fn table(ran: &Ran) -> Vec<Vec<String>> {
    let lines = ran.out.lines().map(str::trim_start);
    let rows = lines.skip_while(|line| !line.starts_with("bytes read  "));
    let words = |line: &str| line.split_whitespace().map(str::to_owned).collect::<Vec<_>>();
    let mut rows: Vec<Vec<String>> = rows.map(words).collect();
    let end = rows.iter().position(|row| row[0] == "all").expect("a row for all");
    rows.truncate(end + 1);
    rows
}

#[test]
fn reads_of_a_token_are_told_by_part_and_encoding() {
    let folder = Folder::new();
    let exported = |version: &str, more: &[&str]| {
        let out = folder.join(&format!("{version}{}.bin", more.len()));
        let out = out.to_str().unwrap().to_owned();
        let checkpoint = "tests/golden/llama3-tiny";
        let args = ["export", &out, "--meta-llama", checkpoint, "--version", version];
        run(&[&args[..], more].concat()).succeeds();
        out
    };
    for (path, layers, ends) in [
        (DEMO.to_owned(), "int8", "int8"),
        (exported("1", &[]), "f32", "f32"),
        (exported("2", &[]), "int8", "int8"),
        (exported("3", &[]), "bcml1", "int8"),
        (exported("4", &[]), "bcml2", "int8"),
        (exported("4", &["--embedding-bits", "6"]), "bcml2", "bcml6"),
    ] {
        let told = info(&path);
        let has = |part: &str, encoding: &str| told["reads"][part][encoding].as_u64() > Some(0);
        assert!(has("attention", layers) && has("feed_forward", layers), "{told}");
        assert!(has("embedding", ends) && has("classifier", ends), "{told}");
        assert!(has("norms", "f32") && told["reads"].get("experts").is_none(), "{told}");

        // People get the same numbers.
        let rows = table(&run(&["info", &path]).succeeds());
        let total = told["bytes_per_token"].to_string();
        let [.., all, _, _] = &rows.last().unwrap()[..] else { panic!("{rows:?}") };
        assert_eq!(*all, total, "{rows:?}");
        assert_eq!(rows.len(), 2 + told["reads"].as_object().unwrap().len(), "{rows:?}");

        // `leap doctor` tells the same.
        let ran = run(&["doctor", &path, "--json"]);
        let found = ran.objects().into_iter().find(|finding| finding["what"] == "reads");
        let found = found.unwrap_or_else(|| panic!("no reads: {ran:?}"));
        for key in ["bytes_per_token", "reads", "reads_by_encoding"] {
            assert_eq!(found[key], told[key], "{path}: {found}");
        }
    }
    assert_eq!(table(&run(&["doctor", DEMO])), table(&run(&["info", DEMO])));
    let alone = run(&["doctor", "--json"]);
    assert!(alone.objects().iter().all(|finding| finding["what"] != "reads"), "{alone:?}");
}

#[test]
fn bench_compares_the_machine_with_the_reads_that_info_tells() {
    if crate::common::quick() {
        return;
    }
    let per_token = info(DEMO)["bytes_per_token"].as_f64().unwrap();
    let bench = ["bench", DEMO, "--threads", "1", "--depth", "0", "--prompt", "1", "--json"];
    let ran = run(&bench).succeeds();
    let objects = ran.objects();
    let decode = objects.iter().find(|object| object["what"] == "decode").unwrap();
    let figure = |name: &str| decode[name].as_f64().unwrap();
    let read = figure("percent_of_bandwidth") / 100.0 * figure("read_bytes_per_s");
    let bytes = read / figure("tokens_per_s");
    assert!((bytes / per_token - 1.0).abs() < 1e-9, "{bytes} of {per_token}: {decode}");
}
