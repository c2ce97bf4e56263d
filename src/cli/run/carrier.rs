//! How a ring's frames travel: the values of `--transport` and `--wire`.

use crate::wire::Dtype;

/// What datagrams or streams go through.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum CarrierKind {
    Auto,
    Kernel,
    Udp,
    Tcp,
}

/// `auto`, `kernel`, `udp` or `tcp`.
pub(super) fn parse(value: &str) -> Result<CarrierKind, String> {
    match value {
        "auto" => Ok(CarrierKind::Auto),
        "kernel" => Ok(CarrierKind::Kernel),
        "udp" => Ok(CarrierKind::Udp),
        "tcp" => Ok(CarrierKind::Tcp),
        _ => Err(format!("{value:?} is none of auto, kernel, udp and tcp")),
    }
}

/// `f16` or `f32`.
pub(super) fn wire(value: &str) -> Result<Dtype, String> {
    match value {
        "f16" => Ok(Dtype::F16),
        "f32" => Ok(Dtype::F32),
        _ => Err(format!("{value:?} is neither f16 nor f32")),
    }
}
