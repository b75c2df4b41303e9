//! Prompt lookup: the text's last tokens stood somewhere before, and what followed them there may follow again.

use std::collections::HashMap;

/// Earlier places that are compared for one draft; the newest come first.
const MOST_PLACES: usize = 32;
/// Matches longer than this are all equally good.
const LONGEST_MATCH: usize = 64;
/// No earlier place.
const NONE: u32 = u32::MAX;

/// Every place of every run of `n_match` tokens of one text, found by a hash of the run. It follows a text that only grows.
#[derive(Debug)]
pub(crate) struct Lookup {
    n_match: usize,
    /// Hash of a run to the place behind its last occurrence.
    last: HashMap<u64, u32>,
    /// By place: the place behind the occurrence before it.
    before: Vec<u32>,
}

impl Lookup {
    /// `n_match` is the shortest match that counts, at least 1.
    pub fn new(n_match: usize) -> Self {
        Self { n_match: n_match.max(1), last: HashMap::new(), before: Vec::new() }
    }

    /// Up to `n_max` tokens that followed the longest earlier match of the text's end, and the length of that match.
    /// Where the match reaches into what it predicts, the text is taken to go on in circles.
    pub fn propose(&mut self, text: &[u32], n_max: usize) -> (usize, Vec<u32>) {
        self.follow(text);
        let mut best = (0, 0);
        let mut place = self.key(text, text.len()).and_then(|key| self.last.get(&key)).copied();
        for _ in 0..MOST_PLACES {
            let Some(end) = place.filter(|&place| place != NONE).map(|place| place as usize) else { break };
            let (there, here) = (text.iter().take(end).rev(), text.iter().rev());
            let n_same = there.zip(here).take(LONGEST_MATCH).take_while(|(a, b)| a == b).count();
            if n_same > best.0 {
                best = (n_same, end);
            }
            if n_same == LONGEST_MATCH {
                break;
            }
            place = self.before.get(end).copied();
        }
        let (n_same, end) = best;
        // Two runs may share a hash.
        if n_same < self.n_match {
            return (0, Vec::new());
        }
        let period = text.len() - end;
        let tail = text.get(end..).unwrap_or_default();
        (n_same, (0..n_max).filter_map(|index| tail.get(index % period)).copied().collect())
    }

    /// Takes in every run that has a token behind it.
    fn follow(&mut self, text: &[u32]) {
        for end in self.before.len()..text.len() {
            let key = self.key(text, end);
            let before = key.and_then(|key| self.last.insert(key, u32::try_from(end).unwrap_or(NONE)));
            self.before.push(before.unwrap_or(NONE));
        }
    }

    fn key(&self, text: &[u32], end: usize) -> Option<u64> {
        let run = text.get(end.checked_sub(self.n_match)?..end)?;
        // FNV-1a over whole tokens; a collision costs a comparison.
        Some(run.iter().fold(0xcbf2_9ce4_8422_2325, |hash: u64, &token| {
            (hash ^ u64::from(token)).wrapping_mul(0x0000_0100_0000_01b3)
        }))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn ask(n_match: usize, text: &[u32], n_max: usize) -> (usize, Vec<u32>) {
        Lookup::new(n_match).propose(text, n_max)
    }

    #[test]
    fn the_longest_match_wins_and_then_the_newest() {
        // "2 3" stood three times; only the first time "1" stood before it.
        assert_eq!(ask(2, &[1, 2, 3, 4, 9, 2, 3, 5, 8, 2, 3, 6, 1, 2, 3], 2), (3, vec![4, 9]));
        assert_eq!(ask(2, &[7, 2, 3, 4, 9, 2, 3, 5, 0, 2, 3], 1), (2, vec![5]));
        assert_eq!(ask(3, &[7, 2, 3, 4, 9, 2, 3], 1), (0, vec![]), "too short to count");
        assert_eq!(ask(2, &[1], 4), (0, vec![]));
    }

    #[test]
    fn a_circle_goes_on() {
        assert_eq!(ask(2, &[9, 1, 2, 3, 1, 2, 3, 1, 2], 7).1, [3, 1, 2, 3, 1, 2, 3]);
        assert_eq!(ask(2, &[5, 5, 5], 4).1, [5, 5, 5, 5]);
    }

    proptest! {
        #[test]
        fn growing_finds_what_a_naive_search_finds(text in prop::collection::vec(0u32..4, 1..60), n_match in 1usize..4) {
            let mut lookup = Lookup::new(n_match);
            for len in 1..=text.len() {
                let text = &text[..len];
                let same = |end: usize| (1..=end).take_while(|&back| text[end - back] == text[len - back]).count();
                let longest = (1..len).map(same).max().unwrap_or(0);
                let (n_same, draft) = lookup.propose(text, 3);
                // Within the places compared, which this text may exceed only for runs of one token.
                prop_assert!(n_same <= longest && (n_match == 1 || n_same == longest || longest < n_match));
                prop_assert_eq!(draft.is_empty(), n_same == 0);
                let of_draft = |end: usize| same(end) == n_same && text[end] == draft[0];
                prop_assert!(draft.is_empty() || (1..len).any(of_draft));
            }
        }
    }
}
