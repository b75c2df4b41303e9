//! Attention of few rows: spans of keys over blocks, then the spans of a row joined and the row quantised.

use super::super::attention::cache_number;
use super::super::work::SPAN_TOKENS;
use super::super::{Emitter, Label, Result};
use crate::cpu::step::{AttendOf, Slot};
use bloomery_formats::ActivationKind;
use bloomery_kernels_cpu::kv::{CacheType, PAGE_TOKENS};
use bloomery_kernels_gpu::{Argument, Buffer, GpuError};
use std::ops::Range;

/// Query heads of a block, as the kernel has them.
const HEADS: usize = 8;
/// Spans whose factors the joining kernel holds at a time.
const TURN: usize = 64;
/// Most shared memory of a block, so that every card has it and several blocks fit one multiprocessor.
const MOST_SHARED: usize = 80 << 10;
/// Blocks a multiprocessor should have to choose from.
const BLOCKS: usize = 3;

/// Which rows of a step.
pub(in super::super) struct Rows {
    /// Rows of the step.
    pub all: usize,
    /// Those meant.
    pub part: Range<usize>,
    /// `part` counts the rows that want results.
    pub list: bool,
}

impl Rows {
    pub fn all(rows: usize) -> Rows {
        Rows { all: rows, part: 0..rows, list: false }
    }
}

impl Emitter<'_> {
    /// Some rows, at most [`SPREAD_ROWS`](super::super::work::SPREAD_ROWS). `keep`: somebody reads the result itself, not only its quantised forms.
    pub(in super::super) fn few_attend(
        &mut self,
        index: u32,
        Rows { all, part, list }: Rows,
        (q, out): (Slot, Slot),
        of: &AttendOf,
        keep: bool,
        quantized: &[Slot],
    ) -> Result<()> {
        let b = self.buffers;
        let rows = part.len();
        let list = match list {
            true => Some(self.input.tail.part(4 * part.start as u64, 4 * rows as u64)?),
            false => None,
        };
        // Rows of a list are counted from the step's first.
        let (first, count) = if list.is_some() { (0, all) } else { (part.start, rows) };
        let rows_of = |slot: Slot, width: usize| {
            let bytes = |rows: usize| 4 * (rows * width) as u64;
            b.rows_of(slot, all, width)?.part(bytes(first), bytes(count))
        };
        let (keys, values) = (b.sizes().part(of.keys), b.sizes().part(of.values));
        let spans = self.max_tokens.div_ceil(SPAN_TOKENS);
        let group = of.heads / of.kv_heads.max(1);
        let parts = of.kv_heads * group.div_ceil(HEADS);
        let channels = [1, 2, 4].into_iter().find(|n| of.value <= 128 * n);
        let channels = channels.ok_or_else(|| GpuError::NoKernel(format!("values of {}", of.value)))?;
        // A page's keys and values in shared memory; whole blocks of 32 channels where they are quantised.
        let key_bytes = match keys.1.cache {
            CacheType::F32 => 128 * of.key,
            CacheType::F16 => 64 * of.key,
            CacheType::Q8_0 => 1088 * (of.key.div_ceil(32) + usize::from(!of.key.is_multiple_of(32))),
        };
        let value_bytes = match values.1.cache {
            CacheType::F32 => 4 * of.value,
            CacheType::F16 => 2 * of.value,
            CacheType::Q8_0 => 34 * (of.value.div_ceil(32) + usize::from(!of.value.is_multiple_of(32))),
        };
        let page = 1024 + 32 + key_bytes + PAGE_TOKENS * value_bytes.next_multiple_of(16);
        let shared = |tile: usize| 32 * of.key + tile * page;
        let tile = [4, 2, 1].into_iter().find(|tile| shared(*tile) <= MOST_SHARED).unwrap_or(1);
        let processors = self.machine.processors() as usize;
        let turns = (BLOCKS * processors).div_ceil(rows * parts).clamp(1, spans);

        let mut arguments = self.place(first);
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
            list.into(),
            rows_of(q, of.heads * of.key)?.into(),
            b.work.into(),
            Argument::U32(spans as u32),
            Argument::U32(turns as u32),
            Argument::U32(tile as u32),
        ]);
        let label = Label { operator: "attention", step: index, bytes: 0 };
        let grid = [rows as u32, parts as u32, turns as u32];
        self.launch(&format!("attend_few_{channels}"), grid, 256, shared(tile) as u32, arguments, label)?;

        let targets = self.targets(quantized)?;
        let find = |kind| targets.iter().find(|(_, k)| *k == kind).map(|(arrays, _)| *arrays);
        let plain = find(ActivationKind::F32).map(|arrays| arrays.quants);
        let result = rows_of(out, of.heads * of.value)?;
        let positions = self.input.positions.part(4 * first as u64, 4 * count as u64)?;
        let mut arguments: Vec<Argument> = vec![
            positions.into(),
            list.into(),
            Argument::U32(of.heads as u32),
            Argument::U32(of.value as u32),
            Argument::U32(of.window.unwrap_or(0) as u32),
            self.vector(of.sinks).into(),
            b.work.into(),
            Argument::U32(spans as u32),
            keep.then_some(result).into(),
            plain.into(),
        ];
        for arrays in [find(ActivationKind::Q8K), find(ActivationKind::Q8Block32)] {
            arguments.push(arrays.map_or(Buffer::NONE, |a| a.quants).into());
            arguments.push(arrays.map_or(Buffer::NONE, |a| a.scales).into());
            arguments.push(arrays.map_or(Buffer::NONE, |a| a.sums).into());
        }
        let width = of.heads * of.value;
        // Heads that 256 channels can meet.
        let met = (255 / of.value.max(1) + 2).min(of.heads);
        let shared = 4 * (256 + 4 * met * TURN);
        let grid = [width.div_ceil(256) as u32, rows as u32, 1];
        self.launch("merge_few", grid, 256, shared as u32, arguments, label)
    }
}
