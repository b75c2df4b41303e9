//! One million equal characters, for every kind of tokenizer and every row of the table: done in a moment, or this test never ends.

mod support;

use bloomery_tokenizer::split::Splitter;
use bloomery_tokenizer::{PRE_TOKENIZERS, Tokenizer, Vocabulary};
use support::{kit_vocabulary, sentencepiece, unigram};

const RUN: usize = 1_000_000;

fn check(name: &str, tokenizer: &Tokenizer, unit: &str) {
    let text = unit.repeat(RUN / unit.chars().count());
    let ids = tokenizer.encode(&text, false, true);
    let back = tokenizer.decode_text(&ids, true);
    assert!(back == text.as_bytes(), "{name}: a run of {unit:?} came back as {} bytes", back.len());
}

#[test]
fn every_pattern() {
    for row in PRE_TOKENIZERS {
        let splitter = Splitter::new(row.steps);
        for unit in ["a", " ", "\n", "1", "é", "'"] {
            let text = unit.repeat(RUN / unit.chars().count());
            let mut end = 0;
            for word in splitter.split(&text) {
                assert_eq!(word.start, end, "{} leaves a gap in a run of {unit:?}", row.names[0]);
                end = word.end;
            }
            assert_eq!(end, text.len(), "{} stops in a run of {unit:?}", row.names[0]);
        }
        // White space that a look-ahead tries to give back, again and again.
        let text = [" ".repeat(RUN), "x".to_owned(), "\t".repeat(RUN), "\n".to_owned()].concat();
        assert!(splitter.split(&text).len() <= text.len());
    }
}

#[test]
fn byte_level() {
    for unit in ["a", " ", "\n", "1", "!", "é"] {
        check("kit", &support::kit(), unit);
    }
}

#[test]
fn one_word_that_merges_at_every_level() {
    // a, aa, aaaa, ... up to 2^16: the merge queue is as deep as it gets.
    let mut tokens: Vec<Vec<u8>> = (b'!'..=b'~').map(|byte| vec![byte]).collect();
    let mut merges = Vec::new();
    for level in 0..16 {
        let half = vec![b'a'; 1 << level];
        merges.push([&half[..], b" ", &half].concat());
        tokens.push([&half[..], &half].concat());
    }
    let vocabulary = Vocabulary {
        model: "gpt2".to_owned(),
        pre: Some("gpt-2".to_owned()),
        tokens,
        merges: Some(merges),
        ..Vocabulary::default()
    };
    let tokenizer = Tokenizer::new(vocabulary).unwrap();
    check("doubling", &tokenizer, "a");
    assert_eq!(tokenizer.encode(&"a".repeat(1 << 17), false, false).len(), 2);
}

#[test]
fn special_tokens_side_by_side() {
    let mut vocabulary = kit_vocabulary();
    for length in 1..30 {
        vocabulary.tokens.push("\u{2193}".repeat(length).into_bytes());
        vocabulary.token_types.as_mut().unwrap().push(4);
    }
    check("user-defined", &Tokenizer::new(vocabulary).unwrap(), "\u{2193}");
    check("control", &support::kit(), "<|im_end|>");
    check("control", &support::kit(), "<|im_end");
}

#[test]
fn score_driven_kinds() {
    for unit in ["a", "b", "\n", "ab"] {
        check("SentencePiece", &sentencepiece(), unit);
        check("unigram", &unigram(), unit);
    }
    check("SentencePiece", &sentencepiece(), "é");
    check("SentencePiece", &sentencepiece(), " ");
    let unknown = unigram().encode(&"é".repeat(RUN), false, false);
    assert_eq!(unknown.len(), 2, "a run of unknown characters is one unknown token");
}
