//! Who gets how many rows of a step: a pure function.

/// A running request's wish.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Load {
    pub slot: usize,
    /// Tokens that wait to be run; 1 means that it generates (or runs its prompt's last token).
    pub pending: usize,
    /// Most rows that make sense in one step (a checkpoint may have to be taken behind them).
    pub limit: usize,
    /// Step in which it last had rows.
    pub served: u64,
}

/// Shares `max_rows` rows: first one for each that generates, then the rest among the prompts, of which `beside` at most
/// while anybody generates. Whoever was served longest ago comes first where rows are short, and prompts always get
/// at least one row of a step that has two. Returns pairs of slot and rows.
pub(crate) fn share(loads: &[Load], max_rows: usize, beside: usize) -> Vec<(usize, usize)> {
    let by_age = |wanted: fn(&Load) -> bool| {
        let mut some: Vec<Load> = loads.iter().copied().filter(wanted).collect();
        some.sort_by_key(|load| (load.served, load.slot));
        some
    };
    let mut generating = by_age(|load| load.pending == 1);
    let mut prompts = by_age(|load| load.pending > 1);
    let reserved = usize::from(!prompts.is_empty() && max_rows > 1);
    generating.truncate(max_rows - reserved.min(max_rows));
    let mut parts: Vec<(usize, usize)> = generating.iter().map(|load| (load.slot, 1)).collect();
    let mut left = max_rows - parts.len();
    if !parts.is_empty() {
        left = left.min(beside.max(1));
    }
    // Too few rows for all: one each for those that waited longest. Otherwise equal shares, and what the short ones
    // leave goes to the long ones.
    prompts.truncate(left);
    let wish = |load: &Load| load.pending.min(load.limit).max(1);
    prompts.sort_by_key(|load| (wish(load), load.served, load.slot));
    let count = prompts.len();
    for (index, load) in prompts.iter().enumerate() {
        let rows = wish(load).min(left / (count - index));
        left -= rows;
        parts.push((load.slot, rows));
    }
    parts
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn loads(pending: &[usize]) -> Vec<Load> {
        pending
            .iter()
            .enumerate()
            .map(|(slot, &pending)| Load { slot, pending, limit: usize::MAX, served: 0 })
            .collect()
    }

    #[test]
    fn streams_first_then_prompts() {
        assert_eq!(share(&loads(&[1, 500, 1]), 64, 16), [(0, 1), (2, 1), (1, 16)]);
        assert_eq!(share(&loads(&[500]), 64, 16), [(0, 64)], "nobody waits: the whole step");
        assert_eq!(
            share(&loads(&[500, 10, 500]), 60, 16),
            [(1, 10), (0, 25), (2, 25)],
            "short prompts leave theirs"
        );
        assert_eq!(share(&loads(&[1, 500]), 64, 0), [(0, 1), (1, 1)], "prompts never stand still");
    }

    #[test]
    fn short_rows_go_round() {
        let mut loads = loads(&[1, 1, 1, 9]);
        assert_eq!(share(&loads, 3, 8), [(0, 1), (1, 1), (3, 1)]);
        loads[0].served = 1;
        loads[1].served = 1;
        assert_eq!(share(&loads, 3, 8), [(2, 1), (0, 1), (3, 1)]);
        assert_eq!(share(&loads, 1, 8), [(2, 1)]);
    }

    #[test]
    fn limits_hold() {
        let mut loads = loads(&[500, 500]);
        loads[0].limit = 3;
        assert_eq!(share(&loads, 64, 16), [(0, 3), (1, 61)]);
    }

    proptest! {
        #[test]
        fn budgets_hold_and_nobody_is_forgotten(
            wishes in prop::collection::vec((1usize..300, 1usize..100, 0u64..4), 0..12), max_rows in 1usize..70, beside in 0usize..70,
        ) {
            let loads: Vec<Load> = wishes.iter().enumerate()
                .map(|(slot, &(pending, limit, served))| Load { slot, pending, limit, served }).collect();
            let parts = share(&loads, max_rows, beside);
            let total: usize = parts.iter().map(|part| part.1).sum();
            prop_assert!(total <= max_rows);
            for &(slot, rows) in &parts {
                prop_assert!(rows >= 1 && rows <= loads[slot].pending && rows <= loads[slot].limit);
            }
            let mut slots: Vec<usize> = parts.iter().map(|part| part.0).collect();
            slots.sort_unstable();
            slots.dedup();
            prop_assert_eq!(slots.len(), parts.len());
            // Rows are never left over while a stream waits.
            let streams = loads.iter().filter(|load| load.pending == 1).count();
            let served = parts.iter().filter(|part| loads[part.0].pending == 1).count();
            prop_assert!(served == streams || served + 1 >= max_rows);
            prop_assert_eq!(parts.is_empty(), loads.is_empty());
        }
    }
}
