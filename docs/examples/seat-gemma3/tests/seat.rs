//! The seat without a host, a GPU or a model file.

use bloomery_seat::conformance::Conformance;
use bloomery_seat::numbers::Fixture;
use bloomery_seat::program::op::{Attention, Function, Rope};
use bloomery_seat::program::{Meta, ModelFacts, Op, TensorFacts};
use seat_gemma3::{bloomery_seat_table, declare};

fn fixture() -> Fixture {
    Fixture::read(concat!(env!("CARGO_MANIFEST_DIR"), "/tests/data"), "gemma3").expect("fixture")
}

fn attentions(facts: &ModelFacts) -> Vec<(Rope, Attention)> {
    let program = declare(facts).expect("declared");
    let nodes = &program.target().expect("target").nodes;
    let ropes =
        nodes.iter().filter_map(|n| if let Op::Rope(rope) = &n.op { Some(rope.clone()) } else { None });
    let attentions =
        nodes.iter().filter_map(|n| if let Op::Attention(a) = &n.op { Some(a.clone()) } else { None });
    ropes.step_by(2).zip(attentions).collect()
}

#[test]
fn conforms() {
    let mut case = Conformance::new(bloomery_seat_table(), fixture().facts);
    case.optional_keys = &[
        "attention.head_count_kv",
        "attention.key_length",
        "attention.value_length",
        "attention.sliding_window",
        "attention.sliding_window_pattern",
        "rope.freq_base_swa",
    ];
    case.optional_tensors = &["output.weight"];
    case.state_values_per_token = Some(96.0);
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

/// Keys and tensors of gemma-3-270m as its file has them: 18 layers, no pattern key, tied output.
fn gemma_3_270m() -> ModelFacts {
    let mut facts = ModelFacts { arch: "gemma3".into(), ..ModelFacts::default() };
    for (key, value) in [
        ("block_count", 18),
        ("context_length", 32_768),
        ("embedding_length", 640),
        ("feed_forward_length", 2048),
        ("attention.head_count", 4),
        ("attention.head_count_kv", 1),
        ("attention.key_length", 256),
        ("attention.value_length", 256),
        ("attention.sliding_window", 512),
    ] {
        facts.meta.insert(format!("gemma3.{key}"), Meta::Int(value));
    }
    facts.meta.insert("gemma3.attention.layer_norm_rms_epsilon".into(), Meta::Float(1e-6));
    facts.meta.insert("gemma3.rope.freq_base".into(), Meta::Float(1e6));
    facts.meta.insert("tokenizer.ggml.tokens".into(), Meta::Elided { elided: 262_144 });
    let mut put = |name: String, dims: &[u64]| {
        facts.tensors.insert(name, TensorFacts { dims: dims.to_vec(), dtype: "F32".into() });
    };
    put("token_embd.weight".into(), &[640, 262_144]);
    put("output_norm.weight".into(), &[640]);
    for layer in 0..18 {
        for name in ["attn_norm", "post_attention_norm", "ffn_norm", "post_ffw_norm"] {
            put(format!("blk.{layer}.{name}.weight"), &[640]);
        }
        for (name, dims) in [
            ("attn_q", &[640, 1024][..]),
            ("attn_k", &[640, 256]),
            ("attn_v", &[640, 256]),
            ("attn_output", &[1024, 640]),
            ("attn_q_norm", &[256]),
            ("attn_k_norm", &[256]),
            ("ffn_gate", &[640, 2048]),
            ("ffn_up", &[640, 2048]),
            ("ffn_down", &[2048, 640]),
        ] {
            put(format!("blk.{layer}.{name}.weight"), dims);
        }
    }
    facts
}

#[test]
fn every_sixth_layer_of_270m_is_full() {
    let found = attentions(&gemma_3_270m());
    assert_eq!(found.len(), 18);
    for (layer, (rope, attention)) in found.iter().enumerate() {
        let full = layer % 6 == 5;
        assert_eq!(attention.sources[0].window, (!full).then_some(512), "layer {layer}");
        assert_eq!(rope.theta, if full { 1e6 } else { 1e4 }, "layer {layer}");
        assert_eq!(attention.scale, 1.0 / 16.0);
    }
}

#[test]
fn scaling_is_for_full_layers_only() {
    let mut facts = gemma_3_270m();
    facts.meta.insert("gemma3.rope.scaling.type".into(), Meta::Str("linear".into()));
    facts.meta.insert("gemma3.rope.scaling.factor".into(), Meta::Float(8.0));
    let found = attentions(&facts);
    assert_eq!((found[0].0.linear_factor, found[5].0.linear_factor), (1.0, 8.0));
}

#[test]
fn patterns_may_be_lists_and_windows_may_be_absent() {
    let mut facts = fixture().facts;
    let pattern = "gemma3.attention.sliding_window_pattern";
    facts.meta.insert(pattern.into(), Meta::List([true, false, true].map(Meta::Bool).to_vec()));
    let windows: Vec<bool> = attentions(&facts).iter().map(|(_, a)| a.sources[0].window.is_some()).collect();
    assert_eq!(windows, [true, false, true]);
    facts.meta.insert(pattern.into(), Meta::List(vec![Meta::Bool(true)]));
    assert!(declare(&facts).expect_err("one of three").to_string().contains("sliding_window_pattern"));
    facts.meta.remove(pattern);
    facts.meta.remove("gemma3.attention.sliding_window");
    assert!(attentions(&facts).iter().all(|(_, a)| a.sources[0].window.is_none()));
}

#[test]
fn final_logits_are_capped_when_the_file_says_so() {
    let mut facts = fixture().facts;
    facts.meta.insert("gemma3.final_logit_softcapping".into(), Meta::Float(30.0));
    let program = declare(&facts).expect("declared");
    let nodes = &program.target().expect("target").nodes;
    assert!(matches!(nodes[nodes.len() - 2].op, Op::Unary { function: Function::Tanh }));
}
