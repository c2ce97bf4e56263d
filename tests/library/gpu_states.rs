//! Recurrent layers on a GPU: the CPU's bits, also of states that leave it and come to it.

use crate::common::models::export;
use crate::gpu::{INT8, device, gives_the_cpus_bits};
use leap::engine::KvKind;

/// Checkpoints with each form of recurrent layers, dense ones and mixtures.
const CHECKPOINTS: [&str; 5] =
    ["qwen35-tiny", "qwen35moe-tiny", "lfm2-tiny", "lfm2moe-tiny", "granite4h-tiny"];

#[test]
fn recurrent_layers_on_a_gpu_have_the_cpus_bits() {
    let Some(device) = device() else { return };
    for name in CHECKPOINTS {
        gives_the_cpus_bits(&export(name, INT8), &device, KvKind::F16, &[1, 7, 48, 3]);
    }
}
