//! From checkpoints to model files: exact bytes, refusals, and the command.

mod calibrated;
mod checkpoint;
mod command;
mod configs;
mod damaged;
mod eight_bits;
mod every_field;
mod exact;
mod expected;
mod families;
mod four_bits;
mod gguf;
mod gguf_damage;
mod gguf_families;
mod hostile;
mod layers;
mod packed;
mod pytorch;
mod refusals;
mod to_gguf;
mod torch_file;
