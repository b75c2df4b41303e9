//! The key-value store: pages of [`PAGE_TOKENS`] tokens with a reference count.
//!
//! A page holds the rows of its tokens for every store of a program, so that one table per sequence names everything that
//! the sequence remembers. Keys lie by channel (`[width, tokens]`): attention then reads sixteen keys at a time without any
//! shuffling. Values lie by token (`[tokens, width]`). Memory is taken when a page is first used and kept for the next one.
//! The store knows neither sequences nor prefixes: whoever owns the tables counts references and copies before writing.

mod codec;
mod page;

pub use page::{PageId, PageStore};

use bloomery_formats as formats;

/// Tokens of a page; also the block of keys that attention takes at a time.
pub const PAGE_TOKENS: usize = 32;

/// Storage type of a part.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum CacheType {
    /// Four bytes a value, exact.
    F32,
    /// Two bytes a value.
    F16,
    /// 34 bytes for 32 values: a half scale and int8.
    Q8_0,
}

/// Order of a part's values in a page; `rows` are those of [`PartSpec::rows`].
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Order {
    /// `[width, rows]`: keys.
    ByChannel,
    /// `[rows, width]`: values.
    ByToken,
}

/// A piece of a row, as a program declares it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct PartSpec {
    /// Values in a row; a multiple of 32 for `Q8_0`.
    pub width: usize,
    /// Storage type.
    pub cache: CacheType,
    /// Order in the page.
    pub order: Order,
    /// Tokens that one row stands for: the part has a row for every so many tokens, written with the last of them.
    pub every: usize,
}

impl PartSpec {
    /// Rows of a page: those that tokens of one page can complete.
    pub fn rows(&self) -> usize {
        PAGE_TOKENS.div_ceil(self.every.max(1))
    }

    /// Rows that `tokens` tokens complete.
    pub fn complete(&self, tokens: usize) -> usize {
        tokens / self.every.max(1)
    }

    /// Where row `row` lies: the number of the page among the sequence's, and the place in it. A row lies in the page of the
    /// token that completes it, so a sequence that is cut back keeps exactly the pages of its rows.
    pub fn place(&self, row: usize) -> (usize, usize) {
        let page = ((row + 1) * self.every.max(1) - 1) / PAGE_TOKENS;
        (page, row - self.complete(page * PAGE_TOKENS))
    }
}

/// Index of a part in the layout.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct PartIndex(pub usize);

/// Where the parts of all stores lie in a page.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PageLayout {
    parts: Vec<(PartSpec, usize)>,
    bytes: usize,
}

/// Why parts cannot be stored.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum LayoutError {
    /// A row for every no tokens.
    #[error("a row of the store stands for no token")]
    NoTokens,
    /// Blocks do not divide the row.
    #[error("a cache of type q8_0 needs rows of a multiple of 32 values, found {width}; choose f16 or f32")]
    NoBlocks {
        /// Values in a row.
        width: usize,
    },
    /// The page's size overflows.
    #[error("a page of {parts} parts does not fit the address space")]
    TooLarge {
        /// Number of parts.
        parts: usize,
    },
}

impl CacheType {
    /// llama.cpp's name.
    pub fn name(self) -> &'static str {
        match self {
            CacheType::F32 => "f32",
            CacheType::F16 => "f16",
            CacheType::Q8_0 => "q8_0",
        }
    }

    /// The type of that name.
    pub fn from_name(name: &str) -> Option<CacheType> {
        [CacheType::F32, CacheType::F16, CacheType::Q8_0].into_iter().find(|t| t.name() == name)
    }

    /// Bytes of `width` values.
    pub(crate) fn bytes(self, width: usize) -> Option<usize> {
        match self {
            CacheType::F32 => width.checked_mul(4),
            CacheType::F16 => width.checked_mul(2),
            CacheType::Q8_0 => (width / 32).checked_mul(34),
        }
    }
}

