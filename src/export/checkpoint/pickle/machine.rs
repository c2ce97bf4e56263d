//! The stack machine: the part of pickle protocols 2 to 5 that tables of tensors need.

use super::value::{PickleGlobal, PickleObject, PickleValue, PickledStorage, PickledTensor};

/// Most values on the stack; Python's writer puts at most 2000 there at once.
const STACK_MAX: usize = 1 << 16;
/// Most marks on the stack: how deeply values may be nested.
const DEPTH_MAX: usize = 64;
/// Most values in the memo: about seven for each tensor.
const MEMO_MAX: usize = 1 << 18;
/// Most tuples, lists, dicts, storages and tensors.
const OBJECTS_MAX: usize = 1 << 18;
/// Most dimensions of a tensor.
const RANK_MAX: usize = 8;

/// Reader of a pickle.
pub(super) struct PickleMachine<'a> {
    bytes: &'a [u8],
    /// Offset of the next byte.
    next: usize,
    /// Offset of the current instruction.
    at: usize,
    stack: Vec<PickleValue<'a>>,
    /// Heights of the stack where marks were set.
    marks: Vec<usize>,
    memo: Vec<Option<PickleValue<'a>>>,
    objects: Vec<PickleObject<'a>>,
}

impl<'a> PickleMachine<'a> {
    pub(super) fn new(bytes: &'a [u8]) -> PickleMachine<'a> {
        let (stack, marks, memo, objects) = Default::default();
        PickleMachine { bytes, next: 0, at: 0, stack, marks, memo, objects }
    }

    /// Offset of the last instruction.
    pub(super) fn at(&self) -> usize {
        self.at
    }

    /// The object that `value` names.
    pub(super) fn object(&self, value: PickleValue<'a>) -> Option<&PickleObject<'a>> {
        match value {
            // Only `push_object` makes object values, and objects stay.
            PickleValue::Object(index) => Some(&self.objects[index]),
            _ => None,
        }
    }

    /// The kind of `value`, in words.
    pub(super) fn describe(&self, value: PickleValue<'a>) -> &'static str {
        match value {
            PickleValue::None => "None",
            PickleValue::Bool => "a bool",
            PickleValue::Float => "a float",
            PickleValue::Int(_) => "an integer",
            PickleValue::Text(_) => "a string",
            PickleValue::Global(_) => "a class or function",
            PickleValue::Object(index) => match self.objects[index] {
                PickleObject::Tuple(_) => "a tuple",
                PickleObject::List(_) => "a list",
                PickleObject::Dict(_) => "a dict",
                PickleObject::Storage(_) => "a storage",
                PickleObject::Tensor(_) => "a tensor",
            },
        }
    }

    /// Runs to the end and returns the value on top of the stack.
    pub(super) fn run(&mut self) -> Result<PickleValue<'a>, String> {
        loop {
            self.at = self.next;
            let code = self.u8()?;
            if code == b'.' {
                return self.pop();
            }
            self.step(code)?;
        }
    }

    /// The instruction `code`; comments give the names in Python's pickletools.
    fn step(&mut self, code: u8) -> Result<(), String> {
        match code {
            b'\x80' => self.protocol(),
            b'\x95' => self.take(8).map(|_| ()), // FRAME
            b'(' => self.mark(),
            b'N' => self.push(PickleValue::None),
            b'\x88' | b'\x89' => self.push(PickleValue::Bool), // NEWTRUE, NEWFALSE
            b'G' => self.take(8).and_then(|_| self.push(PickleValue::Float)), // BINFLOAT
            b'K' | b'M' | b'J' | b'\x8a' => self.integer(code),
            b'X' | b'\x8c' | b'\x8d' => self.text(code),
            b')' => self.push_object(PickleObject::Tuple(Vec::new())), // EMPTY_TUPLE
            b'\x85' | b'\x86' | b'\x87' => self.tuple(usize::from(code - b'\x84')), // TUPLE1 to 3
            b't' => self.pop_mark().and_then(|items| self.push_object(PickleObject::Tuple(items))),
            b']' => self.push_object(PickleObject::List(Vec::new())), // EMPTY_LIST
            b'a' => self.pop().and_then(|item| self.append(vec![item])), // APPEND
            b'e' => self.pop_mark().and_then(|items| self.append(items)), // APPENDS
            b'}' => self.push_object(PickleObject::Dict(Vec::new())), // EMPTY_DICT
            b's' => self.pop_n(2).and_then(|items| self.set_items(&items)), // SETITEM
            b'u' => self.pop_mark().and_then(|items| self.set_items(&items)), // SETITEMS
            b'q' | b'r' | b'\x94' => self.memorize(code),
            b'h' | b'j' => self.recall(code),
            b'c' | b'i' | b'\x93' => self.global(code),
            b'R' => self.reduce(),
            b'b' => self.build(),
            b'Q' => self.storage(),
            other => Err(format!("instruction {other:#04x} is none that a table of tensors needs")),
        }
    }

    // Bytes.

    fn take(&mut self, n: usize) -> Result<&'a [u8], String> {
        let found = self.bytes[self.next..].get(..n).ok_or("the pickle is cut off")?;
        self.next += n;
        Ok(found)
    }

    fn array<const N: usize>(&mut self) -> Result<[u8; N], String> {
        let mut array = [0; N];
        array.copy_from_slice(self.take(N)?);
        Ok(array)
    }

    fn u8(&mut self) -> Result<u8, String> {
        self.array().map(|[byte]| byte)
    }

    fn u32(&mut self) -> Result<usize, String> {
        self.array().map(|bytes| u32::from_le_bytes(bytes) as usize)
    }

    fn line(&mut self) -> Result<&'a str, String> {
        let rest = &self.bytes[self.next..];
        let len = rest.iter().position(|&b| b == b'\n').ok_or("the pickle is cut off")?;
        self.next += len + 1;
        utf8(&rest[..len])
    }

