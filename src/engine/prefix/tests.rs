use std::fs;
use std::path::{Path, PathBuf};

use super::page_file::{self, Fault, Key, Kind, PageFile, PageName};
use super::shelf::{self, Shelf};
use crate::format::model::{Header, Weights};
use crate::model::{KV_PAGE, KvKind, KvPart};

const ROOT: [u64; 2] = [7, 9];

fn folder(name: &str) -> PathBuf {
    let folder = std::env::temp_dir().join(format!("leap-prefix-{name}-{}", std::process::id()));
    let _ = fs::remove_dir_all(&folder);
    fs::create_dir(&folder).unwrap();
    folder
}

/// Bytes of a page: for each position one key and one value of two bytes each.
const PAGE: usize = 4 * KV_PAGE;

/// A page of three ids in `folder`, with the bytes of its file.
fn page(folder: &Path) -> (PageName, Vec<u8>) {
    let name = PageName::new(Key::root(&ROOT), 5, &[1, 2, 3]);
    let mut file = Vec::new();
    let header = Header { n_kv_heads: 1, head_dim: 1, ..Header::blank(Weights::F32) };
    let part = KvPart::new(KvKind::F16, &header, KV_PAGE);
    page_file::fill(&mut file, &name, &[1, 2, 3], (&[7; PAGE], &[part]));
    page_file::seal(&mut file);
    fs::write(folder.join(name.to_string()), &file).unwrap();
    (name, file)
}

fn read(folder: &Path, name: &PageName) -> Result<(Vec<u32>, [u8; PAGE]), Fault> {
    let mut kv = [0; PAGE];
    let file = PageFile::open(folder, name)?;
    let ids = file.ids().collect();
    file.read(&mut kv).map(|()| (ids, kv))
}

#[test]
fn a_page_comes_back_and_no_other_does() {
    let folder = folder("page");
    let (name, file) = page(&folder);
    let path = folder.join(name.to_string());
    let (ids, kv) = read(&folder, &name).unwrap();
    assert_eq!((ids, &kv[..8]), (vec![1, 2, 3], &[7, 7, 7, 7, 7, 7, 0, 0][..]));
    for at in 0..file.len() {
        let mut other = file.clone();
        other[at] ^= 0x10;
        fs::write(&path, other).unwrap();
        assert!(matches!(read(&folder, &name), Err(Fault::Damaged(_))), "byte {at}");
        fs::write(&path, &file[..at]).unwrap();
        assert!(matches!(read(&folder, &name), Err(Fault::Damaged(_))), "{at} bytes");
    }
    fs::write(&path, [&file[..], b"!"].concat()).unwrap();
    assert!(matches!(read(&folder, &name), Err(Fault::Damaged(_))));
    // The file under names that are not its own.
    fs::write(folder.join(name.of_kind(Kind::Windowed).to_string()), &file).unwrap();
    assert!(matches!(read(&folder, &name.of_kind(Kind::Windowed)), Err(Fault::Damaged(_))));
    let stranger = PageName::new(Key::root(&[7, 8]), 5, &[1, 2, 3]);
    fs::write(folder.join(stranger.to_string()), &file).unwrap();
    assert!(matches!(read(&folder, &stranger), Err(Fault::Damaged(_))));
    fs::remove_file(&path).unwrap();
    assert!(matches!(read(&folder, &name), Err(Fault::Gone)));
    fs::remove_dir_all(folder).unwrap();
}

#[test]
fn names_are_read_as_they_are_written() {
    let name = PageName::new(Key::root(&ROOT), 5, &[1, 2, 3]);
    for name in [
        name,
        name.of_kind(Kind::Windowed),
        name.of_kind(Kind::State),
        PageName { index: u32::MAX, ..name },
    ] {
        assert_eq!(PageName::parse(&name.to_string()), Some(name));
    }
    let written = name.to_string();
    assert_eq!(written.len(), 32 + 1 + 32 + "-5.kv".len());
    for other in [
        written.to_uppercase(),
        written.replace("-5", "-05"),
        written.replace("-5", "-+5"),
        written.replace("-5", ""),
        written.replace(".kv", ".kvv"),
        format!("0{written}"),
        format!(".{written}.1-0.tmp"),
        String::new(),
    ] {
        assert_eq!(PageName::parse(&other), None, "{other}");
    }
}

#[test]
fn the_end_of_the_text_that_was_unused_longest_makes_way() {
    let name =
        |parent: u64, own: u32, index: usize| PageName::new(Key::root(&[parent]), index, &[own]);
    let mut shelf = Shelf::default();
    let old = [name(1, 0, 0), name(2, 0, 1)];
    let new = [name(3, 0, 0), name(4, 0, 1)];
    for name in old.into_iter().chain(new) {
        shelf.begin_prompt();
        shelf.promise(name, 10);
        shelf.keep_promise(&name);
    }
    let pending = name(5, 0, 7);
    shelf.promise(pending, 10);
    shelf.begin_prompt();
    assert!(old.iter().chain(&new).all(|name| shelf.has(name)));
    shelf.begin_prompt();
    assert!(new.iter().all(|name| shelf.has(name)));
    assert_eq!(shelf.make_way(50), None);
    let gone: Vec<PageName> = std::iter::from_fn(|| shelf.make_way(0)).collect();
    // A file that is not written yet cannot be evicted.
    assert_eq!(gone, [old[1], old[0], new[1], new[0]]);
    assert!(!shelf.has_written(&pending));
    shelf.keep_promise(&pending);
    assert!(shelf.has_written(&pending));
}

