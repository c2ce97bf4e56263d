//! Values of fields.

use std::fmt;

use super::reader::GgufReader;

/// The value of a field.
#[derive(PartialEq)]
pub(in crate::export) enum GgufValue<'a> {
    /// A whole number of any width.
    Unsigned(u64),
    /// A whole number of any width with a sign.
    Signed(i64),
    /// A float of either width.
    Float(f64),
    /// True or false.
    Flag(bool),
    /// The bytes of a string, UTF-8 as a rule.
    Text(&'a [u8]),
    /// Values of one type, of which none is a list.
    List(GgufList<'a>),
}

/// Values of one type, as the file stores them.
#[derive(Clone, Copy, PartialEq)]
pub(in crate::export) struct GgufList<'a> {
    kind: u32,
    len: u64,
    bytes: &'a [u8],
}

const UINT8: u32 = 0;
const INT8: u32 = 1;
const UINT16: u32 = 2;
const INT16: u32 = 3;
pub(super) const UINT32: u32 = 4;
pub(super) const INT32: u32 = 5;
pub(super) const FLOAT32: u32 = 6;
pub(super) const BOOL: u32 = 7;
pub(super) const STRING: u32 = 8;
pub(super) const LIST: u32 = 9;
const UINT64: u32 = 10;
const INT64: u32 = 11;
const FLOAT64: u32 = 12;

impl<'a> GgufValue<'a> {
    /// Reads a type and a value of it.
    pub(super) fn read(r: &mut GgufReader<'a>) -> Result<GgufValue<'a>, String> {
        match r.u32("type")? {
            LIST => GgufList::read(r).map(GgufValue::List),
            kind => GgufValue::read_single(r, kind),
        }
    }

    fn read_single(r: &mut GgufReader<'a>, kind: u32) -> Result<GgufValue<'a>, String> {
        let what = "value";
        Ok(match kind {
            UINT8 => GgufValue::Unsigned(u8::from_le_bytes(r.array(what)?).into()),
            INT8 => GgufValue::Signed(i8::from_le_bytes(r.array(what)?).into()),
            UINT16 => GgufValue::Unsigned(u16::from_le_bytes(r.array(what)?).into()),
            INT16 => GgufValue::Signed(i16::from_le_bytes(r.array(what)?).into()),
            UINT32 => GgufValue::Unsigned(r.u32(what)?.into()),
            INT32 => GgufValue::Signed(i32::from_le_bytes(r.array(what)?).into()),
            FLOAT32 => GgufValue::Float(f32::from_le_bytes(r.array(what)?).into()),
            BOOL => GgufValue::Flag(r.array::<1>(what)? != [0]),
            STRING => GgufValue::Text(r.string(what)?),
            UINT64 => GgufValue::Unsigned(r.u64(what)?),
            INT64 => GgufValue::Signed(i64::from_le_bytes(r.array(what)?)),
            FLOAT64 => GgufValue::Float(f64::from_le_bytes(r.array(what)?)),
            LIST => return Err("a list of lists, which LEAP does not read".to_owned()),
            other => return Err(format!("damaged: there is no type {other}")),
        })
    }

    /// The value that all elements of a list share, which counts as a single value; `None` if there is no such value.
    pub(in crate::export) fn only(&self) -> Option<GgufValue<'a>> {
        let mut values = self.list()?.values();
        let first = values.next()?;
        values.all(|value| value == first).then_some(first)
    }

    /// A whole number that is not negative.
    pub(in crate::export) fn unsigned(&self) -> Option<u64> {
        match *self {
            GgufValue::Unsigned(value) => Some(value),
            GgufValue::Signed(value) => u64::try_from(value).ok(),
            _ => None,
        }
    }

    /// Whether the value is a list.
    pub(in crate::export) fn is_list(&self) -> bool {
        matches!(self, GgufValue::List(_))
    }

    /// A number.
    pub(in crate::export) fn number(&self) -> Option<f64> {
        match *self {
            GgufValue::Unsigned(value) => Some(value as f64),
            GgufValue::Signed(value) => Some(value as f64),
            GgufValue::Float(value) => Some(value),
            _ => None,
        }
    }

    pub(super) fn flag(&self) -> Option<bool> {
        match *self {
            GgufValue::Flag(flag) => Some(flag),
            _ => None,
        }
    }

    /// A string, if it is UTF-8.
    pub(in crate::export) fn text(&self) -> Option<&'a str> {
        match *self {
            GgufValue::Text(bytes) => std::str::from_utf8(bytes).ok(),
            _ => None,
        }
    }

    /// A list.
    pub(in crate::export) fn list(&self) -> Option<GgufList<'a>> {
        match *self {
            GgufValue::List(list) => Some(list),
            _ => None,
        }
    }
}

/// Shows a value in the few words of a message.
impl fmt::Display for GgufValue<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        const CHARS: usize = 60;
        match self {
            GgufValue::Unsigned(value) => value.fmt(f),
            GgufValue::Signed(value) => value.fmt(f),
            GgufValue::Float(value) => value.fmt(f),
            GgufValue::Flag(flag) => flag.fmt(f),
            GgufValue::Text(bytes) => {
                let text = String::from_utf8_lossy(&bytes[..bytes.len().min(4 * CHARS)]);
                let short: String = text.chars().take(CHARS).collect();
                let rest = if short.len() < bytes.len() { "…" } else { "" };
                write!(f, "{short:?}{rest}")
            }
            GgufValue::List(list) => write!(f, "a list of {}", list.len),
        }
    }
}

impl<'a> GgufList<'a> {
    /// Reads the type, the length and all values, to know where they end.
    fn read(r: &mut GgufReader<'a>) -> Result<GgufList<'a>, String> {
        let kind = r.u32("type of a list")?;
        let len = r.u64("length of a list")?;
        let start = r.pos();
        match fixed_width(kind) {
            Some(width) => {
                r.take("list", len.saturating_mul(width))?;
            }
            // Each string takes bytes of the file, which bounds this loop.
            None => {
                for _ in 0..len {
                    GgufValue::read_single(r, kind)?;
                }
            }
        }
        Ok(GgufList { kind, len, bytes: r.since(start) })
    }

    /// How many values there are.
    pub(in crate::export) fn len(&self) -> u64 {
        self.len
    }

    /// The values in their order.
    pub(in crate::export) fn values(&self) -> impl Iterator<Item = GgufValue<'a>> + use<'a> {
        let mut r = GgufReader::new(self.bytes);
        let kind = self.kind;
        // The values were all read once before.
        (0..self.len).map_while(move |_| GgufValue::read_single(&mut r, kind).ok())
    }
}

/// Bytes of a value of this type, if all have the same.
fn fixed_width(kind: u32) -> Option<u64> {
    match kind {
        UINT8 | INT8 | BOOL => Some(1),
        UINT16 | INT16 => Some(2),
        UINT32 | INT32 | FLOAT32 => Some(4),
        UINT64 | INT64 | FLOAT64 => Some(8),
        _ => None,
    }
}
