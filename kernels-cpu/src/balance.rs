//! Whether a second thread helps or hinders at the moment.
//!
//! Beside a busy process a worker can be put aside in the middle of a chunk, and the caller then waits for a whole time slice of the
//! scheduler: longer than the chunks of many jobs would have taken it alone. So gains and losses are booked, and after a loss
//! the caller works alone for a while, longer each time, until company pays again.

use std::time::{Duration, Instant};

/// What may be lost before the caller works alone: less than one slice of the usual schedulers.
const CREDIT: Duration = Duration::from_millis(1);
/// How long it then works alone, at first and at most.
const ALONE: Duration = Duration::from_millis(2);
const ALONE_MOST: Duration = Duration::from_millis(64);

/// The books of one pool.
#[derive(Debug)]
pub(crate) struct Balance {
    credit: Duration,
    /// How long the next time alone will be.
    penalty: Duration,
    alone_until: Option<Instant>,
}

impl Balance {
    pub(crate) fn new() -> Self {
        Balance { credit: CREDIT, penalty: ALONE, alone_until: None }
    }

    /// Whether to work alone now.
    pub(crate) fn alone(&mut self, now: Instant) -> bool {
        if self.alone_until.is_some_and(|until| now >= until) {
            self.alone_until = None;
        }
        self.alone_until.is_some()
    }

    /// Books a shared job: the caller worked `own` on `mine` chunks, others ran `theirs`, for which it then waited `waited`.
    pub(crate) fn book(&mut self, own: Duration, mine: usize, theirs: usize, waited: Duration, now: Instant) {
        if mine == 0 {
            // Nothing to compare with: others were so quick that no chunk was left.
            return;
        }
        let saved = own.mul_f64(theirs as f64 / mine as f64);
        if waited <= saved {
            self.credit = CREDIT.min(self.credit + (saved - waited));
            if self.credit == CREDIT {
                self.penalty = ALONE;
            }
            return;
        }
        match self.credit.checked_sub(waited - saved) {
            Some(left) => self.credit = left,
            None => {
                self.credit = Duration::ZERO;
                self.alone_until = Some(now + self.penalty);
                self.penalty = ALONE_MOST.min(2 * self.penalty);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MS: Duration = Duration::from_millis(1);

    #[test]
    fn small_waits_change_nothing() {
        let start = Instant::now();
        let mut balance = Balance::new();
        for _ in 0..1000 {
            assert!(!balance.alone(start));
            balance.book(MS / 10, 5, 5, MS / 20, start);
        }
        // A wait that is longer than the gain, but rare.
        balance.book(MS / 10, 5, 5, MS, start);
        assert!(!balance.alone(start));
    }

    #[test]
    fn a_lost_slice_means_working_alone_for_longer_each_time_until_company_pays() {
        let mut now = Instant::now();
        let mut balance = Balance::new();
        for expected in [2, 4, 8, 16, 32, 64, 64] {
            balance.book(MS / 10, 5, 5, 3 * MS, now);
            assert!(balance.alone(now));
            now += expected * MS - MS / 10;
            assert!(balance.alone(now), "{expected} ms");
            now += MS / 5;
            assert!(!balance.alone(now), "{expected} ms");
        }
        for _ in 0..11 {
            balance.book(MS / 10, 5, 5, Duration::ZERO, now);
        }
        balance.book(MS / 10, 5, 5, 3 * MS, now);
        assert!(balance.alone(now));
        assert!(!balance.alone(now + 2 * MS), "the first time alone is short again");
    }

    #[test]
    fn waits_that_save_more_are_no_loss() {
        // Long chunks: the other thread ran as many, the caller waited half of that.
        let now = Instant::now();
        let mut balance = Balance::new();
        for _ in 0..100 {
            balance.book(20 * MS, 4, 4, 10 * MS, now);
        }
        assert!(!balance.alone(now));
    }
}
