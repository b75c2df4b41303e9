//! Vocabularies for tests: the kit's own, and others where they were fetched.
#![allow(dead_code)]

mod gguf;

use bloomery_tokenizer::{Tokenizer, Vocabulary};
use gguf::Keys;
use serde_json::Value;
use std::path::{Path, PathBuf};
use std::sync::LazyLock;

pub fn data() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../tests/data/tokenizer")
}

pub fn read_json(path: &Path) -> Value {
    let text = std::fs::read(path).unwrap_or_else(|error| panic!("{}: {error}", path.display()));
    serde_json::from_slice(&text).unwrap()
}

/// The kit's vocabulary: 4,096 entries, byte-level BPE, `qwen2`; the demo model carries it.
pub fn kit_vocabulary() -> Vocabulary {
    static KIT: LazyLock<Vocabulary> =
        LazyLock::new(|| vocabulary_of_file(&data().join("../demo/ember-qwen3moe-25m-Q4_K_M.gguf")));
    KIT.clone()
}

pub fn kit() -> Tokenizer {
    Tokenizer::new(kit_vocabulary()).unwrap()
}

/// The folder of fetched vocabularies, or `None` after saying that there is none.
pub fn fetched_folder() -> Option<PathBuf> {
    let folder = std::env::var_os("BLOOMERY_VOCABULARIES").map(PathBuf::from);
    if folder.is_none() {
        println!(
            "skipped: BLOOMERY_VOCABULARIES is not set (tests/data/tokenizer/fetch.py makes the folder)"
        );
    }
    folder
}

/// A fetched vocabulary, or `None` after saying that it is not there.
pub fn fetched(name: &str) -> Option<Vocabulary> {
    let path = fetched_folder()?.join(format!("{name}.gguf"));
    if !path.exists() {
        println!("skipped: no {}", path.display());
        return None;
    }
    Some(vocabulary_of_file(&path))
}

pub fn vocabulary_of_file(path: &Path) -> Vocabulary {
    let file = bloomery_gguf::GgufFile::open(path).unwrap();
    Vocabulary::from_metadata(&Keys(file.metadata())).unwrap()
}

/// SentencePiece with `<unk>`, `<s>`, `</s>`, all bytes and a few pieces.
pub fn sentencepiece_vocabulary() -> Vocabulary {
    let mut tokens: Vec<(Vec<u8>, f32, i32)> =
        vec![(b"<unk>".to_vec(), 0.0, 2), (b"<s>".to_vec(), 0.0, 3), (b"</s>".to_vec(), 0.0, 3)];
    tokens.extend((0..=255u8).map(|byte| (format!("<0x{byte:02X}>").into_bytes(), 0.0, 6)));
    for (text, score) in [
        ("▁", -1.0),
        ("a", -2.0),
        ("b", -3.0),
        ("c", -4.0),
        ("ab", -6.0),
        ("bc", -5.0),
        ("▁ab", -7.0),
        ("▁a", -8.0),
        ("abab", -9.0),
        ("aa", -10.0),
    ] {
        tokens.push((text.as_bytes().to_vec(), score, 1));
    }
    Vocabulary {
        model: "llama".to_owned(),
        scores: Some(tokens.iter().map(|token| token.1).collect()),
        token_types: Some(tokens.iter().map(|token| token.2).collect()),
        tokens: tokens.into_iter().map(|token| token.0).collect(),
        ..Vocabulary::default()
    }
}

pub fn sentencepiece() -> Tokenizer {
    Tokenizer::new(sentencepiece_vocabulary()).unwrap()
}

/// Unigram with `<pad>`, `</s>`, `<unk>` and a few pieces.
pub fn unigram_vocabulary() -> Vocabulary {
    let tokens = [
        ("<pad>", 0.0, 3),
        ("</s>", 0.0, 3),
        ("<unk>", 0.0, 2),
        ("▁", -0.5, 1),
        ("a", -2.0, 1),
        ("b", -2.0, 1),
        ("c", -0.5, 1),
        ("ab", -1.0, 1),
        ("bc", -1.0, 1),
        ("<x>", -9.0, 4),
        ("\n", -1.0, 1),
    ];
    Vocabulary {
        model: "t5".to_owned(),
        scores: Some(tokens.iter().map(|token| token.1).collect()),
        token_types: Some(tokens.iter().map(|token| token.2).collect()),
        tokens: tokens.iter().map(|token| token.0.as_bytes().to_vec()).collect(),
        add_space_prefix: Some(true),
        remove_extra_whitespaces: Some(true),
        ..Vocabulary::default()
    }
}

pub fn unigram() -> Tokenizer {
    Tokenizer::new(unigram_vocabulary()).unwrap()
}
