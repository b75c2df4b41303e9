//! Finding special tokens in text.
//!
//! The rule: the token with the longest text takes all its occurrences first, from left to right, then the next one takes what it finds in
//! the text that is left, and so on. This is not the same as taking the longest match at each place, and ids depend on
//! it. Going through the text once per token would cost minutes on vocabularies with thousands of them; here one pass finds
//! which lengths occur at all, and only these get a pass of their own.

use aho_corasick::{AhoCorasick, MatchKind};
use std::ops::Range;

/// A stretch of the input.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Fragment {
    /// Text to be split and merged, as a byte range of the input.
    Text(Range<usize>),
    /// A special token.
    Token(u32),
}

pub(crate) struct Partition {
    /// Every token, to find out which lengths occur.
    all: Option<AhoCorasick>,
    /// By falling length: all tokens of that length, and their ids by pattern.
    by_length: Vec<(AhoCorasick, Vec<u32>)>,
    /// Pattern of `all` to index into `by_length`.
    level: Vec<usize>,
}

impl Partition {
    /// `tokens`: text and id of what is to be found. Empty texts are never found. Among texts of one length the order given counts.
    pub(crate) fn new<'a>(tokens: impl Iterator<Item = (&'a [u8], u32)>) -> Self {
        let mut tokens: Vec<_> = tokens.filter(|(text, _)| !text.is_empty()).collect();
        tokens.sort_by_key(|(text, _)| std::cmp::Reverse(text.len()));
        let mut partition = Self { all: None, by_length: Vec::new(), level: Vec::new() };
        for group in tokens.chunk_by(|(a, _), (b, _)| a.len() == b.len()) {
            let finder = AhoCorasick::builder()
                .match_kind(MatchKind::LeftmostFirst)
                .build(group.iter().map(|(text, _)| text));
            // Fails only beyond 2^31 states, more than a vocabulary's text can make.
            let Ok(finder) = finder else { continue };
            partition.level.extend(group.iter().map(|_| partition.by_length.len()));
            partition.by_length.push((finder, group.iter().map(|&(_, id)| id).collect()));
        }
        partition.all = match tokens.is_empty() {
            true => None,
            false => AhoCorasick::new(tokens.iter().map(|(text, _)| text)).ok(),
        };
        partition
    }

    /// The input in order.
    pub(crate) fn cut(&self, input: &[u8]) -> Vec<Fragment> {
        let mut fragments = Vec::new();
        if !input.is_empty() {
            fragments.push(Fragment::Text(0..input.len()));
        }
        let Some(all) = &self.all else { return fragments };
        let mut present = vec![false; self.by_length.len()];
        let mut missing = present.len();
        for found in all.find_overlapping_iter(input) {
            if let Some(seen) =
                self.level.get(found.pattern().as_usize()).and_then(|&level| present.get_mut(level))
                && !std::mem::replace(seen, true)
            {
                missing -= 1;
                if missing == 0 {
                    break;
                }
            }
        }
        for ((finder, ids), _) in self.by_length.iter().zip(present).filter(|(_, present)| *present) {
            let mut cut = Vec::with_capacity(fragments.len());
            for fragment in fragments {
                let Fragment::Text(range) = fragment else {
                    cut.push(fragment);
                    continue;
                };
                let mut start = range.start;
                for found in finder.find_iter(input.get(range.clone()).unwrap_or_default()) {
                    let at = range.start + found.start();
                    if at > start {
                        cut.push(Fragment::Text(start..at));
                    }
                    cut.extend(ids.get(found.pattern().as_usize()).map(|&id| Fragment::Token(id)));
                    start = range.start + found.end();
                }
                if start < range.end {
                    cut.push(Fragment::Text(start..range.end));
                }
            }
            fragments = cut;
        }
        fragments
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn cut(tokens: &[&str], input: &str) -> Vec<String> {
        let partition = Partition::new(tokens.iter().zip(0..).map(|(text, id)| (text.as_bytes(), id)));
        let text = |fragment| match fragment {
            Fragment::Text(range) => input[range].to_owned(),
            Fragment::Token(id) => format!("#{id}"),
        };
        partition.cut(input.as_bytes()).into_iter().map(text).collect()
    }

    #[test]
    fn longest_text_takes_first() {
        assert_eq!(cut(&["<a>", "><b>longer"], "x<a><b>longer<a>"), ["x<a", "#1", "#0"]);
        assert_eq!(cut(&["\n", "\n\n"], "\n\n\na"), ["#1", "#0", "a"]);
        assert_eq!(cut(&["aa"], "aaab"), ["#0", "ab"]);
        assert_eq!(cut(&[], "x"), ["x"]);
        assert_eq!(cut(&["x", ""], ""), [""; 0]);
    }
}
