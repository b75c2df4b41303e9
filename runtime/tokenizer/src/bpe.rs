//! Byte-pair encoding by rank: of all neighbours that a merge rule joins, the rule that stands first in the list goes first.

use crate::bytes::{bytes_of_letters, character_length, letter_of_byte, token_of_byte};
use crate::error::Error;
use crate::text_index::TextIndex;
use crate::words::{Remembered, SpaceCuts};
use rustc_hash::FxHashMap;
use std::cmp::Reverse;
use std::collections::BinaryHeap;

/// Stands for a character that no token and no merge knows.
const UNKNOWN: u32 = u32::MAX;
/// Words up to this many symbols are merged by scanning for the best pair, which beats a heap there.
const SCAN_LIMIT: usize = 40;

/// Merge rules over symbols. A symbol below the number of tokens is that token, the others are halves and results of merges
/// that are no token themselves.
pub(crate) struct Bpe {
    /// Rank and resulting symbol of a pair, which is packed left first.
    merges: FxHashMap<u64, (u32, u32)>,
    token_count: u32,
    /// Text of the symbols that are no tokens; id 0 is symbol `token_count`.
    extra: TextIndex,
    /// The symbol that each byte starts as (byte-level), or the token it falls back to (raw UTF-8).
    byte_symbols: [u32; 256],
    byte_level: bool,
    /// Where raw UTF-8 may be cut; byte-level words are short already.
    cuts: Option<SpaceCuts>,
    /// Words that are taken whole, by their bytes.
    whole_words: Option<FxHashMap<Box<[u8]>, u32>>,
}

/// Working memory of one call.
#[derive(Default)]
pub(crate) struct Scratch {
    nodes: Vec<Node>,
    ranks: Vec<(u32, u32)>,
    heap: BinaryHeap<Reverse<(u32, u32, u32, u32)>>,
    pub(crate) remembered: Remembered,
}

/// A symbol of a word under merge; `length` 0 marks one that was joined to its left neighbour.
#[derive(Clone, Copy)]
struct Node {
    symbol: u32,
    start: u32,
    length: u32,
    previous: u32,
    next: u32,
}

const NONE: u32 = u32::MAX;

impl Bpe {
    pub(crate) fn new(
        tokens: &TextIndex,
        merges: &[Vec<u8>],
        byte_level: bool,
        ignore_merges: bool,
    ) -> Result<Self, Error> {
        let token_count = tokens.len() as u32;
        let mut bpe = Self {
            merges: FxHashMap::with_capacity_and_hasher(merges.len(), Default::default()),
            token_count,
            extra: TextIndex::default(),
            byte_symbols: [UNKNOWN; 256],
            byte_level,
            cuts: None,
            whole_words: None,
        };
        let mut joined = Vec::new();
        for (rank, merge) in merges.iter().enumerate() {
            // A space may itself be the first character of the left half.
            let Some(space) = merge.iter().skip(1).position(|&byte| byte == b' ') else { continue };
            let (left, right) = merge.split_at(space + 1);
            let right = right.get(1..).unwrap_or_default();
            joined.clear();
            joined.extend_from_slice(left);
            joined.extend_from_slice(right);
            let left = bpe.symbol(tokens, left)?;
            let right = bpe.symbol(tokens, right)?;
            let result = bpe.symbol(tokens, &joined)?;
            bpe.merges.entry(pair(left, right)).or_insert((rank as u32, result));
        }
        for byte in 0..=255u8 {
            let symbol = if byte_level {
                bpe.find(tokens, letter_of_byte(byte).encode_utf8(&mut [0; 4]).as_bytes())
            } else {
                tokens.find(&token_of_byte(byte))
            };
            if let Some(slot) = bpe.byte_symbols.get_mut(usize::from(byte)) {
                *slot = symbol.unwrap_or(UNKNOWN);
            }
        }
        if !byte_level {
            let extra = (0..bpe.extra.len() as u32).map(|id| bpe.extra.text(id));
            bpe.cuts = Some(SpaceCuts::new((0..token_count).map(|id| tokens.text(id)).chain(extra)));
        }
        if ignore_merges {
            let mut words = FxHashMap::with_capacity_and_hasher(tokens.len(), Default::default());
            for id in 0..token_count {
                let text = tokens.text(id);
                let bytes = if byte_level { bytes_of_letters(text) } else { Some(text.to_vec()) };
                if let Some(bytes) = bytes {
                    words.insert(bytes.into_boxed_slice(), id);
                }
            }
            bpe.whole_words = Some(words);
        }
        Ok(bpe)
    }

    fn find(&self, tokens: &TextIndex, text: &[u8]) -> Option<u32> {
        tokens.find(text).or_else(|| self.extra.find(text).map(|id| self.token_count + id))
    }

    fn symbol(&mut self, tokens: &TextIndex, text: &[u8]) -> Result<u32, Error> {
        match tokens.find(text) {
            Some(id) => Ok(id),
            None => {
                let id = self.extra.insert(text)?.unwrap_or_else(|old| old);
                self.token_count.checked_add(id).filter(|&symbol| symbol != UNKNOWN).ok_or(Error::TooLarge {
                    what: "the number of merge symbols",
                    found: self.extra.len(),
                    limit: (UNKNOWN - 1 - self.token_count) as usize,
                })
            }
        }
    }

