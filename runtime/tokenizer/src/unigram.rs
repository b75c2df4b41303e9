//! Unigram: the way through the text whose scores (log probabilities) add up highest.

use crate::bytes::{character_length, read_leniently};
use crate::charsmap::Charsmap;
use crate::error::Error;
use crate::text_index::TextIndex;

/// What an unknown character costs below the worst token.
const UNKNOWN_PENALTY: f32 = 10.0;

pub(crate) struct Unigram {
    charsmap: Charsmap,
    /// Score of every token, by id; user-defined ones are free, so that they are always taken.
    scores: Vec<f64>,
    /// Tokens that may be matched, sorted by text: the tokens that start with a text are neighbours.
    sorted: Vec<u32>,
    /// Texts that the normalizer must not touch, sorted likewise.
    protected: Vec<u32>,
    unknown: u32,
    unknown_score: f64,
    space: &'static str,
    add_space: bool,
    fold_spaces: bool,
}

/// What the vocabulary says beyond the texts.
pub(crate) struct Rules {
    pub(crate) charsmap: Charsmap,
    pub(crate) unknown: Option<u32>,
    pub(crate) add_space: bool,
    pub(crate) fold_spaces: bool,
}

/// How a token takes part.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Part {
    Normal,
    UserDefined,
    Unused,
    None,
}

impl Unigram {
    pub(crate) fn new(
        tokens: &TextIndex,
        scores: &[f32],
        part: impl Fn(u32) -> Part,
        rules: Rules,
    ) -> Result<Self, Error> {
        let ids = || 0..tokens.len() as u32;
        let sort = |mut ids: Vec<u32>| {
            ids.sort_by(|&a, &b| tokens.text(a).cmp(tokens.text(b)));
            ids
        };
        let worst = ids()
            .filter(|&id| part(id) == Part::Normal)
            .filter_map(|id| scores.get(id as usize).copied())
            .fold(f32::MAX, f32::min);
        Ok(Self {
            charsmap: rules.charsmap,
            scores: ids()
                .map(|id| match part(id) {
                    Part::UserDefined => 0.0,
                    _ => scores.get(id as usize).copied().map_or(0.0, f64::from),
                })
                .collect(),
            sorted: sort(ids().filter(|&id| part(id) != Part::None).collect()),
            protected: sort(ids().filter(|&id| part(id) == Part::UserDefined).collect()),
            unknown: rules.unknown.ok_or(Error::NoFallback)?,
            unknown_score: f64::from(worst - UNKNOWN_PENALTY),
            space: "\u{2581}",
            add_space: rules.add_space,
            fold_spaces: rules.fold_spaces,
        })
    }

    /// Append the tokens of a text.
    pub(crate) fn encode(&self, tokens: &TextIndex, text: &[u8], out: &mut Vec<u32>) {
        let text = self.normalize(tokens, text);
        // Best way to each offset: its score, its last token and where that one starts.
        let mut best = vec![(f64::MIN, self.unknown, 0usize); text.len() + 1];
        if let Some(start) = best.first_mut() {
            start.0 = 0.0;
        }
        let mut at = 0;
        while let Some(&lead) = text.get(at) {
            let character = character_length(lead).min(text.len() - at);
            let reached = best.get(at).map_or(f64::MIN, |way| way.0);
            let mut reach = |end: usize, score: f64, id: u32| {
                if let Some(way) = best.get_mut(end)
                    && reached + score > way.0
                {
                    *way = (reached + score, id, at);
                }
            };
            let mut covered = false;
            for (id, length) in prefixes(tokens, &self.sorted, text.get(at..).unwrap_or_default()) {
                covered |= length == character;
                reach(at + length, self.scores.get(id as usize).copied().unwrap_or(0.0), id);
            }
            if !covered {
                reach(at + character, self.unknown_score, self.unknown);
            }
            at += character;
        }
        let first = out.len();
        let mut end = text.len();
        let mut last_unknown = false;
        while end > 0 {
            let &(_, id, start) = best.get(end).unwrap_or(&(0.0, self.unknown, 0));
            let unknown = id == self.unknown;
            // Unknown characters side by side are one unknown token.
            if !(unknown && last_unknown) {
                out.push(id);
            }
            last_unknown = unknown;
            end = start.min(end - 1);
        }
        out.get_mut(first..).unwrap_or_default().reverse();
    }

    /// Replace by the table, escape spaces, fold runs of them, put one in front.
    fn normalize(&self, tokens: &TextIndex, text: &[u8]) -> Vec<u8> {
        let mut out = Vec::with_capacity(text.len() + text.len() / 2);
        let mut prepended = false;
        let mut in_word = false;
        let mut at = 0;
        while at < text.len() {
            let rest = text.get(at..).unwrap_or_default();
            let read;
            let kept = prefixes(tokens, &self.protected, rest).last().map(|(_, length)| length);
            let (piece, length) = if let Some(length) = kept {
                (rest.get(..length).unwrap_or_default(), length)
            } else if let Some(replaced) = self.charsmap.replace(rest) {
                replaced
            } else {
                let length = rest.first().map_or(1, |&lead| character_length(lead)).min(rest.len());
                let character = rest.get(..length).unwrap_or_default();
                match std::str::from_utf8(character) {
                    Ok(_) => (character, length),
                    Err(_) => {
                        read = read_leniently(rest.get(..1).unwrap_or_default());
                        (&*read.bytes, 1)
                    }
                }
            };
            for &byte in piece {
                if byte != b' ' {
                    if !in_word {
                        in_word = true;
                        if (self.add_space && !prepended) || self.fold_spaces {
                            out.extend_from_slice(self.space.as_bytes());
                            prepended = true;
                        }
                    }
                    out.push(byte);
                } else {
                    in_word = false;
                    if !self.fold_spaces {
                        out.extend_from_slice(self.space.as_bytes());
                    }
                }
            }
            at += length.max(1);
        }
        out
    }
}

/// The tokens of a sorted list that are prefixes of a text, the shortest first, with their lengths.
fn prefixes<'a>(
    tokens: &'a TextIndex,
    sorted: &'a [u32],
    text: &'a [u8],
) -> impl Iterator<Item = (u32, usize)> + 'a {
    let mut range = sorted;
    text.iter()
        .enumerate()
        .map_while(move |(at, &byte)| {
            // Of the texts that start with text[..at], those that go on with `byte`: none is shorter, except one that ends here.
            let key = |&id: &u32| tokens.text(id).get(at).copied();
            let from = range.partition_point(|id| key(id) < Some(byte));
            let to = range.partition_point(|id| key(id) <= Some(byte));
            range = range.get(from..to)?;
            let &first = range.first()?;
            Some((tokens.text(first).len() == at + 1).then_some((first, at + 1)))
        })
        .flatten()
}
