//! The declaration against logits of transformers 5.24 (random weights, hidden 32, two layers), by the naive executor.

use bloomery_seat::numbers::Fixture;
use seat_qwen3::declare;

#[test]
fn logits_agree_with_transformers() {
    for name in ["qwen3", "qwen3moe"] {
        let fixture =
            Fixture::read(concat!(env!("CARGO_MANIFEST_DIR"), "/tests/data"), name).expect("fixture");
        for at_once in [usize::MAX, 5, 1] {
            let program = declare(&fixture.facts).expect("declared");
            let worst = fixture.worst_difference(program, at_once).expect("run");
            println!("{name}, {at_once} tokens at once: worst difference {worst:.1e} of the largest logit");
            assert!(worst < 1e-5, "{name}, {at_once} at once: {worst}");
        }
    }
}

#[test]
fn a_wrong_declaration_is_seen() {
    let fixture =
        Fixture::read(concat!(env!("CARGO_MANIFEST_DIR"), "/tests/data"), "qwen3").expect("fixture");
    let mut facts = fixture.facts.clone();
    let theta = bloomery_seat::program::Meta::Float(20_000.0);
    facts.meta.insert("qwen3.rope.freq_base".into(), theta);
    let worst = fixture.worst_difference(declare(&facts).expect("declared"), 1).expect("run");
    assert!(worst > 1e-4, "another rotary base went unnoticed: {worst}");
}
