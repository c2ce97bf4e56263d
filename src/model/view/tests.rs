use std::fs;
use std::path::PathBuf;

use super::*;
use crate::pool::Pool;

/// A copy of the demo model's file, which is removed when this is dropped.
struct Copy(PathBuf);

impl Copy {
    fn new(name: &str) -> Copy {
        let path = std::env::temp_dir().join(format!("leap-{name}-{}.bin", std::process::id()));
        fs::copy(Path::new(env!("CARGO_MANIFEST_DIR")).join("models/demo.bin"), &path).unwrap();
        Copy(path)
    }

    /// Bytes of the copy that this process has mapped.
    fn mapped_bytes(&self) -> u64 {
        let maps = fs::read_to_string("/proc/self/maps").unwrap();
        let lines = maps.lines().filter(|line| line.contains(self.0.to_str().unwrap()));
        let ends = lines.map(|line| line.split(' ').next().unwrap().split_once('-').unwrap());
        let number = |hex| u64::from_str_radix(hex, 16).unwrap();
        ends.map(|(start, end)| number(end) - number(start)).sum()
    }
}

impl Drop for Copy {
    fn drop(&mut self) {
        let _ = fs::remove_file(&self.0);
    }
}

fn share(layers: Range<usize>, has_ends: bool) -> Share {
    Share { layers, has_ends }
}

/// Whether `view` has the same tensors as `whole`, within its share.
fn has_tensors_of(view: &Model, whole: &Model) -> bool {
    let ids = whole.header().tensors().map(|tensor| tensor.id);
    let mut held = ids.filter(|id| view.share().holds(*id));
    held.all(|id| view.tensor_bytes(id) == whole.tensor_bytes(id))
}

#[test]
fn a_view_maps_its_own_tensors_alone() {
    let copy = Copy::new("view-maps");
    let whole = Model::open(&copy.0).unwrap();
    let view = whole.with_share(share(1..2, false)).unwrap();
    assert!(has_tensors_of(&view, &whole));
    drop(whole);
    let held = view.header().tensors().filter(|tensor| view.share().holds(tensor.id));
    let (n, bytes) = held.fold((0, 0), |(n, bytes), tensor| (n + 1, bytes + tensor.bytes));
    // A map begins and ends with a page.
    let page = 64 << 10;
    let mapped = copy.mapped_bytes();
    assert!((bytes..bytes + n * 2 * page).contains(&mapped), "{mapped} for {bytes}");
    drop(view);
    assert_eq!(copy.mapped_bytes(), 0);
}

#[test]
fn another_view_is_of_the_same_file_whatever_its_name() {
    let copy = Copy::new("view-moved");
    let whole = Model::open(&copy.0).unwrap();
    let wanted = whole.with_share(share(2..4, true)).unwrap();
    let view = Model::open(&copy.0).unwrap().with_share(share(0..1, false)).unwrap();
    let moved = Copy(copy.0.with_extension("moved"));
    fs::rename(&copy.0, &moved.0).unwrap();
    fs::write(&copy.0, "another file").unwrap();
    let view = view.with_share(share(2..4, true)).unwrap();
    assert!(has_tensors_of(&view, &wanted));
    assert_eq!(view.fingerprint().unwrap(), whole.fingerprint().unwrap());
    let mut file = fs::OpenOptions::new().append(true).open(&moved.0).unwrap();
    std::io::Write::write_all(&mut file, b"more").unwrap();
    let error = view.with_share(share(1..2, false)).err().unwrap();
    assert!(error.to_string().contains("written to"), "{error}");
}

#[test]
fn layers_are_compared_once_whichever_view_asks() {
    let copy = Copy::new("view-checked");
    let pool = Pool::new(&[]).unwrap();
    let whole = Model::open(&copy.0).unwrap();
    let view = |layers| whole.with_share(share(layers, false)).unwrap();
    let asked = |model: &Model| {
        let n = std::cell::Cell::new(0);
        let count = || {
            n.set(n.get() + 1);
            false
        };
        model.check(&[], &pool, &count).unwrap();
        n.get()
    };
    assert!(asked(&view(1..3)) > 0);
    assert_eq!((asked(&view(1..3)), asked(&view(2..3))), (0, 0));
    assert!(asked(&view(2..4)) > 0);
    assert_eq!(asked(&view(1..4)), 0);
    assert_eq!(whole.file().checked(), [false, true, true, true, false, false, false]);
    assert!(asked(&whole) > 0);
    assert_eq!(whole.file().checked(), [true; 7]);
}
