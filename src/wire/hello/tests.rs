use super::*;

fn node(layers: Range<u32>) -> RingInfo {
    RingInfo {
        model: 0x1122,
        dim: 64,
        n_layers: 6,
        kv_dim: 32,
        vocab_size: 512,
        held: 0..6,
        is_master: layers.start == 0,
        wish: Some(layers),
        dtype: Dtype::F16,
        name: name("küche"),
        ..RingInfo::default()
    }
}

fn hello() -> Hello {
    Hello {
        protocol: PROTOCOL,
        has_key: true,
        instance: 0x0807_0605_0403_0201,
        nonce: [3; 16],
        resume: 4,
        node: node(0..2),
        to: name("pi"),
        greeting: [5; MESSAGE_LEN],
    }
}

#[test]
fn what_is_emitted_parses_to_the_same() {
    let mut bytes = [0xa5; HELLO_LEN];
    hello().emit(&mut bytes);
    assert_eq!(Hello::parse(&bytes), Ok(hello()));

    let confirm = Confirm { hello: bytes, welcome_nonce: [6; 16], tag: [7; 16] };
    let mut bytes = [0xa5; CONFIRM_LEN];
    confirm.emit(&mut bytes);
    assert_eq!(Confirm::parse(&bytes), Ok(confirm));

    let welcome = Welcome {
        has_key: false,
        n_banks: 16,
        instance: 2,
        hello_nonce: [3; 16],
        nonce: [4; 16],
        node: RingInfo { wish: None, ..node(2..6) },
        answer: [6; MESSAGE_LEN],
        tag: [5; 16],
    };
    let mut bytes = [0xa5; WELCOME_LEN];
    welcome.emit(&mut bytes);
    assert_eq!(Welcome::parse(&bytes), Ok(welcome));
}

#[test]
fn every_refusal_parses_to_the_same() {
    let all = [
        Refusal::Version { prev: 1, next: 2 },
        Refusal::KeyNeeded,
        Refusal::KeyUnwanted,
        Refusal::KeyDiffers,
        Refusal::Model { prev: u64::MAX, next: 1 },
        Refusal::Dims { width: Width::Vocab, prev: u32::MAX, next: 7 },
        Refusal::Dtype { prev: Dtype::F16, next: Dtype::F32 },
        Refusal::Layers { prev: 0..4, next: 5..u32::MAX },
        Refusal::Busy { with: name("desk") },
        Refusal::Stray { wanted: name("desk") },
        Refusal::Elsewhere { wanted: name("desk") },
        Refusal::Numerics { prev: 1, next: 2 },
        Refusal::Other(77),
    ];
    for refusal in all {
        let mut bytes = [0xa5; REFUSE_LEN];
        let refuse = Refuse { hello_nonce: [9; 16], refusal, name: name("küche"), tag: [8; 16] };
        refuse.emit(&mut bytes);
        assert_eq!(Refuse::parse(&bytes), Ok(refuse));
    }
}

/// All versions begin a REFUSE with these bytes.
#[test]
fn a_refusal_begins_with_these_bytes() {
    let refusal = Refusal::Version { prev: 7, next: PROTOCOL };
    let refuse = Refuse { hello_nonce: [9; 16], refusal, name: name("pi"), tag: [8; 16] };
    let mut bytes = [0xa5; REFUSE_LEN];
    refuse.emit(&mut bytes);
    assert_eq!(bytes[..16], [9; 16]);
    assert_eq!(
        bytes[16..REFUSE_FIXED],
        [1, 0, 0, 0, 0, 0, 0, 0, 7, 0, 0, 0, 0, 0, 0, 0, 16, 0, 0, 0, 0, 0, 0, 0]
    );
    let short = Refuse::parse(&bytes[..REFUSE_FIXED]).unwrap();
    assert_eq!(short.refusal, refuse.refusal);
    assert!(short.name.is_empty());
}

