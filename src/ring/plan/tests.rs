//! Splits against all the splits there are.

use super::fleet::BoardGpu;
use super::*;
use crate::ring::address::Address;

fn board(name: &str, read: f64, memory: u64, watts: Option<(f64, f64)>) -> Board {
    Board {
        name: name.to_owned(),
        address: Address { host: name.to_owned(), port: 9999 },
        threads: None,
        read,
        int8: 1e15,
        memory,
        round_trip_s: 0.0,
        kernel: None,
        gpu: None,
        layer_s: 0.0,
        wire: 1e15,
        watts: watts.map(|(idle, busy)| Watts { idle, busy }),
        wish: Wish::Any,
        others: Vec::new(),
    }
}

fn load(n_layers: usize) -> Load {
    let layer = Need { memory: 100, read: 100, ops: 1 };
    let ends = Need { memory: 50, read: 50, ops: 1 };
    let layers = vec![layer; n_layers];
    Load { layers, ends, every: 10, row_bytes: 4, joined_from: n_layers }
}

fn layers(parts: &[Part]) -> Vec<(usize, Range<usize>)> {
    parts.iter().map(|part| (part.board, part.layers.clone())).collect()
}

fn best(load: &Load, boards: &[Board], objective: Objective) -> Result<Vec<Part>, NoSplit> {
    solve(&Task::new(load, boards), objective, None)
}

#[test]
fn the_quicker_board_has_all_that_fits() {
    let boards = [board("desk", 100.0, 260, None), board("pi", 200.0, 10_000, None)];
    let load = load(8);
    let parts = best(&load, &boards, Objective::Latency).unwrap();
    assert_eq!(layers(&parts), [(0, 0..1), (1, 1..8)]);
    let figures = Task::new(&load, &boards).figures(&parts);
    // 150 bytes at 100 a second, 700 at 200.
    assert!((figures.token_s - 5.0).abs() < 1e-9, "{figures:?}");
    assert_eq!(figures.joules, None);
    // Throughput is best when both work for the same time.
    let parts = best(&load, &boards, Objective::Throughput).unwrap();
    assert_eq!(layers(&parts), [(0, 0..2), (1, 2..8)]);
}

#[test]
fn a_board_that_costs_more_than_it_brings_is_switched_off() {
    let desk = board("desk", 100.0, 10_000, Some((1.0, 5.0)));
    let pi = board("pi", 110.0, 10_000, Some((50.0, 60.0)));
    let both = [desk.clone(), pi.clone()];
    let load = load(4);
    assert_eq!(layers(&best(&load, &both, Objective::Energy).unwrap()), [(0, 0..4)]);
    assert_eq!(layers(&best(&load, &both, Objective::Latency).unwrap()), [(0, 0..1), (1, 1..4)]);
    let always = [desk.clone(), Board { wish: Wish::Always, ..pi.clone() }];
    assert_eq!(best(&load, &always, Objective::Energy).unwrap().len(), 2);
    let never = [desk, Board { wish: Wish::Never, ..pi }];
    assert_eq!(best(&load, &never, Objective::Latency).unwrap().len(), 1);
}

#[test]
fn why_there_is_no_split_is_said() {
    let small = [board("desk", 1.0, 200, None), board("pi", 1.0, 200, None)];
    let why = best(&load(4), &small, Objective::Latency).unwrap_err();
    assert_eq!(why, NoSplit::Memory { need: 450, have: 380 });
    let why = best(&load(2), &small, Objective::Energy).unwrap_err();
    assert_eq!(why, NoSplit::Watts("desk".to_owned()));
    let always = small.clone().map(|board| Board { wish: Wish::Always, ..board });
    let why = best(&load(1), &always, Objective::Latency).unwrap_err();
    assert_eq!(why, NoSplit::Boards { boards: 2, most: 1 });
    let (load, large) = (load(1), [board("desk", 100.0, 10_000, None)]);
    let task = Task::new(&load, &large);
    assert_eq!(
        solve(&task, Objective::Latency, Some(1.0)),
        Err(NoSplit::Slow { best_us: 1_500_000 })
    );
    assert!(solve(&task, Objective::Latency, Some(0.6)).is_ok());
}

