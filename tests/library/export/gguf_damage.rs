//! GGUF files of every kind of blocks with damage in every field of a tensor: each is refused in one line, and leaves no
//! file.

use std::error::Error as _;
use std::fs;
use std::ops::ControlFlow;

use leap::export::{Blame, ExportPlan};
use leap::format::model::Ggml;

use super::gguf::{F32, Gguf, in_blocks};
use crate::common::folder::Folder;
use crate::export::checkpoint::options;

/// The tensor that is damaged. Another one is stored behind it.
const NAME: &str = "blk.0.ffn_down.weight";
const COLS: u64 = 512;
const ROWS: u64 = 256;

/// Offsets in the table's row of a tensor, from the end of its name.
const N_DIMENSIONS: usize = 0;
const COLS_AT: usize = 4;
const ROWS_AT: usize = 12;
const TYPE_AT: usize = 20;
const OFFSET_AT: usize = 24;

/// Where the row of tensor `name` begins in the table, behind its name.
fn place(file: &[u8], name: &str) -> usize {
    let is_name = |window: &[u8]| window == name.as_bytes();
    name.len() + file.windows(name.len()).position(is_name).unwrap()
}

/// The message of a refusal; `None` if a model file was written.
fn refusal(folder: &Folder, file: &[u8]) -> Option<String> {
    let (path, out) = (folder.write("model.gguf", file), folder.join("model.bin"));
    let plan = ExportPlan::open_gguf(&path, &options(5));
    let written = plan.and_then(|plan| plan.write(&out, |_| ControlFlow::Continue(())));
    let Err(error) = written else {
        fs::remove_file(out).unwrap();
        return None;
    };
    let source = error.source().map_or(String::new(), |source| format!(": {source}"));
    let message = format!("{error}{source}");
    assert_eq!(error.blame(), Blame::Input, "{message}");
    assert_eq!(folder.names(), ["model.gguf"], "{message}");
    assert!(message.lines().count() == 1 && message.len() < 400, "{message}");
    Some(message)
}

/// Each kind that version 5 keeps, and a model whose every matrix is in blocks of it.
fn files() -> impl Iterator<Item = (Ggml, Gguf)> {
    Ggml::ALL.into_iter().map(|kind| (kind, in_blocks(&[kind])))
}

#[test]
fn each_field_of_a_tensor_may_say_anything() {
    let folder = Folder::new();
    for (kind, gguf) in files() {
        let sound = gguf.bytes();
        assert_eq!(refusal(&folder, &sound), None, "{kind:?}");
        let (at, len) = (place(&sound, NAME), sound.len() as u64);
        let damaged = |field: usize, value: &[u8]| {
            let mut file = sound.clone();
            file[at + field..][..value.len()].copy_from_slice(value);
            refusal(&folder, &file)
        };
        for n in [0u32, 1, 3, 4, 5, u32::MAX] {
            assert!(damaged(N_DIMENSIONS, &n.to_le_bytes()).is_some(), "{kind:?}, {n} dimensions");
        }
        let sizes = [0, 1, 31, 33, 256 + 32, COLS + 1, 2 * COLS, 1 << 40, 1 << 63, u64::MAX];
        for size in sizes {
            for field in [COLS_AT, ROWS_AT] {
                let told = damaged(field, &size.to_le_bytes()).unwrap_or_default();
                assert!(told.contains(NAME) || told.contains("blk."), "{kind:?}, {size}: {told}");
            }
        }
        // No whole block: one value less.
        let told = damaged(COLS_AT, &(COLS - 1).to_le_bytes()).unwrap();
        assert!(told.contains(&format!("blocks of {}", kind.len())), "{told}");
        for offset in [0, 1, 16, 33, len, len / 32 * 32, 1 << 40, u64::MAX, u64::MAX - 31] {
            let told = damaged(OFFSET_AT, &offset.to_le_bytes()).unwrap();
            let is_named = ["overlaps", "no multiple of 32", "ends beyond"];
            assert!(is_named.iter().any(|words| told.contains(words)), "{kind:?}: {told}");
        }
    }
}

