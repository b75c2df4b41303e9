//! What every job needs: threads, and the instruction sets that this machine has.

use crate::level::Level;
use crate::matmul::Scratch;
use crate::pool::Pool;
use crate::simd::Simd;
use std::cell::RefCell;

/// Threads and instruction sets.
pub struct Cpu {
    /// The threads.
    pub pool: Pool,
    /// For everything in f32.
    pub level: Level,
    /// For integer dot products.
    pub simd: Simd,
}

impl Cpu {
    /// This machine; `threads` as in [`Pool::new`].
    pub fn new(threads: Option<usize>) -> Cpu {
        Cpu { pool: Pool::new(threads), level: Level::best(), simd: Simd::detect() }
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

/// Weight rows of one chunk of a product `[rows, cols] x [weight_rows, cols]`: long enough to pay for claiming it, short
/// enough that all threads find work, a multiple of 16.
pub(crate) fn weight_tile(weight_rows: usize, cols: usize, rows: usize, threads: usize) -> usize {
    // Reading and unpacking a weight costs about as much as multiplying it with four rows.
    let by_cost = CHUNK / (cols.max(1) * (rows + 4));
    let by_threads = weight_rows.div_ceil(2 * threads);
    by_cost.min(by_threads).max(16).next_multiple_of(16)
}
