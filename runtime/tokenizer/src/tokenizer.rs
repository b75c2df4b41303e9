use crate::bpe::{Bpe, Scratch};
use crate::bytes::read_leniently;
use crate::charsmap::Charsmap;
use crate::end_of_generation::find_roles;
use crate::error::Error;
use crate::partition::{Fragment, Partition};
use crate::pieces::{Kinds, Pieces, Spelling, escape_spaces};
use crate::pre_tokenizer::pre_tokenizer;
use crate::sentencepiece::SentencePiece;
use crate::split::Splitter;
use crate::text_index::TextIndex;
use crate::unigram::{Part, Rules, Unigram};
use crate::vocabulary::{SpecialIds, Vocabulary};
use std::collections::BTreeSet;

/// Text to token ids and back, for one vocabulary. Cheap to share between threads by reference.
pub struct Tokenizer {
    tokens: TextIndex,
    kinds: Vec<Kinds>,
    pieces: Pieces,
    method: Method,
    special: SpecialIds,
    ends: BTreeSet<u32>,
    suppressed: Vec<u32>,
    warnings: Vec<String>,
    add_bos: bool,
    add_eos: bool,
    add_space_prefix: bool,
    /// Finds control tokens too.
    with_control: Partition,
    /// Finds user-defined tokens only.
    user_defined: Partition,
}

/// The automaton that finds special tokens needs up to some hundred bytes for each byte of their text. Vocabularies have 150 kB at most; a
/// damaged file must not take all memory.
const MOST_SPECIAL_TEXT: usize = 4 << 20;

enum Method {
    Bpe { bpe: Box<Bpe>, splitter: Splitter, escape: bool },
    SentencePiece(SentencePiece),
    Unigram(Unigram),
}

impl std::fmt::Debug for Tokenizer {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let method = match self.method {
            Method::Bpe { .. } => "BPE",
            Method::SentencePiece(_) => "SentencePiece",
            Method::Unigram(_) => "unigram",
        };
        formatter
            .debug_struct("Tokenizer")
            .field("method", &method)
            .field("tokens", &self.len())
            .finish_non_exhaustive()
    }
}

