//! Attention of a prompt's rows on tensor cores.
//!
//! Which kernel takes a row must not depend on how the prompt was cut nor on who else is in the step. It depends on what the row is for:
//! rows that want results (the last of a prompt, every generated token, drafts) go to the kernel of few rows, all others to this one.

use super::attention::cache_number;
use super::few::attention::Rows;
use super::work::SPREAD_ROWS;
use super::{Emitter, Label, Result};
use crate::cpu::step::{AttendOf, Slot};
use bloomery_kernels_cpu::kv::CacheType;
use bloomery_kernels_gpu::Argument;

/// Rows of a block, keys of a tile and threads, as the kernel has them.
const ROWS: usize = 64;
const KEYS: usize = 64;
const THREADS: u32 = 128;

/// Channels of a value that a block takes, for values of this size.
fn channels(value: usize) -> Option<usize> {
    match value {
        64 | 80 | 96 | 128 | 192 => Some(value),
        256 | 512 => Some(128),
        _ => None,
    }
}

/// Shared memory of a block: queries in two halves, a tile of keys, a tile of values; rows 16 bytes apart from what they hold.
fn shared(key: usize, channels: usize) -> usize {
    let step = |values: usize| 2 * values + 16;
    2 * ROWS * step(key) + key * step(KEYS) + KEYS * step(channels)
}

impl Emitter<'_> {
    /// The step has rows for this kernel, and it takes this attention: f16 keys and values, heads of multiples of 16 channels, as
    /// much shared memory as they need. Else all rows go to the other kernels.
    pub(super) fn has_flash(&self, of: &AttendOf) -> bool {
        let sizes = self.buffers.sizes();
        let half = |part| sizes.part(part).1.cache == CacheType::F16;
        let fits = |channels| shared(of.key, channels) <= self.machine.shared_per_block() as usize;
        self.wanted < self.rows
            && half(of.keys)
            && half(of.values)
            && of.key.is_multiple_of(16)
            && of.heads <= ROWS * of.kv_heads
            && channels(of.value).is_some_and(fits)
    }

    pub(super) fn prompt_attend(
        &mut self,
        index: u32,
        rows: usize,
        q: Slot,
        out: Slot,
        of: &AttendOf,
    ) -> Result<()> {
        let b = self.buffers;
        let (keys, values) = (b.sizes().part(of.keys), b.sizes().part(of.values));
        let channels = channels(of.value).unwrap_or(of.value);
        let mut arguments = self.place(0);
        arguments.extend([
            Argument::U32(of.heads as u32),
            Argument::U32(of.kv_heads as u32),
            Argument::U32(of.key as u32),
            Argument::U32(of.value as u32),
            of.scale.into(),
            of.softcap.unwrap_or(0.0).into(),
            Argument::U32(of.window.unwrap_or(0) as u32),
            Argument::U32(keys.0 as u32),
            cache_number(keys.1.cache).into(),
            Argument::U32(values.0 as u32),
            cache_number(values.1.cache).into(),
            self.vector(of.sinks).into(),
            self.input.counts.into(),
            self.input.groups.into(),
            self.input.wants.into(),
            b.rows_of(q, rows, of.heads * of.key)?.into(),
            b.rows_of(out, rows, of.heads * of.value)?.into(),
        ]);
        // Whole blocks, and one that is not for every sequence there may be.
        let queries = ROWS / (of.heads / of.kv_heads.max(1)).max(1);
        let blocks = (rows / queries + self.sequences.min(rows)).min(rows);
        let grid = [blocks as u32, of.kv_heads as u32, (of.value / channels) as u32];
        let label = Label { operator: "attention", step: index, bytes: 0 };
        let bytes = shared(of.key, channels) as u32;
        self.launch(&format!("flash_{channels}"), grid, THREADS, bytes, arguments, label)?;
        for first in (0..self.wanted).step_by(SPREAD_ROWS) {
            let part = first..self.wanted.min(first + SPREAD_ROWS);
            self.few_attend(index, Rows { all: rows, part, list: true }, (q, out), of, true, &[])?;
        }
        Ok(())
    }
}
