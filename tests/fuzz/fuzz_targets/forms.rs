//! Any JSON as a schema or as tools, from which grammars are made.
#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| leap::internals::serve::form(bytes));