#[test]
fn a_gpu_has_the_classifier_and_the_last_layers_that_fit() {
    let with = |memory| Board {
        gpu: Some(BoardGpu { read: 1000.0, memory }),
        ..board("desk", 100.0, 10_000, None)
    };
    let load = load(4);
    let figures = |memory| {
        let boards = [with(memory)];
        let task = Task::new(&load, &boards);
        (task.on_gpu(0, &(0..4)), task.seconds(0, &(0..4)), task.memory(0, &(0..4)))
    };
    // 10 bytes of buffers, 50 of the classifier, 100 of each layer.
    assert_eq!(figures(460), ((0, true), 0.45, 60));
    let ((start, has_ends), seconds, memory) = figures(459);
    assert_eq!((start, has_ends, memory), (1, true, 160));
    assert!((seconds - (1.0 + 0.35)).abs() < 1e-9, "{seconds}");
    // Without room for a layer beside the classifier it has nothing.
    assert_eq!(figures(159), ((4, false), 4.5, 460));
    assert_eq!(figures(9), ((4, false), 4.5, 460));
    // A worker's GPU has no classifier.
    let boards = [board("desk", 100.0, 10_000, None), Board { name: "pc".to_owned(), ..with(210) }];
    assert_eq!(Task::new(&load, &boards).on_gpu(1, &(0..4)), (2, false));
}

#[test]
fn a_model_larger_than_all_memory_is_told_with_that_of_gpus() {
    let gpu = Some(BoardGpu { read: 1000.0, memory: 160 });
    let boards = [Board { gpu, ..board("desk", 100.0, 160, None) }];
    assert_eq!(best(&load(2), &boards, Objective::Latency).unwrap().len(), 1);
    let why = best(&load(4), &boards, Objective::Latency).unwrap_err();
    assert_eq!(why, NoSplit::Memory { need: 450, have: 300 });
}

/// Numbers that are the same in each run.
struct Random(u64);

impl Random {
    fn below(&mut self, n: u64) -> u64 {
        self.0 =
            self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (self.0 >> 33) % n
    }

    fn between(&mut self, low: f64, high: f64) -> f64 {
        low + (high - low) * self.below(1 << 20) as f64 / (1 << 20) as f64
    }

    fn board(&mut self, index: usize) -> Board {
        let idle = self.between(0.5, 20.0);
        let wish = match self.below(12) {
            0 => Wish::Always,
            1 if index > 0 => Wish::Never,
            _ => Wish::Any,
        };
        Board {
            int8: self.between(1e2, 1e5),
            round_trip_s: self.between(0.0, 2.0),
            layer_s: self.between(0.0, 0.5),
            wire: self.between(1.0, 100.0),
            watts: Some(Watts { idle, busy: idle + self.between(0.0, 40.0) }),
            wish,
            gpu: (self.below(4) == 0)
                .then(|| BoardGpu { read: self.between(20.0, 3e3), memory: self.below(500) }),
            ..board(&index.to_string(), self.between(20.0, 300.0), 60 + self.below(900), None)
        }
    }

    /// A board, now and then with two numbers of threads.
    fn entries(&mut self, index: usize) -> Vec<Board> {
        let first = self.board(index);
        if self.below(5) > 0 {
            return vec![first];
        }
        let Board { read, int8, .. } = first;
        let part = self.between(0.3, 1.0);
        let watts = first.watts.map(|Watts { idle, busy }| Watts {
            idle,
            busy: idle + (busy - idle) * self.between(0.2, 1.0),
        });
        let fewer = Board {
            threads: Some(1),
            read: read * part,
            int8: int8 * part,
            watts,
            ..first.clone()
        };
        vec![Board { threads: Some(2), ..first }, fewer]
    }

    fn load(&mut self) -> Load {
        let n_layers = 2 + self.below(6) as usize;
        let is_even = self.below(2) == 0;
        let mut layer = || Need {
            memory: 60 + self.below(80),
            read: 60 + self.below(80),
            ops: 100 + self.below(400),
        };
        let first = layer();
        let layers = (0..n_layers).map(|_| if is_even { first } else { layer() }).collect();
        let ends = layer();
        let joined_from =
            [n_layers, 1 + self.below(n_layers as u64) as usize][self.below(2) as usize];
        Load { layers, ends, every: 10, row_bytes: 4, joined_from }
    }
}

