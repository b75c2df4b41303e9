//! What the engine needs to know of a vocabulary.

use std::{
    collections::HashMap,
    sync::{Arc, Mutex, PoisonError},
};

use bloomery_tokenizer::Tokenizer;

/// The text side of token ids.
pub trait Vocabulary: Send + Sync {
    /// The bytes of a token; control tokens have some only when `special` asks for their text.
    fn piece(&self, token: u32, special: bool) -> &[u8];
    /// The token ends a generation.
    fn is_end_of_generation(&self, token: u32) -> bool;
    /// All tokens that end a generation.
    fn end_tokens(&self) -> Vec<u32>;
    /// Tokens that must never be drawn.
    fn suppressed(&self) -> &[u32];
    /// Every token sequence in which `text` can occur: tokens that hold it, and tokens that end with its beginning
    /// followed by the tokens of the rest.
    fn sequences_with(&self, text: &str) -> Vec<Vec<u32>>;
}

/// A model's own vocabulary.
#[derive(Debug)]
pub struct TokenizerVocabulary {
    tokenizer: Arc<Tokenizer>,
    /// End tokens that the seat names beside the file's own.
    more_ends: Vec<u32>,
    /// Sequences are searched in the whole vocabulary, so they are remembered by text. Bounded: see `REMEMBERED`.
    sequences: Mutex<HashMap<String, Vec<Vec<u32>>>>,
}

/// Breaker texts to remember; the usual four come with nearly every request that uses any.
const REMEMBERED: usize = 64;
/// Longest breaker text, bytes, and longest rest, tokens: llama.cpp's limits.
const LONGEST_TEXT: usize = 40;
const LONGEST_REST: usize = 20;

impl TokenizerVocabulary {
    /// Wraps a tokenizer. `stop_tokens` are texts of tokens that end a generation beside the file's own.
    #[must_use]
    pub fn new(tokenizer: Arc<Tokenizer>, stop_tokens: &[String]) -> Self {
        let more_ends = stop_tokens.iter().filter_map(|text| tokenizer.id_of(text)).collect();
        Self { tokenizer, more_ends, sequences: Mutex::default() }
    }

    fn search(&self, text: &str) -> Vec<Vec<u32>> {
        let text = text.get(..text.floor_char_boundary(LONGEST_TEXT)).unwrap_or(text);
        let wanted = text.as_bytes();
        let mut found = Vec::new();
        if wanted.is_empty() {
            return found;
        }
        for id in 0..self.tokenizer.len() as u32 {
            let piece = self.tokenizer.piece(id, true);
            if piece.windows(wanted.len()).any(|window| window == wanted) {
                found.push(vec![id]);
                continue;
            }
            for begun in 1..wanted.len() {
                let (begin, rest) = wanted.split_at(begun);
                if piece.ends_with(begin) {
                    let rest = self.tokenizer.encode_bytes(rest, false, false);
                    found.push(std::iter::once(id).chain(rest.into_iter().take(LONGEST_REST)).collect());
                }
            }
        }
        found
    }
}

impl Vocabulary for TokenizerVocabulary {
    fn piece(&self, token: u32, special: bool) -> &[u8] {
        self.tokenizer.piece(token, special)
    }

    fn is_end_of_generation(&self, token: u32) -> bool {
        self.tokenizer.is_end_of_generation(token) || self.more_ends.contains(&token)
    }

    fn end_tokens(&self) -> Vec<u32> {
        self.tokenizer.end_of_generation().chain(self.more_ends.iter().copied()).collect()
    }

    fn suppressed(&self) -> &[u32] {
        self.tokenizer.suppressed()
    }

    fn sequences_with(&self, text: &str) -> Vec<Vec<u32>> {
        let mut remembered = self.sequences.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(found) = remembered.get(text) {
            return found.clone();
        }
        let found = self.search(text);
        if remembered.len() < REMEMBERED {
            remembered.insert(text.to_owned(), found.clone());
        }
        found
    }
}
