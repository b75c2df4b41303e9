//! The declaration: what the seat accepts, what it says about it, and what it refuses by name.

use bloomery_seat::conformance::Conformance;
use bloomery_seat::prelude::*;
use bloomery_seat::program::{Meta, TensorFacts, text::text};
use bloomery_seat::{Error, check, facts_from_json};
use seat_qwen3::declare;

fn facts(name: &str) -> ModelFacts {
    let path = format!("{}/tests/data/{name}.facts.json", env!("CARGO_MANIFEST_DIR"));
    facts_from_json(&std::fs::read_to_string(path).expect("fixture")).expect("facts")
}

/// Two tensors of attention in each layer are enough to see what changes.
fn rope_of_first(program: &Program) -> Rope {
    let mut ropes = program.target().expect("target").nodes.iter().filter_map(|n| match &n.op {
        Op::Rope(rope) => Some(rope.clone()),
        _ => None,
    });
    ropes.next().expect("a rope")
}

#[test]
fn dense_conforms() {
    let mut case = Conformance::new(seat_qwen3::bloomery_seat_table(), facts("qwen3"));
    case.optional_keys =
        &["attention.head_count_kv", "attention.key_length", "attention.value_length", "rope.freq_base"];
    case.optional_tensors = &["output.weight"];
    // 2 layers, 2 heads, 8 key and 8 value values.
    case.state_values_per_token = Some(64.0);
    case.state_fixed_bytes = Some(0);
    case.assert();
}

#[test]
fn experts_conform() {
    let mut case = Conformance::new(seat_qwen3::bloomery_seat_table(), facts("qwen3moe"));
    case.optional_keys =
        &["attention.head_count_kv", "attention.key_length", "attention.value_length", "rope.freq_base"];
    case.optional_tensors = &["output.weight"];
    case.state_values_per_token = Some(64.0);
    case.assert();
}

#[test]
fn declaration_is_the_committed_one() {
    for name in ["qwen3", "qwen3moe"] {
        let path = format!("{}/tests/data/{name}.program.txt", env!("CARGO_MANIFEST_DIR"));
        let found = text(&declare(&facts(name)).expect("declared"));
        if std::env::var_os("UPDATE_SNAPSHOTS").is_some() {
            std::fs::write(&path, &found).expect("written");
        }
        let expected = std::fs::read_to_string(&path).expect("snapshot");
        assert_eq!(found, expected, "run with UPDATE_SNAPSHOTS=1 if the change is meant");
    }
}

#[test]
fn golden_names_are_those_of_the_field() {
    let program = declare(&facts("qwen3moe")).expect("declared");
    let target = program.target().expect("target");
    let names: Vec<String> = target
        .nodes
        .iter()
        .flat_map(|n| &n.outs)
        .map(|o| bloomery_seat::names::golden_name(&o.name))
        .collect();
    for layer in 0..2 {
        for word in [
            "attn_norm",
            "ffn_inp",
            "ffn_norm",
            "ffn_moe_logits",
            "ffn_moe_topk",
            "ffn_moe_weights_norm",
            "ffn_moe_out",
            "l_out",
        ] {
            assert!(names.contains(&format!("{word}-{layer}")), "{word}-{layer} is not among {names:?}");
        }
    }
    assert!(names.contains(&"result_norm".to_string()) && names.contains(&"result_output".to_string()));
}

#[test]
fn tied_output_reads_the_token_table() {
    let mut facts = facts("qwen3");
    facts.tensors.remove("output.weight");
    let program = declare(&facts).expect("declared");
    let last = program.target().expect("target").nodes.last().expect("nodes").clone();
    assert_eq!(last.tensors["weight"], "token_embd.weight");
}

#[test]
fn attention_biases_are_bound_when_the_file_has_them() {
    let mut facts = facts("qwen3");
    for (name, width) in [("attn_q", 32), ("attn_k", 16), ("attn_v", 16), ("attn_output", 32)] {
        let bias = TensorFacts { dims: vec![width], dtype: "F32".into() };
        facts.tensors.insert(format!("blk.1.{name}.bias"), bias);
    }
    let program = declare(&facts).expect("declared");
    let summary = check(&program, &facts).expect("checked");
    assert_eq!(summary.unread, Vec::<String>::new());
    facts.tensors.get_mut("blk.1.attn_k.bias").expect("bias").dims = vec![32];
    let error = declare(&facts).expect_err("refused").to_string();
    assert!(error.contains("blk.1.attn_k.bias"), "{error}");
}

