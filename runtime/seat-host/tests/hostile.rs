//! Foreign bytes of every kind: read or refused, never a panic.

use bloomery_program::{ModelFacts, Version};
use bloomery_seat_host::seat::read_program;
use bloomery_seat_host::{answer, elf};
use proptest::prelude::*;
use std::sync::OnceLock;

const V1_0: Version = Version { major: 1, minor: 0 };

fn data(name: &str) -> Vec<u8> {
    let path = format!("{}/tests/data/{name}", env!("CARGO_MANIFEST_DIR"));
    std::fs::read(path).expect("test data")
}

fn facts() -> &'static ModelFacts {
    static FACTS: OnceLock<ModelFacts> = OnceLock::new();
    FACTS.get_or_init(|| serde_json::from_slice(&data("qwen3moe.facts.json")).expect("facts"))
}

fn program() -> &'static serde_json::Value {
    static PROGRAM: OnceLock<serde_json::Value> = OnceLock::new();
    PROGRAM.get_or_init(|| serde_json::from_slice(&data("qwen3moe.language-1.0.json")).expect("program"))
}

/// Replaces the n-th leaf of a document.
fn spoil(value: &mut serde_json::Value, n: &mut usize, with: &serde_json::Value) {
    match value {
        serde_json::Value::Array(entries) => entries.iter_mut().for_each(|v| spoil(v, n, with)),
        serde_json::Value::Object(fields) => fields.values_mut().for_each(|v| spoil(v, n, with)),
        leaf => {
            if *n == 0 {
                *leaf = with.clone();
            }
            *n = n.wrapping_sub(1);
        }
    }
}

fn any_leaf() -> impl Strategy<Value = serde_json::Value> {
    prop_oneof![
        Just(serde_json::Value::Null),
        any::<bool>().prop_map(Into::into),
        any::<i64>().prop_map(Into::into),
        any::<u32>().prop_map(Into::into),
        (0u32..64).prop_map(Into::into),
        any::<f64>().prop_map(|f| serde_json::json!(f)),
        "[a-z_.0-9]{0,12}".prop_map(Into::into),
        prop_oneof![
            Just("blk.0.ffn_gate_exps.weight"),
            Just("output_norm.weight"),
            Just("truncate"),
            Just("add")
        ]
        .prop_map(Into::into),
    ]
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(2000))]

    #[test]
    fn a_program_with_a_spoilt_leaf_is_read_or_refused(leaf in 0usize..900, with in any_leaf()) {
        let mut spoilt = program().clone();
        let mut n = leaf;
        spoil(&mut spoilt, &mut n, &with);
        let bytes = serde_json::to_vec(&spoilt).expect("JSON");
        if let Ok(checked) = read_program(&bytes, "qwen3", facts(), V1_0) {
            prop_assert!(checked.summary.nodes > 0);
        }
    }

    #[test]
    fn any_bytes_are_no_program(bytes in proptest::collection::vec(any::<u8>(), 0..200)) {
        prop_assert!(read_program(&bytes, "qwen3", facts(), V1_0).is_err());
        let _ = answer::read(&bytes);
        prop_assert!(elf::check(&bytes).is_err());
    }

    #[test]
    fn a_spoilt_elf_header_is_read_or_refused(changes in proptest::collection::vec((0usize..256, any::<u8>()), 0..12)) {
        let mut bytes = vec![0u8; 256];
        bytes[..7].copy_from_slice(b"\x7fELF\x02\x01\x01");
        bytes[16] = 3;
        bytes[18] = if cfg!(target_arch = "x86_64") { 62 } else { 183 };
        bytes[32] = 64;
        bytes[54] = 56;
        bytes[56] = 2;
        bytes[64] = 1;
        bytes[64 + 56] = 2;
        for (at, byte) in changes {
            bytes[at] = byte;
        }
        let _ = elf::check(&bytes);
    }
}

#[test]
fn the_untouched_ones_are_read() {
    let bytes = serde_json::to_vec(program()).expect("JSON");
    assert!(read_program(&bytes, "qwen3", facts(), V1_0).is_ok());
}
