//! Any bytes as what a client of `leap serve` sends.
#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| leap::internals::serve::connection(bytes));
