//! What stands before attention, and attention.

use super::few::attention::Rows;
use super::work::SPREAD_ROWS;
use super::{Emitter, Label, Result};
use crate::cpu::step::{Appended, AppendedFrom, AttendOf, Changed, NormOf, Slot};
use bloomery_kernels_cpu::kv::{CacheType, Order, PartIndex};
use bloomery_kernels_gpu::{Argument, Buffer, GpuError};

impl Emitter<'_> {
    /// Where the rows from `first` on stand.
    pub(super) fn place(&self, first: usize) -> Vec<Argument> {
        let from = |words: Buffer| words.part(4 * first as u64, words.bytes() - 4 * first as u64);
        vec![
            from(self.input.positions).unwrap_or(Buffer::NONE).into(),
            from(self.input.table_of_row).unwrap_or(Buffer::NONE).into(),
            self.input.tables.into(),
            (self.table_pages as u32).into(),
            self.buffers.store.into(),
            self.buffers.sizes().page_bytes.into(),
        ]
    }

    pub(super) fn prepare(
        &mut self,
        index: u32,
        rows: usize,
        changed: &[Changed],
        appended: &[Appended],
    ) -> Result<()> {
        struct PartOf {
            x: Buffer,
            width: usize,
            head: usize,
            norm: Option<NormOf>,
            rope: Option<usize>,
            store: Option<PartIndex>,
        }
        let b = self.buffers;
        let mut parts: Vec<PartOf> = Vec::new();
        for c in changed {
            let x = b.rows_of(c.slot, rows, c.width)?;
            parts.push(PartOf { x, width: c.width, head: c.head, norm: c.norm, rope: c.rope, store: None });
        }
        for append in appended {
            match append.from {
                AppendedFrom::Changed(i) => parts[i].store = Some(append.part),
                AppendedFrom::Slot(slot) => {
                    let width = b.sizes().part(append.part).1.width;
                    // Any division into heads will do: whole blocks of 32 where they divide it.
                    let head = [128, 64, 32]
                        .into_iter()
                        .find(|head| width.is_multiple_of(*head))
                        .unwrap_or(width.min(512));
                    parts.push(PartOf {
                        x: b.rows_of(slot, rows, width)?,
                        width,
                        head,
                        norm: None,
                        rope: None,
                        store: Some(append.part),
                    });
                }
            }
        }
        if parts.len() > 3 || parts.iter().any(|part| part.head > 512) {
            return Err(GpuError::NoKernel(format!("{} parts of heads at once", parts.len())));
        }
        let mut arguments = self.place(0);
        let most = parts.iter().map(|part| part.width.div_ceil(part.head.max(1))).max().unwrap_or(1);
        for part in parts.iter().map(Some).chain(std::iter::repeat(None)).take(3) {
            let Some(part) = part else {
                let none = Argument::U32(0);
                arguments.push(Buffer::NONE.into());
                arguments.extend([none; 3]);
                arguments.push(Buffer::NONE.into());
                arguments.extend([none, Argument::F32(0.0)]);
                arguments.push(Buffer::NONE.into());
                arguments.extend([none; 5]);
                continue;
            };
            let weight = part.norm.and_then(|norm| norm.weight);
            let spec = part.rope.map(|rope| &self.lowered.ropes[rope].spec);
            let (at, cache) = match part.store {
                None => (0, 0),
                Some(store) => {
                    let (at, spec) = b.sizes().part(store);
                    (at as u32, cache_number(spec.cache) + if spec.order == Order::ByChannel { 4 } else { 0 })
                }
            };
            arguments.extend([
                part.x.into(),
                Argument::U32(part.width as u32),
                Argument::U32(part.head as u32),
                u32::from(part.norm.is_some()).into(),
                self.vector(weight).into(),
                weight.map_or(0, |v| self.lowered.vectors[v].len() as u32).into(),
                part.norm.map_or(0.0, |norm| norm.eps).into(),
                part.rope.map(|rope| self.rotations.table(rope)).into(),
                spec.map_or(0, |spec| spec.dims as u32).into(),
                spec.map_or(0, |spec| spec.offset as u32).into(),
                spec.map_or(0, |spec| u32::from(spec.halves)).into(),
                at.into(),
                cache.into(),
            ]);
        }
        let grid = [most.div_ceil(4) as u32, rows as u32, parts.len() as u32];
        let label = Label { operator: "heads and append", step: index, bytes: 0 };
        self.launch("heads_prepare", grid, 128, 4 * 512 * 4, arguments, label)
    }

    /// Attention of any number of rows, one block for a row and a key head. A few dozen rows may be as many sequences, each with keys for
    /// many blocks: they are spread, as are heads of more than 192 values and those that share their keys.
    pub(super) fn attend(
        &mut self,
        index: u32,
        rows: usize,
        q: Slot,
        out: Slot,
        of: &AttendOf,
    ) -> Result<()> {
        let b = self.buffers;
        let (keys, values) = (b.sizes().part(of.keys), b.sizes().part(of.values));
        let size = [32, 64, 96, 128, 192].into_iter().find(|size| of.value <= *size);
        let shares = of.heads >= 2 * of.kv_heads;
        let Some(size) = size.filter(|_| rows > 2 * SPREAD_ROWS && !shares) else {
            for first in (0..rows).step_by(SPREAD_ROWS) {
                let part = Rows { all: rows, part: first..rows.min(first + SPREAD_ROWS), list: false };
                self.few_attend(index, part, (q, out), of, true, &[])?;
            }
            return Ok(());
        };
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
            b.rows_of(q, rows, of.heads * of.key)?.into(),
            b.rows_of(out, rows, of.heads * of.value)?.into(),
        ]);
        let warps = (of.heads / of.kv_heads.max(1)) as u32;
        let grid = [rows as u32, of.kv_heads as u32, 1];
        let label = Label { operator: "attention", step: index, bytes: 0 };
        self.launch(&format!("attend_{size}"), grid, 32 * warps, 0, arguments, label)
    }
}

pub(super) fn cache_number(cache: CacheType) -> u32 {
    match cache {
        CacheType::F32 => 1,
        CacheType::F16 => 2,
        CacheType::Q8_0 => 3,
    }
}
