//! How many tokens are worth drafting: the share that is accepted against what a step of so many rows costs, both as
//! measured. What is decided here changes how long an answer takes and nothing else.

/// Rows of a step that have a cost of their own; larger steps are taken to be on a line.
const MOST_ROWS: usize = 64;
/// A step of one more row before any such step was measured, as a share of one with a single row: low, so that it is tried.
const UNKNOWN_ROW: f64 = 0.15;
/// Drafting must promise this much more than a plain step.
const MARGIN: f64 = 1.02;
/// Steps without a draft before the next try, at first and at most.
const FIRST_PAUSE: u32 = 32;
const LONGEST_PAUSE: u32 = 512;
/// Tokens of a try.
const TRY: usize = 2;

/// Seconds of a step by its rows, as moving averages.
#[derive(Debug)]
pub(crate) struct StepCosts {
    seconds: [Option<f64>; MOST_ROWS + 1],
}

impl Default for StepCosts {
    fn default() -> Self {
        Self { seconds: [None; MOST_ROWS + 1] }
    }
}

impl StepCosts {
    /// Learns from a step without prompt rows.
    pub fn observe(&mut self, rows: usize, seconds: f64) {
        if let Some(known) = self.seconds.get_mut(rows) {
            // One step that the operating system held up says nothing.
            *known = Some(known.map_or(seconds, |old| 0.8 * old + 0.2 * seconds.min(3.0 * old)));
        }
    }

    /// Expected seconds of a step; equal for all where nothing is known.
    pub fn of(&self, rows: usize) -> f64 {
        let known = |range: std::ops::RangeInclusive<usize>| {
            range.filter_map(|n| Some((n as f64, (*self.seconds.get(n)?)?)))
        };
        let below = known(0..=rows.min(MOST_ROWS)).next_back();
        let above = known(rows..=MOST_ROWS).next();
        let line = |(x0, y0): (f64, f64), (x1, y1): (f64, f64)| {
            // More rows never cost less.
            y0 + ((y1 - y0) / (x1 - x0)).max(0.0) * (rows as f64 - x0)
        };
        match (below, above) {
            (Some(below), Some(above)) if below.0 == above.0 => below.1,
            (Some(below), Some(above)) => line(below, above),
            (Some(below), None) => match known(0..=MOST_ROWS).next().filter(|first| first.0 < below.0) {
                Some(first) => below.1.max(line(first, below)),
                None => below.1 * (1.0 + UNKNOWN_ROW * (rows as f64 - below.0) / below.0.max(1.0)),
            },
            (None, Some(above)) => above.1 * rows as f64 / above.0,
            (None, None) => 1.0,
        }
        .max(1e-9)
    }
}

/// Share of drafted tokens that were accepted, the last drafts counting most.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Rate {
    accepted: f64,
    tried: f64,
}

impl Rate {
    /// A guess that weighs as much as two tokens.
    pub fn guess(share: f64) -> Self {
        Self { accepted: 2.0 * share, tried: 2.0 }
    }

    /// Of `n_drafted` tokens the first `n_accepted` were right; those behind the first wrong one were never tried.
    pub fn learn(&mut self, n_drafted: usize, n_accepted: usize) {
        let n_tried = n_accepted + usize::from(n_accepted < n_drafted);
        let keep = 0.9f64.powi(i32::try_from(n_tried).unwrap_or(i32::MAX));
        self.accepted = keep * self.accepted + n_accepted as f64;
        self.tried = keep * self.tried + n_tried as f64;
    }

    /// Chance that a drafted token is right, where all before it are.
    pub fn share(&self) -> f64 {
        (self.accepted / self.tried).clamp(0.0, 0.999)
    }
}

/// What a stream's depth depends on.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Situation {
    /// Rows that the step has without this draft.
    pub rows: usize,
    /// Streams that it brings forward.
    pub streams: usize,
    /// Fewest and most tokens that can be drafted.
    pub n_min: usize,
    pub n_max: usize,
    /// Chance of a drafted token.
    pub share: f64,
    /// Seconds that drafting one token takes.
    pub seconds_per_token: f64,
    /// A wrong token makes the rows before it run again.
    pub replays: bool,
}

