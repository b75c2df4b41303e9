//! Every way in which a file can be wrong has its own error with the facts in it, and no bytes make the reader panic.

mod support;

use bloomery_gguf::{Gguf, GgufError, Value};
use proptest::prelude::*;
use support::{Raw, sample};

fn refused(raw: Raw) -> GgufError {
    Gguf::parse(&raw.0).map(|_| ()).expect_err("the file is malformed")
}

macro_rules! assert_refused {
    ($raw:expr, $pattern:pat $(if $guard:expr)?, $text:expr) => {{
        let error = refused($raw);
        assert!(matches!(&error, $pattern $(if $guard)?), "wrong error: {error:?}");
        let message = error.to_string();
        assert!(message.contains($text), "the message does not say {:?}: {message}", $text);
    }};
}

#[test]
fn magic_and_version() {
    assert_refused!(Raw(b"GGML....".to_vec()), GgufError::BadMagic { found } if found == b"GGML", "\"GGML\"");
    assert_refused!(Raw(b"GG".to_vec()), GgufError::Truncated { remaining: 2, .. }, "magic");
    assert_refused!(Raw(b"GGUF\x03".to_vec()), GgufError::Truncated { offset: 4, .. }, "version");
    for version in [0, 1, 4, 77] {
        let text = format!("version {version} ");
        assert_refused!(Raw::new(version, 0, 0), GgufError::UnsupportedVersion { .. }, &text);
    }
    assert_refused!(Raw::new(3_u32.swap_bytes(), 0, 0), GgufError::BigEndian { version: 3 }, "big-endian");
    assert!(Gguf::parse(&Raw::new(2, 0, 0).0).is_ok());
    assert!(Gguf::parse(&Raw::new(3, 0, 0).0).is_ok());
}

#[test]
fn counts_are_bounded_before_anything_is_read() {
    assert_refused!(
        Raw::new(3, u64::MAX, 0),
        GgufError::TooMany { what: "tensors", .. },
        "18446744073709551615"
    );
    assert_refused!(
        Raw::new(3, 0, 1 << 40),
        GgufError::TooMany { what: "metadata entries", .. },
        "1099511627776"
    );
    // A count within bounds but without the entries.
    assert_refused!(
        Raw::new(3, 0, 1 << 20),
        GgufError::Truncated { offset: 24, remaining: 0, .. },
        "entry 0"
    );
    assert_refused!(Raw::new(3, 1 << 20, 0), GgufError::Truncated { offset: 24, .. }, "tensor 0");
}

#[test]
fn keys() {
    assert_refused!(
        Raw::new(3, 0, 1).string(b"").u32(4).u32(1),
        GgufError::EmptyKey { index: 0, offset: 24 },
        "24"
    );
    let long = vec![b'k'; 65_536];
    assert_refused!(Raw::new(3, 0, 1).string(&long).u32(4).u32(1), GgufError::KeyTooLong { .. }, "65536");
    assert!(Gguf::parse(&Raw::new(3, 0, 1).string(&long[1..]).u32(4).u32(1).0).is_ok());
    assert_refused!(
        Raw::new(3, 0, 1).u64(4000).bytes(b"key"),
        GgufError::Truncated { needed: 4000, .. },
        "entry 0"
    );
    assert_refused!(
        Raw::new(3, 0, 1).string(b"\xff").u32(4).u32(1),
        GgufError::NotUtf8 { offset: 32, .. },
        "entry 0"
    );
    let twice = Raw::new(3, 0, 2).key("a.b", 4).u32(1).key("a.b", 4).u32(2);
    assert_refused!(twice, GgufError::DuplicateKey { offset: 43, .. }, "`a.b`");
}

