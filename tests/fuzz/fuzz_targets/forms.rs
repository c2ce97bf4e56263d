//! Any JSON as a schema or as tools, whose grammars a text has to follow.
#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| leap::internals::serve::form(bytes));
