//! Tests of the cache file.

use std::fs;

use super::*;

const IDENTITY: CacheIdentity = CacheIdentity { fingerprint: 77, layout: 3, order: 1 };

struct Folder(PathBuf);

impl Folder {
    fn new(name: &str) -> Folder {
        let path = std::env::temp_dir().join(format!("leap-cache-{name}-{}", std::process::id()));
        fs::create_dir(&path).unwrap();
        Folder(path)
    }

    fn cache(&self) -> PathBuf {
        self.0.join("m.leapw")
    }

    fn names(&self) -> usize {
        fs::read_dir(&self.0).unwrap().count()
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        fs::remove_dir_all(&self.0).unwrap();
    }
}

fn build(path: &Path) -> CacheFile {
    let mut builder = CacheBuilder::create(path, IDENTITY, None).unwrap();
    let wanted = [(10, 1000), (5, 77), (11, 1000)].map(|(key, bytes)| WantedEntry { key, bytes });
    assert_eq!(builder.reserve_disk(&wanted).unwrap(), []);
    builder.reserve_space(1000).fill(1);
    let first = builder.look_up_or_insert(10).unwrap();
    builder.reserve_space(77).fill(2);
    builder.look_up_or_insert(5).unwrap();
    builder.insert_same(11, first);
    builder.finish().unwrap()
}

#[test]
fn what_was_inserted_is_found_again() {
    let folder = Folder::new("found");
    build(&folder.cache());
    let cache = CacheFile::open(&folder.cache(), &IDENTITY).unwrap();
    let bytes = |key| cache.entries.get(&key).map(|entry| cache.offset_to_addr(entry).to_vec());
    assert_eq!(bytes(10), Some(vec![1; 1000]));
    assert_eq!(bytes(5), Some(vec![2; 77]));
    assert_eq!(bytes(11), Some(vec![1; 1000]));
    assert_eq!(bytes(12), None);
    assert_eq!(cache.entries[&10].offset, cache.entries[&11].offset);
    let summary = file::summary(cache.file_bytes()).unwrap();
    assert_eq!(file::verify(cache.file_bytes(), &summary.entries), Ok(()));
    for key in [5, 10, 11] {
        let entry = cache.entries[&key];
        assert_eq!(cache.offset_to_addr(&entry).as_ptr() as usize % ALIGN as usize, 0);
    }
    assert_eq!(folder.names(), 1);
}

#[test]
fn a_key_is_stored_once() {
    let folder = Folder::new("once");
    let mut builder = CacheBuilder::create(&folder.cache(), IDENTITY, None).unwrap();
    builder.reserve_space(10).fill(1);
    let first = builder.look_up_or_insert(1).unwrap();
    builder.reserve_space(10).fill(2);
    assert_eq!(builder.look_up_or_insert(1).unwrap(), first);
    let cache = builder.finish().unwrap();
    assert_eq!(cache.offset_to_addr(&first), [1; 10]);
}

#[test]
fn another_identity_is_refused() {
    let folder = Folder::new("identity");
    build(&folder.cache());
    for other in [
        CacheIdentity { fingerprint: 78, ..IDENTITY },
        CacheIdentity { layout: 4, ..IDENTITY },
        CacheIdentity { order: 2, ..IDENTITY },
    ] {
        let result = CacheFile::open(&folder.cache(), &other);
        assert!(matches!(result, Err(CacheError::Mismatch { .. })), "{other:?}");
    }
}

#[test]
fn an_unfinished_cache_leaves_nothing() {
    let folder = Folder::new("unfinished");
    let mut builder = CacheBuilder::create(&folder.cache(), IDENTITY, None).unwrap();
    builder.reserve_space(10);
    builder.look_up_or_insert(1).unwrap();
    drop(builder);
    assert_eq!(folder.names(), 0);
}

#[test]
fn damage_is_found() {
    let folder = Folder::new("damage");
    build(&folder.cache());
    let good = fs::read(folder.cache()).unwrap();
    for len in (0..good.len()).step_by(97).chain([good.len() - 1]) {
        fs::write(folder.cache(), &good[..len]).unwrap();
        assert!(CacheFile::open(&folder.cache(), &IDENTITY).is_err(), "length {len}");
    }
    let index_at = good.len() - 3 * 32;
    for at in (0..file::HEADER_LEN).chain(index_at..good.len()) {
        let mut bytes = good.clone();
        bytes[at] ^= 4;
        fs::write(folder.cache(), &bytes).unwrap();
        assert!(CacheFile::open(&folder.cache(), &IDENTITY).is_err(), "byte {at}");
    }
    let mut bytes = good.clone();
    bytes[DATA_AT as usize + 5] ^= 1;
    let summary = file::summary(&bytes).unwrap();
    assert!(file::verify(&bytes, &summary.entries).is_err());
}

