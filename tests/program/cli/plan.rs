//! `leap plan`: from measurements of boards to a ring file.

use std::fs;

use serde_json::Value;

use super::{DEMO, run};
use crate::common::folder::Folder;

#[test]
fn a_plan_is_a_ring_file_that_boards_take() {
    let folder = Folder::new();
    let figures = "read=10 int8=100 memory=4 rtt=100 wire=100";
    let text = format!("desk 127.0.0.1:9711 {figures}\npi 127.0.0.1:9712 {figures} watts=1,2\n");
    let boards = folder.write("boards", text);
    let ring = folder.join("ring");
    let (boards, ring) = (boards.to_str().unwrap(), ring.to_str().unwrap());
    let plan = ["plan", DEMO, "--boards", boards, "--objective", "throughput"];
    let ran = run(&[&plan[..], &["--explain", "-o", ring]].concat()).succeeds();
    assert!(ran.out.contains("pi") && ran.out.contains("without pi: "), "{ran:?}");
    let lines = fs::read_to_string(ring).unwrap();
    assert!(lines.contains("desk 127.0.0.1:9711 0..") && lines.contains("..6\n"), "{lines}");
    // The ring file is valid: only the name is wrong.
    let stranger = ["worker", DEMO, "--ring", ring, "--node", "orange"];
    run(&stranger).fails(3, "no node is called \"orange\"; there are desk, pi");
    let json = run(&[&plan[..], &["--json"]].concat()).succeeds();
    let json: Value = serde_json::from_str(&json.out).unwrap();
    assert_eq!(json["boards"][1]["end_layer"], 6);
    assert!(json["tokens_per_s"].as_f64() > json["stream_tokens_per_s"].as_f64());
    assert_eq!(json["joules_per_token"], Value::Null);
    run(&["plan", DEMO, "--boards", boards, "--objective", "energy"]).fails(3, "the watts of desk");
    for n in ["1000000000000", "100000000000000", "18446744073709551615"] {
        run(&["plan", DEMO, "--boards", boards, "--streams", n]).fails(2, "--streams: ");
    }
    run(&["plan", DEMO, "--boards", boards, "-o", "/no/ring"]).fails(1, "/no/ring");
}

#[test]
fn a_plan_says_how_many_threads_a_board_is_to_have() {
    let folder = Folder::new();
    let rest = "memory=4 rtt=100 wire=100";
    let text = format!(
        "desk 127.0.0.1:9711 read=20 int8=200 {rest} watts=3,9\n\
         pi 127.0.0.1:9731 threads=4 read=11 int8=90 {rest} watts=2,8 always\n\
         pi 127.0.0.1:9731 threads=2 read=10 int8=45 {rest} watts=2,5 always\n"
    );
    let boards = folder.write("boards", text);
    let ring = folder.join("ring");
    let (boards, ring) = (boards.to_str().unwrap(), ring.to_str().unwrap());
    let plan = ["plan", DEMO, "--boards", boards];
    let ran = run(&[&plan[..], &["--objective", "energy", "--explain", "-o", ring]].concat());
    let ran = ran.succeeds();
    assert!(ran.out.contains("pi (2 threads) "), "{ran:?}");
    assert!(ran.out.contains("without pi: ") && ran.out.contains("with another pi: "), "{ran:?}");
    let lines = fs::read_to_string(ring).unwrap();
    assert!(lines.contains("\npi 127.0.0.1:9731 ") && lines.ends_with(" threads=2\n"), "{lines}");
    run(&["worker", DEMO, "--ring", ring, "--node", "orange"]).fails(3, "there are desk, pi");
    let json = run(&[&plan[..], &["--objective", "latency", "--json"]].concat()).succeeds();
    let json: Value = serde_json::from_str(&json.out).unwrap();
    assert_eq!(
        (json["boards"][1]["threads"].as_u64(), &json["boards"][0]["threads"]),
        (Some(4), &Value::Null)
    );
    run(&[&plan[..], &["--team"]].concat()).succeeds();
}

