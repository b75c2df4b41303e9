//! The declaration at the published model's size, without weights: tensors, parameters and state.

use bloomery_seat::check;
use bloomery_seat::prelude::*;
use bloomery_seat::program::{Meta, TensorFacts};
use seat_qwen38::declare;

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

/// Qwen3.8 Flash Next: 48 layers, of which 12 attend, 1224 tensors; alone, and with its drafter's file beside it.
#[test]
fn the_published_model_is_declared() {
    for draft in [false, true] {
        let mut facts = named(
            "qwen4exp",
            &[
                ("block_count", Meta::Int(48)),
                ("embedding_length", Meta::Int(2560)),
                ("context_length", Meta::Int(262144)),
                ("attention.head_count", Meta::Int(24)),
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
                ("ssm.time_step_rank", Meta::Int(48)),
                ("ssm.inner_size", Meta::Int(6144)),
                ("full_attention_interval", Meta::Int(4)),
                ("expert_count", Meta::Int(512)),
                ("expert_used_count", Meta::Int(10)),
                ("expert_feed_forward_length", Meta::Int(640)),
                ("expert_shared_feed_forward_length", Meta::Int(640)),
                ("hyper_connection.count", Meta::Int(4)),
                ("hyper_connection.low_rank", Meta::Int(320)),
                ("attention.indexer.head_count", Meta::Int(4)),
                ("attention.indexer.key_length", Meta::Int(128)),
                ("attention.indexer.top_k", Meta::Int(2048)),
                (
                    "attention.compress_ratios",
                    list(&(0..48).map(|l| if l % 4 == 3 { 4 } else { 0 }).collect::<Vec<_>>()),
                ),
                ("ple.layers", list(&[1])),
                ("ple.ngram_size", Meta::Int(3)),
                ("ple.heads_per_ngram", Meta::Int(8)),
                ("ple.conv_kernel", Meta::Int(4)),
                ("ple.eos_token_id", Meta::Int(248044)),
                ("ple.image_token_id", Meta::Int(248056)),
                ("ple.layer_multipliers", list(&[3, 5, 7])),
                ("ple.head_offsets", list(&(0..16).map(|h| h * 20_000_000).collect::<Vec<_>>())),
                ("ple.head_vocab_sizes", list(&[20_000_003; 16])),
                ("embedding_length_per_layer_input", Meta::Int(160)),
            ],
            248_320,
        );
        put(
            &mut facts,
            "",
            &[
                ("token_embd", &[2560, 248320]),
                ("output", &[2560, 248320]),
                ("output_hc_norm", &[10240]),
                ("output_hc_down", &[10240, 320]),
                ("output_hc_up", &[320, 10240]),
                ("per_layer_token_embd", &[160, 320001536]),
            ],
        );
        for layer in 0..48 {
            let scope = format!("blk.{layer}.");
            put(
                &mut facts,
                &scope,
                &[
                    ("hc_attn_norm", &[10240]),
                    ("hc_attn_down", &[10240, 320]),
                    ("hc_attn_up", &[320, 10240]),
                    ("hc_attn_inject", &[10240, 4]),
                    ("hc_ffn_norm", &[10240]),
                    ("hc_ffn_down", &[10240, 320]),
                    ("hc_ffn_up", &[320, 10240]),
                    ("hc_ffn_inject", &[10240, 4]),
                    ("ffn_gate_inp_shexp", &[2560]),
                    ("ffn_gate_inp", &[2560, 512]),
                    ("ffn_gate_exps", &[2560, 640, 512]),
                    ("ffn_up_exps", &[2560, 640, 512]),
                    ("ffn_down_exps", &[640, 2560, 512]),
                    ("ffn_gate_shexp", &[2560, 640]),
                    ("ffn_up_shexp", &[2560, 640]),
                    ("ffn_down_shexp", &[640, 2560]),
                ],
            );
            if layer == 1 {
                put(
                    &mut facts,
                    &scope,
                    &[
                        ("ple_key", &[2560, 10240]),
                        ("ple_value", &[2560, 2560]),
                        ("ple_norm_key", &[10240]),
                        ("ple_norm_query", &[10240]),
                        ("ple_norm_conv", &[10240]),
                        ("ple_conv1d", &[4, 10240]),
                    ],
                );
            }
            if layer % 4 == 3 {
                put(
                    &mut facts,
                    &scope,
                    &[
                        ("attn_q", &[2560, 12288]),
                        ("attn_k", &[2560, 512]),
                        ("attn_v", &[2560, 512]),
                        ("attn_output", &[6144, 2560]),
                        ("attn_q_norm", &[256]),
                        ("attn_k_norm", &[256]),
                        ("indexer.q_proj", &[2560, 512]),
                        ("indexer.k_proj", &[2560, 128]),
                        ("indexer.q_norm", &[128]),
                        ("indexer.k_norm", &[128]),
                    ],
                );
            } else {
                put(
                    &mut facts,
                    &scope,
                    &[
                        ("attn_qkv", &[2560, 10240]),
                        ("attn_gate", &[2560, 6144]),
                        ("ssm_conv1d", &[4, 10240]),
                        ("ssm_dt.bias", &[48]),
                        ("ssm_a", &[48]),
                        ("ssm_beta", &[2560, 48]),
                        ("ssm_alpha", &[2560, 48]),
                        ("ssm_norm", &[128]),
                        ("ssm_out", &[6144, 2560]),
                    ],
                );
            }
        }
        let tensors = facts.tensors.len();
        if draft {
            facts.meta.insert("draft/general.architecture".into(), Meta::Str("qwen4exp".into()));
            facts.meta.insert("draft/qwen4exp.block_count".into(), Meta::Int(49));
            facts.meta.insert("draft/qwen4exp.nextn_predict_layers".into(), Meta::Int(1));
            put(
                &mut facts,
                "draft/blk.48.",
                &[
                    ("hc_attn_norm", &[10240]),
                    ("hc_attn_down", &[10240, 320]),
                    ("hc_attn_up", &[320, 10240]),
                    ("hc_attn_inject", &[10240, 4]),
                    ("hc_ffn_norm", &[10240]),
                    ("hc_ffn_down", &[10240, 320]),
                    ("hc_ffn_up", &[320, 10240]),
                    ("hc_ffn_inject", &[10240, 4]),
                    ("ffn_gate_inp_shexp", &[2560]),
                    ("ffn_gate_inp", &[2560, 512]),
                    ("ffn_gate_exps", &[2560, 640, 512]),
                    ("ffn_up_exps", &[2560, 640, 512]),
                    ("ffn_down_exps", &[640, 2560, 512]),
                    ("ffn_gate_shexp", &[2560, 640]),
                    ("ffn_up_shexp", &[2560, 640]),
                    ("ffn_down_shexp", &[640, 2560]),
                    ("attn_q", &[2560, 12288]),
                    ("attn_k", &[2560, 512]),
                    ("attn_v", &[2560, 512]),
                    ("attn_output", &[6144, 2560]),
                    ("attn_q_norm", &[256]),
                    ("attn_k_norm", &[256]),
                    ("indexer.q_proj", &[2560, 512]),
                    ("indexer.k_proj", &[2560, 128]),
                    ("indexer.q_norm", &[128]),
                    ("indexer.k_norm", &[128]),
                    ("nextn.eh_proj", &[5120, 2560]),
                    ("nextn.enorm", &[2560]),
                    ("nextn.hnorm", &[10240]),
                    ("nextn.hc_head_norm", &[10240]),
                    ("nextn.hc_head_down", &[10240, 320]),
                    ("nextn.hc_head_up", &[320, 10240]),
                ],
            );
        }
        let program = declare(&facts).expect("declared");
        let summary = check(&program, &facts).expect("checked");
        assert_eq!((tensors, program.graphs.len()), (1224, 1 + usize::from(draft)));
        let ple = 9 * 10_240 * 4 + 2 * 4;
        let fixed = 36 * (48 * 128 * 128 + 3 * 10_240) * 4 + ple + 12 * 3 * 128 * 4;
        assert_eq!(summary.state_fixed_bytes, fixed);
        let attending = if draft { 13.0 } else { 12.0 };
        assert_eq!(summary.state_values_per_token, attending * 1024.0 + 12.0 * 128.0 / 4.0);
        if !draft {
            assert_eq!(summary.parameters / 100_000_000, 1_769);
        }
    }
}