/// A type of no longer blocks finds bytes for its values, and makes other weights of them.
#[test]
fn any_number_may_stand_for_a_type() {
    let folder = Folder::new();
    for (kind, gguf) in files() {
        let sound = gguf.bytes();
        let at = place(&sound, NAME) + TYPE_AT;
        let bytes = |kind: Ggml| kind.row_bytes(COLS as usize);
        for number in (0..48).chain([99, 255, 256, u32::MAX]) {
            let mut file = sound.clone();
            file[at..at + 4].copy_from_slice(&number.to_le_bytes());
            let told = refusal(&folder, &file);
            let other = Ggml::from_id(number);
            let is_short = other.is_some_and(|other| bytes(other) <= bytes(kind));
            match told {
                None => assert!(is_short || number == F32, "{kind:?} as {number}"),
                Some(told) => assert!(told.contains("blk.0"), "{kind:?} as {number}: {told}"),
            }
        }
    }
}

#[test]
fn a_file_cut_in_any_block_is_refused() {
    let folder = Folder::new();
    for (kind, gguf) in files() {
        let sound = gguf.bytes();
        let last = &gguf.tensors.last().unwrap().name;
        for cut in (1..=kind.bytes()).chain([1000, sound.len() / 2]) {
            let told = refusal(&folder, &sound[..sound.len() - cut]).unwrap();
            let is_named = told.contains(last.as_str()) || cut > kind.bytes();
            assert!(told.contains("ends beyond") && is_named, "{kind:?}, {cut} bytes less: {told}");
        }
    }
}

/// Offsets of the scales in a block.
fn scales(kind: Ggml) -> &'static [usize] {
    match kind {
        Ggml::Q4_1 | Ggml::Q5_1 | Ggml::Q4K | Ggml::Q5K => &[0, 2],
        Ggml::Q2K => &[80, 82],
        Ggml::Q6K => &[208],
        Ggml::Q3K => &[108],
        _ => &[0],
    }
}

#[test]
fn scales_that_are_no_numbers_are_refused() {
    let folder = Folder::new();
    for (kind, gguf) in files() {
        for at in scales(kind) {
            for half in [[0, 0x7c], [0, 0xfc], [1, 0x7e]] {
                let mut gguf = gguf.clone();
                let tensor = gguf.tensors.iter_mut().find(|tensor| tensor.name == NAME).unwrap();
                let block = tensor.bytes.chunks_exact_mut(kind.bytes()).last().unwrap();
                match kind {
                    Ggml::Mxfp4 => block[0] = 255,
                    _ => block[*at..at + 2].copy_from_slice(&half),
                }
                let told = refusal(&folder, &gguf.bytes()).unwrap();
                assert!(told.contains(NAME), "{kind:?}: {told}");
            }
        }
    }
}

/// The program says the same, and ends with code 3.
#[test]
fn the_program_ends_with_code_3() {
    let folder = Folder::new();
    for (kind, gguf) in files() {
        let sound = gguf.bytes();
        let at = place(&sound, NAME);
        let changes: [(usize, u64); 4] =
            [(COLS_AT, ROWS - 1), (TYPE_AT, 99), (OFFSET_AT, 0), (OFFSET_AT, 1 << 40)];
        for (field, value) in changes {
            let mut file = sound.clone();
            let len = if field == TYPE_AT { 4 } else { 8 };
            file[at + field..][..len].copy_from_slice(&value.to_le_bytes()[..len]);
            let path = folder.write("model.gguf", &file);
            let out = folder.join("model.bin");
            let mut leap = crate::common::leap();
            leap.arg("export").arg(&out).args(["--version", "5", "--gguf"]).arg(&path);
            let ran = leap.output().unwrap();
            let told = String::from_utf8(ran.stderr).unwrap();
            assert_eq!((ran.status.code(), folder.names().len()), (Some(3), 1), "{kind:?}: {told}");
            assert!(told.starts_with("leap: ") && told.lines().count() == 1, "{kind:?}: {told}");
        }
    }
}
