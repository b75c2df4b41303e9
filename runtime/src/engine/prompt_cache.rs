//! States of evicted prompts in host memory (`--cache-ram`).
//!
//! An entry is found by its token ids only, and only as far as they are a verified prefix of the new prompt.

use crate::executor::Rollback;

/// A saved state with the tokens that it is the state of.
#[derive(Debug)]
pub(crate) struct Entry {
    pub tokens: Vec<u32>,
    pub state: Vec<u8>,
    /// Positions at which the state can resume, ascending; `None` is any.
    points: Option<Vec<usize>>,
    used: u64,
}

/// Saved states within a budget; the one unused for longest goes first.
#[derive(Debug)]
pub(crate) struct PromptCache {
    /// `None` is unlimited.
    budget: Option<usize>,
    entries: Vec<Entry>,
    bytes: usize,
    clock: u64,
}

/// An entry that would help a prompt.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Hit {
    pub index: usize,
    /// Tokens of the prompt that it saves.
    pub n: usize,
}

impl PromptCache {
    pub fn new(budget: Option<usize>) -> Self {
        Self { budget, entries: Vec::new(), bytes: 0, clock: 0 }
    }

    pub fn is_enabled(&self) -> bool {
        self.budget != Some(0)
    }

    /// Some entry begins with these tokens and can resume behind them.
    pub fn covers(&self, tokens: &[u32]) -> bool {
        self.entries
            .iter()
            .any(|entry| entry.tokens.starts_with(tokens) && entry.usable(tokens.len()) == tokens.len())
    }

    /// Keeps a state; drops entries that it makes useless, then the oldest until the budget holds.
    pub fn insert(&mut self, tokens: Vec<u32>, state: Vec<u8>, rollback: Rollback, points: Vec<usize>) {
        let points = (rollback == Rollback::Checkpoints).then_some(points);
        self.put(Entry { tokens, state, points, used: 0 });
    }

    /// Keeps an entry as the most recently used one.
    pub fn put(&mut self, mut entry: Entry) {
        entry.used = self.tick();
        let size = entry.bytes();
        if self.budget.is_some_and(|budget| size > budget) {
            return;
        }
        self.entries.retain(|old| {
            !(entry.tokens.starts_with(&old.tokens) && entry.usable(old.tokens.len()) == old.tokens.len())
        });
        self.bytes = self.entries.iter().map(Entry::bytes).sum();
        while self.budget.is_some_and(|budget| self.bytes + size > budget) {
            let Some(oldest) =
                (0..self.entries.len()).min_by_key(|&index| self.entries.get(index).map(|entry| entry.used))
            else {
                break;
            };
            self.take(oldest);
        }
        self.bytes += size;
        self.entries.push(entry);
    }

    /// The entry that saves the most of `tokens`, of which at least `keep_last` must remain to be run.
    pub fn best(&self, tokens: &[u32], keep_last: usize) -> Option<Hit> {
        let limit = tokens.len().saturating_sub(keep_last);
        let usable = |entry: &Entry| entry.usable(common_prefix(&entry.tokens, tokens).min(limit));
        let hits = self.entries.iter().enumerate().map(|(index, entry)| Hit { index, n: usable(entry) });
        hits.max_by_key(|hit| hit.n).filter(|hit| hit.n > 0)
    }

    /// Takes an entry out.
    pub fn take(&mut self, index: usize) -> Option<Entry> {
        if index >= self.entries.len() {
            return None;
        }
        let entry = self.entries.swap_remove(index);
        self.bytes -= entry.bytes();
        Some(entry)
    }

    #[cfg(test)]
    pub fn bytes(&self) -> usize {
        self.bytes
    }

    fn tick(&mut self) -> u64 {
        self.clock += 1;
        self.clock
    }
}

impl Entry {
    fn bytes(&self) -> usize {
        self.state.len() + 4 * self.tokens.len() + 8 * self.points.as_ref().map_or(0, Vec::len)
    }

    /// The largest resumable position at most `n`.
    fn usable(&self, n: usize) -> usize {
        if n >= self.tokens.len() {
            return self.tokens.len();
        }
        self.points
            .as_ref()
            .map_or(n, |points| points.iter().copied().filter(|&point| point <= n).max().unwrap_or(0))
    }
}

/// Length of the common beginning.
pub(crate) fn common_prefix(a: &[u32], b: &[u32]) -> usize {
    a.iter().zip(b).take_while(|(a, b)| a == b).count()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn keep(cache: &mut PromptCache, tokens: &[u32]) {
        cache.insert(tokens.to_vec(), vec![0; 100], Rollback::Truncate, Vec::new());
    }

    #[test]
    fn only_a_verified_prefix_is_a_hit() {
        let mut cache = PromptCache::new(None);
        keep(&mut cache, &[1, 2, 3, 4]);
        keep(&mut cache, &[1, 2, 9, 9, 9, 9]);
        assert_eq!(cache.best(&[1, 2, 3, 4, 5], 1), Some(Hit { index: 0, n: 4 }));
        assert_eq!(cache.best(&[1, 2, 9, 9], 1), Some(Hit { index: 1, n: 3 }), "one token is left to run");
        assert_eq!(cache.best(&[2, 1, 3], 1), None);
        assert_eq!(cache.best(&[1], 1), None);
    }

    #[test]
    fn checkpoints_limit_the_hit() {
        let mut cache = PromptCache::new(None);
        cache.insert(vec![1, 2, 3, 4, 5, 6], vec![0; 8], Rollback::Checkpoints, vec![2, 4]);
        assert_eq!(cache.best(&[1, 2, 3, 4, 5, 9, 9], 1).unwrap().n, 4);
        assert_eq!(cache.best(&[1, 2, 3, 9], 1).unwrap().n, 2);
        assert_eq!(cache.best(&[1, 2, 3, 4, 5, 6, 9], 1).unwrap().n, 6, "its end is a point too");
        assert_eq!(cache.best(&[1, 9, 9], 1), None);
    }

    #[test]
    fn the_budget_holds_and_age_decides() {
        let mut cache = PromptCache::new(Some(350));
        for first in 0..3 {
            keep(&mut cache, &[first, 1, 2, 3]);
        }
        assert_eq!(cache.bytes(), 348);
        let again = cache.take(0).unwrap();
        cache.put(again);
        keep(&mut cache, &[7, 1, 2, 3]);
        assert!(cache.bytes() <= 350);
        assert!(cache.best(&[0, 1, 2, 3, 4], 1).is_some() && cache.best(&[1, 1, 2, 3, 4], 1).is_none());
        cache.insert(vec![8; 4], vec![0; 400], Rollback::Truncate, Vec::new());
        assert!(cache.best(&[8; 5], 1).is_none(), "larger than the whole budget");
        let mut off = PromptCache::new(Some(0));
        keep(&mut off, &[1, 2]);
        assert!(!off.is_enabled() && off.best(&[1, 2, 3], 1).is_none());
    }

    #[test]
    fn a_longer_state_replaces_its_own_beginnings() {
        let mut cache = PromptCache::new(None);
        keep(&mut cache, &[1, 2]);
        keep(&mut cache, &[1, 2, 3]);
        assert_eq!(cache.bytes(), 112);
        assert!(cache.covers(&[1, 2]) && cache.covers(&[1, 2, 3]) && !cache.covers(&[1, 3]));
    }
}