impl Tokenizer {
    /// Build a tokenizer.
    ///
    /// # Errors
    /// A kind of tokenizer or pre-tokenizer that is not known, a missing or damaged array.
    pub fn new(vocabulary: Vocabulary) -> Result<Self, Error> {
        let Vocabulary { model, mut special, .. } = vocabulary;
        let defaults = match model.as_str() {
            "gpt2" | "gemma4" => SpecialIds::default(),
            // What SentencePiece models have where the file does not say.
            "llama" => SpecialIds { bos: Some(1), eos: Some(2), unk: Some(0), ..SpecialIds::default() },
            "t5" => SpecialIds { eos: Some(1), unk: Some(2), pad: Some(0), ..SpecialIds::default() },
            "" | "none" | "no_vocab" => return Err(Error::NoVocabulary { model }),
            _ => return Err(Error::UnsupportedModel { model }),
        };
        let tokens = index_tokens(&vocabulary.tokens, &model)?;
        let count = tokens.len();
        check_length("tokenizer.ggml.scores", vocabulary.scores.as_ref().map(Vec::len), count)?;
        check_length("tokenizer.ggml.token_type", vocabulary.token_types.as_ref().map(Vec::len), count)?;
        let warnings = fill_special(&mut special, defaults, count);
        let mut kinds: Vec<Kinds> = match &vocabulary.token_types {
            Some(types) => types.iter().take(count).map(|&token_type| Kinds::from_type(token_type)).collect(),
            None => vec![Kinds::NORMAL; count],
        };
        let part = |id: u32| match kinds.get(id as usize) {
            Some(kinds) if kinds.has(Kinds::NORMAL) => Part::Normal,
            Some(kinds) if kinds.has(Kinds::USER_DEFINED) => Part::UserDefined,
            Some(kinds) if kinds.has(Kinds::UNUSED) => Part::Unused,
            _ => Part::None,
        };

        let scores = |scores: Option<Vec<f32>>| scores.unwrap_or_else(|| vec![0.0; count]);
        let mut add_space_prefix = false;
        let (method, spelling, add_bos, add_eos) = match model.as_str() {
            "llama" => {
                add_space_prefix = vocabulary.add_space_prefix.unwrap_or(true);
                let method = SentencePiece::new(&tokens, scores(vocabulary.scores), special.unk)?;
                (Method::SentencePiece(method), Spelling::EscapedSpaces, true, false)
            }
            "t5" => {
                add_space_prefix = vocabulary.add_space_prefix.unwrap_or(false);
                let rules = Rules {
                    charsmap: Charsmap::new(vocabulary.precompiled_charsmap.as_deref().unwrap_or_default())?,
                    unknown: special.unk,
                    add_space: add_space_prefix,
                    fold_spaces: vocabulary.remove_extra_whitespaces.unwrap_or(false),
                };
                let method = Unigram::new(&tokens, &scores(vocabulary.scores), part, rules)?;
                (Method::Unigram(method), Spelling::EscapedSpaces, false, true)
            }
            _ => {
                let pre = match model.as_str() {
                    "gemma4" => "gemma4".to_owned(),
                    _ => vocabulary.pre.ok_or(Error::MissingPreTokenizer)?,
                };
                let row = pre_tokenizer(&pre).ok_or(Error::UnknownPreTokenizer { pre })?;
                let merges =
                    vocabulary.merges.ok_or(Error::MissingArray { key: "tokenizer.ggml.merges", model })?;
                let ignore_merges = vocabulary.ignore_merges.unwrap_or(row.ignore_merges);
                let bpe = Box::new(Bpe::new(&tokens, &merges, row.byte_level, ignore_merges)?);
                let splitter = Splitter::new(row.steps);
                let spelling = if row.byte_level { Spelling::Letters } else { Spelling::EscapedSpaces };
                (Method::Bpe { bpe, splitter, escape: !row.byte_level }, spelling, row.add_bos, false)
            }
        };
        let add_bos = vocabulary.add_bos.unwrap_or(add_bos);
        let add_eos = vocabulary.add_eos.unwrap_or(add_eos);
        for (wanted, id, flag, key) in [
            (add_bos, special.bos, "tokenizer.ggml.add_bos_token", "tokenizer.ggml.bos_token_id"),
            (add_eos, special.eos, "tokenizer.ggml.add_eos_token", "tokenizer.ggml.eos_token_id"),
        ] {
            if wanted && id.is_none() {
                return Err(Error::MissingSpecial { flag, key });
            }
        }

        let ends = find_roles(&tokens, &mut kinds, &mut special);
        let control = Kinds::CONTROL.with(Kinds::UNKNOWN);
        let special_text =
            (0u32..).zip(&kinds).filter(|(_, kinds)| kinds.has(control.with(Kinds::USER_DEFINED)));
        let found = special_text.map(|(id, _)| tokens.text(id).len()).sum();
        if found > MOST_SPECIAL_TEXT {
            return Err(Error::TooLarge {
                what: "the text of special tokens",
                found,
                limit: MOST_SPECIAL_TEXT,
            });
        }
        let find = |wanted: &dyn Fn(Kinds) -> bool| {
            let found = (0u32..).zip(&kinds).filter(|(_, kinds)| wanted(**kinds));
            Partition::new(found.map(|(id, _)| (tokens.text(id), id)))
        };
        Ok(Self {
            with_control: find(&|kinds| kinds.has(control.with(Kinds::USER_DEFINED))),
            user_defined: find(&|kinds| kinds.has(Kinds::USER_DEFINED) && !kinds.has(control)),
            pieces: Pieces::new(&tokens, &kinds, spelling),
            warnings,
            suppressed: vocabulary.suppress_tokens.into_iter().filter(|&id| (id as usize) < count).collect(),
            tokens,
            kinds,
            method,
            special,
            ends,
            add_bos,
            add_eos,
            add_space_prefix,
        })
    }

