//! Any bytes as a ring frame: no accessor panics, and the parts have the promised lengths.
#![no_main]

use leap::wire::frame::{Frame, Kind};
use libfuzzer_sys::fuzz_target;

fuzz_target!(|bytes: Vec<u8>| {
    let mut bytes = bytes;
    if bytes.len() >= 4 {
        bytes[..4].copy_from_slice(b"LEPR");
    }
    let Ok(frame) = Frame::new_checked(&bytes) else { return };
    let header = frame.header();
    assert_eq!(frame.spans().count(), usize::from(header.n_spans));
    assert_eq!(frame.figures().count(), usize::from(header.n_figures));
    let rows = u64::from(header.rows_here) * header.row_bytes();
    if header.kind == Kind::Activations {
        assert_eq!(frame.rows().len() as u64, rows);
    }
    assert_eq!(frame.plan().is_some(), header.kind == Kind::Open);
    frame.lines().for_each(|line| drop(line.name.to_string()));
    assert_eq!(frame.down().is_some(), header.kind == Kind::Down);
});
