//! JSON: how it is read, of untrusted size, and the one place that writes it.

mod object;
#[cfg(any(feature = "tools", feature = "serve"))]
mod read;
#[cfg(any(feature = "tools", feature = "serve"))]
mod value;

pub(crate) use object::JsonObject;
#[cfg(any(feature = "tools", feature = "serve"))]
pub(crate) use read::parse;
#[cfg(any(feature = "tools", feature = "serve"))]
pub(crate) use value::compact;
#[cfg(feature = "serve")]
pub(crate) use value::{indented, spaced};