    /// Token ids of a text (of up to 4 GiB).
    ///
    /// `add_special` puts the begin and end tokens around it that the file asks for. `parse_special` turns the text of control tokens
    /// into these tokens: only for text that comes from a template, never for text of a user. User-defined tokens are found
    /// in any text.
    #[must_use]
    pub fn encode(&self, text: &str, add_special: bool, parse_special: bool) -> Vec<u32> {
        self.encode_bytes(text.as_bytes(), add_special, parse_special)
    }

    /// As [`encode`](Self::encode), for text that may be no UTF-8: what is no character counts as U+FFFD (BPE) or as bytes
    /// (SentencePiece).
    #[must_use]
    pub fn encode_bytes(&self, text: &[u8], add_special: bool, parse_special: bool) -> Vec<u32> {
        let mut out = Vec::with_capacity(text.len() / 3 + 2);
        if add_special && self.add_bos {
            out.extend(self.special.bos);
        }
        let partition = if parse_special { &self.with_control } else { &self.user_defined };
        let mut scratch = Scratch::default();
        let mut escaped = Vec::new();
        for fragment in partition.cut(text) {
            let range = match fragment {
                Fragment::Text(range) => range,
                Fragment::Token(id) => {
                    out.push(id);
                    continue;
                }
            };
            let fragment = text.get(range).unwrap_or_default();
            escaped.clear();
            match &self.method {
                Method::Bpe { bpe, splitter, escape } => {
                    let mut fragment = fragment;
                    if *escape {
                        escape_spaces(fragment, &mut escaped);
                        fragment = &escaped;
                    }
                    let read = read_leniently(fragment);
                    for word in splitter.split(&read.view) {
                        let word = read.bytes.get(word).unwrap_or_default();
                        bpe.encode_word(&self.tokens, word, &mut scratch, &mut out);
                    }
                }
                Method::SentencePiece(method) => {
                    // Text stands at the start or behind a special token, and gets a space at both places.
                    if self.add_space_prefix {
                        escape_spaces(b" ", &mut escaped);
                    }
                    escape_spaces(fragment, &mut escaped);
                    method.encode(&self.tokens, &escaped, &mut scratch.remembered, &mut out);
                }
                Method::Unigram(method) => method.encode(&self.tokens, fragment, &mut out),
            }
        }
        if add_special && self.add_eos {
            out.extend(self.special.eos);
        }
        out
    }

    /// The bytes that a token stands for; they may begin or end inside of a character. Control and unknown tokens stand for
    /// nothing unless `special` asks for their text, and so does an id outside of the vocabulary.
    #[must_use]
    pub fn piece(&self, id: u32, special: bool) -> &[u8] {
        let hidden = !special
            && self
                .kinds
                .get(id as usize)
                .is_some_and(|kinds| kinds.has(Kinds::CONTROL.with(Kinds::UNKNOWN)));
        if hidden { &[] } else { self.pieces.get(id) }
    }

    /// The bytes of several tokens: their pieces one after the other.
    #[must_use]
    pub fn decode(&self, ids: &[u32], special: bool) -> Vec<u8> {
        ids.iter().flat_map(|&id| self.piece(id, special)).copied().collect()
    }

    /// The text that was encoded: as [`decode`](Self::decode), without the begin and end tokens that
    /// `encode` added and without the space that SentencePiece puts in front of a text.
    #[must_use]
    pub fn decode_text(&self, ids: &[u32], special: bool) -> Vec<u8> {
        let mut ids = ids;
        if self.add_bos
            && let Some((first, rest)) = ids.split_first()
            && Some(*first) == self.special.bos
        {
            ids = rest;
        }
        if self.add_eos
            && let Some((last, rest)) = ids.split_last()
            && Some(*last) == self.special.eos
        {
            ids = rest;
        }
        let mut text = self.decode(ids, special);
        let text_first = ids.first().is_some_and(|&id| !self.is_control(id));
        if self.add_space_prefix && text_first && text.first() == Some(&b' ') {
            text.remove(0);
        }
        text
    }