#[test]
fn values() {
    assert_refused!(
        Raw::new(3, 0, 1).key("k", 13),
        GgufError::UnknownValueType { id: 13, offset: 33, .. },
        "`k`"
    );
    let inner = Raw::new(3, 0, 1).key("k", 9).u32(99).u64(0);
    assert_refused!(inner, GgufError::UnknownValueType { id: 99, offset: 37, .. }, "`k`");
    assert_refused!(
        Raw::new(3, 0, 1).key("k", 10).u32(1),
        GgufError::Truncated { needed: 8, remaining: 4, .. },
        "`k`"
    );
    assert_refused!(
        Raw::new(3, 0, 1).key("k", 7).bytes(&[2]),
        GgufError::InvalidBool { byte: 2, offset: 37, .. },
        "`k`"
    );
    let flags = Raw::new(3, 0, 1).key("k", 9).u32(7).u64(3).bytes(&[0, 1, 9]);
    assert_refused!(flags, GgufError::InvalidBool { byte: 9, offset: 51, .. }, "byte 51");
    assert_refused!(
        Raw::new(3, 0, 1).key("k", 8).string(b"\xc3"),
        GgufError::NotUtf8 { offset: 45, .. },
        "`k`"
    );
    let text = Raw::new(3, 0, 1).key("k", 8).u64(u64::MAX).bytes(b"abc");
    assert_refused!(text, GgufError::Truncated { needed: u64::MAX, remaining: 3, .. }, "`k`");
}

#[test]
fn array_lengths_are_checked_against_the_bytes_that_are_left() {
    for (type_id, element_bytes) in [(0, 1), (3, 2), (5, 4), (12, 8), (8, 8), (9, 12)] {
        let raw = Raw::new(3, 0, 1).key("k", 9).u32(type_id).u64(1 << 40).bytes(&[0; 64]);
        assert_refused!(raw, GgufError::Truncated { needed, .. } if *needed == element_bytes << 40, "`k`");
        let raw = Raw::new(3, 0, 1).key("k", 9).u32(type_id).u64(u64::MAX).bytes(&[0; 64]);
        assert_refused!(raw, GgufError::Truncated { needed: u64::MAX, .. }, "`k`");
    }
    let mut nested = Raw::new(3, 0, 1).key("k", 9);
    for _ in 0..200 {
        nested = nested.u32(9).u64(1);
    }
    assert_refused!(nested.u32(0).u64(0), GgufError::ArrayTooDeep { limit: 8, .. }, "deeper than 8");
    // Eight levels are read, the ninth is where it stops.
    let deep = |levels: u32| {
        let mut raw = Raw::new(3, 0, 1).key("k", 9);
        for _ in 1..levels {
            raw = raw.u32(9).u64(1);
        }
        raw.u32(0).u64(0)
    };
    assert!(Gguf::parse(&deep(8).0).is_ok());
    assert_refused!(deep(9), GgufError::ArrayTooDeep { offset: 133, .. }, "byte 133");
    // Two strings take 16 bytes at least; told before the first is read.
    let strings = Raw::new(3, 0, 1).key("k", 9).u32(8).u64(2).bytes(&[0; 15]);
    assert_refused!(strings, GgufError::Truncated { offset: 49, needed: 16, remaining: 15, .. }, "byte 49");
}

#[test]
fn text_in_arrays_is_checked_where_it_is_read() {
    let raw = Raw::new(3, 0, 1).key("k", 9).u32(8).u64(2).string(b"fine").string(b"\xff\xfe");
    let file = Gguf::parse(&raw.0).unwrap();
    let array = file.metadata().array("k").unwrap();
    assert_eq!(array.strings().collect::<Vec<_>>(), [Ok("fine"), Err(1)]);
    assert_eq!(array.byte_strings().nth(1), Some(&b"\xff\xfe"[..]));
    let error = file.metadata().str_array("k").unwrap_err();
    assert!(error.to_string().contains("element 1 of metadata key `k`"), "{error}");
}

