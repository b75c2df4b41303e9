//! Disjoint mutable parts of one slice for the chunks of a job.

use std::marker::PhantomData;
use std::ops::Range;

/// A slice whose parts go to different threads.
pub(crate) struct Split<'a, T> {
    start: *mut T,
    len: usize,
    owner: PhantomData<&'a mut [T]>,
}

// SAFETY: parts are handed out only by `part`, whose callers keep them disjoint; T itself may move between threads.
unsafe impl<T: Send> Sync for Split<'_, T> {}
// SAFETY: as a `&mut [T]`, which it stands for.
unsafe impl<T: Send> Send for Split<'_, T> {}

impl<'a, T> Split<'a, T> {
    pub(crate) fn new(slice: &'a mut [T]) -> Self {
        Split { start: slice.as_mut_ptr(), len: slice.len(), owner: PhantomData }
    }

    /// The values of a range.
    ///
    /// # Safety
    /// No two live parts overlap.
    #[allow(clippy::mut_from_ref, reason = "disjointness is the caller's promise")]
    pub(crate) unsafe fn part(&self, range: Range<usize>) -> &mut [T] {
        assert!(range.start <= range.end && range.end <= self.len, "part {range:?} of {}", self.len);
        // SAFETY: the range lies inside the borrowed slice, and the caller keeps parts disjoint.
        unsafe { std::slice::from_raw_parts_mut(self.start.add(range.start), range.len()) }
    }
}
