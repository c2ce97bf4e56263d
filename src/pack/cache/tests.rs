//! Tests of the cache file.

use std::fs;

use super::*;

const IDENTITY: Identity = Identity { fingerprint: 77, layers: (0, 4), layout: 3, order: 1 };

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

fn build(path: &Path) -> Cache {
    let mut builder = Builder::create(path, IDENTITY).unwrap();
    builder.reserve_disk(10_000).unwrap();
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
    let cache = Cache::open(&folder.cache(), &IDENTITY).unwrap();
    let bytes = |key| cache.look_up(key).map(|entry| cache.offset_to_addr(&entry).to_vec());
    assert_eq!(bytes(10), Some(vec![1; 1000]));
    assert_eq!(bytes(5), Some(vec![2; 77]));
    assert_eq!(bytes(11), Some(vec![1; 1000]));
    assert_eq!(bytes(12), None);
    assert_eq!(cache.look_up(10).map(|e| e.offset), cache.look_up(11).map(|e| e.offset));
    let summary = file::summary(cache.file_bytes()).unwrap();
    assert_eq!(file::verify(cache.file_bytes(), &summary.entries), Ok(()));
    for key in [5, 10, 11] {
        let entry = cache.look_up(key).unwrap();
        assert_eq!(cache.offset_to_addr(&entry).as_ptr() as usize % ALIGN as usize, 0);
    }
    assert_eq!(folder.names(), 1);
}

#[test]
fn a_key_is_stored_once() {
    let folder = Folder::new("once");
    let mut builder = Builder::create(&folder.cache(), IDENTITY).unwrap();
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
        Identity { fingerprint: 78, ..IDENTITY },
        Identity { layers: (1, 4), ..IDENTITY },
        Identity { layout: 4, ..IDENTITY },
        Identity { order: 2, ..IDENTITY },
    ] {
        let result = Cache::open(&folder.cache(), &other);
        assert!(matches!(result, Err(Error::Mismatch { .. })), "{other:?}");
    }
}

#[test]
fn an_unfinished_cache_leaves_nothing() {
    let folder = Folder::new("unfinished");
    let mut builder = Builder::create(&folder.cache(), IDENTITY).unwrap();
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
        assert!(Cache::open(&folder.cache(), &IDENTITY).is_err(), "length {len}");
    }
    let index_at = good.len() - 3 * 32;
    for at in (0..file::HEADER_LEN).chain(index_at..good.len()) {
        let mut bytes = good.clone();
        bytes[at] ^= 4;
        fs::write(folder.cache(), &bytes).unwrap();
        assert!(Cache::open(&folder.cache(), &IDENTITY).is_err(), "byte {at}");
    }
    let mut bytes = good.clone();
    bytes[DATA_AT as usize + 5] ^= 1;
    let summary = file::summary(&bytes).unwrap();
    assert!(file::verify(&bytes, &summary.entries).is_err());
}
