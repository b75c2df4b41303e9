//! The seat without a host, a GPU or a model file.

use bloomery_seat::conformance::Conformance;
use bloomery_seat::numbers::Fixture;
use bloomery_seat::program::{Meta, TensorFacts};
use seat_llama::{bloomery_seat_table, declare};

fn fixture() -> Fixture {
    Fixture::read(concat!(env!("CARGO_MANIFEST_DIR"), "/tests/data"), "llama").expect("fixture")
}

#[test]
fn conforms() {
    let mut case = Conformance::new(bloomery_seat_table(), fixture().facts);
    case.optional_keys =
        &["attention.head_count_kv", "attention.key_length", "attention.value_length", "rope.freq_base"];
    case.optional_tensors = &["output.weight"];
    case.state_values_per_token = Some(64.0);
    case.assert();
}

#[test]
fn logits_agree_with_transformers() {
    let fixture = fixture();
    for at_once in [usize::MAX, 1] {
        let program = declare(&fixture.facts).expect("declared");
        let worst = fixture.worst_difference(program, at_once).expect("run");
        assert!(worst < 1e-5, "{at_once} at once: {worst}");
    }
}

#[test]
fn llama_3_factors_and_biases_are_bound() {
    let mut facts = fixture().facts;
    let vector = |n| TensorFacts { dims: vec![n], dtype: "F32".into() };
    facts.tensors.insert("rope_freqs.weight".into(), vector(4));
    facts.tensors.insert("blk.0.attn_q.bias".into(), vector(32));
    let program = declare(&facts).expect("declared");
    let bound: Vec<&String> =
        program.target().expect("target").nodes.iter().flat_map(|n| n.tensors.values()).collect();
    assert_eq!(bound.iter().filter(|t| **t == "rope_freqs.weight").count(), 4, "q and k of two layers");
    assert!(bound.iter().any(|t| *t == "blk.0.attn_q.bias"));
}

#[test]
fn experts_are_refused_by_name() {
    let mut facts = fixture().facts;
    facts.meta.insert("llama.expert_count".into(), Meta::Int(8));
    assert!(declare(&facts).expect_err("refused").to_string().contains("expert_count"));
}
