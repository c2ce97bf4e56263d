//! JSON: the reader for untrusted files, and the only code that writes JSON.

mod object;
#[cfg(any(feature = "tools", feature = "serve"))]
mod read;
#[cfg(any(feature = "templates", feature = "serve"))]
mod value;

pub(crate) use object::JsonObject;
#[cfg(any(feature = "tools", feature = "serve"))]
pub(crate) use read::parse;
#[cfg(any(feature = "tools", feature = "serve"))]
pub(crate) use value::compact;
#[cfg(feature = "templates")]
pub(crate) use value::{ascii, python, python_float};
#[cfg(feature = "serve")]
pub(crate) use value::{indented, spaced};
