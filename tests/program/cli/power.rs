//! Figures of energy, with recorded sensors.

use super::{ANSWER, DEMO, PROMPT, command};
use crate::common::folder::Folder;
use crate::common::ran::Ran;

const ARGS: [&str; 9] = ["run", DEMO, "-p", PROMPT, "--temp", "0", "-n", "20", "--draft=off"];

/// A board whose sensor reads 10 W.
fn board() -> Folder {
    let board = Folder::new();
    let device = board.join("sys/class/hwmon/hwmon1");
    std::fs::create_dir_all(&device).unwrap();
    for (name, text) in [
        ("name", "ina3221\n"),
        ("in1_label", "VDD_IN\n"),
        ("in1_input", "5000\n"),
        ("curr1_input", "2000\n"),
    ] {
        std::fs::write(device.join(name), text).unwrap();
    }
    board
}

fn run_on(board: &Folder, more: &[&str]) -> Ran {
    let mut command = command(&ARGS);
    Ran::new(command.args(more).env("LEAP_SYSFS", board.path()).output().unwrap())
}

#[test]
fn answers_tell_what_they_cost() {
    let board = board();
    let text = format!("{PROMPT}{ANSWER}\n");
    let ran = run_on(&board, &[]).succeeds();
    assert!(ran.out == text && ran.err.contains("; 10.0 W, 0.") && ran.err.contains(" J a token;"));
    let objects = run_on(&board, &["--json"]).succeeds().objects();
    let number = |name: &str| objects[0][name].as_f64().unwrap_or_else(|| panic!("{name}"));
    assert_eq!(objects[0]["power_sensor"], "INA3221 VDD_IN");
    assert!((number("watts") - 10.0).abs() < 1e-6, "{objects:?}");
    let parts = number("prompt_joules") + number("generated_joules");
    assert!((number("joules") - parts).abs() < 1e-9);
    assert!((number("joules_per_token") - number("generated_joules") / 19.0).abs() < 1e-9);

    let told = run_on(&board, &["--watts", "2,7.5"]).succeeds();
    assert!(told.err.contains("; 7.5 W, "), "{told:?}");
    let metered = run_on(&board, &["--power-cmd", "echo 3.5"]).succeeds();
    assert!(metered.err.contains("; 3.5 W, "), "{metered:?}");
}

#[test]
fn without_a_sensor_there_is_no_figure() {
    let empty = run_on(&Folder::new(), &[]).succeeds();
    assert!(!empty.err.contains(" W"), "{empty:?}");
    let board = board();
    std::fs::write(board.join("sys/class/hwmon/hwmon1/curr1_input"), b"\xff-1\0").unwrap();
    let odd = run_on(&board, &["--json"]).succeeds();
    assert!(odd.err.is_empty() && !odd.out.contains("watts"), "{odd:?}");
    let silent = run_on(&board, &["--power-cmd", "exit 3"]).succeeds();
    assert!(silent.err.lines().count() == 2 && silent.err.contains("--power-cmd does not say"));
    let mut nowhere = command(&ARGS);
    let nowhere = nowhere.env("LEAP_SYSFS", board.join("none"));
    Ran::new(nowhere.output().unwrap()).fails(2, "LEAP_SYSFS");
}

#[test]
fn a_sweep_tries_clocks_and_sets_them_back() {
    let board = board();
    let policy = board.join("sys/devices/system/cpu/cpufreq/policy0");
    std::fs::create_dir_all(&policy).unwrap();
    let cpus: String = (0..1024).map(|cpu| format!("{cpu} ")).collect();
    for (name, text) in [
        ("related_cpus", cpus.as_str()),
        ("scaling_max_freq", "1800000\n"),
        ("scaling_available_frequencies", "600000 1800000\n"),
    ] {
        std::fs::write(policy.join(name), text).unwrap();
    }
    let sweep = |more: &[&str]| {
        let args = ["bench", DEMO, "--energy", "--sweep", "--threads", "1", "--depth", "0"];
        let mut command = command(&[&args, more].concat());
        Ran::new(command.env("LEAP_SYSFS", board.path()).output().unwrap())
    };
    let objects = sweep(&["--json"]).succeeds().objects();
    let tried: Vec<u64> = objects.iter().filter_map(|object| object["khz"].as_u64()).collect();
    let best = objects.last().unwrap();
    assert_eq!(tried[..2], [1_800_000, 600_000], "{objects:?}");
    assert_eq!((objects.len(), best["what"].as_str()), (3, Some("best")), "{objects:?}");
    let joules = |object: &serde_json::Value| object["joules_per_token"].as_f64().unwrap();
    assert_eq!(joules(best), joules(&objects[0]).min(joules(&objects[1])));
    let cap = std::fs::read_to_string(policy.join("scaling_max_freq")).unwrap();
    assert_eq!(cap, "1800000\n");
    let slow = sweep(&["--min-tokens-per-s", "1e9"]);
    assert!(
        slow.code == Some(1) && slow.err.contains("no setting reaches 1000000000 tokens/s here")
    );
}

#[test]
fn doctor_mends_and_takes_it_back() {
    let board = board();
    let governor = board.join("sys/devices/system/cpu/cpufreq/policy0/scaling_governor");
    let buffers = board.join("proc/sys/net/core/rmem_max");
    for (file, text) in [(&governor, "ondemand\n"), (&buffers, "212992\n")] {
        std::fs::create_dir_all(file.parent().unwrap()).unwrap();
        std::fs::write(file, text).unwrap();
    }
    let doctor = |more: &[&str]| {
        let mut command = command(&[&["doctor"], more].concat());
        Ran::new(command.env("LEAP_SYSFS", board.path()).output().unwrap())
    };
    let read = |file| std::fs::read_to_string(file).unwrap();
    assert!(doctor(&[]).out.contains("ondemand"));
    let mended = doctor(&["--fix"]);
    assert!(mended.err.contains("taken back by: leap doctor --undo"), "{mended:?}");
    assert!(!mended.out.contains("ondemand"), "{mended:?}");
    assert_eq!((read(&governor).trim(), read(&buffers).trim()), ("performance", "4194304"));
    let undone = doctor(&["--undo"]).succeeds();
    assert!(undone.out.is_empty(), "{undone:?}");
    assert_eq!((read(&governor).trim(), read(&buffers).trim()), ("ondemand", "212992"));
    assert!(doctor(&["--undo"]).succeeds().err.contains("nothing to take back"));
    doctor(&["--undo", "--fix"]).fails(2, "not both");
}
