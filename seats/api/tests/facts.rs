//! Getters name the key and what was found.

use bloomery_seat::prelude::*;
use bloomery_seat::program::{Meta, TensorFacts};
use proptest::prelude::*;

fn facts(entries: &[(&str, Meta)]) -> ModelFacts {
    let mut facts = ModelFacts { arch: "llama".into(), ..ModelFacts::default() };
    for (key, value) in entries {
        facts.meta.insert((*key).into(), value.clone());
    }
    facts
}

fn list(entries: impl IntoIterator<Item = Meta>) -> Meta {
    Meta::List(entries.into_iter().collect())
}

#[test]
fn keys_are_found_with_and_without_the_architecture() {
    let facts = facts(&[("llama.block_count", Meta::Int(2)), ("general.file_type", Meta::Int(7))]);
    assert_eq!(facts.int("block_count"), Ok(2));
    assert_eq!(facts.int("general.file_type"), Ok(7));
    assert_eq!(facts.int("llama.block_count"), Ok(2));
}

#[test]
fn missing_keys_are_named_in_full() {
    let facts = facts(&[]);
    let text = facts.int("block_count").expect_err("missing").to_string();
    assert_eq!(text, "the model has no key `llama.block_count`");
    let text = facts.list_len("tokenizer.ggml.tokens").expect_err("missing").to_string();
    assert_eq!(text, "the model has no key `tokenizer.ggml.tokens`");
    assert_eq!(facts.int_or("x", 3), Ok(3));
    assert_eq!(facts.float_or("x", 0.5), Ok(0.5));
    assert_eq!(facts.bool_or("x", true), Ok(true));
    assert_eq!(facts.string_or("x", "none"), Ok("none"));
    assert_eq!(facts.count_or("x", 4), Ok(4));
}

#[test]
fn other_kinds_are_refused_with_what_was_found() {
    let long = "a".repeat(500);
    for (value, found) in [
        (Meta::Str("two".into()), "found the string \"two\""),
        (Meta::Str(long), "..."),
        (Meta::Float(2.0), "found 2.0"),
        (Meta::Int(-1), "found -1"),
        (Meta::Int(1 << 40), "found 1099511627776"),
        (Meta::Uint(u64::MAX), "found 18446744073709551615"),
        (Meta::Bool(true), "found true"),
        (list([Meta::Int(1)]), "found a list of 1"),
        (Meta::Elided { elided: 9 }, "found a list of 9, too long"),
    ] {
        let facts = facts(&[("llama.block_count", value)]);
        let text = facts.int("block_count").expect_err("refused").to_string();
        assert!(text.starts_with("key `llama.block_count`: expected a 32-bit unsigned integer, "), "{text}");
        assert!(text.contains(found) && text.len() < 200, "{text}");
        assert!(facts.int_or("block_count", 7).is_err(), "a default is for missing keys only");
    }
}

#[test]
fn counts_are_neither_zero_nor_huge() {
    for (value, fits) in [(0, false), (1, true), (65_535, true), (65_536, false), (-3, false)] {
        assert_eq!(facts(&[("llama.n", Meta::Int(value))]).count("n").is_ok(), fits, "{value}");
    }
}

#[test]
fn numbers_must_be_finite_in_32_bits() {
    assert_eq!(facts(&[("llama.x", Meta::Int(3))]).float("x"), Ok(3.0));
    assert_eq!(facts(&[("llama.x", Meta::Uint(u64::MAX))]).float("x"), Ok(u64::MAX as f32));
    assert!(facts(&[("llama.x", Meta::Float(1e300))]).float("x").is_err());
    assert!(facts(&[("llama.x", Meta::Str("1".into()))]).float("x").is_err());
}

#[test]
fn lists_and_strings() {
    let facts = facts(&[
        ("llama.ints", list([1, 2].map(Meta::Int))),
        ("llama.mixed", list([Meta::Int(1), Meta::Str("x".into())])),
        ("llama.bools", list([true, false].map(Meta::Bool))),
        ("llama.name", Meta::Str("n".into())),
        ("llama.long", Meta::Elided { elided: 100_000 }),
        ("llama.hash", list([Meta::Uint(u64::MAX)])),
    ]);
    assert_eq!(facts.ints("ints"), Ok(vec![1, 2]));
    assert_eq!(facts.floats("ints"), Ok(vec![1.0, 2.0]));
    assert_eq!(facts.bools("bools"), Ok(vec![true, false]));
    assert_eq!(facts.longs("hash"), Ok(vec![u64::MAX]));
    assert_eq!(facts.string("name"), Ok("n"));
    assert_eq!((facts.list_len("ints"), facts.list_len("long")), (Ok(2), Ok(100_000)));
    assert!(facts.ints("mixed").expect_err("mixed").to_string().contains("the string \"x\""));
    assert!(facts.ints("long").expect_err("long").to_string().contains("too long to cross"));
    assert!(facts.string("ints").is_err() && facts.list_len("name").is_err());
}

