//! What every job needs: threads and the machine's instruction set.

use crate::level::Level;
use crate::matmul::Scratch;
use crate::pool::Pool;
use std::cell::RefCell;

/// Threads and an instruction set.
pub struct Cpu {
    /// The threads.
    pub pool: Pool,
    /// The instruction set.
    pub level: Level,
}

impl Cpu {
    /// This machine; `threads` as in [`Pool::new`].
    pub fn new(threads: Option<usize>) -> Cpu {
        Cpu { pool: Pool::new(threads), level: Level::best() }
    }
}

thread_local! {
    static SCRATCH: RefCell<(Scratch, Vec<f32>)> = RefCell::default();
}

/// This thread's memory for matrix products, and `values` f32 of unspecified contents.
pub(crate) fn with_scratch<T>(values: usize, work: impl FnOnce(&mut Scratch, &mut [f32]) -> T) -> T {
    SCRATCH.with_borrow_mut(|(scratch, buffer)| {
        if buffer.len() < values {
            buffer.resize(values, 0.0);
        }
        work(scratch, &mut buffer[..values])
    })
}

/// Multiply-adds that take a thread some tens of microseconds: the size of a chunk.
const CHUNK: usize = 1 << 20;

/// Activation rows from which on a product is bound by arithmetic: its kernels then decode up to [`MOST_TILE`] weight rows at once.
const MANY_ROWS: usize = 16;
const MOST_TILE: usize = 64;

/// Weight rows of one chunk of a product `[rows, cols] x [weight_rows, cols]`: long enough to pay for claiming it, short
/// enough that all threads find work, a multiple of 16.
pub(crate) fn weight_tile(weight_rows: usize, cols: usize, rows: usize, threads: usize) -> usize {
    if rows >= MANY_ROWS {
        // The tile whose last round leaves the least to wait for; smaller tiles read the activations more often.
        let cost = |tile: usize| {
            let rounds = weight_rows.div_ceil(tile).div_ceil(threads);
            rounds * tile * (100 + 3 * (MOST_TILE - tile) / 16)
        };
        return (1..=MOST_TILE / 16)
            .map(|n| n * 16)
            .min_by_key(|tile| (cost(*tile), MOST_TILE - tile))
            .unwrap_or(16);
    }
    // Reading and unpacking a weight costs about as much as multiplying it with four rows.
    let by_cost = CHUNK / (cols.max(1) * (rows + 4));
    let by_threads = weight_rows.div_ceil(2 * threads);
    by_cost.min(by_threads).max(16).next_multiple_of(16)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tiles_are_whole_and_leave_no_thread_idle() {
        assert_eq!(weight_tile(4096, 2048, 512, 2), 64);
        // 9 tiles of 64 on two threads take five rounds, 12 tiles of 48 six shorter ones.
        assert_eq!(weight_tile(576, 1536, 512, 2), 48);
        assert_eq!(weight_tile(10, 32, 512, 8), 16);
        for (n, cols, rows, threads) in
            [(1, 1, 1, 1), (576, 576, 1, 2), (151_936, 2048, 1, 16), (128, 2048, 8, 4)]
        {
            let tile = weight_tile(n, cols, rows, threads);
            assert!(tile.is_multiple_of(16) && tile > 0);
            assert!(n < 32 * threads || n.div_ceil(tile) >= threads, "{n} rows in tiles of {tile}");
        }
    }
}