#[test]
fn states_lie_along_a_text_and_make_way_before_their_pages() {
    let (parent, text) = (Key::root(&ROOT), [5, 6, 7, 8]);
    let page = |ids: &[u32]| PageName::new(parent, 3, ids);
    let mut shelf = Shelf::default();
    for name in [page(&text), page(&[5, 6]), page(&[9])] {
        for name in [name, name.of_kind(Kind::State)] {
            shelf.promise(name, 10);
            shelf.keep_promise(&name);
        }
    }
    let lens = |shelf: &Shelf, ids: &[u32]| -> Vec<usize> {
        shelf.states(parent, 3, ids).iter().map(|(len, _)| *len).collect()
    };
    assert_eq!(lens(&shelf, &text), [4, 2]);
    assert_eq!(lens(&shelf, &[5, 6, 9]), [2]);
    assert!(lens(&shelf, &[]).is_empty());
    assert!(shelf.states(parent, 2, &text).is_empty());
    assert!(shelf.states(Key::root(&[7, 8]), 3, &text).is_empty());
    assert_eq!(shelf.bytes_in_use(), 60);
    shelf.begin_prompt();
    assert_eq!(shelf.use_states(parent, 3, &[5, 6, 9]), Some(2));
    assert_eq!(shelf.bytes_in_use(), 20);
    let gone: Vec<PageName> = std::iter::from_fn(|| shelf.make_way(0)).collect();
    let states: Vec<bool> = gone.iter().map(|name| name.kind == Kind::State).collect();
    assert_eq!(states, [true, true, false, false, true, false]);
    assert_eq!(gone[4..], [page(&[5, 6]).of_kind(Kind::State), page(&[5, 6])]);
}

#[test]
fn a_state_comes_back_whole() {
    let folder = folder("state");
    let name = PageName::new(Key::root(&ROOT), 5, &[1, 2, 3]).of_kind(Kind::State);
    let mut file = Vec::new();
    page_file::fill(&mut file, &name, &[1, 2, 3], (&[7; PAGE], &[]));
    page_file::seal(&mut file);
    fs::write(folder.join(name.to_string()), &file).unwrap();
    assert_eq!(read(&folder, &name).unwrap(), (vec![1, 2, 3], [7; PAGE]));
    // A page has another name.
    fs::write(folder.join(name.of_kind(Kind::Whole).to_string()), &file).unwrap();
    assert!(matches!(read(&folder, &name.of_kind(Kind::Whole)), Err(Fault::Damaged(_))));
    fs::remove_dir_all(folder).unwrap();
}

#[test]
fn a_list_has_pages_alone_and_is_looked_at_again() {
    let folder = folder("list");
    let (name, _) = page(&folder);
    fs::write(folder.join("notes.txt"), "mine").unwrap();
    fs::create_dir(folder.join(name.of_kind(Kind::Windowed).to_string())).unwrap();
    let mut shelf = Shelf::list(&folder).unwrap();
    assert!(shelf.has_written(&name) && !shelf.has(&name.of_kind(Kind::Windowed)));
    assert_eq!(shelf.after(name.parent, 9), [name]);
    let other = PageName::new(name.parent, 5, &[4]);
    let pending = PageName::new(name.parent, 5, &[5]);
    fs::rename(folder.join(name.to_string()), folder.join(other.to_string())).unwrap();
    shelf.promise(pending, 1);
    shelf.look_again(&folder).unwrap();
    assert!(!shelf.has(&name) && shelf.has_written(&other) && shelf.has(&pending));
    assert_eq!(shelf.after(name.parent, 9), [other]);
    fs::remove_dir_all(folder).unwrap();
}

#[test]
fn what_was_left_unfinished_is_removed() {
    let folder = folder("left");
    let (name, file) = page(&folder);
    let hidden = |n: u32| folder.join(format!(".{name}.123-{n}.tmp"));
    let old = std::time::SystemTime::now() - std::time::Duration::from_secs(9999);
    for path in [hidden(0), folder.join(".notes.1-0.tmp")] {
        fs::write(&path, &file).unwrap();
        fs::File::options().write(true).open(&path).unwrap().set_modified(old).unwrap();
    }
    fs::write(hidden(1), &file).unwrap();
    shelf::remove_leftovers(&folder).unwrap();
    assert!(!hidden(0).exists() && hidden(1).exists());
    assert!(folder.join(".notes.1-0.tmp").exists() && folder.join(name.to_string()).exists());
    fs::remove_dir_all(folder).unwrap();
}
