//! A page of the KV cache, or a state of recurrent layers, as a file.
//!
//! | bytes | hold |
//! |---|---|
//! | 0..8 | `LEAPKV` and the version, 1, in two bytes |
//! | 8..24 | key of the text that the page follows |
//! | 24..40 | key of the text that ends with the ids |
//! | 40..44 | number of ids, 1 to [`KV_PAGE`] |
//! | 44..48 | 0 for a page, 1 for a page of layers with a window, 2 for a state |
//! | 48..56 | bytes of keys and values, or of the state |
//! | 56..60 | CRC32 of the file with zeros here |
//! | 60..64 | zeros |
//! | 64..320 | ids, and zeros |
//! | 320.. | keys and values, as they lie in memory; zeros where there is no id. Or the state behind the ids |
//!
//! Numbers are little-endian. The ids of a state are those of its page up to the state. A text's key covers the numerics ([`NUMERICS`]), the model, the format of its
//! keys and values, and all ids.

use std::fmt;
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

/// Kind of a file, which holds its layers' part of one of these.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(in crate::engine) enum Kind {
    /// A page of layers without a window.
    Whole = 0,
    /// A page of layers with a window.
    Windowed = 1,
    /// A state of recurrent layers.
    State = 2,
}

impl Kind {
    /// All kinds, in the order of their numbers.
    pub(super) const ALL: [Kind; 3] = [Kind::Whole, Kind::Windowed, Kind::State];

    /// End of a file's name.
    fn ending(self) -> &'static str {
        match self {
            Kind::Whole => ".kv",
            Kind::Windowed => ".kvw",
            Kind::State => ".state",
        }
    }
}

/// Identifies the content of a file; the file's name spells it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct PageName {
    /// Key of the text that the page follows.
    pub(super) parent: Key,
    /// Key of the text that ends with the page, or before the state.
    pub(super) own: Key,
    /// Content of the file.
    pub(super) kind: Kind,
    /// Number of the text's pages before this one.
    pub(super) index: u32,
}

impl PageName {
    /// Name of the page that holds `ids`, after `index` other pages.
    pub(super) fn new(parent: Key, index: usize, ids: &[u32]) -> PageName {
        let index = u32::try_from(index).unwrap_or(u32::MAX);
        PageName { parent, own: parent.then(ids), kind: Kind::Whole, index }
    }

    /// Name of the same ids' content of another kind.
    pub(super) fn of_kind(self, kind: Kind) -> PageName {
        PageName { kind, ..self }
    }

    /// The page that a file's `name` spells; `None` if it is not a page's name.
    pub(super) fn parse(name: &str) -> Option<PageName> {
        let ended = |kind: Kind| Some((name.strip_suffix(kind.ending())?, kind));
        let (text, kind) = Kind::ALL.into_iter().find_map(ended)?;
        let mut parts = text.split('-');
        let mut key = || u128::from_str_radix(parts.next()?, 16).ok().map(Key);
        let (parent, own) = (key()?, key()?);
        let index = parts.next()?.parse().ok()?;
        let parsed = PageName { parent, own, kind, index };
        // A number can be spelled in other ways, which are refused.
        (parsed.to_string() == name).then_some(parsed)
    }
}

impl fmt::Display for PageName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let PageName { parent, own, kind, index } = self;
        write!(f, "{:032x}-{:032x}-{index}{}", parent.0, own.0, kind.ending())
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

/// Fills `file` with the content `name` of `ids`: the head, still without the checksum, and `body`. A page's body
/// consists of `parts`, a state's has none. Unused positions of a partial page become zeros, because their memory may hold
/// another text.
pub(super) fn fill(
    file: &mut Vec<u8>,
    name: &PageName,
    ids: &[u32],
    (body, parts): (&[u8], &[KvPart]),
) {
    let mut head = [0; HEAD_BYTES];
    head[..8].copy_from_slice(&MAGIC);
    head[8..24].copy_from_slice(&name.parent.0.to_le_bytes());
    head[24..40].copy_from_slice(&name.own.0.to_le_bytes());
    head[40..44].copy_from_slice(&(ids.len() as u32).to_le_bytes());
    head[44..48].copy_from_slice(&(name.kind as u32).to_le_bytes());
    head[48..56].copy_from_slice(&(body.len() as u64).to_le_bytes());
    for (id, place) in ids.iter().zip(head[IDS_AT..].as_chunks_mut::<4>().0) {
        *place = id.to_le_bytes();
    }
    file.clear();
    file.extend_from_slice(&head);
    file.extend_from_slice(body);
    let mut at = HEAD_BYTES;
    for part in parts {
        part.clear(&mut file[at..at + part.bytes()], ids.len());
        at += part.bytes();
    }
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
            return Err(Fault::Damaged("it is no page of keys and values, and no state"));
        }
        let key = |at: usize| head[at..].first_chunk().map(|key| Key(u128::from_le_bytes(*key)));
        let is_named = (key(8), key(24)) == (Some(name.parent), Some(name.own))
            && word(&head, 44) == name.kind as u32;
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

    /// Reads the keys and values, or the state, into `body`, which must have their size. After an error `body` has
    /// undefined contents.
    pub(super) fn read(mut self, body: &mut [u8]) -> Result<(), Fault> {
        let claimed = self.head[48..].first_chunk().map(|len| u64::from_le_bytes(*len));
        if claimed != Some(body.len() as u64) {
            return Err(Fault::Damaged("its content has another size"));
        }
        self.file.read_exact(body)?;
        let crc = word(&self.head, CRC_AT);
        self.head[CRC_AT..CRC_AT + 4].fill(0);
        let mut hash = crc32fast::Hasher::new();
        hash.update(&self.head);
        hash.update(body);
        match hash.finalize() == crc && self.file.read(&mut [0])? == 0 {
            true => Ok(()),
            false => Err(Fault::Damaged("its checksum does not match")),
        }
    }
}

fn word(head: &[u8; HEAD_BYTES], at: usize) -> u32 {
    head[at..].first_chunk().map_or(0, |word| u32::from_le_bytes(*word))
}