/// The depth that promises the most tokens a second, and that is no worse than none at all.
pub(crate) fn best_depth(situation: &Situation, costs: &StepCosts) -> usize {
    let now = situation.streams as f64 / costs.of(situation.rows);
    let mut best = (0, now * MARGIN);
    let (mut chance, mut gained) = (1.0, 0.0);
    for depth in 1..=situation.n_max {
        chance *= situation.share;
        gained += chance;
        let mut seconds = costs.of(situation.rows + depth) + depth as f64 * situation.seconds_per_token;
        if situation.replays {
            // The next step then runs what was right once more, and nothing beside it is drafted.
            let row = (costs.of(situation.rows + depth) - costs.of(situation.rows)) / depth as f64;
            seconds += (1.0 - chance) * (1.0 + gained) * row;
        }
        let rate = (situation.streams as f64 + gained) / seconds;
        if depth >= situation.n_min && rate > best.1 {
            best = (depth, rate);
        }
    }
    best.0
}

/// Tries a short draft now and then while drafting loses; less often the longer it does.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Pause {
    left: u32,
    length: u32,
}

impl Default for Pause {
    fn default() -> Self {
        Self { left: FIRST_PAUSE, length: FIRST_PAUSE }
    }
}

impl Pause {
    /// The depth to use where `best` promises the most of what is possible.
    pub fn depth(&mut self, best: usize, n_min: usize, n_max: usize) -> usize {
        if best > 0 {
            *self = Self::default();
            return best;
        }
        self.left = self.left.saturating_sub(1);
        if self.left > 0 {
            return 0;
        }
        self.length = (self.length * 2).min(LONGEST_PAUSE);
        self.left = self.length;
        TRY.max(n_min).min(n_max)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn situation(share: f64) -> Situation {
        Situation { rows: 1, streams: 1, n_min: 0, n_max: 16, share, seconds_per_token: 0.0, replays: false }
    }

    fn costs(row: f64) -> StepCosts {
        let mut costs = StepCosts::default();
        (1..=20).for_each(|rows| costs.observe(rows, 1.0 + row * (rows - 1) as f64));
        costs
    }

    #[test]
    fn free_rows_are_all_used_and_dear_ones_never() {
        assert_eq!(best_depth(&situation(0.9), &costs(0.0)), 16);
        assert_eq!(best_depth(&situation(0.9), &costs(1.0)), 0);
        assert_eq!(best_depth(&situation(0.01), &costs(0.3)), 0);
        let middle = best_depth(&situation(0.8), &costs(0.2));
        assert!((1..6).contains(&middle), "{middle}");
        assert!(best_depth(&situation(0.95), &costs(0.2)) > middle);
        let replays = Situation { replays: true, ..situation(0.8) };
        assert!(best_depth(&replays, &costs(0.2)) < middle);
        let dear = Situation { seconds_per_token: 1.0, ..situation(0.9) };
        assert_eq!(best_depth(&dear, &costs(0.0)), 0);
        let at_least = Situation { n_min: 12, ..situation(0.5) };
        assert_eq!(best_depth(&at_least, &costs(0.2)), 0);
    }

    #[test]
    fn costs_lie_on_lines_between_what_was_measured() {
        let mut costs = StepCosts::default();
        assert_eq!(costs.of(1), costs.of(9));
        costs.observe(1, 1.0);
        assert!(costs.of(2) > 1.0 && costs.of(2) < 1.5);
        costs.observe(5, 3.0);
        assert_eq!((costs.of(3), costs.of(9)), (2.0, 5.0));
        costs.observe(5, 1e9);
        assert!(costs.of(5) < 5.0, "an outlier");
        costs.observe(3, 0.5);
        assert!(costs.of(4) >= 0.5 && costs.of(500) > 100.0);
    }

    #[test]
    fn the_rate_follows_and_tries_become_rare() {
        let mut rate = Rate::guess(0.5);
        (0..50).for_each(|_| rate.learn(4, 4));
        assert!(rate.share() > 0.95);
        (0..50).for_each(|_| rate.learn(4, 0));
        assert!(rate.share() < 0.05);
        let mut pause = Pause::default();
        let tries = (0..2000).filter(|_| pause.depth(0, 0, 9) > 0).count();
        assert!((3..12).contains(&tries), "{tries}");
        assert_eq!(pause.depth(5, 0, 9), 5);
    }
}
