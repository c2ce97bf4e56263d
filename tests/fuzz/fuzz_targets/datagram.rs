//! Any bytes as a datagram: a header that parses is emitted unchanged.
#![no_main]

use leap::internals::wire::datagram::{Datagram, HEADER_LEN, DatagramHeader, checksum};
use libfuzzer_sys::fuzz_target;

fuzz_target!(|bytes: Vec<u8>| {
    let mut bytes = bytes;
    if bytes.len() >= HEADER_LEN {
        bytes[..5].copy_from_slice(b"LEP1\x01");
        let crc = checksum(&bytes[..28], &bytes[HEADER_LEN..]);
        bytes[28..HEADER_LEN].copy_from_slice(&crc.to_le_bytes());
    }
    let Ok(datagram) = Datagram::new_checked(&bytes) else { return };
    let Ok(header) = DatagramHeader::parse(&datagram) else { return };
    assert_eq!(header.payload_bytes(), datagram.payload().len());
    let mut emitted = [0xa5; HEADER_LEN];
    header.emit_for(&mut emitted, datagram.payload());
    assert_eq!(emitted, datagram.header_bytes());
});