    /// Append the tokens of one word.
    ///
    /// A byte that the vocabulary cannot express leaves nothing, as in the reference implementation; vocabularies with all
    /// 256 bytes have no such case.
    pub(crate) fn encode_word(
        &self,
        tokens: &TextIndex,
        word: &[u8],
        scratch: &mut Scratch,
        out: &mut Vec<u32>,
    ) {
        if let Some(&id) = self.whole_words.as_ref().and_then(|words| words.get(word)) {
            out.push(id);
            return;
        }
        if !self.byte_level
            && word.iter().all(|&byte| byte == b'\n')
            && let Some(id) = tokens.find(word)
        {
            out.push(id);
            return;
        }
        match &self.cuts {
            None => self.merge_word(tokens, word, scratch, out),
            Some(cuts) => {
                for range in cuts.words(word) {
                    self.merge_word(tokens, word.get(range).unwrap_or_default(), scratch, out);
                }
            }
        }
    }

    fn merge_word(&self, tokens: &TextIndex, word: &[u8], scratch: &mut Scratch, out: &mut Vec<u32>) {
        if scratch.remembered.recall(word, out) {
            return;
        }
        let before = out.len();
        self.start(tokens, word, &mut scratch.nodes);
        if scratch.nodes.len() <= SCAN_LIMIT {
            self.merge_by_scan(&mut scratch.nodes, &mut scratch.ranks);
        } else {
            self.merge_by_heap(&mut scratch.nodes, &mut scratch.heap);
        }
        for node in scratch.nodes.iter().filter(|node| node.length > 0) {
            self.emit(tokens, node, word, out);
        }
        scratch.remembered.remember(word, out.get(before..).unwrap_or_default());
    }

    /// One node a byte (byte-level) or a character.
    fn start(&self, tokens: &TextIndex, word: &[u8], nodes: &mut Vec<Node>) {
        nodes.clear();
        let mut start = 0;
        while let Some(&byte) = word.get(start) {
            let length = if self.byte_level { 1 } else { character_length(byte).min(word.len() - start) };
            let symbol = if self.byte_level {
                self.byte_symbols.get(usize::from(byte)).copied()
            } else {
                self.find(tokens, word.get(start..start + length).unwrap_or_default())
            };
            let index = nodes.len() as u32;
            nodes.push(Node {
                symbol: symbol.unwrap_or(UNKNOWN),
                start: start as u32,
                length: length as u32,
                previous: index.wrapping_sub(1),
                next: index + 1,
            });
            start += length;
        }
        if let Some(last) = nodes.last_mut() {
            last.next = NONE;
        }
    }

    fn rule(&self, left: u32, right: u32) -> Option<(u32, u32)> {
        self.merges.get(&pair(left, right)).copied()
    }

    /// Quadratic in the number of symbols, which is small; removes joined nodes.
    fn merge_by_scan(&self, nodes: &mut Vec<Node>, ranks: &mut Vec<(u32, u32)>) {
        const NO_RULE: (u32, u32) = (u32::MAX, UNKNOWN);
        let rule_at = |nodes: &[Node], at: usize| match (nodes.get(at), nodes.get(at + 1)) {
            (Some(left), Some(right)) => self.rule(left.symbol, right.symbol).unwrap_or(NO_RULE),
            _ => NO_RULE,
        };
        ranks.clear();
        ranks.extend((0..nodes.len()).map(|at| rule_at(nodes, at)));
        while let Some((at, &(rank, result))) = ranks.iter().enumerate().min_by_key(|(_, (rank, _))| *rank) {
            if rank == u32::MAX {
                break;
            }
            let joined = nodes.remove(at + 1);
            ranks.remove(at + 1);
            if let Some(node) = nodes.get_mut(at) {
                node.symbol = result;
                node.length += joined.length;
            }
            for changed in [at.checked_sub(1), Some(at)].into_iter().flatten() {
                if let Some(slot) = ranks.get_mut(changed) {
                    *slot = rule_at(nodes, changed);
                }
            }
        }
    }

    /// `n log n` in the number of symbols: the way for words without end.
    fn merge_by_heap(&self, nodes: &mut [Node], heap: &mut BinaryHeap<Reverse<(u32, u32, u32, u32)>>) {
        heap.clear();
        let offer = |nodes: &[Node], heap: &mut BinaryHeap<_>, left: u32, right: u32| {
            if let (Some(a), Some(b)) = (nodes.get(left as usize), nodes.get(right as usize))
                && let Some((rank, result)) = self.rule(a.symbol, b.symbol)
            {
                heap.push(Reverse((rank, left, a.length + b.length, result)));
            }
        };
        for left in 1..nodes.len() as u32 {
            offer(nodes, heap, left - 1, left);
        }
        while let Some(Reverse((_, left, length, result))) = heap.pop() {
            let Some(&a) = nodes.get(left as usize) else { continue };
            let Some(&b) = nodes.get(a.next as usize) else { continue };
            // A pair is out of date where either half was joined to something since: lengths only grow.
            if a.length == 0 || a.length + b.length != length {
                continue;
            }
            if let Some(node) = nodes.get_mut(left as usize) {
                *node = Node { symbol: result, length, next: b.next, ..a };
            }
            if let Some(node) = nodes.get_mut(a.next as usize) {
                node.length = 0;
            }
            if let Some(node) = nodes.get_mut(b.next as usize) {
                node.previous = left;
            }
            offer(nodes, heap, a.previous, left);
            offer(nodes, heap, left, b.next);
        }
    }

    fn emit(&self, tokens: &TextIndex, node: &Node, word: &[u8], out: &mut Vec<u32>) {
        if node.symbol < self.token_count {
            out.push(node.symbol);
            return;
        }
        let range = node.start as usize..(node.start + node.length) as usize;
        for &byte in word.get(range).unwrap_or_default() {
            match self.byte_symbols.get(usize::from(byte)) {
                Some(&symbol) if symbol < tokens.len() as u32 => out.push(symbol),
                _ => {}
            }
        }
    }
}

fn pair(left: u32, right: u32) -> u64 {
    u64::from(left) << 32 | u64::from(right)
}
