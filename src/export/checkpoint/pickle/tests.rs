use super::value::{PickledStorage, PickledTensor};
use super::*;
use crate::export::checkpoint::dtype::ValueType;

/// The instruction by which `Pickle` stores a value that it wants to refer to again.
fn put(index: u8) -> [u8; 2] {
    [b'q', index]
}

fn text(text: &str) -> Vec<u8> {
    [b"X", &(text.len() as u32).to_le_bytes()[..], text.as_bytes()].concat()
}

fn global(module: &str, name: &str) -> Vec<u8> {
    format!("c{module}\n{name}\n").into_bytes()
}

fn storage(class: &str, key: &str, len: i32) -> Vec<u8> {
    let len = len.to_le_bytes();
    let class = global("torch", class);
    [b"(", &text("storage")[..], &class, &text(key), &text("cpu"), b"J", &len, b"tQ"].concat()
}

/// A tuple of numbers.
fn sizes(sizes: &[i32]) -> Vec<u8> {
    let items: Vec<u8> =
        sizes.iter().flat_map(|size| [&b"J"[..], &size.to_le_bytes()].concat()).collect();
    [b"(", &items[..], b"t"].concat()
}

fn tensor(storage: &[u8], offset: i32, shape: &[i32], strides: &[i32]) -> Vec<u8> {
    let rebuild = global("torch._utils", "_rebuild_tensor_v2");
    let offset = offset.to_le_bytes();
    let hooks = [&global("collections", "OrderedDict")[..], b")R"].concat();
    [
        &rebuild[..],
        b"(",
        storage,
        b"J",
        &offset,
        &sizes(shape),
        &sizes(strides),
        b"\x89",
        &hooks,
        b"tR",
    ]
    .concat()
}

/// A whole pickle: a dict of one tensor.
fn table(name: &str, tensor: &[u8]) -> Vec<u8> {
    [b"\x80\x02}(", &text(name)[..], tensor, b"u."].concat()
}

/// A tensor that is as it should be.
fn good() -> Vec<u8> {
    tensor(&storage("HalfStorage", "0", 6), 0, &[2, 3], &[3, 1])
}

/// Reads what must be refused, and returns the message.
fn refused(bytes: &[u8]) -> String {
    read(bytes).unwrap_err()
}

#[test]
fn table_of_a_tensor() {
    let bytes = table("w", &good());
    let storage = PickledStorage { dtype: Ok(ValueType::F16), key: "0", len: 6 };
    let wanted = PickledTensor { storage, offset: 0, shape: vec![2, 3], strides: vec![3, 1] };
    assert_eq!(read(&bytes).unwrap(), [("w", wanted)]);
}

#[test]
fn every_storage_class_is_known_by_its_type() {
    for (class, dtype) in [
        ("FloatStorage", Ok(ValueType::F32)),
        ("HalfStorage", Ok(ValueType::F16)),
        ("BFloat16Storage", Ok(ValueType::Bf16)),
        ("CharStorage", Ok(ValueType::I8)),
        ("BoolStorage", Ok(ValueType::Bool)),
        ("DoubleStorage", Err("F64")),
        ("LongStorage", Err("I64")),
    ] {
        let bytes = table("w", &tensor(&storage(class, "k", 1), 0, &[], &[]));
        assert_eq!(read(&bytes).unwrap()[0].1.storage.dtype, dtype, "{class}");
    }
}

#[test]
fn parameters_ordered_dicts_and_their_attributes() {
    let parameter = global("torch._utils", "_rebuild_parameter");
    let value = [&parameter[..], b"(", &good(), b"\x89}tR"].concat();
    let dict = [&global("collections", "OrderedDict")[..], b")R"].concat();
    let attributes = [b"}", &text("_metadata")[..], &dict, b"sb"].concat();
    let bytes =
        [b"\x80\x02", &dict[..], b"(", &text("w"), &value, b"u", &attributes, b"."].concat();
    assert_eq!(read(&bytes).unwrap()[0].1.shape, [2, 3]);
}

