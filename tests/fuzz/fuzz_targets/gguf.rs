#![no_main]

use leap::export::fuzz;

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| {
    fuzz::gguf(bytes);
    fuzz::gguf_tokenizer(bytes);
});
