//! Any bytes sent by a client of `leap serve`.
#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| leap::internals::serve::connection(bytes));
