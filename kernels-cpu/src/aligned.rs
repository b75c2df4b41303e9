//! Growable zeroed memory on cache-line boundaries, so that no vector load of a row's start crosses a line.

use std::marker::PhantomData;
use std::ops::{Deref, DerefMut};

const LINE: usize = 64;

#[derive(Clone, Copy)]
#[repr(C, align(64))]
struct Line([u8; LINE]);

/// Types for which every bit pattern is a value and which need no more than a line's alignment.
///
/// # Safety
/// The type has no padding, no invalid bit pattern, no drop, and a size that divides 64.
pub unsafe trait Plain: Copy + 'static {}
// SAFETY: a plain integer.
unsafe impl Plain for i8 {}
// SAFETY: a plain integer.
unsafe impl Plain for u8 {}
// SAFETY: a plain integer.
unsafe impl Plain for i16 {}
// SAFETY: a plain integer.
unsafe impl Plain for i32 {}
// SAFETY: every bit pattern is an f32.
unsafe impl Plain for f32 {}

/// A slice of plain numbers that starts on a cache line.
pub struct Aligned<T> {
    lines: Vec<Line>,
    len: usize,
    values: PhantomData<T>,
}

impl<T: Plain> Aligned<T> {
    /// `len` zeros.
    pub fn zeroed(len: usize) -> Self {
        let mut aligned = Aligned { lines: Vec::new(), len: 0, values: PhantomData };
        aligned.resize(len);
        aligned
    }

    /// Makes the slice `len` long. Memory is kept when it shrinks; values that appear are zero or what was there before.
    pub fn resize(&mut self, len: usize) {
        let lines = len.div_ceil(LINE / size_of::<T>());
        if lines > self.lines.len() {
            self.lines.resize(lines, Line([0; LINE]));
        }
        self.len = len;
    }
}

impl<T: Plain> Default for Aligned<T> {
    fn default() -> Self {
        Aligned::zeroed(0)
    }
}

impl<T: Plain> Deref for Aligned<T> {
    type Target = [T];
    #[inline(always)]
    fn deref(&self) -> &[T] {
        // SAFETY: `resize` keeps at least `len` values' bytes in `lines`, all initialised; `Plain` allows any bit pattern and
        // the lines' alignment covers that of T.
        unsafe { std::slice::from_raw_parts(self.lines.as_ptr().cast::<T>(), self.len) }
    }
}

impl<T: Plain> DerefMut for Aligned<T> {
    #[inline(always)]
    fn deref_mut(&mut self) -> &mut [T] {
        // SAFETY: as in `deref`, and the borrow is exclusive.
        unsafe { std::slice::from_raw_parts_mut(self.lines.as_mut_ptr().cast::<T>(), self.len) }
    }
}
