//! Weights that a checkpoint stores in fewer bits: whether LEAP reads that form.

use serde_json::Value;

use crate::export::config::family::Family;
use crate::export::config::json_fields::JsonFields;
use crate::export::config::settings::Fields;
use crate::export::error::ExportError;
use crate::format::excerpt;

/// Rows and columns of a block with a scale, and columns of a group with one, where there are such.
const BLOCK: f64 = 128.0;

/// Whether weights are stored in eight bits, with scales beside them.
///
/// # Errors
/// If LEAP does not read the form, or computes such a model otherwise.
pub(super) fn read(fields: &JsonFields<'_>, family: &Family) -> Result<bool, ExportError> {
    let Some(quantization) = fields.object("quantization_config")? else { return Ok(false) };
    let method = quantization.text("quant_method")?;
    let form = quantization.text("format")?.or(quantization.text("quant_algo")?);
    match (method, form) {
        (Some(method), _) if family.allows(method) => return Ok(false),
        (Some("fp8" | "fbgemm_fp8"), _)
        | (Some("compressed-tensors"), Some("float-quantized" | "int-quantized"))
        | (Some("modelopt"), Some("FP8")) => {}
        _ => {
            let method = [method.or(Some("unnamed")), form].into_iter().flatten();
            let method = excerpt(&method.collect::<Vec<_>>().join(", ")).to_string();
            return Err(fields.unsupported(format!(
                "weights quantised already ({method}); LEAP reads FP8 and int8 with scales"
            )));
        }
    }
    check_blocks(&quantization)?;
    check_groups(&quantization)?;
    let unsupported = |name: &str| Err(quantization.unsupported(name.to_owned()));
    match quantization.text("fmt")? {
        None | Some("e4m3") => {}
        Some(other) => return unsupported(&format!("fmt {}", excerpt(other))),
    }
    // Such weights are multiplied by rotations, or left out.
    let is_there = |name: &str| {
        let object = quantization.get(name).and_then(Value::as_object);
        object.is_some_and(|object| !object.is_empty())
    };
    let sparsity = quantization.get("sparsity_config").and_then(|config| config.get("format"));
    match (is_there("transform_config"), sparsity.and_then(Value::as_str)) {
        (true, _) => unsupported("transform_config"),
        (false, None | Some("dense")) => Ok(true),
        (false, Some(other)) => unsupported(&format!("sparsity_config {}", excerpt(other))),
    }
}

/// Refuses blocks of another size than all published ones have.
fn check_blocks(quantization: &JsonFields<'_>) -> Result<(), ExportError> {
    match quantization.numbers("weight_block_size")? {
        Some(sizes) if sizes != [BLOCK, BLOCK] => {
            Err(quantization.unsupported(format!("weight_block_size {sizes:?}, wanted [128, 128]")))
        }
        _ => Ok(()),
    }
}

/// Refuses other bits, blocks and groups in the list of compressed-tensors.
fn check_groups(quantization: &JsonFields<'_>) -> Result<(), ExportError> {
    let groups = quantization.get("config_groups").and_then(Value::as_object);
    for weights in groups.iter().flat_map(|all| all.values()).filter_map(|all| all.get("weights")) {
        let is_known = |name: &str, known: &[f64]| match weights.get(name) {
            None | Some(Value::Null) => true,
            Some(Value::Array(sizes)) => sizes.iter().all(|size| size.as_f64() == Some(BLOCK)),
            Some(size) => size.as_f64().is_some_and(|size| known.contains(&size)),
        };
        let known =
            [("num_bits", &[8.0][..]), ("block_structure", &[]), ("group_size", &[-1.0, BLOCK])];
        if let Some((name, _)) = known.iter().find(|(name, known)| !is_known(name, known)) {
            let value = excerpt(&weights[name].to_string()).to_string();
            return Err(quantization.unsupported(format!("{name} {value} of weights")));
        }
    }
    Ok(())
}
