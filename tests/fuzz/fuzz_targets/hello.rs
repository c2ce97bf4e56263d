//! Any bytes as messages of the handshake: those that parse are emitted to bytes that parse to the same, and can be
//! shown.
#![no_main]

use leap::internals::wire::hello::{
    CONFIRM_LEN, Confirm, HELLO_LEN, Hello, REFUSE_LEN, Refuse, WELCOME_LEN, Welcome,
};
use libfuzzer_sys::fuzz_target;

fuzz_target!(|bytes: &[u8]| {
    let _ = Hello::stranger(bytes);
    if let Ok(hello) = Hello::parse(bytes) {
        let mut emitted = [0xa5; HELLO_LEN];
        hello.emit(&mut emitted);
        assert_eq!(Hello::parse(&emitted), Ok(hello.clone()));
        if let Err(refusal) = hello.node.check_next(&hello.node) {
            let _ = refusal.to_string();
        }
    }
    if let Ok(welcome) = Welcome::parse(bytes) {
        let mut emitted = [0xa5; WELCOME_LEN];
        welcome.emit(&mut emitted);
        assert_eq!(Welcome::parse(&emitted), Ok(welcome));
    }
    if let Ok(confirm) = Confirm::parse(bytes) {
        let mut emitted = [0xa5; CONFIRM_LEN];
        confirm.emit(&mut emitted);
        assert_eq!(emitted, bytes);
    }
    if let Ok(refuse) = Refuse::parse(bytes) {
        let mut emitted = [0xa5; REFUSE_LEN];
        refuse.emit(&mut emitted);
        assert_eq!(Refuse::parse(&emitted), Ok(refuse.clone()));
        let _ = refuse.refusal.to_string();
    }
});
