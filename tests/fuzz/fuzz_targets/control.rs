//! Any bytes as ACK and PING: messages that parse are emitted to bytes that parse to the same.
#![no_main]

use leap::internals::wire::control::{ACK_MAX, Ack, PING_LEN, Ping};
use libfuzzer_sys::fuzz_target;

fuzz_target!(|bytes: &[u8]| {
    if let Ok(ack) = Ack::parse(bytes) {
        let mut emitted = [0xa5; ACK_MAX];
        let len = ack.emit(&mut emitted);
        assert_eq!(Ack::parse(&emitted[..len]), Ok(ack));
    }
    if let Ok(ping) = Ping::parse(bytes) {
        let mut emitted = [0xa5; PING_LEN];
        ping.emit(&mut emitted);
        assert_eq!(Ping::parse(&emitted), Ok(ping));
    }
});
