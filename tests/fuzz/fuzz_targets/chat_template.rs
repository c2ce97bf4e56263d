#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| leap::export::fuzz::chat_template(bytes));