#[test]
fn nested_arrays_know_where_they_lie() {
    let raw =
        Raw::new(3, 0, 1).key("k", 9).u32(9).u64(2).u32(0).u64(1).bytes(&[7]).u32(0).u64(2).bytes(&[8, 9]);
    let file = Gguf::parse(&raw.0).unwrap();
    let outer = file.metadata().array("k").unwrap();
    let inner: Vec<_> = outer.iter().map(|value| value.as_array().unwrap()).collect();
    assert_eq!((outer.offset(), inner[0].offset(), inner[1].offset()), (49, 61, 74));
    assert_eq!((inner[0].bytes(), inner[1].bytes()), (&[7][..], &[8, 9][..]));
    assert_eq!(raw.0[inner[1].offset() as usize], 8);
}

#[test]
fn alignment() {
    let with = |value: u32| Raw::new(3, 0, 1).key("general.alignment", 4).u32(value);
    assert_refused!(with(0), GgufError::BadAlignment { found: 0 }, "power of two");
    assert_refused!(with(48), GgufError::BadAlignment { found: 48 }, "48");
    assert_eq!(Gguf::parse(&with(64).0).unwrap().alignment(), 64);
    let text = Raw::new(3, 0, 1).key("general.alignment", 8).string(b"32");
    assert_refused!(text, GgufError::TypeMismatch { .. }, "general.alignment");
}

#[test]
fn tensor_entries() {
    let data = [0; 256];
    assert_refused!(
        Raw::new(3, 1, 0).tensor("", &[1], 0, 0),
        GgufError::EmptyTensorName { offset: 24, .. },
        "24"
    );
    assert_refused!(
        Raw::new(3, 1, 0).string(b"\xff").u32(1),
        GgufError::NotUtf8 { offset: 32, .. },
        "tensor 0"
    );
    assert_refused!(
        Raw::new(3, 1, 0).string(b"t").u32(5),
        GgufError::TooManyDimensions { found: 5, .. },
        "`t`"
    );
    assert_refused!(Raw::new(3, 1, 0).string(b"t").u32(1), GgufError::Truncated { .. }, "`t`");
    for withdrawn in [4, 5, 31, 36, 5000] {
        let raw = Raw::new(3, 1, 0).tensor("t", &[1], withdrawn, 0).pad(32).bytes(&data);
        assert_refused!(raw, GgufError::UnknownTensorType { id, .. } if *id == withdrawn, "`t`");
    }
    let twice = Raw::new(3, 2, 0).tensor("t", &[1], 0, 0).tensor("t", &[1], 0, 32).pad(32).bytes(&data);
    assert_refused!(twice, GgufError::DuplicateTensor { .. }, "`t` appears twice");
    let partial = Raw::new(3, 1, 0).tensor("t", &[33], 8, 0).pad(32).bytes(&data);
    assert_refused!(partial, GgufError::PartialBlock { row: 33, block: 32, .. }, "Q8_0");
    let shifted = Raw::new(3, 1, 0).tensor("t", &[1], 0, 4).pad(32).bytes(&data);
    assert_refused!(shifted, GgufError::MisalignedTensor { offset: 4, alignment: 32, .. }, "`t`");
}

#[test]
fn shapes_that_overflow() {
    let huge = 1_u64 << 62;
    for dims in
        [&[u64::MAX][..], &[huge, 4], &[huge, 2, 2], &[1 << 32, 1 << 32], &[0, huge, huge], &[huge, 0, 8]]
    {
        // One byte an element (I8), then four (F32).
        for type_id in [24, 0] {
            let raw = Raw::new(3, 1, 0).tensor("t", dims, type_id, 0).pad(32);
            assert_refused!(raw, GgufError::ShapeOverflow { .. }, "too large");
        }
    }
    let wide = Raw::new(3, 1, 0).tensor("t", &[1 << 61], 0, 0).pad(32);
    assert_refused!(wide, GgufError::ShapeOverflow { .. }, "too large");
}