    // The stack.

    fn push(&mut self, value: PickleValue<'a>) -> Result<(), String> {
        if self.stack.len() == STACK_MAX {
            return Err(format!("more than {STACK_MAX} values are on the stack"));
        }
        self.stack.push(value);
        Ok(())
    }

    fn push_object(&mut self, object: PickleObject<'a>) -> Result<(), String> {
        if self.objects.len() == OBJECTS_MAX {
            return Err(format!("there are more than {OBJECTS_MAX} objects"));
        }
        self.objects.push(object);
        self.push(PickleValue::Object(self.objects.len() - 1))
    }

    fn mark(&mut self) -> Result<(), String> {
        if self.marks.len() == DEPTH_MAX {
            return Err(format!("values are nested more than {DEPTH_MAX} deep"));
        }
        self.marks.push(self.stack.len());
        Ok(())
    }

    /// Takes the upper `n` values.
    fn pop_n(&mut self, n: usize) -> Result<Vec<PickleValue<'a>>, String> {
        let floor = self.marks.last().copied().unwrap_or(0);
        match self.stack.len().checked_sub(n) {
            Some(height) if height >= floor => Ok(self.stack.split_off(height)),
            _ => Err("the stack has too few values".to_owned()),
        }
    }

    fn pop(&mut self) -> Result<PickleValue<'a>, String> {
        self.pop_n(1).map(|items| items[0])
    }

    /// Takes what is above the last mark, and the mark.
    fn pop_mark(&mut self) -> Result<Vec<PickleValue<'a>>, String> {
        let height = self.marks.pop().ok_or("there is no mark")?;
        Ok(self.stack.split_off(height))
    }

    /// The object on top of the stack, which stays there.
    fn top(&mut self) -> Result<&mut PickleObject<'a>, String> {
        match self.stack.last() {
            Some(&PickleValue::Object(index)) => Ok(&mut self.objects[index]),
            _ => Err("the stack has no object on top".to_owned()),
        }
    }

    // Instructions.

    fn protocol(&mut self) -> Result<(), String> {
        match self.u8()? {
            0..=5 => Ok(()),
            other => Err(format!("pickle protocol {other} is unknown")),
        }
    }

    /// BININT1, BININT2, BININT or LONG1.
    fn integer(&mut self, code: u8) -> Result<(), String> {
        let value = match code {
            b'K' => i64::from(self.u8()?),
            b'M' => i64::from(u16::from_le_bytes(self.array()?)),
            b'J' => i64::from(i32::from_le_bytes(self.array()?)),
            _ => self.long()?,
        };
        self.push(PickleValue::Int(value))
    }

    /// A number in two's complement. Its length in bytes comes first.
    fn long(&mut self) -> Result<i64, String> {
        let n = usize::from(self.u8()?);
        let bytes = self.take(n)?;
        if n > 8 {
            return Err(format!("an integer has {n} bytes, wanted 8 at most"));
        }
        let sign = bytes.last().map_or(0, |&last| if last < 0x80 { 0 } else { 0xff });
        let mut wide = [sign; 8];
        wide[..n].copy_from_slice(bytes);
        Ok(i64::from_le_bytes(wide))
    }

    /// BINUNICODE, SHORT_BINUNICODE or BINUNICODE8.
    fn text(&mut self, code: u8) -> Result<(), String> {
        let len = match code {
            b'X' => self.u32()?,
            b'\x8c' => usize::from(self.u8()?),
            _ => usize::try_from(u64::from_le_bytes(self.array()?)).unwrap_or(usize::MAX),
        };
        let text = utf8(self.take(len)?)?;
        self.push(PickleValue::Text(text))
    }

    fn tuple(&mut self, n: usize) -> Result<(), String> {
        let items = self.pop_n(n)?;
        self.push_object(PickleObject::Tuple(items))
    }

    fn append(&mut self, items: Vec<PickleValue<'a>>) -> Result<(), String> {
        match self.top()? {
            PickleObject::List(list) => list.extend(items),
            _ => return Err("values are appended to what is no list".to_owned()),
        }
        Ok(())
    }

    fn set_items(&mut self, items: &[PickleValue<'a>]) -> Result<(), String> {
        let (pairs, rest) = items.as_chunks::<2>();
        match self.top()? {
            PickleObject::Dict(dict) if rest.is_empty() => {
                dict.extend(pairs.iter().map(|&[key, value]| (key, value)));
                Ok(())
            }
            PickleObject::Dict(_) => Err("a key has no value".to_owned()),
            _ => Err("items are set in what is no dict".to_owned()),
        }
    }

    /// BINPUT, LONG_BINPUT or MEMOIZE.
    fn memorize(&mut self, code: u8) -> Result<(), String> {
        let index = match code {
            b'q' => usize::from(self.u8()?),
            b'r' => self.u32()?,
            _ => self.memo.len(),
        };
        if index >= MEMO_MAX {
            return Err(format!("memo {index} is beyond {MEMO_MAX}"));
        }
        let top = *self.stack.last().ok_or("the stack is empty")?;
        if index >= self.memo.len() {
            self.memo.resize(index + 1, None);
        }
        self.memo[index] = Some(top);
        Ok(())
    }

    /// BINGET or LONG_BINGET.
    fn recall(&mut self, code: u8) -> Result<(), String> {
        let index = if code == b'h' { usize::from(self.u8()?) } else { self.u32()? };
        let value = self.memo.get(index).copied().flatten();
        self.push(value.ok_or_else(|| format!("memo {index} is empty"))?)
    }

    /// GLOBAL, INST or STACK_GLOBAL. INST also calls what it names. No table needs it: it is read so that the error
    /// names it.
    fn global(&mut self, code: u8) -> Result<(), String> {
        let (module, name) = match code {
            b'\x93' => match self.pop_n(2)?[..] {
                [PickleValue::Text(module), PickleValue::Text(name)] => (module, name),
                _ => return Err("a global's name is no string".to_owned()),
            },
            _ => (self.line()?, self.line()?),
        };
        match PickleGlobal::find(module, name) {
            Some(global) if code != b'i' => self.push(PickleValue::Global(global)),
            _ => Err(format!(
                "{} is none of the functions and types that weights need; it was not called",
                shorten(&format!("{module}.{name}"))
            )),
        }
    }

    /// REDUCE: a call.
    fn reduce(&mut self) -> Result<(), String> {
        let (args, function) = (self.pop()?, self.pop()?);
        let Some(PickleObject::Tuple(args)) = self.object(args) else {
            return Err("arguments are no tuple".to_owned());
        };
        match function {
            PickleValue::Global(PickleGlobal::OrderedDict) if args.is_empty() => {
                self.push_object(PickleObject::Dict(Vec::new()))
            }
            PickleValue::Global(PickleGlobal::RebuildTensor) => {
                let tensor = self.tensor(args)?;
                self.push_object(PickleObject::Tensor(tensor))
            }
            PickleValue::Global(PickleGlobal::RebuildParameter) => match args.first() {
                Some(&tensor) if matches!(self.object(tensor), Some(PickleObject::Tensor(_))) => {
                    self.push(tensor)
                }
                _ => Err("a parameter is no tensor".to_owned()),
            },
            PickleValue::Global(global) => Err(format!("{global:?} is called in an unknown way")),
            _ => Err(format!("{} is called", self.describe(function))),
        }
    }

    /// BUILD: attributes of the object below. Those of a dict, such as the module versions in a `state_dict`, have no
    /// meaning for LEAP.
    fn build(&mut self) -> Result<(), String> {
        self.pop()?;
        match self.top()? {
            PickleObject::Dict(_) => Ok(()),
            _ => Err("attributes are set on what is no dict".to_owned()),
        }
    }

    /// BINPERSID: `("storage", type, key, device, length)`.
    fn storage(&mut self) -> Result<(), String> {
        let id = self.pop()?;
        let Some(PickleObject::Tuple(items)) = self.object(id) else {
            return Err("an outside object's id is no tuple".to_owned());
        };
        let &[
            PickleValue::Text("storage"),
            PickleValue::Global(PickleGlobal::Storage(dtype)),
            PickleValue::Text(key),
            _,
            PickleValue::Int(len),
        ] = &items[..]
        else {
            return Err("an outside object is no storage".to_owned());
        };
        let len = usize::try_from(len).map_err(|_| format!("a storage has {len} values"))?;
        self.push_object(PickleObject::Storage(PickledStorage { dtype, key, len }))
    }

    /// A tensor of `(storage, offset, size, stride, …)`.
    fn tensor(&self, args: &[PickleValue<'a>]) -> Result<PickledTensor<'a>, String> {
        let &[storage, PickleValue::Int(offset), size, stride, ..] = args else {
            return Err("a tensor has too few arguments".to_owned());
        };
        let Some(PickleObject::Storage(storage)) = self.object(storage) else {
            return Err("a tensor has no storage".to_owned());
        };
        let (shape, strides) = (self.sizes(size)?, self.sizes(stride)?);
        let offset = usize::try_from(offset).map_err(|_| format!("a tensor starts at {offset}"))?;
        if shape.len() != strides.len() {
            return Err(format!("a tensor has shape {shape:?}, but strides {strides:?}"));
        }
        Ok(PickledTensor { storage: storage.clone(), offset, shape, strides })
    }

    /// A tuple of sizes.
    fn sizes(&self, value: PickleValue<'a>) -> Result<Vec<usize>, String> {
        let items = match self.object(value) {
            Some(PickleObject::Tuple(items)) if items.len() <= RANK_MAX => items,
            Some(PickleObject::Tuple(items)) => {
                return Err(format!("a tensor has {} dimensions", items.len()));
            }
            _ => return Err("a tensor's shape is no tuple".to_owned()),
        };
        let size = |item: &PickleValue<'a>| match *item {
            PickleValue::Int(size) => usize::try_from(size)
                .map_err(|_| format!("a tensor has a size or stride of {size}")),
            other => Err(format!("a tensor's size is {}", self.describe(other))),
        };
        items.iter().map(size).collect()
    }
}

fn utf8(bytes: &[u8]) -> Result<&str, String> {
    str::from_utf8(bytes).map_err(|_| "a string is not UTF-8".to_owned())
}

/// A name, cut to a length that fits a message.
fn shorten(name: &str) -> String {
    let plain: String = name.chars().take(80).flat_map(char::escape_default).collect();
    if name.chars().count() > 80 { plain + "…" } else { plain }
}
