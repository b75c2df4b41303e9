//! The card's memory of a step: every value's place, chosen once, at load.

use super::joins::Joins;
use super::pack::{Lifetime, pack};
use super::{CudaError, CudaOptions};
use crate::cpu::step::{Class, Lowered, Slot, Step, Use, Work};
use bloomery_formats::ActivationKind;
use bloomery_kernels_cpu::kv::{CacheType, Order, PAGE_TOKENS, PartIndex, PartSpec};
use bloomery_kernels_gpu::layout::{self, Quantized};
use bloomery_kernels_gpu::{Buffer, Command, GpuError, Machine, PinnedId};

/// Sizes and offsets, known before any memory is taken.
#[derive(Debug, Clone)]
pub(crate) struct Sizes {
    /// Offset and bytes of each slot.
    slots: Vec<(u64, u64)>,
    classes: Vec<Class>,
    /// Rows that each slot has room for.
    rows: Vec<usize>,
    /// Of all slots.
    pub slot_bytes: u64,
    /// Of the memory that kernels work in, one layer after another.
    pub work_bytes: u64,
    /// Where each part lies in a page, and what it holds.
    parts: Vec<(u64, PartSpec)>,
    pub page_bytes: u64,
    /// Of rows of logits on the host's side.
    pub logits_bytes: u64,
}

impl Sizes {
    pub fn new(lowered: &Lowered, specs: &[PartSpec], options: &CudaOptions) -> Result<Sizes, CudaError> {
        let max_tail = options.max_tail.min(options.max_rows);
        let mut lives: Vec<Option<Lifetime>> = vec![None; lowered.slots.len()];
        let mut rows = vec![0usize; lowered.slots.len()];
        let end = lowered.steps.len();
        let mut work_bytes = 0;
        let joins = Joins::new(lowered);
        for (index, step) in lowered.steps.iter().enumerate() {
            let together = joins.around(index);
            let here = if index < lowered.tail && !is_gather(step) { options.max_rows } else { max_tail };
            work_bytes = work_bytes.max(super::emit::work_bytes(step, here, options));
            step.clone().visit(&mut |slot: &mut Slot, usage| {
                // What the tail reads of the rows before it must outlive the tail: it may be computed in turns.
                let last = if is_gather(step) && usage == Use::Read { end } else { together.end - 1 };
                let life = lives[slot.0].get_or_insert(Lifetime { first: together.start, last, bytes: 0 });
                life.last = life.last.max(last);
                if usage != Use::Read {
                    rows[slot.0] = rows[slot.0].max(here);
                }
            });
        }
        for (slot, _) in lowered.logits.iter().chain(&lowered.hidden) {
            if let Some(life) = &mut lives[slot.0] {
                life.last = end;
            }
        }
        let mut values = Vec::with_capacity(lives.len());
        for ((life, class), rows) in lives.iter().zip(&lowered.slots).zip(&rows) {
            let bytes = match class {
                Class::Rows { width } | Class::Index { width } => 4 * (*width as u64) * (*rows as u64),
                Class::Quantized { kind, width } => layout::quantized_bytes(*kind, *width, *rows),
            };
            values.push(match life {
                Some(life) => Lifetime { bytes, ..*life },
                None => Lifetime { first: 0, last: 0, bytes: 0 },
            });
        }
        let (offsets, slot_bytes) = pack(&values);
        let slots = offsets.into_iter().zip(values.iter().map(|value| value.bytes)).collect();
        let (parts, page_bytes) = parts(specs)?;
        let n_vocab = lowered.logits.map_or(0, |(_, width)| width) as u64;
        Ok(Sizes {
            slots,
            classes: lowered.slots.clone(),
            rows,
            slot_bytes,
            work_bytes,
            parts,
            page_bytes,
            logits_bytes: 4 * n_vocab * max_tail as u64,
        })
    }

    /// Bytes of the store for so many tokens.
    pub fn store_bytes(&self, tokens: usize) -> u64 {
        self.page_bytes * tokens.div_ceil(PAGE_TOKENS) as u64
    }

    /// Where a part lies in a page, and what it holds.
    pub fn part(&self, part: PartIndex) -> (u64, PartSpec) {
        self.parts[part.0]
    }
}

fn is_gather(step: &Step) -> bool {
    matches!(step.work, Work::Gather { .. })
}

/// Bytes of a token's row.
fn row_bytes(spec: &PartSpec) -> u64 {
    let width = spec.width as u64;
    match spec.cache {
        CacheType::F32 => 4 * width,
        CacheType::F16 => 2 * width,
        CacheType::Q8_0 => width / 32 * 34,
    }
}

/// Parts one after another, in the orders of the CPU's pages.
fn parts(specs: &[PartSpec]) -> Result<(Vec<(u64, PartSpec)>, u64), CudaError> {
    let mut laid = Vec::with_capacity(specs.len());
    let mut offset = 0u64;
    for spec in specs {
        if spec.cache == CacheType::Q8_0 && !spec.width.is_multiple_of(32) {
            let error = bloomery_kernels_cpu::kv::LayoutError::NoBlocks { width: spec.width };
            return Err(CudaError::Lowering(error.into()));
        }
        laid.push((offset, *spec));
        offset += (row_bytes(spec) * PAGE_TOKENS as u64).next_multiple_of(256);
    }
    Ok((laid, offset.max(256)))
}

