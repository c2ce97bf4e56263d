//! JSON with a space behind each comma and colon, as templates write it.

use std::io;

use serde::Serialize;
use serde_json::ser::Formatter;
use serde_json::{Serializer, Value};

/// The text of `value`.
pub(super) fn dumped(value: &Value) -> String {
    written(value, Spaced)
}

/// The text of `value` with a line for each element and four spaces for each level.
pub(super) fn indented(value: &Value) -> String {
    written(value, serde_json::ser::PrettyFormatter::with_indent(b"    "))
}

fn written(value: &Value, formatter: impl Formatter) -> String {
    let mut bytes = Vec::new();
    // Writing to memory does not fail, and the keys of a value are always strings.
    let _ = value.serialize(&mut Serializer::with_formatter(&mut bytes, formatter));
    String::from_utf8(bytes).unwrap_or_default()
}

struct Spaced;

impl Formatter for Spaced {
    fn begin_array_value<W: ?Sized + io::Write>(
        &mut self,
        to: &mut W,
        is_first: bool,
    ) -> io::Result<()> {
        if is_first { Ok(()) } else { to.write_all(b", ") }
    }

    fn begin_object_key<W: ?Sized + io::Write>(
        &mut self,
        to: &mut W,
        is_first: bool,
    ) -> io::Result<()> {
        if is_first { Ok(()) } else { to.write_all(b", ") }
    }

    fn begin_object_value<W: ?Sized + io::Write>(&mut self, to: &mut W) -> io::Result<()> {
        to.write_all(b": ")
    }
}
