//! Hints to the system about a map: what is read soon, at random, or no more.

use std::ops::Range;

use memmap2::Mmap;

/// How a range will be read.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Access {
    /// No particular way; undoes the others.
    Normal,
    /// Here and there: reading ahead would be wasted.
    Random,
    /// From front to back.
    Sequential,
    /// Soon: start reading it now, in the background.
    WillNeed,
}

#[cfg(unix)]
pub(crate) fn advise(map: &Mmap, range: Range<usize>, access: Access) -> std::io::Result<()> {
    let advice = match access {
        Access::Normal => memmap2::Advice::Normal,
        Access::Random => memmap2::Advice::Random,
        Access::Sequential => memmap2::Advice::Sequential,
        Access::WillNeed => memmap2::Advice::WillNeed,
    };
    if range.is_empty() {
        return Ok(());
    }
    map.advise_range(advice, range.start, range.len())
}

#[cfg(unix)]
pub(crate) fn release(map: &Mmap, range: Range<usize>) -> std::io::Result<()> {
    // 64 KiB covers every page size in use; a smaller page only means that a little less is given back.
    const PAGE: usize = 1 << 16;
    let base = map.as_ptr() as usize;
    let inner = whole_pages(range, base, PAGE);
    if inner.is_empty() {
        return Ok(());
    }
    // SAFETY: the map is a read-only map of a file that this process never writes through, so dropping its pages loses
    // nothing: the next access reads the same bytes from the file. The range is inside the map (callers pass a tensor's
    // range) and on page bounds, so no other memory is touched.
    unsafe { map.unchecked_advise_range(memmap2::UncheckedAdvice::DontNeed, inner.start, inner.len()) }
}

/// The part of `range` that consists of whole pages, for a map at address `base`.
#[cfg(unix)]
fn whole_pages(range: Range<usize>, base: usize, page: usize) -> Range<usize> {
    let first = (base + range.start).next_multiple_of(page).saturating_sub(base);
    let last = ((base + range.end) / page * page).saturating_sub(base);
    first..last
}

#[cfg(not(unix))]
pub(crate) fn advise(_: &Mmap, _: Range<usize>, _: Access) -> std::io::Result<()> {
    Ok(())
}

#[cfg(not(unix))]
pub(crate) fn release(_: &Mmap, _: Range<usize>) -> std::io::Result<()> {
    Ok(())
}

#[cfg(all(test, unix))]
mod tests {
    use super::*;

    #[test]
    fn only_pages_inside_the_range_are_released() {
        assert_eq!(whole_pages(0..8192, 4096, 4096), 0..8192);
        assert_eq!(whole_pages(1..8192, 4096, 4096), 4096..8192);
        assert_eq!(whole_pages(0..8191, 4096, 4096), 0..4096);
        assert!(whole_pages(10..4000, 4096, 4096).is_empty());
        // A map need not start on a large page's bound.
        assert_eq!(whole_pages(0..70000, 65536 - 100, 65536), 100..65636);
    }
}
