//! Words: where text with escaped spaces may be cut before merging, and which words were merged already.

use rustc_hash::FxHashMap;
use std::ops::Range;

const SPACE: &[u8] = "\u{2581}".as_bytes();

/// Where no token can reach across.
///
/// SentencePiece merges a whole text at once. In nearly all vocabularies a space only starts a token, so a merge can never reach from
/// before it to behind it, and the text can be cut there with the same result: short words are merged faster, and words
/// that come again need not be merged again.
#[derive(Debug, Clone)]
pub(crate) struct SpaceCuts {
    /// The bytes that some token has in front of a space.
    joined: [bool; 256],
}

impl SpaceCuts {
    /// `texts`: everything that merging can result in.
    pub(crate) fn new<'a>(texts: impl Iterator<Item = &'a [u8]>) -> Self {
        let mut joined = [false; 256];
        for text in texts {
            for window in text.windows(SPACE.len() + 1) {
                if let Some((&before, space)) = window.split_first()
                    && space == SPACE
                    && let Some(joined) = joined.get_mut(usize::from(before))
                {
                    *joined = true;
                }
            }
        }
        Self { joined }
    }

    /// The words of a text in order; they cover it.
    pub(crate) fn words<'a>(&'a self, text: &'a [u8]) -> impl Iterator<Item = Range<usize>> + 'a {
        let mut start = 0;
        std::iter::from_fn(move || {
            if start >= text.len() {
                return None;
            }
            let from = start;
            let mut at = from + 1;
            start = loop {
                match text
                    .get(at..)
                    .and_then(|rest| rest.iter().position(|&byte| Some(&byte) == SPACE.first()))
                {
                    None => break text.len(),
                    Some(offset) => at += offset,
                }
                let before = text.get(at - 1).copied().unwrap_or_default();
                let joined = self.joined.get(usize::from(before)).copied().unwrap_or(true);
                if !joined && text.get(at..).is_some_and(|rest| rest.starts_with(SPACE)) {
                    break at;
                }
                at += 1;
            };
            Some(from..start)
        })
    }
}

/// Words of one call and their tokens: real text repeats itself.
#[derive(Default)]
pub(crate) struct Remembered {
    words: FxHashMap<Box<[u8]>, (u32, u32)>,
    ids: Vec<u32>,
}

impl Remembered {
    /// A longer word hardly comes back.
    const LONGEST: usize = 48;
    const MOST: usize = 1 << 16;

    /// Append the tokens of a word, if it is known.
    pub(crate) fn recall(&self, word: &[u8], out: &mut Vec<u32>) -> bool {
        let Some(&(from, to)) = self.words.get(word) else { return false };
        out.extend_from_slice(self.ids.get(from as usize..to as usize).unwrap_or_default());
        true
    }

    pub(crate) fn remember(&mut self, word: &[u8], ids: &[u32]) {
        if word.len() <= Self::LONGEST && self.words.len() < Self::MOST {
            let from = self.ids.len() as u32;
            self.ids.extend_from_slice(ids);
            self.words.insert(word.into(), (from, self.ids.len() as u32));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn cuts_only_where_no_token_reaches() {
        let cuts = SpaceCuts::new(["▁a", "▁▁", ">▁<", "b"].iter().map(|text| text.as_bytes()));
        let words = |text: &str| -> Vec<String> {
            cuts.words(text.as_bytes()).map(|range| text[range].to_owned()).collect()
        };
        assert_eq!(words("▁a▁a"), ["▁a", "▁a"]);
        assert_eq!(words("a▁▁▁b▁"), ["a", "▁▁▁b", "▁"]);
        assert_eq!(words("x>▁<▁y"), ["x>▁<", "▁y"]);
        assert_eq!(words("Ł▁é"), ["Ł▁é"], "ends with the byte that a space ends with");
        assert_eq!(words(""), [""; 0]);
    }
}