#[test]
fn a_hello_begins_with_these_bytes() {
    let mut bytes = [0xa5; HELLO_LEN];
    hello().emit(&mut bytes);
    assert_eq!(bytes[..16], [16, 0, 1, 2, 0, 0, 0, 0, 1, 2, 3, 4, 5, 6, 7, 8]);
    assert_eq!(bytes[16..40], [[3; 16].as_slice(), &[4, 0, 0, 0, 0, 0, 0, 0]].concat());
    assert_eq!(bytes[64..80], [0, 0, 0, 0, 6, 0, 0, 0, 0, 0, 0, 0, 2, 0, 0, 0]);
    assert_eq!(
        bytes[80..96],
        [1, 1, 6, NUMERICS, 0, 0, 0, 0, b'k', 0xc3, 0xbc, b'c', b'h', b'e', 0, 0]
    );
}

#[test]
fn other_lengths_are_refused() {
    for len in (0..256).filter(|&len| len != HELLO_LEN) {
        assert!(Hello::parse(&vec![1; len]).is_err(), "{len}");
    }
    for len in (0..256).filter(|&len| len != WELCOME_LEN) {
        assert!(Welcome::parse(&vec![1; len]).is_err(), "{len}");
    }
    for len in (0..256).filter(|&len| len != CONFIRM_LEN) {
        assert!(Confirm::parse(&vec![1; len]).is_err(), "{len}");
    }
    for len in 0..REFUSE_FIXED {
        assert!(Refuse::parse(&vec![1; len]).is_err(), "{len}");
    }
}

#[test]
fn names_of_a_refusal_are_bounded() {
    let refusal = Refusal::Busy { with: name("b") };
    let refuse = Refuse { hello_nonce: [9; 16], refusal, name: name("a"), tag: [8; 16] };
    for (at, value) in [(40, 33), (41, 33), (48, 0xff), (80, 0xff)] {
        let mut bytes = [0; REFUSE_LEN];
        refuse.emit(&mut bytes);
        bytes[at] = value;
        assert_eq!(Refuse::parse(&bytes), Err(WireError::Field("name")), "{at}");
    }
}

#[test]
fn names_are_bounded_and_printable() {
    assert_eq!(name(&"ü".repeat(40)).as_str(), "ü".repeat(16));
    assert_eq!(name("a\x1b[2Jb\n").as_str(), "a?[2Jb?");
    let mut bytes = [0; HELLO_LEN];
    hello().emit(&mut bytes);
    bytes[40 + 42] = 33;
    assert_eq!(Hello::parse(&bytes), Err(WireError::Field("name")));
    bytes[40 + 42] = 2;
    bytes[40 + 48] = 0xff;
    assert_eq!(Hello::parse(&bytes), Err(WireError::Field("name")));
}

#[test]
fn other_versions_can_be_refused() {
    let mut bytes = [0; HELLO_LEN + 10];
    bytes[0] = 77;
    bytes[16..32].fill(8);
    assert_eq!(Hello::stranger(&bytes), Some((77, [8; 16])));
    assert_eq!(Hello::stranger(&bytes[..31]), None);
}

#[test]
fn neighbours_must_fit() {
    let check = |change: fn(&mut RingInfo, &mut RingInfo)| {
        let (mut prev, mut next) = (node(0..2), node(2..6));
        change(&mut prev, &mut next);
        prev.check_next(&next).map_err(|refusal| refusal.to_string())
    };
    assert_eq!(check(|_, _| ()), Ok(()));
    assert_eq!(check(|prev, next| (*prev, *next) = (node(2..6), node(0..2))), Ok(()));
    assert_eq!(
        check(|_, next| next.wish = Some(3..6)).unwrap_err(),
        "layers 0..2 of the previous node and 3..6 of the next node leave a gap; mend the ring \
         file, or --split and --end"
    );
    // A node without layers fits: the master will assign them.
    assert_eq!(check(|_, next| next.wish = None), Ok(()));
    assert!(check(|_, next| next.wish = Some(1..6)).unwrap_err().contains("next node overlap;"));
    assert!(check(|prev, next| (*prev, *next) = (node(2..5), node(0..2))).is_err());
    assert!(check(|prev, _| prev.model = 1).unwrap_err().contains("0000000000000001"));
    assert!(check(|prev, _| prev.dim = 1).unwrap_err().contains("dim is 1"));
    assert!(check(|prev, _| prev.dtype = Dtype::F32).unwrap_err().contains("f32"));
}
