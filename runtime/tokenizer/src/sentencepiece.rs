//! SentencePiece's BPE: of all neighbours whose joined text is a token, the pair with the best score goes first.

use crate::bytes::{character_length, token_of_byte};
use crate::error::Error;
use crate::text_index::TextIndex;
use crate::words::{Remembered, SpaceCuts};
use std::cmp::{Ordering, Reverse};
use std::collections::BinaryHeap;

pub(crate) struct SentencePiece {
    scores: Vec<f32>,
    /// What a byte becomes that is part of no token.
    byte_tokens: Vec<u32>,
    cuts: SpaceCuts,
}

struct Symbol {
    start: usize,
    /// 0 marks a symbol that was joined to its left neighbour.
    length: usize,
    previous: usize,
    next: usize,
}

const NONE: usize = usize::MAX;

/// A candidate; the best score first, then the leftmost.
struct Candidate {
    score: f32,
    left: Reverse<usize>,
    length: usize,
}

impl Ord for Candidate {
    fn cmp(&self, other: &Self) -> Ordering {
        self.score.total_cmp(&other.score).then_with(|| self.left.cmp(&other.left))
    }
}

impl PartialOrd for Candidate {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl PartialEq for Candidate {
    fn eq(&self, other: &Self) -> bool {
        self.cmp(other).is_eq()
    }
}

impl Eq for Candidate {}

impl SentencePiece {
    pub(crate) fn new(tokens: &TextIndex, scores: Vec<f32>, unknown: Option<u32>) -> Result<Self, Error> {
        let byte_tokens = (0..=255u8)
            .map(|byte| tokens.find(&token_of_byte(byte)).or_else(|| tokens.find(&[byte])).or(unknown))
            .collect::<Option<Vec<u32>>>()
            .ok_or(Error::NoFallback)?;
        // -0.0 and 0.0 are one score.
        let scores = scores.into_iter().map(|score| score + 0.0).collect();
        let cuts = SpaceCuts::new((0..tokens.len() as u32).map(|id| tokens.text(id)));
        Ok(Self { scores, byte_tokens, cuts })
    }

    /// Append the tokens of a text whose spaces are escaped. It need not be UTF-8.
    pub(crate) fn encode(
        &self,
        tokens: &TextIndex,
        text: &[u8],
        remembered: &mut Remembered,
        out: &mut Vec<u32>,
    ) {
        // What is no UTF-8 is read by its first bytes alone, and such a character may swallow a part of the space behind it.
        if std::str::from_utf8(text).is_err() {
            return self.merge_word(tokens, text, out);
        }
        for range in self.cuts.words(text) {
            let word = text.get(range).unwrap_or_default();
            if !remembered.recall(word, out) {
                let before = out.len();
                self.merge_word(tokens, word, out);
                remembered.remember(word, out.get(before..).unwrap_or_default());
            }
        }
    }

    fn merge_word(&self, tokens: &TextIndex, text: &[u8], out: &mut Vec<u32>) {
        let mut symbols = Vec::with_capacity(text.len());
        let mut start = 0;
        while let Some(&lead) = text.get(start) {
            let length = character_length(lead).min(text.len() - start);
            let index = symbols.len();
            symbols.push(Symbol { start, length, previous: index.wrapping_sub(1), next: index + 1 });
            start += length;
        }
        if let Some(last) = symbols.last_mut() {
            last.next = NONE;
        }

        let mut heap = BinaryHeap::new();
        let offer = |symbols: &[Symbol], heap: &mut BinaryHeap<Candidate>, left: usize, right: usize| {
            let (Some(a), Some(b)) = (symbols.get(left), symbols.get(right)) else { return };
            let length = a.length + b.length;
            // The limit keeps the look-up of a long text from costing its length again and again.
            if length > tokens.longest() {
                return;
            }
            let id = text.get(a.start..a.start + length).and_then(|joined| tokens.find(joined));
            if let Some(&score) = id.and_then(|id| self.scores.get(id as usize)) {
                heap.push(Candidate { score, left: Reverse(left), length });
            }
        };
        for left in 1..symbols.len() {
            offer(&symbols, &mut heap, left - 1, left);
        }
        while let Some(Candidate { left: Reverse(left), length, .. }) = heap.pop() {
            let Some(a) = symbols.get(left) else { continue };
            let (right, before) = (a.next, a.previous);
            let Some(b) = symbols.get(right) else { continue };
            let after = b.next;
            // Out of date where either half was joined to something since: lengths only grow.
            if a.length == 0 || a.length + b.length != length {
                continue;
            }
            if let Some(a) = symbols.get_mut(left) {
                a.length = length;
                a.next = after;
            }
            if let Some(b) = symbols.get_mut(right) {
                b.length = 0;
            }
            if let Some(next) = symbols.get_mut(after) {
                next.previous = left;
            }
            offer(&symbols, &mut heap, before, left);
            offer(&symbols, &mut heap, left, after);
        }
        for symbol in symbols.iter().filter(|symbol| symbol.length > 0) {
            let piece = text.get(symbol.start..symbol.start + symbol.length).unwrap_or_default();
            match tokens.find(piece) {
                Some(id) => out.push(id),
                None => out.extend(piece.iter().filter_map(|&byte| self.byte_tokens.get(usize::from(byte)))),
            }
        }
    }
}
