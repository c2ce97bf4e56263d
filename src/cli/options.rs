//! Values of options that several commands share.

use super::Failure;
use crate::kernels::Isa;
use crate::model::KvType;

/// `f16` or `f32`.
pub(super) fn kv_type(value: &str) -> Result<KvType, String> {
    match value {
        "f16" => Ok(KvType::F16),
        "f32" => Ok(KvType::F32),
        _ => Err(format!("{value:?} is neither f16 nor f32")),
    }
}

/// The instruction set that `LEAP_ISA` forces.
pub(super) fn isa_from_environment() -> Result<Option<Isa>, Failure> {
    let Some(name) = std::env::var_os("LEAP_ISA") else { return Ok(None) };
    match name.to_str().and_then(Isa::from_name) {
        Some(isa) => Ok(Some(isa)),
        None => {
            let known: Vec<&str> = Isa::ALL.iter().map(|isa| isa.name()).collect();
            let known = known.join(", ");
            Err(Failure::Usage(format!("LEAP_ISA is {name:?}, wanted one of {known}")))
        }
    }
}
