//! Pages: memory, reference counts, copies, bytes in and out.

use super::{CacheType, Order, PAGE_TOKENS, PageLayout, PartIndex, Run};
use std::alloc::{Layout, alloc_zeroed, dealloc};
use std::ptr::NonNull;

/// Names a page of a [`PageStore`].
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct PageId(u32);

/// All pages of an executor.
pub struct PageStore {
    layout: PageLayout,
    pages: Vec<Page>,
    free: Vec<PageId>,
    most: usize,
    stamp: u64,
}

struct Page {
    memory: NonNull<u8>,
    references: u32,
    /// The last write job that touched the page.
    stamp: u64,
}

// SAFETY: a page's memory belongs to the store alone; shared access through `&PageStore` only reads, writes take
// `&mut PageStore` and are split into disjoint rows.
unsafe impl Send for PageStore {}
// SAFETY: as above.
unsafe impl Sync for PageStore {}

impl PageStore {
    /// An empty store that will hold at most `most` pages.
    pub fn new(layout: PageLayout, most: usize) -> PageStore {
        PageStore { layout, pages: Vec::new(), free: Vec::new(), most: most.min(u32::MAX as usize), stamp: 0 }
    }

    /// The layout of its pages.
    pub fn layout(&self) -> &PageLayout {
        &self.layout
    }

    /// Most pages.
    pub fn pages_total(&self) -> usize {
        self.most
    }

    /// Pages that nobody holds.
    pub fn pages_free(&self) -> usize {
        self.free.len() + (self.most - self.pages.len())
    }

    /// A page with one reference; `None` when all are held or memory has run out. Its contents are unspecified numbers.
    pub fn take(&mut self) -> Option<PageId> {
        if let Some(id) = self.free.pop() {
            self.pages[id.0 as usize].references = 1;
            return Some(id);
        }
        if self.pages.len() >= self.most {
            return None;
        }
        let layout = self.memory_layout();
        // SAFETY: the layout's size is not zero.
        let memory = NonNull::new(unsafe { alloc_zeroed(layout) })?;
        let id = PageId(self.pages.len() as u32);
        self.pages.push(Page { memory, references: 1, stamp: 0 });
        Some(id)
    }

    /// One more holder.
    pub fn share(&mut self, id: PageId) {
        self.pages[id.0 as usize].references += 1;
    }

    /// One holder less; the last one frees the page.
    pub fn release(&mut self, id: PageId) {
        let page = &mut self.pages[id.0 as usize];
        if page.references > 0 {
            page.references -= 1;
            if page.references == 0 {
                self.free.push(id);
            }
        }
    }

    /// Whether more than one holder reads the page: copy before writing.
    pub fn is_shared(&self, id: PageId) -> bool {
        self.pages[id.0 as usize].references > 1
    }

    /// A new page with the contents of `id`.
    pub fn copy(&mut self, id: PageId) -> Option<PageId> {
        let to = self.take()?;
        let bytes = self.layout.bytes;
        let (from, into) = (self.pages[id.0 as usize].memory, self.pages[to.0 as usize].memory);
        // SAFETY: two different pages of the store, each of `bytes` bytes, under `&mut self`.
        unsafe { std::ptr::copy_nonoverlapping(from.as_ptr(), into.as_ptr(), bytes) };
        Some(to)
    }

    /// Appends the bytes of the page, the `number`-th of its sequence, to `out`, zeros in place of rows that its first `tokens`
    /// tokens do not complete.
    pub fn export(&self, id: PageId, number: usize, tokens: usize, out: &mut Vec<u8>) {
        let start = out.len();
        out.extend_from_slice(self.bytes(id));
        clear_from(&self.layout, &mut out[start..], number, tokens);
    }

    /// Fills a page from exported bytes; `false` when their number is wrong.
    pub fn import(&mut self, id: PageId, bytes: &[u8]) -> bool {
        if bytes.len() != self.layout.bytes {
            return false;
        }
        let page = &self.pages[id.0 as usize];
        // SAFETY: the page has `layout.bytes` bytes and is borrowed by `&mut self`.
        unsafe { std::slice::from_raw_parts_mut(page.memory.as_ptr(), bytes.len()) }.copy_from_slice(bytes);
        true
    }

