//! Figures of energy, by sensors that are played back.

use super::common::folder::Folder;
use super::common::ran::Ran;
use super::{ANSWER, DEMO, PROMPT, command};

const ARGS: [&str; 9] = ["run", DEMO, "-p", PROMPT, "--temp", "0", "-n", "20", "--draft=off"];

/// A board whose sensor says 10 W.
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
