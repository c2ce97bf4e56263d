use std::sync::atomic::{AtomicUsize, Ordering};

use nix::sched::{CpuSet, sched_getaffinity};
use nix::unistd::Pid;

use super::*;

fn pool(threads: usize) -> Pool {
    Pool::new(&vec![0; threads]).expect("threads start")
}

#[test]
fn each_piece_runs_once() {
    for threads in [1, 2, 4] {
        let pool = pool(threads);
        for pieces in [0, 1, 2, 3, 100] {
            let counts: Vec<AtomicUsize> = (0..pieces).map(|_| AtomicUsize::new(0)).collect();
            for _ in 0..50 {
                pool.run(pieces, &|i| {
                    counts[i].fetch_add(1, Ordering::Relaxed);
                });
            }
            assert!(counts.iter().all(|c| c.load(Ordering::Relaxed) == 50));
        }
    }
}

#[test]
fn a_single_core_that_is_named_is_kept_until_the_end() {
    let allowed = || -> Vec<usize> {
        let set = sched_getaffinity(Pid::from_raw(0)).unwrap();
        (0..CpuSet::count()).filter(|&cpu| set.is_set(cpu).unwrap()).collect()
    };
    let before = allowed();
    let pool = Pool::new(&before[..1]).unwrap();
    assert_eq!(allowed(), before[..1]);
    drop(pool);
    assert_eq!(allowed(), before);
    let _free = Pool::new(&[]).unwrap();
    assert_eq!(allowed(), before);
}

#[test]
fn sleeping_threads_wake_up() {
    let pool = pool(3);
    for _ in 0..5 {
        thread::sleep(std::time::Duration::from_millis(20));
        let sum = AtomicUsize::new(0);
        pool.run(10, &|i| {
            sum.fetch_add(i, Ordering::Relaxed);
        });
        assert_eq!(sum.into_inner(), 45);
    }
}

#[test]
fn rows_run_in_chunks_of_any_number() {
    let (mut a, mut b) = (vec![0; 14], vec![0; 7]);
    let ends = [4, 4, 5, 7];
    let chunks = (RowChunks::new(&mut a, 2, &ends), RowChunks::new(&mut b, 1, &ends));
    pool(2).run_chunks(chunks, &|i, (a, b)| {
        a.fill(i);
        b.fill(10 * i);
    });
    assert_eq!(a, [0, 0, 0, 0, 0, 0, 0, 0, 2, 2, 3, 3, 3, 3]);
    assert_eq!(b, [0, 0, 0, 0, 20, 30, 30]);
}

#[test]
fn chunks_cover_the_slice() {
    let pool = pool(2);
    let (mut a, mut b) = (vec![0; 10], vec![0; 4]);
    pool.run_chunks((Chunks::new(&mut a, 3), Chunks::new(&mut b, 1)), &|i, (a, b)| {
        a.fill(i + 1);
        b.fill(10 * i);
    });
    assert_eq!(a, [1, 1, 1, 2, 2, 2, 3, 3, 3, 4]);
    assert_eq!(b, [0, 10, 20, 30]);
}

#[test]
fn chunks_of_several_slices_go_together() {
    let (mut a, mut b, mut c, mut d) = ([0; 5], [0; 10], [0_u8; 3], [0_u64; 3]);
    let ab = (Chunks::new(&mut a, 2), Chunks::new(&mut b, 4));
    let cd = (Chunks::new(&mut c, 1), Chunks::new(&mut d, 1));
    pool(2).run_chunks((ab, cd), &|i, ((a, b), (c, d))| {
        assert_eq!(a.len() * 2, b.len());
        (a[0], b[0], c[0], d[0]) = (i + 1, i + 10, i as u8 + 100, i as u64 + 1000);
    });
    assert_eq!((a, c, d), ([1, 0, 2, 0, 3], [100, 101, 102], [1000, 1001, 1002]));
    assert_eq!(b, [10, 0, 0, 0, 11, 0, 0, 0, 12, 0]);
}

