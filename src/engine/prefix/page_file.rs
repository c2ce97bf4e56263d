//! A page of the KV cache as a file.
//!
//! | bytes | hold |
//! |---|---|
//! | 0..8 | `LEAPKV` and the version, 1, in two bytes |
//! | 8..24 | key of the text that the page follows |
//! | 24..40 | key of the text that ends with the page |
//! | 40..44 | number of ids, 1 to [`KV_PAGE`] |
//! | 44..48 | 1 if it is a page of layers with a window |
//! | 48..56 | bytes of keys and values |
//! | 56..60 | CRC32 of the file with zeros here |
//! | 60..64 | zeros |
//! | 64..320 | ids, and zeros |
//! | 320.. | keys and values, as they lie in memory; zeros where there is no id |
//!
//! Numbers are little-endian. A text's key covers the numerics ([`NUMERICS`]), the model, the format of its
//! keys and values, and all ids.

use std::fmt::{self, Write};
use std::fs::File;
use std::io::{self, ErrorKind, Read};
use std::path::Path;

use sha2::{Digest, Sha256};

use crate::model::{KV_PAGE, KvPart};
use crate::numerics::NUMERICS;

const MAGIC: [u8; 8] = *b"LEAPKV\x01\x00";

/// Bytes before keys and values.
pub(super) const HEAD_BYTES: usize = IDS_AT + 4 * KV_PAGE;
const IDS_AT: usize = 64;
const CRC_AT: usize = 56;

/// Identifies a text by a hash.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(super) struct Key(u128);

impl Key {
    /// The lowest key in order.
    pub(super) const FIRST: Key = Key(0);

    /// Key of the empty text. `parts` identify the model and its KV format: other pages get other keys.
    pub(super) fn root(parts: &[u64]) -> Key {
        let mut hash = Sha256::new();
        hash.update(MAGIC);
        // Other numerics give other keys and values.
        hash.update([NUMERICS]);
        hash.update(1_u16.to_ne_bytes());
        parts.iter().for_each(|part| hash.update(part.to_le_bytes()));
        Key::from_hash(hash)
    }

    /// Key of this text continued by `ids`.
    pub(super) fn then(self, ids: &[u32]) -> Key {
        let mut hash = Sha256::new();
        hash.update(self.0.to_le_bytes());
        ids.iter().for_each(|id| hash.update(id.to_le_bytes()));
        Key::from_hash(hash)
    }

    fn from_hash(hash: Sha256) -> Key {
        Key(u128::from_le_bytes(*hash.finalize().first_chunk().expect("a hash has 32 bytes")))
    }
}

/// Identifies the page of a file; the file's name spells it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct PageName {
    /// Key of the text that the page follows.
    pub(super) parent: Key,
    /// Key of the text that ends with the page.
    pub(super) own: Key,
    /// Whether it is a page of layers with a window.
    pub(super) is_windowed: bool,
    /// Number of the text's pages before this one.
    pub(super) index: u32,
}

impl PageName {
    /// Name of the page that holds `ids`, after `index` other pages.
    pub(super) fn new(parent: Key, index: usize, ids: &[u32]) -> PageName {
        let index = u32::try_from(index).unwrap_or(u32::MAX);
        PageName { parent, own: parent.then(ids), is_windowed: false, index }
    }

    /// Name of the same ids' page of layers with a window.
    pub(super) fn windowed(self) -> PageName {
        PageName { is_windowed: true, ..self }
    }

    /// The page that a file's `name` spells; `None` if it is not a page's name.
    pub(super) fn parse(name: &str) -> Option<PageName> {
        let (text, is_windowed) = match name.strip_suffix(".kvw") {
            Some(text) => (text, true),
            None => (name.strip_suffix(".kv")?, false),
        };
        let mut parts = text.split('-');
        let mut key = || u128::from_str_radix(parts.next()?, 16).ok().map(Key);
        let (parent, own) = (key()?, key()?);
        let index = parts.next()?.parse().ok()?;
        let parsed = PageName { parent, own, is_windowed, index };
        // A number can be spelled in other ways, which are refused.
        (parsed.to_string() == name).then_some(parsed)
    }
}

impl fmt::Display for PageName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:032x}-{:032x}-{}.kv", self.parent.0, self.own.0, self.index)?;
        if self.is_windowed { f.write_char('w') } else { Ok(()) }
    }
}

