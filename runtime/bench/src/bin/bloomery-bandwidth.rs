//! What the memory gives: the rate at which threads read, each its own part of a buffer far larger than the caches. It is the
//! physical limit that decode rates are set beside (bytes of weights per token over this rate).
//!
//! `bloomery-bandwidth [THREADS]` prints the median of five passes in GB/s (10^9 bytes a second).

#![forbid(unsafe_code)]

use std::time::Instant;

const BYTES_PER_THREAD: usize = 512 << 20;
const PASSES: usize = 5;

fn main() -> std::process::ExitCode {
    let threads = match std::env::args().nth(1).map(|text| text.parse::<usize>()) {
        None => std::thread::available_parallelism().map_or(1, |n| n.get()),
        Some(Ok(threads)) if threads > 0 => threads,
        Some(_) => {
            eprintln!("usage: bloomery-bandwidth [THREADS], THREADS at least 1");
            return std::process::ExitCode::FAILURE;
        }
    };
    // Written once, so that every page is real.
    let buffers: Vec<Vec<u64>> = (0..threads).map(|seed| filled(seed as u64)).collect();
    let mut rates: Vec<f64> = (0..PASSES).map(|_| pass(&buffers)).collect();
    rates.sort_by(f64::total_cmp);
    println!("{threads} threads: {:.1} GB/s", rates[PASSES / 2]);
    std::process::ExitCode::SUCCESS
}

fn filled(seed: u64) -> Vec<u64> {
    (0..BYTES_PER_THREAD as u64 / 8).map(|i| i ^ seed).collect()
}

/// One pass of all threads: bytes a nanosecond, from the first start to the last end.
fn pass(buffers: &[Vec<u64>]) -> f64 {
    let start = Instant::now();
    std::thread::scope(|scope| {
        for buffer in buffers {
            scope.spawn(move || std::hint::black_box(sum(buffer)));
        }
    });
    (buffers.len() * BYTES_PER_THREAD) as f64 / start.elapsed().as_nanos() as f64
}

/// Eight sums side by side, so that the additions never wait for each other.
fn sum(values: &[u64]) -> u64 {
    let mut sums = [0u64; 8];
    for eight in values.as_chunks::<8>().0 {
        for (sum, value) in sums.iter_mut().zip(eight) {
            *sum = sum.wrapping_add(*value);
        }
    }
    sums.into_iter().fold(0, u64::wrapping_add)
}