#[test]
fn rope_scaling_is_read_or_refused_by_name() {
    let mut facts = facts("qwen3moe");
    let mut set = |key: &str, value: Meta| facts.meta.insert(format!("qwen3moe.rope.scaling.{key}"), value);
    set("type", Meta::Str("linear".into()));
    set("factor", Meta::Float(4.0));
    let linear = facts.clone();
    facts.meta.insert("qwen3moe.rope.scaling.type".into(), Meta::Str("yarn".into()));
    facts.meta.insert("qwen3moe.rope.scaling.original_context_length".into(), Meta::Int(40_960));
    let yarn = facts.clone();
    facts.meta.insert("qwen3moe.rope.scaling.type".into(), Meta::Str("longrope".into()));

    assert_eq!(rope_of_first(&declare(&linear).expect("linear")).linear_factor, 4.0);
    let rope = rope_of_first(&declare(&yarn).expect("yarn"));
    let scaling = rope.yarn.expect("yarn");
    assert_eq!((rope.linear_factor, scaling.factor, scaling.original_context), (1.0, 4.0, 40_960));
    assert_eq!((scaling.beta_fast, scaling.beta_slow), (32.0, 1.0));
    assert!((scaling.magnitude - 1.138_629_4).abs() < 1e-6, "1 + 0.1 ln 4, found {}", scaling.magnitude);
    let error = declare(&facts).expect_err("longrope").to_string();
    assert!(error.contains("qwen3moe.rope.scaling.type") && error.contains("longrope"), "{error}");
}

#[test]
fn width_of_experts_follows_from_the_older_key() {
    let mut facts = facts("qwen3moe");
    facts.meta.remove("qwen3moe.expert_feed_forward_length");
    facts.meta.insert("qwen3moe.feed_forward_length".into(), Meta::Int(128));
    declare(&facts).expect("128 values of 2 experts are 64 of each");
}

#[test]
fn other_routers_are_refused() {
    for (key, value) in [
        ("expert_gating_func", Meta::Int(2)),
        ("expert_weights_norm", Meta::Bool(false)),
        ("expert_shared_count", Meta::Int(1)),
    ] {
        let mut facts = facts("qwen3moe");
        facts.meta.insert(format!("qwen3moe.{key}"), value);
        let error = declare(&facts).expect_err(key).to_string();
        assert!(error.contains(key), "{error}");
    }
}

#[test]
fn unread_tensors_are_listed_at_once() {
    let mut facts = facts("qwen3moe");
    for name in ["blk.0.ffn_gate_shexp.weight", "blk.1.attn_sinks.weight", "rope_freqs.weight"] {
        facts.tensors.insert(name.into(), TensorFacts { dims: vec![4], dtype: "F32".into() });
    }
    let Err(Error::Unread { tensors }) = declare(&facts) else { panic!("not refused") };
    assert_eq!(tensors, ["blk.0.ffn_gate_shexp.weight", "blk.1.attn_sinks.weight", "rope_freqs.weight"]);
}

/// Qwen3-30B-A3B-Instruct-2507: 48 layers, 579 tensors, 98,304 bytes of f16 keys and values a token.
#[test]
fn the_published_model_is_declared() {
    let mut facts = ModelFacts { arch: "qwen3moe".into(), ..ModelFacts::default() };
    for (key, value) in [
        ("block_count", 48),
        ("embedding_length", 2048),
        ("context_length", 262_144),
        ("attention.head_count", 32),
        ("attention.head_count_kv", 4),
        ("attention.key_length", 128),
        ("attention.value_length", 128),
        ("expert_count", 128),
        ("expert_used_count", 8),
        ("expert_feed_forward_length", 768),
    ] {
        facts.meta.insert(format!("qwen3moe.{key}"), Meta::Int(value));
    }
    facts.meta.insert("qwen3moe.attention.layer_norm_rms_epsilon".into(), Meta::Float(1e-6));
    facts.meta.insert("qwen3moe.rope.freq_base".into(), Meta::Float(1e7));
    facts.meta.insert("tokenizer.ggml.tokens".into(), Meta::Elided { elided: 151_936 });
    let mut put = |name: String, dims: &[u64]| {
        facts.tensors.insert(name, TensorFacts { dims: dims.to_vec(), dtype: "Q4_K".into() });
    };
    put("token_embd.weight".into(), &[2048, 151_936]);
    put("output.weight".into(), &[2048, 151_936]);
    put("output_norm.weight".into(), &[2048]);
    for layer in 0..48 {
        for (name, dims) in [
            ("attn_norm", &[2048][..]),
            ("ffn_norm", &[2048]),
            ("attn_q", &[2048, 4096]),
            ("attn_k", &[2048, 512]),
            ("attn_v", &[2048, 512]),
            ("attn_output", &[4096, 2048]),
            ("attn_q_norm", &[128]),
            ("attn_k_norm", &[128]),
            ("ffn_gate_inp", &[2048, 128]),
            ("ffn_gate_exps", &[2048, 768, 128]),
            ("ffn_up_exps", &[2048, 768, 128]),
            ("ffn_down_exps", &[768, 2048, 128]),
        ] {
            put(format!("blk.{layer}.{name}.weight"), dims);
        }
    }
    let program = declare(&facts).expect("declared");
    let summary = check(&program, &facts).expect("checked");
    assert_eq!((summary.tensors_read, summary.unread.len()), (579, 0));
    assert_eq!(summary.state_values_per_token * 2.0, 98_304.0, "bytes of f16");
    assert_eq!(summary.parameters, 30_532_122_624);
    assert_eq!(program.language, bloomery_seat::Version { major: 1, minor: 0 });
}