#[test]
#[should_panic = "left == right"]
fn slices_in_different_numbers_of_chunks_are_refused() {
    let (mut a, mut b) = ([0; 4], [0; 6]);
    pool(2).run_chunks((Chunks::new(&mut a, 2), Chunks::new(&mut b, 2)), &|_, _| ());
}

#[test]
fn columns_cover_the_matrix() {
    let pool = pool(2);
    let (rows, width) = (ROW_TILE + 3, 19);
    let mut out = vec![0.0; rows * width];
    pool.run_columns(&mut out, &[10, 0, 4, 5], 4, &|section, columns, tile, parts| {
        assert_eq!(tile.len(), parts.len());
        let start = [0, 10, 10, 14][section];
        assert!(columns.len() == 4 || columns.end == [10, 0, 4, 5][section]);
        for (row, part) in tile.zip(parts) {
            for (column, x) in columns.clone().zip(part.iter_mut()) {
                *x += (row * width + start + column) as f32;
            }
        }
    });
    assert!(out.iter().enumerate().all(|(i, &x)| x == i as f32));
}

#[test]
fn tiles_cover_the_matrix() {
    let pool = pool(2);
    for (rows, width, step) in [(7, 10, (3, 4)), (1, 8, (32, 2)), (0, 3, (1, 1)), (64, 1, (32, 9))]
    {
        let mut out = vec![0.0; rows * width];
        pool.run_tiles(&mut out, width, step, &|tile, columns, parts| {
            assert_eq!(tile.len(), parts.len());
            for (row, part) in tile.zip(parts) {
                for (column, x) in columns.clone().zip(part.iter_mut()) {
                    *x += (row * width + column) as f32;
                }
            }
        });
        assert!(out.iter().enumerate().all(|(i, &x)| x == i as f32));
    }
}

#[test]
fn a_panic_in_a_piece_reaches_the_caller() {
    let result = std::panic::catch_unwind(|| {
        pool(2).run(64, &|i| assert_ne!(i, 63, "on purpose"));
    });
    assert!(result.is_err());
}

#[test]
fn dropping_ends_the_threads() {
    let pool = pool(3);
    let calls = Arc::clone(&pool.calls);
    drop(pool);
    assert_eq!(Arc::strong_count(&calls), 1);
}

#[test]
fn units_are_made_of_what_all_their_pieces_wrote() {
    for threads in [1, 2, 4] {
        let pool = pool(threads);
        // Units of 6 columns in pieces of 3; the last unit has 2 columns.
        let pairs = Pairs { width: 20, step: 3, unit: 6 };
        for round in 0..50 {
            let (mut out, mut sums) = (vec![-1.0; 2 * 2 * 20], vec![0.0; 4]);
            let job = |matrix, columns: Range<usize>, _, rows: &mut [&mut [f32]]| {
                for (row, part) in rows.iter_mut().enumerate() {
                    for (x, column) in part.iter_mut().zip(columns.clone()) {
                        *x = (1000 * matrix + 100 * row + column + round) as f32;
                    }
                }
            };
            pool.run_pairs(&mut out, pairs, &job, Chunks::new(&mut sums, 1), &|unit, rows, sum| {
                let columns = unit * 6..(unit * 6 + 6).min(20);
                for (row, pair) in rows.iter().enumerate() {
                    for (matrix, part) in pair.iter().enumerate() {
                        assert_eq!(part.len(), columns.len());
                        assert_eq!(
                            part[0],
                            (1000 * matrix + 100 * row + columns.start + round) as f32
                        );
                    }
                }
                sum[0] = rows.iter().flatten().flat_map(|part| part.iter()).sum();
            });
            let of = |columns: Range<usize>| {
                let of_row = |row: usize, at: usize| out[40 * row + at..][..columns.len()].iter();
                let all = [
                    (0, columns.start),
                    (0, 20 + columns.start),
                    (1, columns.start),
                    (1, 20 + columns.start),
                ];
                all.into_iter().flat_map(|(row, at)| of_row(row, at)).sum::<f32>()
            };
            assert_eq!(sums, [of(0..6), of(6..12), of(12..18), of(18..20)]);
        }
    }
}
