//! The pickle in a PyTorch file: which tensor has which values of which storage.
//!
//! A pickle is a program for a stack machine that can import and call any Python function.
//! [`read`] runs the few instructions that a table of tensors is written with and calls
//! nothing: of the names a pickle may import it knows those in [`PickleGlobal::find`], and what they
//! stand for is done here. Every other name or instruction is an error that says which.
//!
//! Values that hold others are kept in a list and named by their place in it, so nothing recurses, even if a value
//! refers to itself. All tables are bounded.

mod machine;
#[cfg(test)]
mod tests;
mod value;

use machine::PickleMachine;
pub(super) use value::PickledTensor;
use value::{PickleObject, PickleValue};

/// The table of the largest published models has some 200 kB.
const BYTES_MAX: usize = 1 << 21;

/// The tensors by name that `bytes` describe.
///
/// # Errors
/// Says what in the pickle is damaged, or not part of a table of tensors.
pub(super) fn read(bytes: &[u8]) -> Result<Vec<(&str, PickledTensor<'_>)>, String> {
    if bytes.len() > BYTES_MAX {
        return Err(format!("{} bytes are too many for a table of tensors", bytes.len()));
    }
    let mut machine = PickleMachine::new(bytes);
    let top = machine.run().map_err(|what| format!("{what}, at byte {}", machine.at()))?;
    let Some(PickleObject::Dict(entries)) = machine.object(top) else {
        return Err(format!("holds {}, wanted tensors by name", machine.describe(top)));
    };
    entries.iter().map(|&(key, value)| tensor(&machine, key, value)).collect()
}

fn tensor<'a>(
    machine: &PickleMachine<'a>,
    key: PickleValue<'a>,
    value: PickleValue<'a>,
) -> Result<(&'a str, PickledTensor<'a>), String> {
    let PickleValue::Text(name) = key else {
        return Err(format!("{} is a tensor's name, wanted a string", machine.describe(key)));
    };
    match machine.object(value) {
        Some(PickleObject::Tensor(tensor)) => Ok((name, tensor.clone())),
        _ => Err(format!(
            "{name:?} holds {}, wanted a tensor: save the model's state_dict alone",
            machine.describe(value)
        )),
    }
}
