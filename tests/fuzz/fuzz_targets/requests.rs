//! Any bytes as the body of a request to an endpoint of `leap serve`.
#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| leap::internals::serve::request(bytes));
