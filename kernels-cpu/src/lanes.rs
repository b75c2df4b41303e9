//! Sixteen virtual f32 lanes: the vocabulary in which every kernel of this crate outside the integer dot products is written.
//!
//! A value of a `Lanes` type is the proof that its instruction set exists: it is made only inside the function that
//! [`Level`](crate::level::Level) compiled for it. Each operation rounds exactly like its scalar form, `fma` rounds once, and
//! `sum` and `largest` join lanes by one fixed tree (i with i+8, then i+4, i+2, i+1).

use bloomery_formats as formats;

/// Lanes of a vector.
pub(crate) const WIDTH: usize = 16;

/// Operations on sixteen f32 values.
pub(crate) trait Lanes: Copy {
    /// Sixteen f32 values.
    type V: Copy;
    /// Enough registers to hold a tile of 16 vectors.
    const MANY_REGISTERS: bool;

    fn splat(self, x: f32) -> Self::V;
    fn load(self, from: &[f32; WIDTH]) -> Self::V;
    fn store(self, v: Self::V, to: &mut [f32; WIDTH]);
    fn load_f16(self, from: &[u16; WIDTH]) -> Self::V;
    fn store_f16(self, v: Self::V, to: &mut [u16; WIDTH]);
    fn load_i8(self, from: &[i8; WIDTH]) -> Self::V;
    fn add(self, a: Self::V, b: Self::V) -> Self::V;
    fn sub(self, a: Self::V, b: Self::V) -> Self::V;
    fn mul(self, a: Self::V, b: Self::V) -> Self::V;
    /// `a * b + c`, rounded once.
    fn fma(self, a: Self::V, b: Self::V, c: Self::V) -> Self::V;
    /// `a > b ? a : b` (b where either is NaN).
    fn max(self, a: Self::V, b: Self::V) -> Self::V;
    /// `v` in lanes `from..to`, `fill` elsewhere.
    fn keep(self, v: Self::V, from: usize, to: usize, fill: f32) -> Self::V;
    /// The shared exponential of every lane.
    #[inline(always)]
    fn exp(self, v: Self::V) -> Self::V {
        let mut a = [0.0; WIDTH];
        self.store(v, &mut a);
        for x in &mut a {
            *x = formats::math::exp(*x);
        }
        self.load(&a)
    }

    /// Fixed tree.
    #[inline(always)]
    fn sum(self, v: Self::V) -> f32 {
        let mut a = [0.0; WIDTH];
        self.store(v, &mut a);
        tree(a, |x, y| x + y)
    }
    /// Fixed tree.
    #[inline(always)]
    fn largest(self, v: Self::V) -> f32 {
        let mut a = [0.0; WIDTH];
        self.store(v, &mut a);
        tree(a, |x, y| if x > y { x } else { y })
    }
    /// Loads at most 16 values; missing ones are zero.
    #[inline(always)]
    fn load_some(self, from: &[f32]) -> Self::V {
        match from.first_chunk::<WIDTH>() {
            Some(full) => self.load(full),
            None => {
                let mut a = [0.0; WIDTH];
                a[..from.len()].copy_from_slice(from);
                self.load(&a)
            }
        }
    }
    /// Stores the first values of `v`, at most 16.
    #[inline(always)]
    fn store_some(self, v: Self::V, to: &mut [f32]) {
        match to.first_chunk_mut::<WIDTH>() {
            Some(full) => self.store(v, full),
            None => {
                let mut a = [0.0; WIDTH];
                self.store(v, &mut a);
                let n = to.len();
                to.copy_from_slice(&a[..n]);
            }
        }
    }
}

#[inline(always)]
fn tree(a: [f32; WIDTH], join: impl Fn(f32, f32) -> f32) -> f32 {
    let b: [f32; 8] = std::array::from_fn(|i| join(a[i], a[i + 8]));
    let c: [f32; 4] = std::array::from_fn(|i| join(b[i], b[i + 4]));
    join(join(c[0], c[2]), join(c[1], c[3]))
}

/// Plain Rust.
#[derive(Clone, Copy)]
pub(crate) struct Scalar;

impl Lanes for Scalar {
    type V = [f32; WIDTH];
    const MANY_REGISTERS: bool = false;

    #[inline(always)]
    fn splat(self, x: f32) -> Self::V {
        [x; WIDTH]
    }
    #[inline(always)]
    fn load(self, from: &[f32; WIDTH]) -> Self::V {
        *from
    }
    #[inline(always)]
    fn store(self, v: Self::V, to: &mut [f32; WIDTH]) {
        *to = v;
    }
    #[inline(always)]
    fn load_f16(self, from: &[u16; WIDTH]) -> Self::V {
        std::array::from_fn(|i| formats::half::f16_to_f32(from[i]))
    }
    #[inline(always)]
    fn store_f16(self, v: Self::V, to: &mut [u16; WIDTH]) {
        *to = std::array::from_fn(|i| formats::half::f32_to_f16(v[i]));
    }
    #[inline(always)]
    fn load_i8(self, from: &[i8; WIDTH]) -> Self::V {
        std::array::from_fn(|i| f32::from(from[i]))
    }
    #[inline(always)]
    fn add(self, a: Self::V, b: Self::V) -> Self::V {
        std::array::from_fn(|i| a[i] + b[i])
    }
    #[inline(always)]
    fn sub(self, a: Self::V, b: Self::V) -> Self::V {
        std::array::from_fn(|i| a[i] - b[i])
    }
    #[inline(always)]
    fn mul(self, a: Self::V, b: Self::V) -> Self::V {
        std::array::from_fn(|i| a[i] * b[i])
    }
    #[inline(always)]
    fn fma(self, a: Self::V, b: Self::V, c: Self::V) -> Self::V {
        std::array::from_fn(|i| a[i].mul_add(b[i], c[i]))
    }
    #[inline(always)]
    fn max(self, a: Self::V, b: Self::V) -> Self::V {
        std::array::from_fn(|i| if a[i] > b[i] { a[i] } else { b[i] })
    }
    #[inline(always)]
    fn keep(self, v: Self::V, from: usize, to: usize, fill: f32) -> Self::V {
        std::array::from_fn(|i| if (from..to).contains(&i) { v[i] } else { fill })
    }
}

#[cfg(target_arch = "x86_64")]
pub(crate) use x86::{Avx2, Avx512};

#[cfg(target_arch = "x86_64")]
mod x86;
