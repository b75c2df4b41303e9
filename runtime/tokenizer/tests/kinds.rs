//! The rules of each kind of tokenizer, on vocabularies small enough to follow by hand, and what is refused.

mod support;

use bloomery_tokenizer::{Error, Tokenizer, Vocabulary};
use support::{kit, kit_vocabulary, sentencepiece, sentencepiece_vocabulary, unigram_vocabulary};

fn texts(tokenizer: &Tokenizer, ids: &[u32]) -> Vec<String> {
    ids.iter().map(|&id| String::from_utf8_lossy(tokenizer.text_of(id).unwrap()).into_owned()).collect()
}

#[test]
fn sentencepiece_puts_a_space_in_front_and_takes_it_away() {
    let tokenizer = sentencepiece();
    let encode = |text: &str, parse| texts(&tokenizer, &tokenizer.encode(text, false, parse));
    assert_eq!(encode("ab", false), ["▁ab"]);
    assert_eq!(encode(" ab", false), ["▁", "▁ab"]);
    assert_eq!(encode("", false), [""; 0]);
    // After a special token too; a control token's text is only text where parsing is not asked.
    assert_eq!(encode("ab</s>ab", true), ["▁ab", "</s>", "▁ab"]);
    assert!(!encode("ab</s>", false).contains(&"</s>".to_owned()));
    assert_eq!(encode("é\n", false), ["▁", "<0xC3>", "<0xA9>", "<0x0A>"]);

    // A first byte of three takes the two bytes behind it along, the start of an escaped space too.
    let ids = tokenizer.encode_bytes(b"\xE4\xBD ab", false, false);
    assert_eq!(texts(&tokenizer, &ids), ["▁", "<0xE4>", "<0xBD>", "<0xE2>", "<0x96>", "<0x81>", "ab"]);

    let ids = tokenizer.encode("ab ab", true, false);
    assert_eq!(ids[0], tokenizer.special().bos.unwrap());
    let bare = Vocabulary { add_bos: Some(false), add_eos: Some(true), ..sentencepiece_vocabulary() };
    let bare = Tokenizer::new(bare).unwrap().encode("ab ab", true, false);
    assert_eq!((&bare[..2], bare[2]), (&ids[1..], tokenizer.special().eos.unwrap()));
    assert_eq!(tokenizer.decode(&ids, false), b" ab ab");
    assert_eq!(tokenizer.decode_text(&ids, false), b"ab ab");
    assert_eq!(tokenizer.decode(&ids, true), b"<s> ab ab");
}

#[test]
fn sentencepiece_takes_the_best_score_then_the_leftmost() {
    let tokenizer =
        Tokenizer::new(Vocabulary { add_space_prefix: Some(false), ..sentencepiece_vocabulary() }).unwrap();
    let encode = |text: &str| texts(&tokenizer, &tokenizer.encode(text, false, false));
    // "bc" scores better than "ab" and "abc" is reached from "a" and "bc" only where the pair is a token.
    assert_eq!(encode("abc"), ["a", "bc"]);
    assert_eq!(encode("ababa"), ["abab", "a"]);
    assert_eq!(encode("aaa"), ["aa", "a"]);
}

#[test]
fn unigram_takes_the_best_sum() {
    let tokenizer = Tokenizer::new(unigram_vocabulary()).unwrap();
    let encode = |text: &str| texts(&tokenizer, &tokenizer.encode(text, false, false));
    // -1.5 for "ab"+"c" beats -3 for "a"+"bc".
    assert_eq!(encode("abc"), ["▁", "ab", "c"]);
    assert_eq!(encode("ab ab"), ["▁", "ab", "▁", "ab"]);
    assert_eq!(encode("  ab  "), ["▁", "ab"]);
    // Neighbouring unknown characters are one unknown token.
    assert_eq!(encode("aéüa"), ["▁", "a", "<unk>", "a"]);
    // A user-defined token is free and found in any text.
    assert_eq!(encode("a<x>b"), ["▁", "a", "<x>", "▁", "b"]);
    let ids = tokenizer.encode("ab", true, false);
    assert_eq!(ids.last().copied(), tokenizer.special().eos);
    assert_eq!(tokenizer.decode_text(&ids, false), b"ab");
}

