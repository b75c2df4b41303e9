//! Machines, values and comparisons for the operators' tests.

#![allow(dead_code, reason = "each test program uses its part")]

use bloomery_kernels_cpu::cpu::Cpu;
use bloomery_kernels_cpu::level::Level;
use bloomery_kernels_cpu::pool::Pool;

/// Every level of this machine with one and with two threads; the first is scalar on one thread.
pub fn machines() -> Vec<Cpu> {
    let both = |level: &Level| [1, 2].map(|n| Cpu { pool: Pool::new(Some(n)), level: *level });
    Level::available().iter().flat_map(both).collect()
}

pub fn name(cpu: &Cpu) -> String {
    format!("{} on {} threads", cpu.level.name(), cpu.pool.threads())
}

/// Uniform values of `-range .. range`.
pub fn values(seed: u64, n: usize, range: f32) -> Vec<f32> {
    let mut state = seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) ^ 0x5bf0_3635;
    (0..n)
        .map(|_| {
            state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            ((state >> 40) as f32 / (1u64 << 23) as f32 - 1.0) * range
        })
        .collect()
}

/// The same bits; all NaN are one.
pub fn same(a: &[f32], b: &[f32]) -> bool {
    a.len() == b.len() && a.iter().zip(b).all(|(a, b)| a.to_bits() == b.to_bits() || a.is_nan() && b.is_nan())
}

/// Runs `work` on every machine, asserts the same bits and returns them.
pub fn on_all(n: usize, what: &str, work: impl Fn(&Cpu, &mut [f32])) -> Vec<f32> {
    let mut first: Option<Vec<f32>> = None;
    for cpu in machines() {
        let mut out = vec![f32::NAN; n];
        work(&cpu, &mut out);
        match &first {
            None => first = Some(out),
            Some(first) => assert!(same(first, &out), "{what}: {} gives other bits", name(&cpu)),
        }
    }
    first.unwrap_or_default()
}

/// Relative to the larger of the two and of `floor`.
pub fn near(a: f32, b: f64, floor: f64, tolerance: f64) -> bool {
    (f64::from(a) - b).abs() <= tolerance * b.abs().max(floor)
}