impl PageLayout {
    /// Lays the parts out one after another.
    ///
    /// # Errors
    /// See [`LayoutError`].
    pub fn new(parts: &[PartSpec]) -> Result<PageLayout, LayoutError> {
        let too_large = LayoutError::TooLarge { parts: parts.len() };
        let mut laid = Vec::with_capacity(parts.len());
        let mut offset = 0usize;
        for part in parts {
            if part.cache == CacheType::Q8_0 && !part.width.is_multiple_of(32) {
                return Err(LayoutError::NoBlocks { width: part.width });
            }
            if part.every == 0 {
                return Err(LayoutError::NoTokens);
            }
            laid.push((*part, offset));
            let bytes = part
                .cache
                .bytes(part.width)
                .and_then(|b| b.checked_mul(part.rows()))
                .and_then(|b| b.checked_next_multiple_of(64))
                .ok_or(too_large.clone())?;
            offset = offset
                .checked_add(bytes)
                .filter(|o| *o <= isize::MAX as usize / 2)
                .ok_or(too_large.clone())?;
        }
        Ok(PageLayout { parts: laid, bytes: offset.max(64) })
    }

    /// Bytes of a page.
    pub fn page_bytes(&self) -> usize {
        self.bytes
    }

    /// The parts in order.
    pub fn parts(&self) -> impl Iterator<Item = PartSpec> + '_ {
        self.parts.iter().map(|(spec, _)| *spec)
    }

    pub(crate) fn part(&self, index: PartIndex) -> (PartSpec, usize) {
        self.parts[index.0]
    }
}

/// Rows of one sequence in a step: rows `first_row .. first_row + rows` stand at positions `position ..`.
#[derive(Debug, Clone, Copy)]
pub struct Run<'a> {
    /// First row of the step.
    pub first_row: usize,
    /// Number of rows.
    pub rows: usize,
    /// Position of the first row in its sequence.
    pub position: usize,
    /// The sequence's pages; they reach at least to the last row.
    pub pages: &'a [PageId],
}

/// Checks that runs follow each other without sharing a row.
///
/// # Panics
/// When they do not: jobs split their rows between threads.
pub(crate) fn check_runs(runs: &[Run<'_>]) {
    let mut end = 0;
    for run in runs {
        assert!(run.first_row >= end, "runs share row {}", run.first_row);
        end = run.first_row + run.rows;
        let tokens = run.position + run.rows;
        assert!(
            tokens.div_ceil(PAGE_TOKENS) <= run.pages.len(),
            "{tokens} tokens in {} pages",
            run.pages.len()
        );
    }
}

/// Quantises 32 values as ggml's Q8_0: int8 and a half scale, the values times the reciprocal of the unrounded scale.
pub(crate) fn quantize_q8_0(values: &[f32], scale: &mut u16, quants: &mut [i8; 32]) {
    let largest = values.iter().fold(0.0f32, |m, v| m.max(v.abs()));
    let step = largest / 127.0;
    let inverse = if step == 0.0 { 0.0 } else { 1.0 / step };
    *scale = formats::half::f32_to_f16(step);
    for (q, v) in quants.iter_mut().zip(values) {
        *q = (v * inverse).round() as i8;
    }
}

/// A row as it comes back from a store of this type.
pub(crate) fn round(cache: CacheType, row: &mut [f32]) {
    match cache {
        CacheType::F32 => {}
        CacheType::F16 => {
            row.iter_mut().for_each(|v| *v = formats::half::f16_to_f32(formats::half::f32_to_f16(*v)))
        }
        CacheType::Q8_0 => {
            for values in row.chunks_exact_mut(32) {
                let (mut scale, mut quants) = (0, [0; 32]);
                quantize_q8_0(values, &mut scale, &mut quants);
                let scale = formats::half::f16_to_f32(scale);
                values.iter_mut().zip(quants).for_each(|(v, q)| *v = scale * f32::from(q));
            }
        }
    }
}
