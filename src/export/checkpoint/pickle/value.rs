//! What a pickle's instructions work on.

use super::{Storage, Tensor};
use crate::export::checkpoint::Dtype;

/// A value, or where one is.
#[derive(Clone, Copy, Debug)]
pub(super) enum Value<'a> {
    None,
    Bool,
    Float,
    Int(i64),
    Text(&'a str),
    Global(Global),
    /// Place in the machine's list of objects.
    Object(usize),
}

/// What has other values in it.
#[derive(Debug)]
pub(super) enum Object<'a> {
    Tuple(Vec<Value<'a>>),
    List(Vec<Value<'a>>),
    /// In the order of insertion; a key may be there twice.
    Dict(Vec<(Value<'a>, Value<'a>)>),
    Storage(Storage<'a>),
    Tensor(Tensor<'a>),
}

/// A name that a pickle may import.
#[derive(Clone, Copy, Debug)]
pub(super) enum Global {
    /// Makes an empty dict.
    OrderedDict,
    /// Makes a tensor of storage, offset, size and stride.
    RebuildTensor,
    /// Passes a tensor on.
    RebuildParameter,
    /// A storage's type; it is named and never called.
    Storage(Result<Dtype, &'static str>),
}

impl Global {
    /// What `module` calls `name`, if it is in the list.
    pub(super) fn find(module: &str, name: &str) -> Option<Global> {
        Some(match (module, name) {
            ("collections", "OrderedDict") => Global::OrderedDict,
            ("torch._utils", "_rebuild_tensor_v2") => Global::RebuildTensor,
            ("torch._utils", "_rebuild_parameter") => Global::RebuildParameter,
            ("torch", "FloatStorage") => Global::Storage(Ok(Dtype::F32)),
            ("torch", "HalfStorage") => Global::Storage(Ok(Dtype::F16)),
            ("torch", "BFloat16Storage") => Global::Storage(Ok(Dtype::Bf16)),
            ("torch", "CharStorage") => Global::Storage(Ok(Dtype::I8)),
            ("torch", "BoolStorage") => Global::Storage(Ok(Dtype::Bool)),
            ("torch", "DoubleStorage") => Global::Storage(Err("F64")),
            ("torch", "ByteStorage") => Global::Storage(Err("U8")),
            ("torch", "ShortStorage") => Global::Storage(Err("I16")),
            ("torch", "IntStorage") => Global::Storage(Err("I32")),
            ("torch", "LongStorage") => Global::Storage(Err("I64")),
            ("torch", "ComplexFloatStorage") => Global::Storage(Err("C64")),
            _ => return None,
        })
    }
}