/// Words of the report that every step leaves: the fault word first.
pub(crate) const REPORT_WORDS: usize = 64;

/// The memory itself.
pub(crate) struct CardBuffers {
    sizes: Sizes,
    slots: Buffer,
    /// What kernels work in.
    pub work: Buffer,
    pub store: Buffer,
    /// What every step tells the host.
    pub report: Buffer,
    report_pinned: PinnedId,
    logits_pinned: PinnedId,
}

impl CardBuffers {
    pub fn new(machine: &mut dyn Machine, sizes: &Sizes, store: Buffer) -> Result<CardBuffers, CudaError> {
        let advice = "--ubatch-size makes it smaller";
        let slots = machine.allocate("scratch of a step", sizes.slot_bytes, advice)?;
        let work = machine.allocate("scratch of kernels", sizes.work_bytes, advice)?;
        let report = machine.allocate("report", 4 * REPORT_WORDS as u64, advice)?;
        machine.run(&[Command::Clear(report), Command::Clear(work)])?;
        Ok(CardBuffers {
            sizes: sizes.clone(),
            slots,
            work,
            store,
            report,
            report_pinned: machine.pin(4 * REPORT_WORDS as u64)?,
            logits_pinned: machine.pin(sizes.logits_bytes)?,
        })
    }

    pub fn sizes(&self) -> &Sizes {
        &self.sizes
    }

    fn slot(&self, slot: Slot) -> Result<Buffer, GpuError> {
        let (at, bytes) = self.sizes.slots[slot.0];
        self.slots.part(at, bytes)
    }

    /// f32 or u32 values `[rows, width]`.
    pub fn rows_of(&self, slot: Slot, rows: usize, width: usize) -> Result<Buffer, GpuError> {
        self.slot(slot)?.part(0, 4 * (rows * width) as u64)
    }

    /// Quantised rows, with their kind and width.
    pub fn quantized(&self, slot: Slot) -> Result<(Quantized, ActivationKind, usize), GpuError> {
        match self.sizes.classes[slot.0] {
            Class::Quantized { kind, width } => {
                let arrays = layout::quantized(self.slot(slot)?, kind, width, self.sizes.rows[slot.0])?;
                Ok((arrays, kind, width))
            }
            _ => Err(GpuError::NoKernel(format!("slot {} holds no quantised rows", slot.0))),
        }
    }

    /// The copy that ends every step.
    pub fn send_report(&self) -> Command {
        Command::Download { from: self.report, to: self.report_pinned, at: 0 }
    }

    /// What the last step told.
    pub fn read_report(&self, machine: &mut dyn Machine) -> Result<[u32; REPORT_WORDS], GpuError> {
        let words: &[u32] = bytemuck::cast_slice(machine.pinned(self.report_pinned)?);
        Ok(std::array::from_fn(|i| words.get(i).copied().unwrap_or(0)))
    }

    /// Copies rows of logits to the host, after those of earlier turns.
    pub fn send_logits(&self, slot: Slot, rows: usize, width: usize) -> Result<Command, GpuError> {
        Ok(Command::Download { from: self.rows_of(slot, rows, width)?, to: self.logits_pinned, at: 0 })
    }

    /// The rows that were copied.
    pub fn logits<'a>(
        &self,
        machine: &'a mut dyn Machine,
        rows: usize,
        width: usize,
    ) -> Result<&'a [f32], GpuError> {
        let values: &[f32] = bytemuck::cast_slice(machine.pinned(self.logits_pinned)?);
        Ok(&values[..(rows * width).min(values.len())])
    }

    /// Zeroes what lies in a page's bytes for the tokens from `tokens` on: it may be another text's.
    pub fn clear_from(&self, tokens: usize, page: &mut [u8]) {
        let tokens = tokens.min(PAGE_TOKENS);
        for (offset, spec) in &self.sizes.parts {
            let row = row_bytes(spec) as usize;
            let from = *offset as usize;
            let part = &mut page[from..from + row * PAGE_TOKENS];
            match (spec.order, spec.cache) {
                (Order::ByToken, _) => part[row * tokens..].fill(0),
                (Order::ByChannel, CacheType::F32) => {
                    part.chunks_exact_mut(4 * PAGE_TOKENS).for_each(|channel| channel[4 * tokens..].fill(0));
                }
                (Order::ByChannel, CacheType::F16) => {
                    part.chunks_exact_mut(2 * PAGE_TOKENS).for_each(|channel| channel[2 * tokens..].fill(0));
                }
                (Order::ByChannel, CacheType::Q8_0) => {
                    for block in part.chunks_exact_mut(34 * PAGE_TOKENS) {
                        let (scales, quants) = block.split_at_mut(2 * PAGE_TOKENS);
                        scales[2 * tokens..].fill(0);
                        quants.chunks_exact_mut(PAGE_TOKENS).for_each(|channel| channel[tokens..].fill(0));
                    }
                }
            }
        }
    }
}
