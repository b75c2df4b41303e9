//! Speed of the matrix products on one thread: `cargo bench -p bloomery-kernels-cpu [TYPE ...]`.
//!
//! Prints, for each weight type, GB/s of weights read for 1, 2, 4 and 8 activation rows over a matrix larger than the caches, and billion
//! multiply-adds per second for 64 and 512 rows, beside the speed of plain reading.

use bloomery_formats::WeightType;
use bloomery_kernels_cpu::activations::Activations;
use bloomery_kernels_cpu::level::Level;
use bloomery_kernels_cpu::matmul::{Rows, Scratch, matmul};
use bloomery_kernels_cpu::matrix::Matrix;
use bloomery_kernels_cpu::output::OutTile;
use std::hint::black_box;
use std::time::Instant;

/// Seconds of the fastest of some runs.
fn best(mut run: impl FnMut()) -> f64 {
    run();
    (0..5)
        .map(|_| {
            let start = Instant::now();
            run();
            start.elapsed().as_secs_f64()
        })
        .fold(f64::INFINITY, f64::min)
}

fn main() {
    let wanted: Vec<String> = std::env::args().skip(1).filter(|arg| !arg.starts_with('-')).collect();
    let level = match std::env::var("BLOOMERY_SIMD").as_deref() {
        Ok(name) => {
            *Level::available().iter().find(|level| level.name() == name).expect("a level of this machine")
        }
        Err(_) => Level::best(),
    };
    let big: Vec<u64> = (0..32 << 20).collect();
    let read = best(|| {
        black_box(big.iter().fold(0u64, |a, b| a ^ b));
    });
    println!("{}: plain reading {:.1} GB/s", level.name(), big.len() as f64 * 8e-9 / read);
    println!("{:>8} {:>7} {:>7} {:>7} {:>7}   {:>7} {:>7}", "type", "1", "2", "4", "8", "64", "512");
    for ty in WeightType::ALL.iter().copied() {
        let Some(kind) = ty.activation_kind() else { continue };
        if !wanted.is_empty() && !wanted.iter().any(|name| name == ty.name()) {
            continue;
        }
        let cols = 2048;
        let row_bytes = ty.row_bytes(cols).expect("whole blocks");
        let rows = (96 << 20) / row_bytes / 16 * 16;
        let bytes: Vec<u8> = (0..rows * row_bytes)
            .map(|i| (i as u32).wrapping_mul(2_654_435_761).to_le_bytes()[3] & 0x3f)
            .collect();
        let matrix = Matrix::new(ty, &bytes, rows, cols).expect("the shape fits");
        let mut scratch = Scratch::default();
        let mut run = |rows: usize, count: usize| {
            let x: Vec<f32> = (0..count * cols).map(|i| ((i * 37) % 101) as f32 - 50.0).collect();
            let activations = Activations::quantize(level, kind, cols, &x).expect("whole blocks");
            let mut out = vec![0.0f32; count * rows];
            best(|| {
                let mut tile = OutTile::new(&mut out, count, rows, rows).expect("the shape fits");
                matmul(level, &matrix, 0..rows, &activations, Rows::Range(0..count), &mut tile, &mut scratch)
                    .expect("the shapes fit");
            })
        };
        print!("{ty:>8}");
        for count in [1, 2, 4, 8] {
            print!(" {:>7.1}", (rows * row_bytes) as f64 * 1e-9 / run(rows, count));
        }
        print!("  ");
        for count in [64, 512] {
            let some = 2048.min(rows);
            print!(" {:>7.1}", (some * cols * count) as f64 * 1e-9 / run(some, count));
        }
        println!();
    }
}
