//! Checkpoints and tokenizers of other programs to LEAP's files.

pub mod tokenizer;
