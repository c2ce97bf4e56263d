//! Any bytes as the block of features of a model file with right checksums; the first ones are fields of the header.
#![no_main]

use leap::format::model::{HEADER_LEN, Header};

/// Offset of the header's length and checksum of the block, and offset of its own checksum.
const BLOCK_AT: usize = 232;
const CRC_AT: usize = 192;

/// A valid header of a small model: see `format::model`.
fn header() -> [u8; HEADER_LEN] {
    let mut bytes = [0; HEADER_LEN];
    let fields: [(usize, u32); 14] = [
        (0, 0x616b_3432),
        (4, 1),
        (8, 32),
        (12, 32),
        (16, 2),
        (20, 2),
        (24, 1),
        (28, 8),
        (32, 64),
        (36, 1),
        (64, u32::from_le_bytes(*b"LEAX")),
        (68, 2),
        (72, 176),
        (80, 16),
    ];
    for (at, value) in fields {
        bytes[at..at + 4].copy_from_slice(&value.to_le_bytes());
    }
    bytes[88..96].copy_from_slice(&10_000f64.to_le_bytes());
    bytes[124..128].copy_from_slice(&(-1i32).to_le_bytes());
    bytes
}

/// CRC-32 as in zip files, bit by bit.
fn crc32(bytes: &[u8]) -> u32 {
    let shift = |crc: u32, _| if crc & 1 == 1 { crc >> 1 ^ 0xedb8_8320 } else { crc >> 1 };
    !bytes.iter().fold(!0, |crc, &byte| (0..8).fold(crc ^ u32::from(byte), shift))
}

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| {
    let Some((fields, block)) = bytes.split_first_chunk::<32>() else { return };
    let mut file = header().to_vec();
    // Theta and scaling, window and architecture.
    file[92..124].copy_from_slice(fields);
    file[BLOCK_AT..BLOCK_AT + 4].copy_from_slice(&(block.len() as u32).to_le_bytes());
    file[BLOCK_AT + 4..BLOCK_AT + 8].copy_from_slice(&crc32(block).to_le_bytes());
    let crc = crc32(&file);
    file[CRC_AT..CRC_AT + 4].copy_from_slice(&crc.to_le_bytes());
    file.extend_from_slice(block);
    // The tensors are missing: either an earlier fault or that is found.
    assert!(Header::parse(&file).is_err());
});
