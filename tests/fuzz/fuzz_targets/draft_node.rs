//! Any bytes as messages of masters and draft nodes: those that parse are emitted to bytes that parse to the same.
#![no_main]

use leap::internals::wire::draft::{
    ANSWER_MAX, Answer, Ask, Draft, TEXTS_MAX, WANTED_MAX, parse_open, parse_reply,
};
use libfuzzer_sys::fuzz_target;

fuzz_target!(|bytes: &[u8]| {
    let mut emitted = Vec::new();
    if let Ok((epoch, n_texts)) = parse_open(bytes) {
        assert!(n_texts <= TEXTS_MAX && parse_reply(bytes, epoch).is_err());
    }
    if let Ok(ask) = Ask::parse(bytes) {
        ask.emit(&mut emitted);
        assert_eq!(Ask::parse(&emitted), Ok(ask));
    }
    if let Ok(answer) = Answer::parse(bytes) {
        answer.emit(&mut emitted);
        assert!(emitted.len() <= ANSWER_MAX);
        assert_eq!(Answer::parse(&emitted), Ok(answer));
        if let Answer::Draft(Draft { at, ids, .. }) = answer {
            assert!(!ids.is_empty() && at as usize + ids.len() <= WANTED_MAX);
        }
    }
});
