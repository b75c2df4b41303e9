//! The fuzzer's committed corpus: every file in it is read completely or refused, here without the fuzzer. To write the
//! seeds anew after the format or the list below changed: `cargo test -p bloomery-gguf --test corpus -- --ignored`.

mod support;

use std::path::{Path, PathBuf};

use bloomery_gguf::{Gguf, GgufWriter, OwnedValue, ValueType, WeightType};
use support::{Raw, sample};

fn corpus() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("fuzz/corpus/parse")
}

#[test]
fn every_file_of_the_corpus_is_read_or_refused() {
    let (mut read, mut refused) = (0, 0);
    for entry in std::fs::read_dir(corpus()).expect("the corpus is committed") {
        let bytes = std::fs::read(entry.unwrap().path()).unwrap();
        match Gguf::parse(&bytes) {
            Ok(file) => {
                assert!(file.tensors().iter().all(|tensor| file.data(tensor).is_some()));
                assert_eq!(file.metadata().iter().count(), file.metadata().len());
                read += 1;
            }
            Err(error) => {
                assert!(!error.to_string().is_empty());
                refused += 1;
            }
        }
    }
    assert!(read >= 20 && refused >= 10, "{read} read, {refused} refused");
}

#[test]
#[ignore = "writes the seeds into the source tree"]
fn write_seeds() {
    std::fs::create_dir_all(corpus()).unwrap();
    for (name, bytes) in seeds() {
        std::fs::write(corpus().join(name), bytes).unwrap();
    }
}

fn seeds() -> Vec<(String, Vec<u8>)> {
    let mut seeds = Vec::new();
    let mut add = |name: &str, bytes: Vec<u8>| seeds.push((name.to_owned(), bytes));
    let mut file = |name: &str, writer: &GgufWriter<'_>| add(name, writer.to_bytes().unwrap());

    file("sample", &sample());
    file("empty", &GgufWriter::new());
    for value in values() {
        let name = value.value_type().name();
        file(&format!("value-{name}"), GgufWriter::new().metadata("key", value.clone()));
        let array = OwnedValue::Array(value.value_type(), vec![value.clone(), value]);
        file(&format!("array-{name}"), GgufWriter::new().metadata("key", array));
    }
    let mut nested = OwnedValue::from(vec!["x", "yz"]);
    for _ in 0..6 {
        nested = OwnedValue::Array(ValueType::Array, vec![nested.clone(), nested]);
    }
    file("nested", GgufWriter::new().metadata("key", nested));
    for weight_type in WeightType::ALL {
        let row = weight_type.block_len() as u64;
        let data = vec![1; weight_type.block_bytes()];
        file(&format!("tensor-{weight_type}"), GgufWriter::new().tensor("t", &[row, 1], *weight_type, data));
    }
    for alignment in [1_u32, 8, 256] {
        let mut writer = GgufWriter::new();
        writer.metadata("general.alignment", alignment);
        writer.tensor_f32("a", &[3, 1, 1, 1], &[1.0; 3]).tensor_f32("b", &[], &[2.0]);
        file(&format!("alignment-{alignment}"), &writer);
    }
    let mut split = GgufWriter::new();
    split.metadata("split.no", 0_u16).metadata("split.count", 2_u16).metadata("split.tensors.count", 4_i32);
    file("split", &split);

    let refused = [
        ("bad-big-endian", Raw::new(0x0300_0000, 0, 0)),
        ("bad-version", Raw::new(1, 0, 0)),
        ("bad-count", Raw::new(3, u64::MAX, 1)),
        ("bad-type", Raw::new(3, 0, 1).key("k", 13)),
        ("bad-array-length", Raw::new(3, 0, 1).key("k", 9).u32(8).u64(1 << 40).bytes(&[0; 32])),
        ("bad-duplicate-key", Raw::new(3, 0, 2).key("k", 4).u32(1).key("k", 4).u32(1)),
        ("bad-bool", Raw::new(3, 0, 1).key("k", 7).bytes(&[2])),
        ("bad-utf8", Raw::new(3, 0, 1).key("k", 8).string(b"\xff")),
        ("bad-shape", Raw::new(3, 1, 0).tensor("t", &[1 << 62, 8], 0, 0).pad(32)),
        ("bad-tensor-type", Raw::new(3, 1, 0).tensor("t", &[1], 4, 0).pad(32).u32(0)),
        (
            "bad-overlap",
            Raw::new(3, 2, 0).tensor("a", &[9], 0, 0).tensor("b", &[1], 0, 32).pad(32).bytes(&[0; 64]),
        ),
        ("bad-data", Raw::new(3, 1, 0).tensor("t", &[9], 0, 0).pad(32)),
    ];
    seeds.extend(refused.map(|(name, raw)| (name.to_owned(), raw.0)));
    seeds
}

fn values() -> Vec<OwnedValue> {
    vec![
        1_u8.into(),
        (-1_i8).into(),
        2_u16.into(),
        (-2_i16).into(),
        3_u32.into(),
        (-3_i32).into(),
        0.5_f32.into(),
        true.into(),
        "text".into(),
        vec![1_u32, 2].into(),
        4_u64.into(),
        (-4_i64).into(),
        0.25_f64.into(),
    ]
}
