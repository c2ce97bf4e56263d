//! The link bench measures a team's gathers.

use super::*;
use crate::common::folder::Folder;

#[test]
fn every_carrier_has_gathers_of_the_sizes_of_a_teams() {
    let told = run(&["bench", "--link", "self"]).succeeds().out;
    let begin = "gathers of a team of both: ";
    let mut carriers = Vec::new();
    let mut carrier = "";
    for line in told.lines() {
        let Some((_, gathers)) = line.split_once(begin) else {
            carrier = line.split_whitespace().next().unwrap_or_default();
            continue;
        };
        carriers.push(carrier);
        let mut sizes = Vec::new();
        for gather in gathers.split(", ") {
            let words: Vec<&str> = gather.split_whitespace().collect();
            let [size, "KiB", p50, "and", p99, "us", cpu, "of", "CPU", "time)"] = words[..] else {
                panic!("{told}")
            };
            let [p50, p99] = [p50, p99].map(|us| us.parse::<f64>().unwrap());
            assert!(p50 > 0.0 && p50 <= p99, "{told}");
            cpu.strip_prefix('(').unwrap().parse::<f64>().unwrap();
            sizes.push(size);
        }
        assert_eq!(sizes, ["2", "4", "8", "16"], "{told}");
    }
    assert_eq!(carriers[..2], ["udp", "tcp"], "{told}");
    // The last line fits a file of boards.
    let links = told.lines().last().unwrap().strip_prefix("for leap plan: ").unwrap();
    let board = |name: &str| format!("{name} 127.0.0.1 read=9 int8=9 memory=9 {links}\n");
    let folder = Folder::new();
    let boards = folder.write("boards", board("desk") + &board("pi"));
    run(&["plan", DEMO, "--boards", boards.to_str().unwrap(), "--team"]).succeeds();
}
