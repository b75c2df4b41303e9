//! What holds for any text.

mod support;

use bloomery_tokenizer::{PRE_TOKENIZERS, StreamDecoder, Tokenizer, Vocabulary};
use proptest::prelude::*;
use std::sync::LazyLock;
use support::{kit, kit_vocabulary, sentencepiece, unigram};

static KIT: LazyLock<Tokenizer> = LazyLock::new(kit);
static SENTENCEPIECE: LazyLock<Tokenizer> = LazyLock::new(sentencepiece);
static UNIGRAM: LazyLock<Tokenizer> = LazyLock::new(unigram);
/// One tokenizer a byte-level row.
static ROWS: LazyLock<Vec<Tokenizer>> = LazyLock::new(|| {
    let build = |name: &&str| {
        let pre = Some((*name).to_owned());
        Tokenizer::new(Vocabulary { pre, add_bos: Some(false), ..kit_vocabulary() }).unwrap()
    };
    PRE_TOKENIZERS.iter().filter(|row| row.byte_level).map(|row| build(&row.names[0])).collect()
});

fn text() -> impl Strategy<Value = String> {
    let part = prop_oneof![
        4 => prop::sample::select(vec![
            " ", "  ", "\n", "\r\n", "\t", "a", "The", "'s", "'LL", "1", "1234567", "é", "e\u{301}", "नमस्ते", "你好", "한글", "😀", "\u{200d}",
            "<|im_end|>", "<|im_start", "<think>", "!", "...", "</s>", "\u{2581}", "<0x0A>", "\u{a0}", "\u{3000}", "~", "_", "\0", "\u{7f}",
        ])
        .prop_map(str::to_owned),
        2 => any::<char>().prop_map(String::from),
        1 => "\\PC{1,8}",
        1 => "[a-z ]{1,24}",
    ];
    prop::collection::vec(part, 0..24).prop_map(|parts| parts.concat())
}

/// Text of tokens and merges: mostly what means something.
fn word() -> impl Strategy<Value = Vec<u8>> {
    let part = prop::sample::select(vec![
        "a",
        "b",
        " ",
        "Ġ",
        "Ċ",
        "\u{2581}",
        "<0x0A>",
        "</s>",
        "<|im_end|>",
        "\n",
        "é",
        "unused",
    ]);
    prop_oneof![
        8 => prop::collection::vec(part, 0..4).prop_map(|parts| parts.concat().into_bytes()),
        1 => prop::collection::vec(any::<u8>(), 0..6),
    ]
}

/// Vocabularies as a damaged or hostile file may hold them.
fn vocabulary() -> impl Strategy<Value = Vocabulary> {
    let model = prop::sample::select(vec!["gpt2", "gemma4", "llama", "t5", "bert", "none", ""]);
    let pre = prop::sample::select(vec!["gpt-2", "qwen2", "llama-bpe", "gemma4", "deepseek-llm", "?"]);
    let tokens =
        prop::collection::hash_set(word(), 0..24).prop_map(|texts| texts.into_iter().collect::<Vec<_>>());
    let special = (prop::option::of(0u32..24), prop::option::of(0u32..24), prop::option::of(0u32..24));
    let scores =
        prop::option::of(prop::collection::vec(prop_oneof![any::<f32>(), Just(f32::NAN), Just(-1.0)], 24));
    (
        (model, prop::option::of(pre), tokens, scores),
        prop::option::of(prop::collection::vec(-1i32..8, 20..26)),
        prop::option::of(prop::collection::vec(
            (word(), word()).prop_map(|(a, b)| [a, b" ".to_vec(), b].concat()),
            0..16,
        )),
        prop::option::of(prop::collection::vec(any::<u8>(), 0..64)),
        (
            special,
            prop::option::of(any::<bool>()),
            prop::option::of(any::<bool>()),
            prop::option::of(any::<bool>()),
        ),
    )
        .prop_map(
            |((model, pre, tokens, scores), token_types, merges, charsmap, (special, bos, space, fold))| {
                let mut vocabulary = Vocabulary {
                    model: model.to_owned(),
                    pre: pre.map(str::to_owned),
                    tokens,
                    scores,
                    token_types,
                    merges,
                    precompiled_charsmap: charsmap,
                    add_bos: bos,
                    add_space_prefix: space,
                    remove_extra_whitespaces: fold,
                    ..Vocabulary::default()
                };
                (vocabulary.special.bos, vocabulary.special.eos, vocabulary.special.unk) = special;
                vocabulary
            },
        )
}

proptest! {
    #[test]
    fn any_vocabulary_is_refused_or_works(vocabulary in vocabulary(), text in text(), bytes in prop::collection::vec(any::<u8>(), 0..24)) {
        if let Ok(tokenizer) = Tokenizer::new(vocabulary) {
            for text in [text.as_bytes(), &bytes] {
                for id in tokenizer.encode_bytes(text, true, true) {
                    prop_assert!((id as usize) < tokenizer.len());
                    prop_assert!(tokenizer.piece(id, true).len() >= tokenizer.piece(id, false).len());
                }
            }
        }
    }

    #[test]
    fn byte_level_text_comes_back(text in text()) {
        for tokenizer in ROWS.iter() {
            let ids = tokenizer.encode(&text, false, false);
            prop_assert_eq!(String::from_utf8(tokenizer.decode(&ids, false)).unwrap(), text.as_str());
        }
        let ids = KIT.encode(&text, false, true);
        prop_assert_eq!(String::from_utf8(KIT.decode(&ids, true)).unwrap(), text);
    }

    #[test]
    fn sentencepiece_text_comes_back(text in text()) {
        // A U+2581 in the text is a space afterwards: the escape cannot be told from it.
        let ids = SENTENCEPIECE.encode(&text, true, false);
        prop_assert_eq!(String::from_utf8(SENTENCEPIECE.decode_text(&ids, false)).unwrap(), text.replace('\u{2581}', " "));
    }

    #[test]
    fn any_bytes_become_known_ids(bytes in prop::collection::vec(any::<u8>(), 0..64), special in any::<bool>(), parse in any::<bool>()) {
        for tokenizer in [&*KIT, &SENTENCEPIECE, &UNIGRAM] {
            for id in tokenizer.encode_bytes(&bytes, special, parse) {
                prop_assert!((id as usize) < tokenizer.len());
            }
        }
    }

    #[test]
    fn streamed_text_is_the_whole_text(ids in prop::collection::vec(0u32..4200, 0..48), special in any::<bool>()) {
        let mut decoder = StreamDecoder::new(special);
        let mut text: String = ids.iter().map(|&id| decoder.push(&KIT, id)).collect();
        text += &decoder.finish();
        let whole = KIT.decode(&ids, special);
        prop_assert_eq!(text, String::from_utf8_lossy(&whole));
    }

    #[test]
    fn users_cannot_write_control_tokens(text in text()) {
        for id in KIT.encode(&text, false, false) {
            prop_assert!(!KIT.is_control(id));
        }
    }
}