#[test]
fn data_lies_inside_the_file_and_apart() {
    let beyond = Raw::new(3, 1, 0).tensor("t", &[9], 0, 32).pad(32).bytes(&[0; 64]);
    assert_refused!(beyond, GgufError::TensorBeyondEnd { bytes: 36, .. }, "`t` takes 36 bytes");
    let far = Raw::new(3, 1, 0).tensor("t", &[1], 0, u64::MAX - 31).pad(32).bytes(&[0; 64]);
    assert_refused!(far, GgufError::TensorBeyondEnd { .. }, "`t`");
    let overlap = Raw::new(3, 2, 0).tensor("b", &[1], 0, 32).tensor("a", &[9], 0, 0).pad(32).bytes(&[0; 64]);
    assert_refused!(overlap, GgufError::OverlappingTensors { .. }, "`a` and `b` overlap");
    // Nothing overlaps with a tensor without elements.
    let empty = Raw::new(3, 2, 0).tensor("a", &[0, 3], 0, 0).tensor("b", &[1], 0, 0).pad(32).bytes(&[1; 4]);
    let file = Gguf::parse(&empty.0).unwrap();
    assert_eq!(file.data(file.tensor("a").unwrap()), Some(&[][..]));
    assert_eq!(file.data(file.tensor("b").unwrap()), Some(&[1; 4][..]));
}

/// Reads all that a file offers, as the fuzz target does.
fn read_everything(bytes: &[u8]) -> Result<usize, GgufError> {
    fn walk(value: Value<'_>) -> usize {
        match value {
            Value::Array(array) => 1 + array.iter().map(walk).sum::<usize>() + array.strings().count(),
            _ => 1,
        }
    }
    let file = Gguf::parse(bytes)?;
    let values: usize = file.metadata().iter().map(|(_, value)| walk(value)).sum();
    let data: usize =
        file.tensors().iter().map(|tensor| file.data(tensor).expect("inside the file").len()).sum();
    Ok(values + data)
}

#[test]
fn every_truncation_is_an_error() {
    let whole = sample().to_bytes().unwrap();
    let last =
        Gguf::parse(&whole).unwrap().tensors().iter().map(|t| t.offset() + t.byte_length()).max().unwrap();
    for length in 0..last as usize {
        let error = read_everything(&whole[..length]).expect_err("truncated");
        let known = matches!(error, GgufError::Truncated { .. } | GgufError::TensorBeyondEnd { .. });
        assert!(known, "cut at {length}: {error:?}");
    }
    assert!(read_everything(&whole[..last as usize]).is_ok(), "padding at the end is not needed");
}

#[test]
fn every_single_bit_flip_is_read_or_refused() {
    let whole = sample().to_bytes().unwrap();
    let mut refused = 0;
    for position in 0..whole.len() {
        for bit in 0..8 {
            let mut damaged = whole.clone();
            damaged[position] ^= 1 << bit;
            refused += usize::from(read_everything(&damaged).is_err());
        }
    }
    assert!(refused > 1000, "only {refused} flips were noticed");
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 2000, ..ProptestConfig::default() })]

    #[test]
    fn no_damage_makes_the_reader_panic(
        damage in prop::collection::vec((any::<prop::sample::Index>(), any::<u8>()), 1..20),
        cut in any::<prop::sample::Index>(),
    ) {
        let mut bytes = sample().to_bytes().unwrap();
        for (position, byte) in damage {
            let position = position.index(bytes.len());
            bytes[position] = byte;
        }
        let _ = read_everything(&bytes);
        let _ = read_everything(&bytes[..cut.index(bytes.len())]);
    }

    #[test]
    fn no_bytes_after_a_valid_head_make_the_reader_panic(
        tensors in 0_u64..4, entries in 0_u64..4, rest in prop::collection::vec(any::<u8>(), 0..200),
    ) {
        let _ = read_everything(&Raw::new(3, tensors, entries).bytes(&rest).0);
    }
}
