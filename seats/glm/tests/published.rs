//! The declaration at the published model's size, without weights: tensors, parameters and state.

use bloomery_seat::check;
use bloomery_seat::prelude::*;
use bloomery_seat::program::{Meta, TensorFacts};
use seat_glm::declare;

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

/// GLM 5.3 Flash, both spellings: 45 layers, of which 11 attend, and a next-token block; 1412 tensors.
#[test]
fn the_published_model_is_declared() {
    for arch in ["glm5next", "glm5-next"] {
        let mut facts = named(
            arch,
            &[
                ("block_count", Meta::Int(46)),
                ("nextn_predict_layers", Meta::Int(1)),
                ("embedding_length", Meta::Int(4096)),
                ("feed_forward_length", Meta::Int(12288)),
                ("attention.head_count", Meta::Int(64)),
                (
                    "attention.head_count_kv",
                    list(&(0..46).map(|l| i64::from(l % 4 == 3 || l == 45)).collect::<Vec<_>>()),
                ),
                ("attention.key_length", Meta::Int(512)),
                ("attention.value_length", Meta::Int(512)),
                ("attention.key_length_mla", Meta::Int(256)),
                ("attention.value_length_mla", Meta::Int(256)),
                ("attention.q_lora_rank", Meta::Int(1536)),
                ("attention.kv_lora_rank", Meta::Int(512)),
                ("rope.dimension_count", Meta::Int(0)),
                ("attention.layer_norm_rms_epsilon", Meta::Float(1e-05)),
                ("attention.layer_norm_epsilon", Meta::Float(1e-06)),
                ("ssm.conv_kernel", Meta::Int(4)),
                ("kda.head_dim", Meta::Int(128)),
                ("kda.gate_lower_bound", Meta::Float(-5.0)),
                ("attention.indexer.head_count", Meta::Int(32)),
                ("attention.indexer.key_length", Meta::Int(128)),
                ("attention.indexer.top_k", Meta::Int(2048)),
                ("attention.indexer.kpool", Meta::Int(4)),
                ("hyper_connection.count", Meta::Int(4)),
                ("hyper_connection.sinkhorn_iterations", Meta::Int(20)),
                ("hyper_connection.epsilon", Meta::Float(1e-06)),
                ("leading_dense_block_count", Meta::Int(3)),
                ("expert_count", Meta::Int(288)),
                ("expert_used_count", Meta::Int(8)),
                ("expert_shared_count", Meta::Int(1)),
                ("expert_feed_forward_length", Meta::Int(2048)),
                ("expert_gating_func", Meta::Int(2)),
                ("expert_weights_norm", Meta::Bool(true)),
                ("expert_weights_scale", Meta::Float(2.5)),
                ("swiglu_clamp_exp", list(&[10; 45])),
                ("swiglu_clamp_shexp", list(&[10; 45])),
            ],
            154_880,
        );
        put(
            &mut facts,
            "",
            &[("token_embd", &[4096, 154_880]), ("output", &[4096, 154_880]), ("output_norm", &[4096])],
        );
        for layer in 0..46 {
            let scope = format!("blk.{layer}.");
            put(&mut facts, &scope, &[("attn_norm", &[4096]), ("ffn_norm", &[4096])]);
            if layer < 45 {
                put(
                    &mut facts,
                    &scope,
                    &[
                        ("hc_attn_fn", &[16384, 24]),
                        ("hc_attn_base", &[24]),
                        ("hc_attn_scale", &[3]),
                        ("hc_ffn_fn", &[16384, 24]),
                        ("hc_ffn_base", &[24]),
                        ("hc_ffn_scale", &[3]),
                    ],
                );
            } else {
                put(
                    &mut facts,
                    &scope,
                    &[
                        ("nextn.eh_proj", &[8192, 4096]),
                        ("nextn.enorm", &[4096]),
                        ("nextn.hnorm", &[4096]),
                        ("nextn.shared_head_norm", &[4096]),
                    ],
                );
            }
            if layer % 4 == 3 || layer == 45 {
                put(
                    &mut facts,
                    &scope,
                    &[
                        ("attn_q_a", &[4096, 1536]),
                        ("attn_q_a_norm", &[1536]),
                        ("attn_q_b", &[1536, 16384]),
                        ("attn_kv_a_mqa", &[4096, 512]),
                        ("attn_kv_a_norm", &[512]),
                        ("attn_k_b", &[256, 512, 64]),
                        ("attn_v_b", &[512, 256, 64]),
                        ("attn_output", &[16384, 4096]),
                        ("indexer.attn_q_b", &[1536, 4096]),
                        ("indexer.attn_k", &[4096, 128]),
                        ("indexer.k_norm", &[128]),
                        ("indexer.k_norm.bias", &[128]),
                        ("indexer.proj", &[4096, 32]),
                        ("indexer_compressor_gate", &[4096, 128]),
                        ("indexer_compressor_ape", &[128, 4]),
                    ],
                );
            } else {
                put(
                    &mut facts,
                    &scope,
                    &[
                        ("attn_q", &[4096, 8192]),
                        ("attn_k", &[4096, 8192]),
                        ("attn_v", &[4096, 8192]),
                        ("ssm_conv1d_q", &[4, 1, 8192]),
                        ("ssm_conv1d_k", &[4, 1, 8192]),
                        ("ssm_conv1d_v", &[4, 1, 8192]),
                        ("ssm_f_a", &[4096, 128]),
                        ("ssm_f_b", &[128, 8192]),
                        ("ssm_dt.bias", &[8192]),
                        ("ssm_a", &[64]),
                        ("ssm_beta", &[4096, 64]),
                        ("ssm_g_a", &[4096, 128]),
                        ("ssm_g_b", &[128, 8192]),
                        ("ssm_norm", &[128]),
                        ("attn_output", &[8192, 4096]),
                    ],
                );
            }
            if layer < 3 {
                put(
                    &mut facts,
                    &scope,
                    &[("ffn_gate", &[4096, 12288]), ("ffn_up", &[4096, 12288]), ("ffn_down", &[12288, 4096])],
                );
            } else {
                put(
                    &mut facts,
                    &scope,
                    &[
                        ("ffn_gate_inp", &[4096, 288]),
                        ("ffn_gate_exps", &[4096, 2048, 288]),
                        ("ffn_up_exps", &[4096, 2048, 288]),
                        ("ffn_down_exps", &[2048, 4096, 288]),
                        ("ffn_gate_shexp", &[4096, 2048]),
                        ("ffn_up_shexp", &[4096, 2048]),
                        ("ffn_down_shexp", &[2048, 4096]),
                        ("exp_probs_b.bias", &[288]),
                    ],
                );
            }
        }
        let program = declare(&facts).expect("declared");
        let summary = check(&program, &facts).expect("checked");
        assert_eq!((summary.tensors_read, summary.unread.len()), (1412, 0));
        assert_eq!(summary.parameters / 1_000_000_000, 320);
        // 12 latent rows and a pooled index key for every four tokens.
        assert_eq!(summary.state_values_per_token, 12.0 * (512.0 + 128.0 / 4.0));
        let (delta, conv, pool) = (34 * 64 * 128 * 128 * 4, 34 * 3 * 24_576 * 4, 12 * 3 * 256 * 4);
        assert_eq!(summary.state_fixed_bytes, delta + conv + pool);
        assert!(program.graphs.iter().any(|g| matches!(g.role, Role::Draft { depth: 1, .. })));
    }
}

#[test]
fn a_missing_key_is_refused_by_name() {
    let error = declare(&named("glm5next", &[], 8)).expect_err("refused").to_string();
    assert!(error.contains("glm5next.embedding_length"), "{error}");
}