#[test]
fn newer_protocols_with_frames_and_short_strings() {
    let short = |text: &str| [b"\x8c", &[text.len() as u8][..], text.as_bytes(), b"\x94"].concat();
    let find = |module: &str, name: &str| [&short(module)[..], &short(name), b"\x93\x94"].concat();
    let storage = [
        b"(",
        &short("storage")[..],
        &find("torch", "BFloat16Storage"),
        &short("0"),
        &short("cpu"),
        b"K\x06t\x94Q",
    ]
    .concat();
    let rebuild = find("torch._utils", "_rebuild_tensor_v2");
    let bytes = [
        b"\x80\x04\x95\0\0\0\0\0\0\0\0}\x94",
        &short("w")[..],
        &rebuild,
        b"(",
        &storage,
        // Offset 1 as a long, shape (5,), strides (1,) from the memo of the shape's storage key.
        b"\x8a\x01\x01K\x05\x85\x94K\x01\x85\x94\x89NtR\x94s.",
    ]
    .concat();
    let tensor = &read(&bytes).unwrap()[0].1;
    assert_eq!((tensor.offset, &tensor.shape[..], tensor.storage.len), (1, &[5][..], 6));
}

#[test]
fn no_function_is_called_whatever_it_is() {
    for (module, name) in [
        ("os", "system"),
        ("posix", "system"),
        ("builtins", "eval"),
        ("builtins", "getattr"),
        ("__builtin__", "exec"),
        ("subprocess", "Popen"),
        ("torch", "load"),
        ("torch._utils", "_rebuild_tensor"),
        ("collections", "OrderedDict.__class__"),
        ("collections.OrderedDict", ""),
        ("torch.storage", "HalfStorage"),
        ("", ""),
    ] {
        let wanted = format!("{module}.{name} is none of the functions");
        let call = [&text("echo")[..], b"\x85R."].concat();
        let plain = [&global(module, name)[..], &call].concat();
        let stacked = [&text(module)[..], &text(name), b"\x93", &call].concat();
        let instance = format!("(i{module}\n{name}\n.").into_bytes();
        let value = table("w", &global(module, name));
        // Hidden among arguments, and as a storage's type.
        let nested = tensor(&[&b"("[..], &global(module, name), b"t"].concat(), 0, &[1], &[1]);
        for bytes in [plain, stacked, instance, value, table("w", &nested)] {
            let message = refused(&[b"\x80\x02", &bytes[..]].concat());
            assert!(message.contains(&wanted) && message.contains("not called"), "{message}");
        }
    }
}

#[test]
fn long_and_unprintable_names_are_cut() {
    let message = refused(&global(&"m".repeat(10_000), "x\x1b[2J"));
    assert!(message.len() < 250 && message.contains('…'), "{message}");
    assert!(!refused(&global("os", "x\x1b[2J")).contains('\x1b'));
}

#[test]
fn known_names_are_called_only_as_they_should_be() {
    for bytes in [
        [&global("torch", "HalfStorage")[..], b")R."].concat(),
        [&global("collections", "OrderedDict")[..], b"]\x85R."].concat(),
        [&global("torch._utils", "_rebuild_parameter")[..], b"N\x85R."].concat(),
        [&global("torch._utils", "_rebuild_parameter")[..], b")R."].concat(),
        [&global("torch._utils", "_rebuild_tensor_v2")[..], b")R."].concat(),
        [&global("torch._utils", "_rebuild_tensor_v2")[..], b"NR."].concat(),
        [&text("system")[..], b")R."].concat(),
        b"(icollections\nOrderedDict\n.".to_vec(),
    ] {
        refused(&bytes);
    }
}

#[test]
fn other_instructions_are_named() {
    // NEWOBJ, OBJ, PERSID, EXT1, POP, DUP, LONG4, REDUCE_EX, and nothing's code.
    for code in [0x81, b'o', b'P', 0x82, b'0', b'2', 0x8b, 0x92, 0xff] {
        let message = refused(&[0x80, 2, b'N', code, 1, 1, 1, 1, b'.']);
        assert!(message.contains(&format!("{code:#04x}")), "{message}");
    }
}

#[test]
fn nesting_is_bounded() {
    assert!(refused(&[b'('; 100_000]).contains("nested more than"));
    // Without marks it is not nesting to the reader: the tuples are a list of pairs.
    let tuples = [b"N", &[0x85; 10_000][..], b"."].concat();
    assert!(refused(&tuples).contains("holds a tuple"));
}