#[test]
fn per_layer_values_are_scalars_or_lists_of_the_right_length() {
    let facts = facts(&[
        ("llama.one", Meta::Int(4)),
        ("llama.each", list([4, 2, 1].map(Meta::Int))),
        ("llama.flag", Meta::Bool(true)),
    ]);
    assert_eq!(facts.counts_per_layer("one", 3), Ok(vec![4, 4, 4]));
    assert_eq!(facts.counts_per_layer("each", 3), Ok(vec![4, 2, 1]));
    assert_eq!(facts.floats_per_layer("each", 3), Ok(vec![4.0, 2.0, 1.0]));
    assert_eq!(facts.bools_per_layer("flag", 2), Ok(vec![true, true]));
    let text = facts.counts_per_layer("each", 4).expect_err("length").to_string();
    assert!(text.contains("a list of 4 of them") && text.contains("found a list of 3"), "{text}");
}

#[test]
fn size_of_the_vocabulary() {
    let mut facts = facts(&[]);
    assert!(facts.n_vocab().is_err());
    let table = TensorFacts { dims: vec![8, 30], dtype: "F32".into() };
    facts.tensors.insert("token_embd.weight".into(), table);
    assert_eq!(facts.n_vocab(), Ok(30));
    facts.meta.insert("llama.vocab_size".into(), Meta::Int(31));
    assert_eq!(facts.n_vocab(), Ok(31));
    facts.meta.insert("tokenizer.ggml.tokens".into(), Meta::Elided { elided: 32 });
    assert_eq!(facts.n_vocab(), Ok(32));
    facts.meta.insert("tokenizer.ggml.tokens".into(), Meta::List(vec![]));
    assert!(facts.n_vocab().expect_err("empty").to_string().contains("tokenizer.ggml.tokens"));
}

fn any_meta() -> impl Strategy<Value = Meta> {
    let leaf = prop_oneof![
        any::<bool>().prop_map(Meta::Bool),
        any::<i64>().prop_map(Meta::Int),
        any::<u64>().prop_map(Meta::Uint),
        any::<f64>().prop_map(Meta::Float),
        ".{0,80}".prop_map(Meta::Str),
        any::<u64>().prop_map(|elided| Meta::Elided { elided }),
    ];
    leaf.prop_recursive(2, 8, 4, |inner| proptest::collection::vec(inner, 0..4).prop_map(Meta::List))
}

proptest! {
    #[test]
    fn no_value_makes_a_getter_panic(value in any_meta(), layers in 0u32..5) {
        let facts = facts(&[("llama.x", value.clone()), ("tokenizer.ggml.tokens", value)]);
        let _ = (facts.int("x"), facts.long("x"), facts.count("x"), facts.float("x"), facts.bool("x"));
        let _ = (facts.string("x"), facts.ints("x"), facts.longs("x"), facts.floats("x"), facts.bools("x"));
        let _ = (facts.list_len("x"), facts.n_vocab(), facts.counts_per_layer("x", layers));
        let _ = bloomery_seat::rope::rope_of(&facts, 8, Pairing::Halves);
    }

    #[test]
    fn no_value_makes_rope_panic(value in any_meta(), key in 0usize..9) {
        let key = [
            "dimension_count", "freq_base", "scaling.type", "scaling.factor", "scaling.attn_factor", "scaling.alpha",
            "scaling.original_context_length", "scaling.yarn_beta_fast", "scaling.yarn_log_multiplier",
        ][key];
        for kind in ["linear", "yarn", "none"] {
            let mut facts = facts(&[("llama.rope.scaling.type", Meta::Str(kind.into()))]);
            facts.meta.insert(format!("llama.rope.{key}"), value.clone());
            if let Err(e) = bloomery_seat::rope::rope_of(&facts, 8, Pairing::Halves) {
                prop_assert!(e.to_string().contains("llama."), "{e}");
            }
        }
    }
}
