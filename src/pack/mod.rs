//! The packed-weight cache: one file with matrices in the layout of one kernel tier.
//!
//! The file is built once, tensor by tensor. Then it is mapped read-only and shared by all processes that run
//! the same model on the same tier, each with its own selection of tensors. The contents are opaque here:
//! bytes under a key. [`CacheFile`] and [`CacheBuilder`] offer the four calls of a weights-cache provider (as
//! in XNNPACK): while building, [`look_up`](CacheBuilder::look_up),
//! [`reserve_space`](CacheBuilder::reserve_space) and [`look_up_or_insert`](CacheBuilder::look_up_or_insert);
//! on the finished file [`offset_to_addr`](CacheFile::offset_to_addr).
//!
//! A file is never patched. If it does not match its [`CacheIdentity`] or lacks tensors, a new one is built
//! under a temporary name, and renamed when it is complete. Processes that have mapped the old file keep it.
//! Intact tensors of the old file are [taken over](CacheBuilder::take_over), so that only new ones are
//! packed. While the disk has room, tensors that this process does not want are kept, too: other processes
//! may want them.
//!
//! Packing first compares the weights with their checksums. A [`Receipt`] tells later starts that this was
//! done.

mod cache;
mod error;
mod file;
mod receipt;

pub use cache::{CacheBuilder, CacheFile, WantedEntry};
pub use error::CacheError;
pub use file::{CacheEntry, CacheIdentity, CacheSummary, MAGIC, summary, verify};
pub use receipt::Receipt;
