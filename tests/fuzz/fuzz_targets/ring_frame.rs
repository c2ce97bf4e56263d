//! Any bytes as a frame of a group: no accessor panics, and the parts have the promised lengths.
#![no_main]

use leap::internals::wire::frame::{Frame, Repr};
use libfuzzer_sys::fuzz_target;

fuzz_target!(|bytes: Vec<u8>| {
    let mut bytes = bytes;
    if bytes.len() >= 4 {
        bytes[..4].copy_from_slice(b"LEPF");
    }
    let Ok(frame) = Frame::parse(&bytes) else { return };
    let lines = frame.lines().map(|line| line.map(|line| drop(line.name.to_string())));
    let n_lines = lines.count();
    match frame.repr() {
        Repr::Activations(header) => {
            assert_eq!(frame.spans().count(), usize::from(header.n_spans));
            assert_eq!(frame.figures().count(), usize::from(header.n_figures));
            assert_eq!(frame.rows().len(), usize::from(header.rows) * header.row_bytes());
        }
        Repr::Open { n_lines: promised, n_assigned, .. } => {
            assert_eq!(n_lines, usize::from(promised));
            assert_eq!(frame.assigned().count(), usize::from(n_assigned));
            assert_eq!(frame.shares().count(), usize::from(n_assigned));
        }
        Repr::Keep { n_pages, .. } => {
            let keeps = frame.keeps().map(|keep| keep.map(|keep| keep.ids().len()));
            assert_eq!(keeps.count(), usize::from(n_pages));
        }
        Repr::Fetch(fetch) => {
            let (pages, ids) = frame.fetch();
            assert_eq!(pages.count(), usize::from(fetch.n_pages));
            assert_eq!(ids.count(), fetch.n_ids as usize);
        }
        Repr::Ready { .. } => assert_eq!(n_lines, 1),
        Repr::Refuse { .. } => drop(frame.why().to_string()),
        Repr::Pass(pass) => {
            assert_eq!(frame.spans().count(), usize::from(pass.spans));
            assert_eq!(frame.tokens().count(), usize::from(pass.tokens));
        }
        Repr::Part(part) => assert!(frame.part().len() <= part.part_bytes as usize),
        Repr::Report { .. } => drop(frame.name().to_string()),
        _ => assert!(frame.name().is_empty()),
    }
});
