//! The packed-weight cache: one file with matrices in the layout of one kernel tier.
//!
//! The file is built once, tensor by tensor, then mapped read-only and shared by all processes that run the
//! same model on the same tier, each with its choice of tensors. The contents are opaque here: bytes under a
//! key. [`CacheFile`] and [`CacheBuilder`] offer the four calls of a weights-cache provider (as XNNPACK's):
//! [`look_up`](CacheBuilder::look_up), [`reserve_space`](CacheBuilder::reserve_space),
//! [`look_up_or_insert`](CacheBuilder::look_up_or_insert) while building, and
//! [`offset_to_addr`](CacheFile::offset_to_addr) on the finished file.
//!
//! A file is never patched: one that does not match its [`CacheIdentity`], or lacks tensors, is built again,
//! under a temporary name, and renamed when it is complete; processes that have mapped the old file keep it.
//! Tensors of the old file are [taken over](CacheBuilder::take_over), byte by byte and compared with its
//! checksums, so that only new ones are packed. Tensors that this process does not want stay too, as other
//! processes may, while the disk has room for them.
//!
//! Packing compares the weights with their checksums first; a [`Receipt`] tells later starts that this was done.

mod cache;
mod error;
mod file;
mod receipt;

pub use cache::{CacheBuilder, CacheFile, WantedEntry};
pub use error::CacheError;
pub use file::{CacheEntry, CacheIdentity, CacheSummary, MAGIC, summary, verify};
pub use receipt::Receipt;