    /// Gives the memory of free pages back to the system.
    pub fn forget_all(&mut self) {
        let layout = self.memory_layout();
        for page in self.pages.drain(..) {
            // SAFETY: allocated by `take` with this layout and not used again.
            unsafe { dealloc(page.memory.as_ptr(), layout) };
        }
        self.free.clear();
    }

    /// The bytes of a part.
    pub(crate) fn part_bytes(&self, id: PageId, part: PartIndex) -> &[u8] {
        let (spec, offset) = self.layout.part(part);
        let len = spec.cache.bytes(spec.width).unwrap_or(0) * spec.rows();
        &self.bytes(id)[offset..offset + len]
    }

    /// Start of a page for the writer, which proves disjointness itself.
    pub(crate) fn memory(&self, id: PageId) -> NonNull<u8> {
        self.pages[id.0 as usize].memory
    }

    /// Checks that the rows of `runs` may be written at once: every written page exists, is held once and belongs to one
    /// run.
    ///
    /// # Panics
    /// When the caller's tables break this rule: writing would race.
    pub(crate) fn claim_for_writing(&mut self, runs: &[Run<'_>]) {
        self.stamp += 1;
        for run in runs.iter().filter(|r| r.rows > 0) {
            let first = run.position / PAGE_TOKENS;
            let last = (run.position + run.rows - 1) / PAGE_TOKENS;
            for id in &run.pages[first..=last] {
                let page = &mut self.pages[id.0 as usize];
                assert!(page.references == 1, "a shared page is written: copy it first");
                assert!(page.stamp != self.stamp, "two sequences write one page");
                page.stamp = self.stamp;
            }
        }
    }

    fn bytes(&self, id: PageId) -> &[u8] {
        let page = &self.pages[id.0 as usize];
        // SAFETY: the page has `layout.bytes` initialised bytes; writers need `&mut self`.
        unsafe { std::slice::from_raw_parts(page.memory.as_ptr(), self.layout.bytes) }
    }

    fn memory_layout(&self) -> Layout {
        // `PageLayout::new` bounds the size, so this cannot fail; the smallest layout is never too small to free.
        Layout::from_size_align(self.layout.bytes, 64).unwrap_or(Layout::new::<[u64; 8]>())
    }
}

impl Drop for PageStore {
    fn drop(&mut self) {
        self.forget_all();
    }
}

/// Zeroes the rows that the first `tokens` tokens of the page do not complete.
fn clear_from(layout: &PageLayout, page: &mut [u8], number: usize, tokens: usize) {
    let first = number * PAGE_TOKENS;
    let tokens = tokens.min(PAGE_TOKENS);
    for (spec, offset) in &layout.parts {
        let kept = spec.complete(first + tokens) - spec.complete(first);
        let (rows, row) = (spec.rows(), spec.cache.bytes(spec.width).unwrap_or(0));
        let bytes = &mut page[*offset..offset + row * rows];
        match (spec.order, spec.cache) {
            (Order::ByToken, _) => bytes[row * kept..].fill(0),
            (Order::ByChannel, CacheType::F32) => {
                bytes.chunks_exact_mut(4 * rows).for_each(|c| c[4 * kept..].fill(0));
            }
            (Order::ByChannel, CacheType::F16) => {
                bytes.chunks_exact_mut(2 * rows).for_each(|c| c[2 * kept..].fill(0));
            }
            (Order::ByChannel, CacheType::Q8_0) => {
                for block in bytes.chunks_exact_mut(34 * rows) {
                    let (scales, quants) = block.split_at_mut(2 * rows);
                    scales[2 * kept..].fill(0);
                    quants.chunks_exact_mut(rows).for_each(|c| c[kept..].fill(0));
                }
            }
        }
    }
}
