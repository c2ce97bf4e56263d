//! Values of a pickle's instructions.

use crate::export::checkpoint::dtype::ValueType;

/// A tensor as a pickle describes it.
#[derive(Clone, Debug, PartialEq)]
pub(in crate::export::checkpoint) struct PickledTensor<'a> {
    pub(in crate::export::checkpoint) storage: PickledStorage<'a>,
    /// First value, counted in values from the start of the storage.
    pub(in crate::export::checkpoint) offset: usize,
    pub(in crate::export::checkpoint) shape: Vec<usize>,
    /// Values from an index to the next, for each dimension.
    pub(in crate::export::checkpoint) strides: Vec<usize>,
}

/// A run of values that tensors may share.
#[derive(Clone, Debug, PartialEq)]
pub(in crate::export::checkpoint) struct PickledStorage<'a> {
    /// Type of the values; an error holds the name of a type that cannot be converted.
    pub(in crate::export::checkpoint) dtype: Result<ValueType, &'static str>,
    /// Name of the storage's file in the archive.
    pub(in crate::export::checkpoint) key: &'a str,
    /// Number of values.
    pub(in crate::export::checkpoint) len: usize,
}

/// A value, or the place of one.
#[derive(Clone, Copy, Debug)]
pub(super) enum PickleValue<'a> {
    None,
    Bool,
    Float,
    Int(i64),
    Text(&'a str),
    Global(PickleGlobal),
    /// Index into the machine's objects.
    Object(usize),
}

/// A value that holds others.
#[derive(Debug)]
pub(super) enum PickleObject<'a> {
    Tuple(Vec<PickleValue<'a>>),
    List(Vec<PickleValue<'a>>),
    /// In the order of insertion; a key may be there twice.
    Dict(Vec<(PickleValue<'a>, PickleValue<'a>)>),
    Storage(PickledStorage<'a>),
    Tensor(PickledTensor<'a>),
}

/// A name that a pickle may import.
#[derive(Clone, Copy, Debug)]
pub(super) enum PickleGlobal {
    /// Makes an empty dict.
    OrderedDict,
    /// Makes a tensor of storage, offset, size and stride.
    RebuildTensor,
    /// Passes a tensor on.
    RebuildParameter,
    /// A storage's type; it is named and never called.
    Storage(Result<ValueType, &'static str>),
}

impl PickleGlobal {
    /// The object called `name` in `module`, if it is in the list.
    pub(super) fn find(module: &str, name: &str) -> Option<PickleGlobal> {
        Some(match (module, name) {
            ("collections", "OrderedDict") => PickleGlobal::OrderedDict,
            ("torch._utils", "_rebuild_tensor_v2") => PickleGlobal::RebuildTensor,
            ("torch._utils", "_rebuild_parameter") => PickleGlobal::RebuildParameter,
            ("torch", "FloatStorage") => PickleGlobal::Storage(Ok(ValueType::F32)),
            ("torch", "HalfStorage") => PickleGlobal::Storage(Ok(ValueType::F16)),
            ("torch", "BFloat16Storage") => PickleGlobal::Storage(Ok(ValueType::Bf16)),
            ("torch", "CharStorage") => PickleGlobal::Storage(Ok(ValueType::I8)),
            ("torch", "BoolStorage") => PickleGlobal::Storage(Ok(ValueType::Bool)),
            ("torch", "DoubleStorage") => PickleGlobal::Storage(Err("F64")),
            ("torch", "ByteStorage") => PickleGlobal::Storage(Err("U8")),
            ("torch", "ShortStorage") => PickleGlobal::Storage(Err("I16")),
            ("torch", "IntStorage") => PickleGlobal::Storage(Err("I32")),
            ("torch", "LongStorage") => PickleGlobal::Storage(Err("I64")),
            ("torch", "ComplexFloatStorage") => PickleGlobal::Storage(Err("C64")),
            _ => return None,
        })
    }
}
