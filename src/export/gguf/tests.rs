use super::*;

/// A file with one field, whose type and value are `value`.
fn with_field(key: &str, value: &[u8]) -> Vec<u8> {
    let mut file = [&b"GGUF"[..], &3u32.to_le_bytes(), &[0; 8], &1u64.to_le_bytes()].concat();
    file.extend((key.len() as u64).to_le_bytes());
    file.extend(key.as_bytes());
    file.extend(value);
    file
}

fn value(kind: u32, bytes: &[u8]) -> Vec<u8> {
    [&kind.to_le_bytes(), bytes].concat()
}

/// A list of `len` values of `kind`.
fn list(kind: u32, len: u64, bytes: &[u8]) -> Vec<u8> {
    [&9u32.to_le_bytes(), &kind.to_le_bytes(), &len.to_le_bytes()[..], bytes].concat()
}

fn refusal(file: &[u8]) -> String {
    Gguf::parse(file).err().expect("the file is damaged")
}

#[test]
fn numbers_of_every_width_are_read() {
    for (kind, bytes) in [
        (0, &[7u8][..]),
        (1, &[7]),
        (2, &[7, 0]),
        (3, &[7, 0]),
        (4, &[7, 0, 0, 0]),
        (5, &[7, 0, 0, 0]),
        (10, &[7, 0, 0, 0, 0, 0, 0, 0]),
        (11, &[7, 0, 0, 0, 0, 0, 0, 0]),
        (6, &7f32.to_le_bytes()),
        (12, &7f64.to_le_bytes()),
    ] {
        let file = with_field("a", &value(kind, bytes));
        let gguf = Gguf::parse(&file).unwrap();
        assert_eq!(gguf.number("a"), Ok(Some(7.0)), "{kind}");
        assert_eq!(gguf.size("a").ok(), (kind != 6 && kind != 12).then_some(Some(7)), "{kind}");
        assert_eq!(gguf.number("b"), Ok(None));
        for cut in 1..file.len() {
            assert!(Gguf::parse(&file[..cut]).is_err(), "{kind}, {cut} bytes");
        }
    }
}

#[test]
fn fields_of_another_type_are_named() {
    let file = with_field("general.name", &value(5, &(-3i32).to_le_bytes()));
    let gguf = Gguf::parse(&file).unwrap();
    assert_eq!(
        gguf.unsigned("general.name"),
        Err("general.name is -3, wanted a whole number, not negative".to_owned())
    );
    assert!(gguf.text("general.name").unwrap_err().contains("a string"));
    assert!(gguf.list("general.name").is_err() && gguf.flag("general.name").is_err());
}

#[test]
fn lists_keep_their_values() {
    let strings = [&2u64.to_le_bytes()[..], b"ab", &0u64.to_le_bytes()].concat();
    let file = with_field("a", &list(8, 2, &strings));
    let gguf = Gguf::parse(&file).unwrap();
    let found = gguf.list("a").unwrap().unwrap();
    let texts: Vec<&str> = found.values().map(|value| value.text().unwrap()).collect();
    assert_eq!((found.len(), texts), (2, vec!["ab", ""]));
}

#[test]
fn lengths_beyond_the_file_are_refused() {
    for n in [1u64 << 16, 1 << 40, u64::MAX / 4, u64::MAX] {
        for kind in [0, 4, 8, 10] {
            refusal(&with_field("a", &list(kind, n, &[0; 64])));
        }
        refusal(&with_field("a", &value(8, &n.to_le_bytes())));
        for at in [8, 16] {
            let mut file = with_field("a", &value(0, &[1]));
            file[at..at + 8].copy_from_slice(&n.to_le_bytes());
            refusal(&file);
        }
    }
}

#[test]
fn lists_of_lists_and_unknown_types_are_refused() {
    assert!(refusal(&with_field("a", &list(9, 1, &list(0, 0, &[])))).contains("a list of lists"));
    assert!(refusal(&with_field("a", &value(13, &[0; 8]))).contains("no type 13"));
    assert!(refusal(&with_field("a", &list(77, 3, &[0; 64]))).contains("no type 77"));
}

#[test]
fn other_versions_and_files_are_refused() {
    let version = |version: u32| {
        let mut file = with_field("a", &value(0, &[1]));
        file[4..8].copy_from_slice(&version.to_le_bytes());
        Gguf::parse(&file).err()
    };
    assert_eq!((version(2), version(3)), (None, None));
    assert!(version(1).unwrap().contains("version 1"));
    assert!(version(3u32.swap_bytes()).unwrap().contains("big-endian"));
    assert!(refusal(b"").contains("magic"));
    assert!(refusal(b"\x08\0\0\0\0\0\0\0{}").contains("no GGUF file"));
}

#[test]
fn names_and_alignment_are_checked() {
    for alignment in [0u32, 3, 48, 1 << 30] {
        let file = with_field("general.alignment", &value(4, &alignment.to_le_bytes()));
        assert!(refusal(&file).contains("general.alignment"), "{alignment}");
    }
    let long = "a".repeat(NAME_BYTES_MAX + 1);
    assert!(refusal(&with_field(&long, &value(0, &[1]))).contains("too long"));
    let mut twice = with_field("a", &value(0, &[1]));
    let field = twice[24..].to_vec();
    twice[16] = 2;
    twice.extend(field);
    assert!(refusal(&twice).contains("twice"));
}

#[test]
fn too_many_dimensions_are_refused() {
    let mut file = [&b"GGUF"[..], &3u32.to_le_bytes(), &1u64.to_le_bytes(), &[0; 8]].concat();
    file.extend(1u64.to_le_bytes());
    file.push(b't');
    file.extend(5u32.to_le_bytes());
    file.extend([0; 64]);
    assert_eq!(refusal(&file), "tensor t has 5 dimensions");
}