#[test]
fn control_text_is_hidden_unless_asked() {
    let tokenizer = kit();
    let end = tokenizer.id_of("<|im_end|>").unwrap();
    assert!(tokenizer.is_control(end) && tokenizer.is_end_of_generation(end));
    assert_eq!(tokenizer.encode("a<|im_end|>", false, true).last(), Some(&end));
    assert!(!tokenizer.encode("a<|im_end|>", false, false).contains(&end));
    assert_eq!(tokenizer.piece(end, false), b"");
    assert_eq!(tokenizer.piece(end, true), b"<|im_end|>");
    assert_eq!(tokenizer.piece(u32::MAX, true), b"");
    assert_eq!(tokenizer.text_of(4096), None);
    let ends: Vec<u32> = tokenizer.end_of_generation().collect();
    assert_eq!(ends, [tokenizer.id_of("<|endoftext|>").unwrap(), end]);
}

#[test]
fn whole_words_skip_the_merges_where_the_row_says_so() {
    // "ab" is a token that no merge makes.
    let base = Vocabulary {
        model: "gpt2".to_owned(),
        pre: Some("gpt-2".to_owned()),
        tokens: [b"a".to_vec(), b"b".to_vec(), b"ab".to_vec()].into(),
        merges: Some(Vec::new()),
        add_bos: Some(false),
        ..Vocabulary::default()
    };
    let ids = |vocabulary: Vocabulary| Tokenizer::new(vocabulary).unwrap().encode("ab", false, false);
    assert_eq!(ids(base.clone()), [0, 1]);
    assert_eq!(ids(Vocabulary { pre: Some("llama-bpe".to_owned()), ..base.clone() }), [2]);
    assert_eq!(ids(Vocabulary { ignore_merges: Some(true), ..base }), [2]);
}

#[test]
fn refused_by_name() {
    let refuse = |change: &dyn Fn(&mut Vocabulary)| {
        let mut vocabulary = kit_vocabulary();
        change(&mut vocabulary);
        Tokenizer::new(vocabulary).unwrap_err()
    };
    let unknown = refuse(&|vocabulary| vocabulary.pre = Some("qwen9".to_owned()));
    assert_eq!(unknown, Error::UnknownPreTokenizer { pre: "qwen9".to_owned() });
    assert!(unknown.to_string().contains("qwen9") && unknown.to_string().contains("qwen35"));
    assert_eq!(refuse(&|vocabulary| vocabulary.pre = None), Error::MissingPreTokenizer);
    let model = "bert".to_owned();
    assert_eq!(refuse(&|vocabulary| vocabulary.model = "bert".to_owned()), Error::UnsupportedModel { model });
    let model = "no_vocab".to_owned();
    assert_eq!(refuse(&|vocabulary| vocabulary.model = "no_vocab".to_owned()), Error::NoVocabulary { model });
    assert!(matches!(refuse(&|vocabulary| vocabulary.merges = None), Error::MissingArray { .. }));
    assert!(matches!(refuse(&|vocabulary| vocabulary.tokens.clear()), Error::MissingArray { .. }));
    assert!(matches!(
        refuse(&|vocabulary| vocabulary.token_types = Some(vec![1])),
        Error::LengthMismatch { .. }
    ));
    assert!(matches!(
        refuse(&|vocabulary| vocabulary.tokens[7] = b"a".to_vec()),
        Error::DuplicateToken { .. }
    ));
    assert!(matches!(refuse(&|vocabulary| vocabulary.add_bos = Some(true)), Error::MissingSpecial { .. }));
    let broken = Vocabulary { precompiled_charsmap: Some(vec![9; 9]), ..unigram_vocabulary() };
    assert!(matches!(Tokenizer::new(broken).unwrap_err(), Error::BadCharsmap { .. }));
    let mut bare = sentencepiece_vocabulary();
    bare.special.unk = None;
    bare.tokens.truncate(100);
    bare.tokens.swap(0, 99);
    assert!(Tokenizer::new(bare).is_ok(), "token 0 is the unknown one where the file does not say");
}

#[test]
fn an_id_outside_of_the_vocabulary_is_told() {
    let mut vocabulary = kit_vocabulary();
    vocabulary.special.pad = Some(99_999);
    let tokenizer = Tokenizer::new(vocabulary).unwrap();
    assert_eq!(tokenizer.special().pad, None);
    assert_eq!(tokenizer.warnings().len(), 1);
    assert!(tokenizer.warnings()[0].contains("padding_token_id = 99999"));
}

#[test]
fn special_text_without_end() {
    let mut vocabulary = kit_vocabulary();
    vocabulary.tokens[4000] = vec![b'x'; 5 << 20];
    vocabulary.token_types.as_mut().unwrap()[4000] = 4;
    assert!(matches!(Tokenizer::new(vocabulary).unwrap_err(), Error::TooLarge { .. }));
}

#[test]
fn shared_between_threads() {
    fn shared<T: Send + Sync>() {}
    shared::<Tokenizer>();
}