fn wanted(key: u64, bytes: u64) -> WantedEntry {
    WantedEntry { key, bytes }
}

/// Builds tensors of `wanted` that the cache lacks, filled with 7. Returns the cache, and the keys taken
/// over.
fn extend(path: &Path, wanted: &[WantedEntry]) -> (CacheFile, Vec<u64>) {
    let mut taken = Vec::new();
    let built = CacheFile::open_or_build(path, &IDENTITY, wanted, |builder| {
        let others = builder.reserve_disk(wanted)?;
        for entry in wanted.iter().chain(&others) {
            if builder.take_over(entry)? {
                taken.push(entry.key);
                continue;
            }
            builder.reserve_space(entry.bytes as usize).fill(7);
            builder.look_up_or_insert(entry.key)?;
        }
        Ok::<(), CacheError>(())
    });
    (built.unwrap().0, taken)
}

#[test]
fn a_file_that_lacks_tensors_is_replaced_by_one_that_has_the_old_ones_too() {
    let folder = Folder::new("extend");
    let old = build(&folder.cache());
    let (cache, taken) = extend(&folder.cache(), &[wanted(5, 77), wanted(6, 200)]);
    assert_eq!(taken, [5, 10, 11]);
    let bytes = |cache: &CacheFile, key| cache.offset_to_addr(&cache.entries[&key]).to_vec();
    assert_eq!(bytes(&cache, 6), [7; 200]);
    assert_eq!(bytes(&cache, 5), [2; 77]);
    // Another process can still use its map of the old file.
    assert_eq!((bytes(&old, 10), old.entries.len()), (vec![1; 1000], 3));
    let summary = file::summary(cache.file_bytes()).unwrap();
    assert_eq!(file::verify(cache.file_bytes(), &summary.entries), Ok(()));
    assert_eq!(cache.entries[&10].offset, cache.entries[&11].offset);
    // Nothing is missing, so nothing is built.
    let (again, taken) = extend(&folder.cache(), &[wanted(10, 1000), wanted(6, 200)]);
    assert_eq!((taken, again.entries.len(), folder.names()), (vec![], 4, 1));
}

#[test]
fn a_damaged_tensor_is_not_taken_over() {
    let folder = Folder::new("damaged-old");
    let old = build(&folder.cache());
    let at = old.entries[&5].offset as usize;
    let mut bytes = fs::read(folder.cache()).unwrap();
    bytes[at + 9] ^= 1;
    fs::write(folder.cache(), &bytes).unwrap();
    let (cache, taken) = extend(&folder.cache(), &[wanted(5, 77), wanted(6, 200)]);
    assert_eq!(taken, [10, 11]);
    assert_eq!(cache.offset_to_addr(&cache.entries[&5]), [7; 77]);
    // A tensor of another length is not taken over either.
    let (cache, taken) = extend(&folder.cache(), &[wanted(10, 999)]);
    assert_eq!((taken, cache.entries[&10].bytes), (vec![5, 6, 11], 999));
}

#[test]
fn a_file_of_an_older_format_is_rebuilt() {
    let folder = Folder::new("older");
    build(&folder.cache());
    let mut bytes = fs::read(folder.cache()).unwrap();
    bytes[4] = 1;
    fs::write(folder.cache(), &bytes).unwrap();
    let (cache, taken) = extend(&folder.cache(), &[wanted(5, 77)]);
    assert_eq!((taken, cache.entries.len()), (vec![], 1));
    assert_eq!(cache.offset_to_addr(&cache.entries[&5]), [7; 77]);
}

#[test]
fn a_file_of_another_kind_is_not_replaced() {
    let folder = Folder::new("foreign");
    let open = |name: &str| {
        let path = folder.0.join(name);
        let built = CacheFile::open_or_build(&path, &IDENTITY, &[wanted(5, 77)], |builder| {
            builder.reserve_space(77).fill(7);
            builder.look_up_or_insert(5).map(|_| ())
        });
        built.map(|_| ()).map_err(|e: CacheError| e.to_string())
    };
    for (name, content) in [("notes.txt", "a note"), ("model.bin", "24ka"), ("short", "x")] {
        fs::write(folder.0.join(name), content).unwrap();
        assert!(open(name).unwrap_err().contains("is no file of packed weights"), "{name}");
        assert_eq!(fs::read_to_string(folder.0.join(name)).unwrap(), content);
    }
    assert_eq!(folder.names(), 3);
    fs::write(folder.0.join("empty"), "").unwrap();
    fs::write(folder.0.join("spoilt.leapw"), [0; 99]).unwrap();
    for name in ["empty", "spoilt.leapw", "new"] {
        assert_eq!(open(name), Ok(()), "{name}");
        assert_eq!(open(name), Ok(()), "{name}");
    }
}
