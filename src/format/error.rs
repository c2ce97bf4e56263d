//! Errors in the bytes of a model or tokenizer file.

use std::fmt;

/// Why a file was refused. Names the field or tensor; the caller adds the path.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum FormatError {
    /// The file ends before the end of `what`, for which it must be `need` bytes long.
    Truncated {
        /// Field or tensor that does not fit.
        what: String,
        /// Bytes that the file would need.
        need: u64,
        /// Bytes that the file has.
        have: u64,
    },
    /// A part of the header does not begin with its magic number.
    BadMagic {
        /// The magic number of the part.
        wanted: u32,
        /// First bytes of the part.
        found: u32,
    },
    /// The file is no model; its kind in words, if it is known.
    NoModel(Option<&'static str>),
    /// Another file was downloaded instead; names its kind, and what to do.
    StandIn(&'static str),
    /// A field holds a value that no valid file has.
    Field {
        /// Name of the field, as `leap info` prints it.
        field: &'static str,
        /// The value found.
        value: i64,
        /// The value wanted.
        wanted: String,
    },
    /// A valid file that this version cannot use.
    Unsupported(String),
    /// Stored and computed checksums differ.
    Checksum {
        /// Tensor or `header`.
        what: String,
    },
    /// Bytes follow the end that the format defines.
    TrailingBytes {
        /// Byte at which the file should end.
        end: u64,
        /// Bytes that the file has.
        have: u64,
    },
}

impl FormatError {
    /// An error for a `field` with a `value` that no valid file has.
    pub(super) fn field(
        field: &'static str,
        value: impl Into<i64>,
        wanted: impl Into<String>,
    ) -> FormatError {
        FormatError::Field { field, value: value.into(), wanted: wanted.into() }
    }
}

impl fmt::Display for FormatError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            FormatError::Truncated { what, need, have } => {
                write!(f, "file is truncated: {what} needs {need} bytes, the file has {have}")
            }
            FormatError::BadMagic { wanted, found } => {
                write!(f, "damaged header: {found:#010x} stands in the place of {wanted:#010x}")
            }
            FormatError::NoModel(kind) => {
                match kind {
                    Some(kind) => write!(f, "it is {kind}, not a model; ")?,
                    None => write!(f, "it is not a model; ")?,
                }
                f.write_str(
                    "wanted a model file of LEAP, a GGUF file, or the folder of a checkpoint with its config.json",
                )
            }
            FormatError::Field { field, value, wanted } => {
                write!(f, "{field} is {value}, wanted {wanted}")
            }
            FormatError::StandIn(what) => f.write_str(what),
            FormatError::Unsupported(what) => write!(f, "unsupported: {what}"),
            FormatError::Checksum { what } => {
                write!(f, "checksum of {what} does not match its bytes")
            }
            FormatError::TrailingBytes { end, have } => {
                write!(f, "file should end at byte {end} but has {have}")
            }
        }
    }
}

impl std::error::Error for FormatError {}