/// Calls `look` with every split of the layers from `start` on, over the boards from number `index` on.
fn every_split(
    task: &Task<'_>,
    index: usize,
    start: usize,
    parts: &mut Vec<Part>,
    look: &mut dyn FnMut(&[Part]),
) {
    let n_layers = task.n_layers();
    let Some(entries) = task.entries().nth(index) else {
        if start == n_layers {
            look(parts);
        }
        return;
    };
    let wish = if index == 0 { Wish::Always } else { task.boards[entries.start].wish };
    if wish != Wish::Always {
        every_split(task, index + 1, start, parts, look);
    }
    if wish == Wish::Never {
        return;
    }
    for board in entries {
        for end in start + 1..=n_layers {
            if end > task.load.joined_from && end < n_layers {
                continue;
            }
            if task.fullness(board, &(start..end)).is_none() {
                break;
            }
            parts.push(Part { board, layers: start..end });
            every_split(task, index + 1, end, parts, look);
            parts.pop();
        }
    }
}

#[test]
fn no_split_of_ten_thousand_fleets_is_better() {
    const OBJECTIVES: [Objective; 4] =
        [Objective::Latency, Objective::Throughput, Objective::Energy, Objective::Memory];
    let mut random = Random(1);
    let mut n_solved = 0;
    for fleet in 0..10_000 {
        let n_boards = 2 + random.below(7) as usize;
        let boards: Vec<Board> = (0..n_boards).flat_map(|index| random.entries(index)).collect();
        let load = random.load();
        let task = Task::new(&load, &boards);
        let limit = (random.below(3) == 0).then(|| random.between(0.01, 0.5));
        let mut least = [f64::INFINITY; 4];
        every_split(&task, 0, 0, &mut Vec::new(), &mut |parts| {
            let figures = task.figures(parts);
            for (objective, least) in OBJECTIVES.iter().zip(&mut least) {
                if limit.is_none_or(|rate| figures.limited_s(*objective) <= 1.0 / rate) {
                    *least = least.min(figures.value(*objective));
                }
            }
        });
        for (objective, least) in OBJECTIVES.into_iter().zip(least) {
            match solve(&task, objective, limit) {
                Ok(parts) => {
                    let mut ends = parts.iter().map(|part| part.layers.end);
                    assert!(ends.all(|end| end <= load.joined_from || end == load.layers.len()));
                    let found = task.figures(&parts).value(objective);
                    assert!(found <= least * 1.000_001, "{fleet} {objective:?}: {found}, {least}");
                    n_solved += 1;
                }
                Err(why) => assert_eq!(least, f64::INFINITY, "{fleet} {objective:?}: {why}"),
            }
        }
    }
    assert!(n_solved > 20_000, "{n_solved}");
}

#[test]
fn a_file_of_boards_is_read() {
    let text = "# two\n\
        desk 10.0.0.1 read=23.1 int8=270 memory=6.5 rtt=180 wire=112 watts=4,11 gpu=400,8\r\n\
        pi pi.local:7000 wire=112 rtt=200 memory=7.2 int8=90 read=11.4 always # the old one\n";
    let boards = fleet::parse(text).unwrap();
    assert_eq!(boards.len(), 2);
    assert_eq!(boards[0].watts, Some(Watts { idle: 4.0, busy: 11.0 }));
    assert_eq!((boards[0].memory, boards[0].read), (6_500_000_000, 23.1e9));
    assert_eq!(boards[0].gpu, Some(BoardGpu { read: 400e9, memory: 8_000_000_000 }));
    assert_eq!((boards[1].wish, boards[1].watts), (Wish::Always, None));
    assert_eq!(boards[1].address.to_string(), "pi.local:7000");
}

#[test]
fn a_board_serves_with_as_many_threads_as_are_best() {
    let text = "desk 10.0.0.1 threads=4 read=20 int8=200 memory=6 rtt=0 wire=1e8 watts=4,11\n\
        desk 10.0.0.1 threads=2 read=19 int8=100 memory=6 rtt=0 wire=1e8 watts=4,7\n\
        pi 10.0.0.2 threads=1 read=8 int8=30 memory=6 rtt=0 wire=1e8 watts=2,3\n\
        pi 10.0.0.2 threads=4 read=11 int8=90 memory=6 rtt=0 wire=1e8 watts=2,8\n";
    let text = text.replace("rtt=0 ", "rtt=0.001 ");
    let mut boards = fleet::parse(&text).unwrap();
    boards.iter_mut().skip(2).for_each(|board| board.wish = Wish::Always);
    let load = load(8);
    let threads = |objective| {
        let parts = best(&load, &boards, objective).unwrap();
        parts.iter().map(|part| boards[part.board].threads.unwrap()).collect::<Vec<_>>()
    };
    assert_eq!(threads(Objective::Latency), [4, 4]);
    assert_eq!(threads(Objective::Energy), [2, 1]);
}

