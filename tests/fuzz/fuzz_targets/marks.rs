//! Any texts around made-up calls, from which marks are learned, and any text in which calls are then found.
#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| leap::internals::serve::marks(bytes));
