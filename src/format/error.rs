//! What can be wrong with the bytes of a model or tokenizer file.

use std::fmt;

/// Why a file was refused. Names the field or tensor; the caller adds the path.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Error {
    /// The file ends before `what`, which needs it to be `need` bytes long.
    Truncated {
        /// Field or tensor that does not fit.
        what: String,
        /// Bytes the file would have to hold.
        need: u64,
        /// Bytes it holds.
        have: u64,
    },
    /// The first bytes are not this kind of file's.
    BadMagic {
        /// The magic number of the format.
        wanted: u32,
        /// What the file starts with.
        found: u32,
    },
    /// A field holds a value that no valid file has.
    Field {
        /// Name of the field, as `leap info` prints it.
        field: &'static str,
        /// What it holds.
        value: i64,
        /// What it should be.
        wanted: String,
    },
    /// A valid file of a kind this version cannot use.
    Unsupported(String),
    /// Stored and computed checksums differ.
    Checksum {
        /// Tensor or `header`.
        what: String,
    },
    /// Bytes follow the last thing the format defines.
    TrailingBytes {
        /// Where the file should end.
        end: u64,
        /// Bytes it holds.
        have: u64,
    },
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Error::Truncated { what, need, have } => {
                write!(f, "file is truncated: {what} needs {need} bytes, the file has {have}")
            }
            Error::BadMagic { wanted, found } => {
                write!(f, "not this kind of file: starts with {found:#010x}, not {wanted:#010x}")
            }
            Error::Field { field, value, wanted } => {
                write!(f, "{field} is {value}, wanted {wanted}")
            }
            Error::Unsupported(what) => write!(f, "unsupported: {what}"),
            Error::Checksum { what } => write!(f, "checksum of {what} does not match its bytes"),
            Error::TrailingBytes { end, have } => {
                write!(f, "file should end at byte {end} but has {have}")
            }
        }
    }
}

impl std::error::Error for Error {}