#[test]
fn every_mistake_in_a_file_of_boards_is_named() {
    let figures = "read=23.1 int8=270 memory=6.5 rtt=180 wire=112";
    let desk = format!("desk 10.0.0.1 {figures}");
    let rest = format!("10.0.0.2 {figures}");
    for (text, wanted) in [
        (String::new(), "no board"),
        ("desk".to_owned(), "line 1: wants a name"),
        ("desk 10.0.0.1 read=23.1".to_owned(), "desk lacks int8="),
        (format!("{desk}\n{desk}"), "line 2: there are two boards called desk"),
        (format!("{desk} threads=2\n{desk}"), "line 2: there are two boards called desk"),
        (format!("{desk} threads=2\n{desk} threads=2"), "each another number"),
        (format!("{desk} threads=0"), "is no number of threads"),
        (format!("{desk} threads=2\npi {rest}\n{desk} threads=4"), "not one after the other"),
        (format!("{desk} threads=2\ndesk 10.0.0.2 {figures} threads=4"), "somewhere else"),
        (format!("{desk} threads=2 watts=1,2\n{desk} threads=4 watts=2,3"), "other watts"),
        (format!("desk 10.0.0.1:x {figures}"), "no port"),
        (format!("{desk} sometimes"), "\"sometimes\" is none of"),
        (format!("{desk} cores=4"), "\"cores\" is nothing"),
        (format!("{desk} read=-1"), "\"read=-1\" is no figure"),
        (format!("{desk} read=NaN"), "is no figure"),
        (format!("{desk} read=0"), "is no figure"),
        (format!("{desk} memory=1e300"), "is no figure"),
        (format!("{desk} kernel=80"), "wants microseconds and MB/s"),
        (format!("{desk} kernel=80,0"), "wants microseconds and MB/s"),
        (format!("{desk} gpu=400"), "wants GB/s and GB"),
        (format!("{desk} gpu=400,0"), "wants GB/s and GB"),
        (format!("{desk} watts=4"), "wants idle and busy"),
        (format!("{desk} watts=9,4"), "wants idle and busy"),
        (format!("{desk} never"), "has to serve"),
        (format!("d\u{1b}esk 10.0.0.1 {figures}"), "is no name"),
    ] {
        let error = fleet::parse(&text).unwrap_err();
        assert!(error.contains(wanted), "{text:?}: {error}");
    }
}

#[test]
fn a_team_takes_its_slowest_boards_time_and_that_of_gathers() {
    use super::team::{TeamPart, shares, team_figures};
    let all = Need { memory: 0, read: 3000, ops: 30 };
    let quick = Board { wire: 10.0, round_trip_s: 0.5, ..board("quick", 200.0, 0, None) };
    let slow = Board { wire: 20.0, round_trip_s: 0.25, ..board("slow", 100.0, 0, None) };
    // So many operations that bytes do not count.
    let weak = Board { int8: 0.5, ..slow.clone() };
    assert_eq!(shares(&[&quick, &slow, &slow], &all, 0), [2, 1, 1]);
    assert_eq!(shares(&[&quick, &quick], &all, 0), [1, 1]);
    assert_eq!(shares(&[&quick, &slow, &weak], &all, 0), [4, 2, 1]);
    assert_eq!(shares(&[&slow, &Board { int8: 1e-9, ..weak }], &all, 0), [1000, 1]);
    let part = |read, gives, logits| TeamPart {
        need: Need { read, ..Need::default() },
        gives: [gives, gives, 2 * gives, gives, 0, 0],
        logits,
    };
    let parts = [part(1000, 10, 7), part(1000, 20, 40), part(1000, 30, 20)];
    let figures = team_figures(&[&quick, &slow, &slow], &parts, 3);
    assert_eq!(figures.weights_s, (10.0, 1));
    // A layer's gathers take five times 50 bytes at 10 a second by the lead, and the logits 60.
    assert!((figures.gathers_s - (3.0 * 5.0 * 5.0 + 6.0)).abs() < 1e-9, "{figures:?}");
    assert!((figures.latency_s - 14.0 * 0.25).abs() < 1e-9, "{figures:?}");
    assert!((figures.token_s() - 94.5).abs() < 1e-9, "{figures:?}");
}