#[test]
fn stack_objects_and_memo_are_bounded() {
    assert!(refused(&[b'N'; 100_000]).contains("on the stack"));
    // A list that swallows what is pushed.
    let many = [b"]", &b"}a".repeat(400_000)[..], b"."].concat();
    assert!(refused(&many).contains("objects"));
    assert!(refused(b"Nr\xff\xff\xff\xff.").contains("memo 4294967295"));
    assert!(refused(b"Nr\xff\xff\xff\x7f.").contains("memo"));
    assert!(refused(b"h\x07.").contains("memo 7 is empty"));
    assert!(refused(b"j\x07\0\0\x70.").contains("is empty"));
    assert!(refused(&vec![b'}'; BYTES_MAX + 1]).contains("too many"));
}

#[test]
fn what_holds_itself_is_read_like_anything_else() {
    // A dict whose only value is the dict, and a list in a tuple in the list.
    let dict = [b"}", &put(0)[..], &text("w"), b"h\0s."].concat();
    assert!(refused(&dict).contains("\"w\" holds a dict"));
    let list = [b"]", &put(0)[..], b"h\0\x85a."].concat();
    assert!(refused(&list).contains("holds a list"));
    // The shape is a tuple that holds itself through a list.
    let shape = [b"]", &put(1)[..], b"h\x01a\x85"].concat();
    let storage = storage("HalfStorage", "0", 6);
    let rebuild = global("torch._utils", "_rebuild_tensor_v2");
    let bytes = [&rebuild[..], b"(", &storage, b"K\0", &shape, b")tR."].concat();
    assert!(refused(&bytes).contains("size is a list"));
}

#[test]
fn stack_never_runs_dry() {
    for bytes in [
        &b"."[..],
        b"t.",
        b"u.",
        b"e.",
        b"s.",
        b"a.",
        b"R.",
        b"NR.",
        b"b.",
        b"Nb.",
        b"Q.",
        b"NQ.",
        b"q\0.",
        b"\x85.",
        b"N\x86.",
        b"\x93.",
        b"NN\x93.",
        b"(.",
        b"N(\x85.",
        b"}(Nu.",
        b"N(NNu.",
        b"NNa.",
        b"N(Ne.",
        b"}N(NRNu.",
    ] {
        refused(bytes);
    }
}

#[test]
fn tensors_with_impossible_sizes_are_refused() {
    let half = |len| storage("HalfStorage", "0", len);
    for value in [
        tensor(&half(-1), 0, &[1], &[1]),
        tensor(&half(6), -1, &[1], &[1]),
        tensor(&half(6), 0, &[-2, 3], &[3, 1]),
        tensor(&half(6), 0, &[2, 3], &[-3, 1]),
        tensor(&half(6), 0, &[2, 3], &[1]),
        tensor(&half(6), 0, &[1; 9], &[1; 9]),
        tensor(b"N", 0, &[1], &[1]),
        tensor(&global("torch", "HalfStorage"), 0, &[1], &[1]),
    ] {
        refused(&table("w", &value));
    }
    let long = table("w", &good())
        .iter()
        .flat_map(|&b| if b == b'J' { vec![0x8a, 9] } else { vec![b] })
        .collect::<Vec<u8>>();
    assert!(refused(&long).contains("9 bytes"));
}

#[test]
fn what_is_no_tensor_is_named() {
    for (value, words) in [
        (&b"N"[..], "None"),
        (b"K\x03", "an integer"),
        (b"\x88", "a bool"),
        (b"}", "a dict"),
        (b"]", "a list"),
        (b"G\0\0\0\0\0\0\0\0", "a float"),
    ] {
        let message = refused(&table("epoch", value));
        assert!(message.contains("\"epoch\"") && message.contains(words), "{message}");
    }
    assert!(refused(b"\x80\x02].").contains("a list, wanted tensors by name"));
    assert!(refused(&[b"}K\x01", &good()[..], b"s."].concat()).contains("a tensor's name"));
}

#[test]
fn pickle_cut_anywhere_is_refused() {
    let bytes = table("w", &good());
    for len in 0..bytes.len() {
        refused(&bytes[..len]);
    }
    assert!(refused(b"\x80\x06}.").contains("protocol 6"));
}

#[test]
fn no_changed_byte_is_fatal() {
    let bytes = table("w", &good());
    for at in 0..bytes.len() {
        for value in 0..=u8::MAX {
            let mut damaged = bytes.clone();
            damaged[at] = value;
            if let Ok(tensors) = read(&damaged) {
                assert!(tensors.len() <= 1);
            }
        }
    }
}