/// The last layers of Gemma 4 E2B use the keys and values of layers 3 and 4.
#[cfg(feature = "pickle")]
#[test]
fn layers_that_belong_together_are_planned_for_one_board() {
    use crate::common::models::export_to;
    use leap::format::model::Weights;

    let folder = Folder::new();
    let model = export_to(&folder, "gemma4-tiny", Weights::F32);
    let ends = |pi: &str| {
        let figures = "int8=100 memory=4 rtt=1 wire=1000 always";
        let desk = format!("desk 127.0.0.1:9711 read=10 {figures}\n");
        let boards =
            folder.write("boards", format!("{desk}pi 127.0.0.1:9721 read={pi} {figures}\n"));
        let plan =
            ["plan", model.to_str().unwrap(), "--boards", boards.to_str().unwrap(), "--json"];
        let json: Value = serde_json::from_str(&run(&plan).succeeds().out).unwrap();
        let of = |board: &Value| {
            [&board["first_layer"], &board["end_layer"]].map(|at| at.as_u64().unwrap())
        };
        json["boards"].as_array().unwrap().iter().map(of).collect::<Vec<_>>()
    };
    // Alike, each would have half of ten layers.
    for layers in [ends("10"), ends("1")] {
        let cut = layers[0][1];
        assert!((1..=3).contains(&cut) && layers == [[0, cut], [cut, 10]], "{layers:?}");
    }
}

#[test]
fn a_plan_is_a_team_file_too() {
    let folder = Folder::new();
    let figures = "int8=100 memory=4 rtt=100 wire=100";
    let text = format!(
        "desk 127.0.0.1 read=20 {figures}\npi 127.0.0.1 read=10 {figures}\nslow pi3 read=1 {figures} never\n"
    );
    let boards = folder.write("boards", text);
    let file = folder.join("team");
    let (boards, file) = (boards.to_str().unwrap(), file.to_str().unwrap());
    let plan = ["plan", DEMO, "--boards", boards, "--team"];
    let ran = run(&[&plan[..], &["-o", file]].concat()).succeeds();
    assert!(ran.out.contains(" tokens/s of one stream: weights "), "{ran:?}");
    let lines = fs::read_to_string(file).unwrap();
    assert!(lines.contains("\ndesk 127.0.0.1:9970 2\npi 127.0.0.1:9972 1\n"), "{lines}");
    // The team file is valid: only the name is wrong.
    let stranger = ["worker", DEMO, "--team", file, "--node", "slow"];
    run(&stranger).fails(3, "no node is called \"slow\"; there are desk, pi");
    let json = run(&[&plan[..], &["--json"]].concat()).succeeds();
    let json: Value = serde_json::from_str(&json.out).unwrap();
    assert_eq!(json["boards"][0]["share"], 2);
    let ms = |name: &str| json[name].as_f64().unwrap();
    // 26 gathers of 50 us.
    assert!((ms("latency_ms") - 1.3).abs() < 1e-6, "{json}");
    let token_ms = ms("weights_ms") + ms("gathers_ms") + ms("latency_ms");
    assert!((1e3 / ms("stream_tokens_per_s") - token_ms).abs() < 1e-6, "{json}");
    run(&[&plan[..], &["--objective", "throughput"]].concat()).fails(2, "one stream");
    let explained = run(&["plan", DEMO, "--boards", boards, "--explain"]).succeeds();
    assert!(explained.out.contains("\nas a team: "), "{explained:?}");
    let alone = folder.write("alone", format!("desk 127.0.0.1 read=20 {figures}\n"));
    run(&["plan", DEMO, "--boards", alone.to_str().unwrap(), "--team"]).fails(3, "a team of 1");
    let small = |memory: &str| {
        let pi = format!("pi b read=9 int8=9 memory={memory} rtt=9 wire=9\n");
        let small = folder.write("small", format!("desk a read=9 {figures}\n{pi}"));
        run(&["plan", DEMO, "--boards", small.to_str().unwrap(), "--team", "--json"])
    };
    // The board gets the share that fits, though it is as fast as desk.
    let shares: Value = serde_json::from_str(&small("0.001").succeeds().out).unwrap();
    let of = |board: usize| shares["boards"][board]["share"].as_u64().unwrap();
    assert!(5 * of(1) < of(0), "{shares}");
    small("0.0001").fails(1, "pi has too little");
}