/// Why a page cannot be read.
#[derive(Debug)]
pub(super) enum Fault {
    /// Another program has removed the file.
    Gone,
    /// The system refused the read.
    Io(io::Error),
    /// The file does not hold what its name says.
    Damaged(&'static str),
}

impl From<io::Error> for Fault {
    fn from(error: io::Error) -> Fault {
        match error.kind() {
            ErrorKind::NotFound => Fault::Gone,
            ErrorKind::UnexpectedEof => Fault::Damaged("it is cut short"),
            _ => Fault::Io(error),
        }
    }
}

/// Fills `file` with the page `name` of `ids`: the head, still without the checksum, and `kv`, which has one
/// `part` per layer. Unused positions of a partial page become zeros, because their memory may hold another
/// text.
pub(super) fn fill(file: &mut Vec<u8>, name: &PageName, ids: &[u32], (kv, part): (&[u8], &KvPart)) {
    let mut head = [0; HEAD_BYTES];
    head[..8].copy_from_slice(&MAGIC);
    head[8..24].copy_from_slice(&name.parent.0.to_le_bytes());
    head[24..40].copy_from_slice(&name.own.0.to_le_bytes());
    head[40..44].copy_from_slice(&(ids.len() as u32).to_le_bytes());
    head[44..48].copy_from_slice(&u32::from(name.is_windowed).to_le_bytes());
    head[48..56].copy_from_slice(&(kv.len() as u64).to_le_bytes());
    for (id, place) in ids.iter().zip(head[IDS_AT..].as_chunks_mut::<4>().0) {
        *place = id.to_le_bytes();
    }
    file.clear();
    file.extend_from_slice(&head);
    file.extend_from_slice(kv);
    part.clear(&mut file[HEAD_BYTES..], ids.len());
}

/// Adds the checksum to a file that [`fill`] has filled.
pub(super) fn seal(file: &mut [u8]) {
    let crc = crc32fast::hash(file);
    file[CRC_AT..CRC_AT + 4].copy_from_slice(&crc.to_le_bytes());
}

/// A page's file whose head has been read and checked.
pub(super) struct PageFile {
    file: File,
    head: [u8; HEAD_BYTES],
    n_ids: usize,
}

impl PageFile {
    /// Opens the file `name` in `folder`.
    pub(super) fn open(folder: &Path, name: &PageName) -> Result<PageFile, Fault> {
        let mut file = File::open(folder.join(name.to_string()))?;
        let mut head = [0; HEAD_BYTES];
        file.read_exact(&mut head)?;
        if head[..8] != MAGIC {
            return Err(Fault::Damaged("it is no page of keys and values"));
        }
        let key = |at: usize| head[at..].first_chunk().map(|key| Key(u128::from_le_bytes(*key)));
        let is_named = (key(8), key(24)) == (Some(name.parent), Some(name.own))
            && word(&head, 44) == u32::from(name.is_windowed);
        if !is_named {
            return Err(Fault::Damaged("it is another model's, or another text's"));
        }
        let n_ids = word(&head, 40) as usize;
        if !(1..=KV_PAGE).contains(&n_ids) {
            return Err(Fault::Damaged("its ids are damaged"));
        }
        let page = PageFile { file, head, n_ids };
        let ids: Vec<u32> = page.ids().collect();
        match name.parent.then(&ids) == name.own {
            true => Ok(page),
            false => Err(Fault::Damaged("its ids are damaged")),
        }
    }

    pub(super) fn ids(&self) -> impl Iterator<Item = u32> {
        let ids = self.head[IDS_AT..].as_chunks::<4>().0;
        ids[..self.n_ids].iter().map(|id| u32::from_le_bytes(*id))
    }

    /// Reads the keys and values into `kv`, which must have their size. After an error `kv` has undefined
    /// contents.
    pub(super) fn read(mut self, kv: &mut [u8]) -> Result<(), Fault> {
        let claimed = self.head[48..].first_chunk().map(|len| u64::from_le_bytes(*len));
        if claimed != Some(kv.len() as u64) {
            return Err(Fault::Damaged("its keys and values have another size"));
        }
        self.file.read_exact(kv)?;
        let crc = word(&self.head, CRC_AT);
        self.head[CRC_AT..CRC_AT + 4].fill(0);
        let mut hash = crc32fast::Hasher::new();
        hash.update(&self.head);
        hash.update(kv);
        match hash.finalize() == crc && self.file.read(&mut [0])? == 0 {
            true => Ok(()),
            false => Err(Fault::Damaged("its checksum does not match")),
        }
    }
}

fn word(head: &[u8; HEAD_BYTES], at: usize) -> u32 {
    head[at..].first_chunk().map_or(0, |word| u32::from_le_bytes(*word))
}
