//! The declaration at the published model's size, without weights: tensors, parameters and state.

use bloomery_seat::check;
use bloomery_seat::prelude::*;
use bloomery_seat::program::{Meta, TensorFacts};
use seat_qwen3::declare;

fn list(entries: &[i64]) -> Meta {
    Meta::List(entries.iter().map(|v| Meta::Int(*v)).collect())
}

fn put(facts: &mut ModelFacts, scope: &str, tensors: &[(&str, &[u64])]) {
    for (name, dims) in tensors {
        let bare = name.ends_with(".bias") || *name == "ssm_a" || name.ends_with("!");
        let name = format!("{scope}{}{}", name.trim_end_matches('!'), if bare { "" } else { ".weight" });
        facts.tensors.insert(name, TensorFacts { dims: dims.to_vec(), dtype: "Q8_0".into() });
    }
}

fn named(arch: &str, keys: &[(&str, Meta)], vocabulary: u64) -> ModelFacts {
    let mut facts = ModelFacts { arch: arch.into(), ..ModelFacts::default() };
    for (key, value) in keys {
        facts.meta.insert(format!("{arch}.{key}"), value.clone());
    }
    facts.meta.insert("tokenizer.ggml.tokens".into(), Meta::Elided { elided: vocabulary });
    facts
}

/// Qwen3.6-35B-A3B with its next-token block: 40 layers, of which 10 attend.
#[test]
fn the_published_hybrid_is_declared() {
    for draft in [true, false] {
        let mut facts = named(
            "qwen35moe",
            &[
                ("block_count", Meta::Int(41)),
                ("embedding_length", Meta::Int(2048)),
                ("context_length", Meta::Int(262144)),
                ("attention.head_count", Meta::Int(16)),
                ("attention.head_count_kv", Meta::Int(2)),
                ("attention.key_length", Meta::Int(256)),
                ("attention.value_length", Meta::Int(256)),
                ("attention.layer_norm_rms_epsilon", Meta::Float(1e-06)),
                ("rope.freq_base", Meta::Float(10000000.0)),
                ("rope.dimension_count", Meta::Int(64)),
                ("rope.dimension_sections", list(&[11, 11, 10, 0])),
                ("ssm.conv_kernel", Meta::Int(4)),
                ("ssm.state_size", Meta::Int(128)),
                ("ssm.group_count", Meta::Int(16)),
                ("ssm.time_step_rank", Meta::Int(32)),
                ("ssm.inner_size", Meta::Int(4096)),
                ("full_attention_interval", Meta::Int(4)),
                ("expert_count", Meta::Int(256)),
                ("expert_used_count", Meta::Int(8)),
                ("expert_feed_forward_length", Meta::Int(512)),
                ("expert_shared_feed_forward_length", Meta::Int(512)),
                ("nextn_predict_layers", Meta::Int(1)),
            ],
            248_320,
        );
        put(
            &mut facts,
            "",
            &[("token_embd", &[2048, 248_320]), ("output", &[2048, 248_320]), ("output_norm", &[2048])],
        );
        for layer in 0..40 + i32::from(draft) {
            let scope = format!("blk.{layer}.");
            put(
                &mut facts,
                &scope,
                &[
                    ("attn_norm", &[2048]),
                    ("post_attention_norm", &[2048]),
                    ("ffn_gate_inp_shexp", &[2048]),
                    ("ffn_gate_inp", &[2048, 256]),
                    ("ffn_gate_exps", &[2048, 512, 256]),
                    ("ffn_up_exps", &[2048, 512, 256]),
                    ("ffn_down_exps", &[512, 2048, 256]),
                    ("ffn_gate_shexp", &[2048, 512]),
                    ("ffn_up_shexp", &[2048, 512]),
                    ("ffn_down_shexp", &[512, 2048]),
                ],
            );
            if layer == 40 {
                put(
                    &mut facts,
                    &scope,
                    &[
                        ("nextn.eh_proj", &[4096, 2048]),
                        ("nextn.enorm", &[2048]),
                        ("nextn.hnorm", &[2048]),
                        ("nextn.shared_head_norm", &[2048]),
                    ],
                );
            }
            if layer % 4 == 3 || layer == 40 {
                put(
                    &mut facts,
                    &scope,
                    &[
                        ("attn_q", &[2048, 8192]),
                        ("attn_k", &[2048, 512]),
                        ("attn_v", &[2048, 512]),
                        ("attn_output", &[4096, 2048]),
                        ("attn_q_norm", &[256]),
                        ("attn_k_norm", &[256]),
                    ],
                );
            } else {
                put(
                    &mut facts,
                    &scope,
                    &[
                        ("attn_qkv", &[2048, 8192]),
                        ("attn_gate", &[2048, 4096]),
                        ("ssm_conv1d", &[4, 8192]),
                        ("ssm_dt.bias", &[32]),
                        ("ssm_a", &[32]),
                        ("ssm_beta", &[2048, 32]),
                        ("ssm_alpha", &[2048, 32]),
                        ("ssm_norm", &[128]),
                        ("ssm_out", &[4096, 2048]),
                    ],
                );
            }
        }
        let program = declare(&facts).expect("declared");
        let summary = check(&program, &facts).expect("checked");
        assert_eq!(summary.unread.len(), 0);
        assert_eq!(program.graphs.len(), 1 + usize::from(draft));
        let rows = if draft { 11.0 } else { 10.0 };
        assert_eq!(
            summary.state_values_per_token * 2.0,
            rows * 2048.0,
            "20,480 bytes of f16 without the block"
        );
        assert_eq!(summary.state_fixed_bytes, 30 * (32 * 128 * 128 + 3 * 8192) * 4);
        if !draft {
            assert_eq!(summary.parameters / 1_000_000, 34_660);
        }
    }
}