#[test]
fn a_team_gathers_over_the_kernel_module_where_all_its_boards_have_it() {
    let folder = Folder::new();
    let (figures, kernel) = ("read=9 int8=100 memory=4 rtt=100 wire=100", "kernel=60,110");
    let latency_ms = |boards: &str| {
        let boards = folder.write("boards", boards);
        let plan = ["plan", DEMO, "--boards", boards.to_str().unwrap(), "--team"];
        let told = run(&plan).succeeds().out;
        let json = run(&[&plan[..], &["--json"]].concat()).succeeds();
        let json: Value = serde_json::from_str(&json.out).unwrap();
        assert_eq!(json["is_by_kernel"], told.ends_with(" ms, over the kernel module\n"), "{told}");
        json["latency_ms"].as_f64().unwrap()
    };
    let (one, two) = (format!("desk a {figures} {kernel}\n"), format!("pi b {figures}"));
    // 26 gathers.
    assert!((latency_ms(&format!("{one}{two} {kernel}\n")) - 26.0 * 0.030).abs() < 1e-6);
    assert!((latency_ms(&format!("{one}{two}\n")) - 26.0 * 0.050).abs() < 1e-6);
    // In a place of a ring, only the boards of that place count.
    let weak = "read=0.1 int8=100 memory=0.004 rtt=9000 wire=9";
    let boards = format!("desk a {weak}\npi b {weak} kernel=20,900\nfig c {weak} kernel=20,900\n");
    let boards = folder.write("places", boards);
    let plan = ["plan", DEMO, "--boards", boards.to_str().unwrap(), "--ctx", "64", "--teams"];
    let told = run(&plan).succeeds().out;
    assert!(told.ends_with("\npi+fig gathers over the kernel module\n"), "{told}");
    let json = run(&[&plan[..], &["--json"]].concat()).succeeds();
    let json: Value = serde_json::from_str(&json.out).unwrap();
    let by_kernel = json["boards"].as_array().unwrap().iter().map(|b| b["is_by_kernel"].as_bool());
    assert!(by_kernel.eq([Some(false), Some(true)]), "{json}");
}

#[test]
fn a_plan_may_make_teams_of_a_rings_boards() {
    let folder = Folder::new();
    // The link of pi and fig is fast; desk's is slow.
    let boards = folder.write(
        "boards",
        "desk 127.0.0.1 read=0.1 int8=100 memory=0.004 rtt=9000 wire=9\n\
         pi 127.0.0.2 read=0.1 int8=100 memory=0.004 rtt=20 wire=900\n\
         fig 127.0.0.2:9998 read=0.1 int8=100 memory=0.004 rtt=20 wire=900\n",
    );
    let file = folder.join("ring");
    let (boards, file) = (boards.to_str().unwrap(), file.to_str().unwrap());
    let plan = ["plan", DEMO, "--boards", boards, "--ctx", "64"];
    let rate = |args: &[&str]| {
        let json = run(&[&plan[..], args, &["--json"]].concat()).succeeds();
        let json: Value = serde_json::from_str(&json.out).unwrap();
        json["stream_tokens_per_s"].as_f64().unwrap()
    };
    let ran = run(&[&plan[..], &["--teams", "-o", file]].concat()).succeeds();
    assert!(ran.out.contains("\npi+fig "), "{ran:?}");
    assert!(rate(&["--teams"]) > rate(&[]) && rate(&["--teams"]) > rate(&["--team"]), "{ran:?}");
    let lines = fs::read_to_string(file).unwrap();
    assert!(lines.contains("team pi 127.0.0.2:9970 1\nteam fig 127.0.0.2:9972 1\n"), "{lines}");
    // Boards accept the ring file: only the name is wrong.
    run(&["worker", DEMO, "--ring", file, "--node", "elm"]).fails(3, "there are desk, pi, fig");
    run(&[&plan[..], &["--teams", "--team"]].concat()).fails(2, "--teams plans for one stream");
    let many: String =
        (0..11).map(|i| format!("n{i} 10.0.0.{i} read=1 int8=1 memory=1 rtt=9 wire=9\n")).collect();
    let many = folder.write("many", many);
    run(&["plan", DEMO, "--boards", many.to_str().unwrap(), "--teams"]).fails(3, "10 boards");
}