    /// Number of tokens. A model's logits may be wider.
    #[must_use]
    pub fn len(&self) -> usize {
        self.tokens.len()
    }

    /// Whether there are no tokens; never true for a tokenizer that was built.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.tokens.len() == 0
    }

    /// The token with exactly this text, as the file spells it.
    #[must_use]
    pub fn id_of(&self, text: &str) -> Option<u32> {
        self.tokens.find(text.as_bytes())
    }

    /// A token's text as the file spells it; `None` outside of the vocabulary.
    #[must_use]
    pub fn text_of(&self, id: u32) -> Option<&[u8]> {
        ((id as usize) < self.len()).then(|| self.tokens.text(id))
    }

    /// The ids of tokens with a role, those told by text included.
    #[must_use]
    pub fn special(&self) -> &SpecialIds {
        &self.special
    }

    /// Whether a token ends a generation.
    #[must_use]
    pub fn is_end_of_generation(&self, id: u32) -> bool {
        self.ends.contains(&id)
    }

    /// All tokens that end a generation, in ascending order.
    pub fn end_of_generation(&self) -> impl Iterator<Item = u32> + '_ {
        self.ends.iter().copied()
    }

    /// Whether a token is hidden in text and found in it only where parsing special tokens is asked.
    #[must_use]
    pub fn is_control(&self, id: u32) -> bool {
        self.kinds.get(id as usize).is_some_and(|kinds| kinds.has(Kinds::CONTROL))
    }

    /// Ids that must never be sampled.
    #[must_use]
    pub fn suppressed(&self) -> &[u32] {
        &self.suppressed
    }

    /// What was odd about the file and could be passed over; lines to log.
    #[must_use]
    pub fn warnings(&self) -> &[String] {
        &self.warnings
    }

    /// Whether `encode` puts a begin-of-sequence token in front.
    #[must_use]
    pub fn add_bos(&self) -> bool {
        self.add_bos
    }

    /// Whether `encode` puts an end-of-sequence token behind.
    #[must_use]
    pub fn add_eos(&self) -> bool {
        self.add_eos
    }
}

fn index_tokens(texts: &[Vec<u8>], model: &str) -> Result<TextIndex, Error> {
    if texts.is_empty() {
        return Err(Error::MissingArray { key: "tokenizer.ggml.tokens", model: model.to_owned() });
    }
    if texts.len() > i32::MAX as usize {
        return Err(Error::TooLarge {
            what: "the number of tokens",
            found: texts.len(),
            limit: i32::MAX as usize,
        });
    }
    let mut tokens = TextIndex::with_capacity(texts.len());
    for (id, text) in (0u32..).zip(texts) {
        let placeholder = format!("[EMPTY_{id}]");
        let text = if text.is_empty() { placeholder.as_bytes() } else { text };
        if let Err(first) = tokens.insert(text)? {
            let text = String::from_utf8_lossy(text).into_owned();
            return Err(Error::DuplicateToken { first, second: id, text });
        }
    }
    Ok(tokens)
}

fn check_length(key: &'static str, found: Option<usize>, expected: usize) -> Result<(), Error> {
    match found {
        Some(found) if found < expected => Err(Error::LengthMismatch { key, found, expected }),
        _ => Ok(()),
    }
}

/// Take the defaults where the file states no id. An id outside of the vocabulary counts as none and gives a line to log.
fn fill_special(special: &mut SpecialIds, mut defaults: SpecialIds, count: usize) -> Vec<String> {
    let mut warnings = Vec::new();
    for ((key, id), (_, default)) in special.with_keys().into_iter().zip(defaults.with_keys()) {
        if let Some(wrong) = id.take_if(|id| *id as usize >= count) {
            warnings.push(format!("{key} = {wrong} is ignored: the vocabulary has {count} tokens"));
        }
        *id = id.or_else(|| default.filter(|&id| (id as usize) < count));
    }
    warnings
}
