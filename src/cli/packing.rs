//! Model files that are packed for a CPU's kernels.

use super::{Failure, options};
use crate::engine::Engine;
use crate::export::{ExportPlan, Packing, QuantisedRows};
use crate::kernels::{Isa, PACKED_GROUP_MAX};
use crate::model::layout_number;

/// Parses an instruction set whose kernels want weights in an order of their own.
pub(super) fn packable_isa(name: &str) -> Result<Isa, String> {
    let is_packable = |isa: &Isa| isa.layout().is_some();
    Isa::from_name(name).filter(is_packable).ok_or_else(|| {
        let known = Isa::ALL.iter().filter(|isa| is_packable(isa));
        let known: Vec<&str> = known.map(|isa| isa.name()).collect();
        format!("{name:?} is no instruction set to pack for; there are {}", known.join(", "))
    })
}

/// The instruction set of the kernels that this process uses, if they want weights in an order of their own.
pub(super) fn own_isa() -> Result<Option<Isa>, Failure> {
    let kernels = Engine::kernels(None, options::isa_from_environment()?);
    let isa = kernels.map_err(options::engine_failure)?.isa();
    Ok(Some(isa).filter(|isa| isa.layout().is_some()))
}

/// Sets up `plan` to pack matrices for the kernels of `isa`, which this CPU need not have.
pub(super) fn pack_for(plan: &mut ExportPlan, isa: Isa) -> Result<(), Failure> {
    let Some(layout) = isa.layout() else { return Ok(()) };
    let group = plan.header().weights.group().unwrap_or(0);
    if group > PACKED_GROUP_MAX {
        let problem = format!("--isa packs groups of up to {PACKED_GROUP_MAX}, not of {group}");
        return Err(Failure::Usage(problem));
    }
    let pack = move |rows: QuantisedRows<'_>, out: &mut [u8]| match rows {
        QuantisedRows::Q8(w) => layout.pack_q8(w, out),
        QuantisedRows::Q4(w) => layout.pack_q4(w, out),
        QuantisedRows::B2(w) => layout.pack_b2(w, out),
        QuantisedRows::B6(w) => layout.pack_b6(w, out),
        QuantisedRows::Ggml(w) => layout.pack_ggml(w, out),
    };
    let packing = Packing {
        layout: layout_number(layout, plan.header().weights),
        panel_rows: layout.panel_rows(),
        pack: Box::new(pack),
    };
    plan.set_packing(packing).map_err(Failure::export)
}
