//! Runs the steps over the buffers.

use super::CpuError;
use super::plan::MemoryPlan;
use super::step::{
    AppendedFrom, AttendOf, Changed, ExpertsOf, Item, Lowered, NormOf, RouteOf, Slot, Step, Vector, Work,
};
use super::weights::{TensorRef, WeightSource};
use bloomery_formats::dequantize_row;
use bloomery_kernels_cpu::activations::Activations;
use bloomery_kernels_cpu::attention::{AttentionSpec, attention};
use bloomery_kernels_cpu::cpu::Cpu;
use bloomery_kernels_cpu::experts::{ExpertBuffers, ExpertWeights, Grouping, experts, gate_up};
use bloomery_kernels_cpu::kv::{PageStore, Run};
use bloomery_kernels_cpu::linear::{MOST, Projection, project};
use bloomery_kernels_cpu::pointwise::{add, glu, mul, unary};
use bloomery_kernels_cpu::prepare::{AppendFrom, AppendRows, HeadNorm, HeadRows, HeadSteps, prepare, rotate};
use bloomery_kernels_cpu::rope::RopeTable;
use bloomery_kernels_cpu::route::{RouteSpec, route};
use bloomery_kernels_cpu::rows::{NormSpec, for_rows, quantize, rms_norm};
use std::mem::take;
use std::sync::atomic::{AtomicBool, Ordering};

/// Receives named node results: name, values `[rows, width]`, width.
pub(crate) type Show<'a> = &'a mut dyn FnMut(&str, &[f32], usize);

/// Buffers of a plan, sized for the largest step so far.
pub(crate) struct Buffers {
    pub rows: Vec<Vec<f32>>,
    widths: Vec<usize>,
    pub index: Vec<Vec<u32>>,
    index_widths: Vec<usize>,
    pub quantized: Vec<Activations>,
    /// Index scores of the rows that are chosen from at the moment.
    pub scores: Vec<f32>,
    experts: Vec<ExpertBuffers>,
    grouping: Grouping,
    pub tables: Vec<RopeTable>,
}

impl Buffers {
    pub fn new(plan: &MemoryPlan, lowered: &Lowered, source: &dyn WeightSource) -> Result<Buffers, CpuError> {
        let shape = |e: bloomery_kernels_cpu::matrix::MatmulError| CpuError::Program(e.to_string());
        let quantized =
            plan.quantized.iter().map(|(kind, width)| Activations::new(*kind, *width).map_err(shape));
        let experts = lowered.expert_buffers.iter().map(|(spec, down)| {
            ExpertBuffers::new(spec, &down.matrix(source).map_err(shape)?).map_err(shape)
        });
        Ok(Buffers {
            rows: vec![Vec::new(); plan.rows.len()],
            widths: plan.rows.clone(),
            index: vec![Vec::new(); plan.index.len()],
            index_widths: plan.index.clone(),
            quantized: quantized.collect::<Result<_, _>>()?,
            scores: Vec::new(),
            experts: experts.collect::<Result<_, _>>()?,
            grouping: Grouping::default(),
            tables: vec![RopeTable::default(); lowered.ropes.len()],
        })
    }

    /// Takes a buffer out to be written.
    pub fn open(&mut self, slot: Slot, rows: usize) -> Vec<f32> {
        let mut buffer = take(&mut self.rows[slot.0]);
        let needed = rows * self.widths[slot.0];
        if buffer.len() < needed {
            // Nothing of the old contents is needed: growing a fresh one copies nothing.
            buffer = vec![0.0; needed];
        }
        buffer
    }

    pub fn open_index(&mut self, slot: Slot, rows: usize) -> Vec<u32> {
        let mut buffer = take(&mut self.index[slot.0]);
        buffer.resize(buffer.len().max(rows * self.index_widths[slot.0]), 0);
        buffer
    }

    /// Takes a buffer of quantised rows out, shaped for this many rows.
    pub fn open_quantized(&mut self, slot: Slot, rows: usize) -> Result<Activations, CpuError> {
        let empty = Activations::new(bloomery_formats::ActivationKind::F32, 0).map_err(failed)?;
        let mut target = std::mem::replace(&mut self.quantized[slot.0], empty);
        let (kind, cols) = (target.kind(), target.cols());
        target.reset(kind, cols, rows).map_err(failed)?;
        Ok(target)
    }
}

/// What a step of the engine gives to the steps of the program.
pub(crate) struct Batch<'a> {
    /// Tokens in the order of the rows.
    pub tokens: &'a [u32],
    /// The rows by sequence.
    pub runs: &'a [Run<'a>],
    /// For every run: the sequence's tokens before it, where the program reads them back.
    pub before: &'a [&'a [u32]],
    /// For every row of the tail: its number among all rows.
    pub tail: &'a [usize],
}

/// What a step changes of the sequences.
pub(crate) struct Held<'a> {
    pub store: &'a mut PageStore,
    /// For every run: its sequence's states of fixed size.
    pub blocks: Vec<&'a mut [f32]>,
}

/// The machine, the weights and the program.
pub(crate) struct Machine<'a> {
    pub cpu: &'a Cpu,
    pub source: &'a dyn WeightSource,
    pub lowered: &'a Lowered,
}

fn failed(e: impl std::fmt::Display) -> CpuError {
    CpuError::Program(e.to_string())
}

impl Machine<'_> {
    /// Runs all steps; stops before the tail when no row wants results.
    pub fn run(
        &self,
        buffers: &mut Buffers,
        held: &mut Held<'_>,
        batch: &Batch<'_>,
        mut show: Option<Show<'_>>,
    ) -> Result<(), CpuError> {
        self.read_ahead(batch);
        for (index, step) in self.lowered.steps.iter().enumerate() {
            let rows = if index < self.lowered.tail { batch.tokens.len() } else { batch.tail.len() };
            if rows == 0 {
                continue;
            }
            self.step(step, rows, buffers, held, batch)?;
            if let Some(show) = show.as_mut() {
                self.show(step, rows, buffers, show);
            }
        }
        Ok(())
    }

    fn show(&self, step: &Step, rows: usize, buffers: &Buffers, show: &mut Show<'_>) {
        for (name, slot, width, is_index) in &step.shows {
            if *is_index {
                let values: Vec<f32> =
                    buffers.index[slot.0][..rows * width].iter().map(|v| *v as f32).collect();
                show(name, &values, *width);
            } else {
                show(name, &buffers.rows[slot.0][..rows * width], *width);
            }
        }
    }

    pub(super) fn vector(&self, vector: Option<Vector>) -> Option<&[f32]> {
        vector.map(|v| &self.lowered.vectors[v][..])
    }

    fn norm(&self, norm: &NormOf) -> NormSpec<'_> {
        NormSpec { weight: self.vector(norm.weight), group: norm.group, eps: norm.eps }
    }

    fn step(
        &self,
        step: &Step,
        rows: usize,
        b: &mut Buffers,
        held: &mut Held<'_>,
        batch: &Batch<'_>,
    ) -> Result<(), CpuError> {
        let cpu = self.cpu;
        match &step.work {
            Work::Embed { weight, scale, out } => {
                let mut target = b.open(*out, rows);
                let result = self.embed(*weight, *scale, batch.tokens, &mut target);
                b.rows[out.0] = target;
                result?;
            }
            Work::Norm { x, width, norm, out, quantized } => {
                let mut target = b.open(*out, rows);
                let mut opened = [None, None];
                for (opened, slot) in opened.iter_mut().zip(quantized) {
                    *opened = Some(b.open_quantized(*slot, rows)?);
                }
                let x = &b.rows[x.0];
                match &mut opened {
                    [Some(first), Some(second)] => {
                        rms_norm(cpu, self.norm(norm), rows, *width, x, &mut target, &mut [first, second]);
                    }
                    [Some(first), None] => {
                        rms_norm(cpu, self.norm(norm), rows, *width, x, &mut target, &mut [first])
                    }
                    _ => rms_norm(cpu, self.norm(norm), rows, *width, x, &mut target, &mut []),
                }
                for (opened, slot) in opened.into_iter().flatten().zip(quantized) {
                    b.quantized[slot.0] = opened;
                }
                b.rows[out.0] = target;
            }
            Work::Quantize { x, out } => {
                let mut target = b.open_quantized(*out, rows)?;
                quantize(cpu, rows, target.cols(), &b.rows[x.0], &mut [&mut target]);
                b.quantized[out.0] = target;
            }
            Work::Project { x, items } => self.project(*x, items, rows, b)?,
            Work::GateUp { x, x_up, gate, up, function, limits, out } => {
                let mut target = b.open(*out, rows);
                let (gate, up) = (self.matrix(*gate)?, self.matrix(*up)?);
                let (x, x_up) = (&b.quantized[x.0], &b.quantized[x_up.0]);
                gate_up(cpu, *function, *limits, &gate, &up, x, x_up, &mut target);
                b.rows[out.0] = target;
            }
            Work::Prepare { changed, appended } => self.prepare(changed, appended, b, held.store, batch),
            Work::Rotate { x, width, head, rope } => {
                let (spec, table) = (&self.lowered.ropes[*rope].spec, &b.tables[*rope]);
                rotate(cpu, spec, table, rows, *width, *head, &mut b.rows[x.0]);
            }
            Work::Attend { q, out, of } => {
                let mut target = b.open(*out, rows);
                attention(
                    &cpu.pool,
                    cpu.level,
                    held.store,
                    &self.attend(of),
                    batch.runs,
                    &b.rows[q.0],
                    &mut target,
                );
                b.rows[out.0] = target;
            }
            Work::Route { logits, of, ids, weights } => {
                let (mut chosen, mut factors) = (b.open_index(*ids, rows), b.open(*weights, rows));
                route(cpu, &self.route(of), rows, &b.rows[logits.0], &mut chosen, &mut factors);
                b.index[ids.0] = chosen;
                b.rows[weights.0] = factors;
            }
            Work::Experts { x, x_up, ids, weights, residual, out, of } => {
                let mut target = b.open(*out, rows);
                let tensors = self.expert_weights(of)?;
                b.grouping.sort(of.spec.experts, of.used, &b.index[ids.0][..rows * of.used]);
                let residual = residual.map(|r| &b.rows[r.0][..]);
                let (x, x_up) = (&b.quantized[x.0], &b.quantized[x_up.0]);
                let (buffers, factors) = (&mut b.experts[of.buffers], &b.rows[weights.0]);
                experts(
                    cpu,
                    &of.spec,
                    &tensors,
                    buffers,
                    x,
                    x_up,
                    &b.grouping,
                    factors,
                    residual,
                    &mut target,
                );
                b.rows[out.0] = target;
            }
            Work::Unary { x, width, function, out } => {
                let mut target = b.open(*out, rows);
                unary(cpu, *function, rows, *width, &b.rows[x.0], &mut target);
                b.rows[out.0] = target;
            }
            Work::Glu { gate, up, width, function, limits, out } => {
                let mut target = b.open(*out, rows);
                glu(cpu, *function, *limits, rows, *width, &b.rows[gate.0], &b.rows[up.0], &mut target);
                b.rows[out.0] = target;
            }
            Work::Add { a, b: other, width, one, out } | Work::Mul { a, b: other, width, one, out } => {
                let mut target = b.open(*out, rows);
                let right = &b.rows[other.0][..rows * if *one { 1 } else { *width }];
                match step.work {
                    Work::Add { .. } => add(&cpu.pool, rows, *width, &b.rows[a.0], right, &mut target),
                    _ => mul(&cpu.pool, rows, *width, &b.rows[a.0], right, &mut target),
                }
                b.rows[out.0] = target;
            }
            Work::Scale { x, width, by, plus, out } => {
                let (by, plus) = (*by, *plus);
                self.map(*x, *width, *out, rows, b, |_, x| x * by + plus);
            }
            Work::Affine { x, width, scale, bias, out } => {
                let (scale, bias) = (self.vector(*scale), self.vector(*bias));
                self.map(*x, *width, *out, rows, b, |i, x| {
                    let x = scale.map_or(x, |s| x * s[i % s.len()]);
                    bias.map_or(x, |b| x + b[i % b.len()])
                });
            }
            Work::Concat { parts, out } => {
                let width: usize = parts.iter().map(|(_, w)| w).sum();
                let mut target = b.open(*out, rows);
                for_rows(&cpu.pool, rows, width, &mut target, |range, out| {
                    for (row, out) in range.zip(out.chunks_exact_mut(width)) {
                        let mut at = 0;
                        for (part, w) in parts {
                            out[at..at + w].copy_from_slice(&b.rows[part.0][row * w..(row + 1) * w]);
                            at += w;
                        }
                    }
                });
                b.rows[out.0] = target;
            }
            Work::Slice { x, width, group, start, take, out } => {
                let mut target = b.open(*out, rows);
                let x = &b.rows[x.0][..rows * width];
                let taken = width / group * take;
                for_rows(&cpu.pool, rows, taken, &mut target, |range, out| {
                    let x = &x[range.start * width..range.end * width];
                    for (x, out) in x.chunks_exact(*group).zip(out.chunks_exact_mut(*take)) {
                        out.copy_from_slice(&x[*start..start + take]);
                    }
                });
                b.rows[out.0] = target;
            }
            Work::Copy { x, width, out } => self.map(*x, *width, *out, rows, b, |_, x| x),
            Work::Streams(work) => self.streams(work, rows, b),
            Work::Sparse(work) => self.sparse(work, rows, b, held, batch.runs),
            Work::Lookup(work) => self.lookup(work, rows, b, batch)?,
            Work::Recurrent(work) => self.recurrent(work, rows, b, held, batch.runs),
            Work::Plain(work) => self.plain(work, rows, b)?,
            Work::Gather { from, width, to } => {
                let mut target = b.open(*to, rows);
                for (row, out) in batch.tail.iter().zip(target.chunks_exact_mut(*width)) {
                    out.copy_from_slice(&b.rows[from.0][row * width..(row + 1) * width]);
                }
                b.rows[to.0] = target;
            }
        }
        Ok(())
    }

    /// `out[i] = f(place in the row, x[i])`.
    fn map(
        &self,
        x: Slot,
        width: usize,
        out: Slot,
        rows: usize,
        b: &mut Buffers,
        f: impl Fn(usize, f32) -> f32 + Sync,
    ) {
        let mut target = b.open(out, rows);
        let x = &b.rows[x.0][..rows * width];
        for_rows(&self.cpu.pool, rows, width, &mut target, |range, out| {
            let x = &x[range.start * width..range.end * width];
            for (x, out) in x.chunks_exact(width).zip(out.chunks_exact_mut(width)) {
                for (i, (x, out)) in x.iter().zip(out).enumerate() {
                    *out = f(i, *x);
                }
            }
        });
        b.rows[out.0] = target;
    }

    pub(super) fn matrix(
        &self,
        tensor: TensorRef,
    ) -> Result<bloomery_kernels_cpu::matrix::Matrix<'_>, CpuError> {
        tensor.matrix(self.source).map_err(failed)
    }

    fn embed(&self, weight: TensorRef, scale: f32, tokens: &[u32], out: &mut [f32]) -> Result<(), CpuError> {
        let matrix = self.matrix(weight)?;
        let (bytes, row_bytes, width) = (matrix.data(), matrix.row_bytes(), matrix.cols());
        let broken = AtomicBool::new(false);
        for_rows(&self.cpu.pool, tokens.len(), width, out, |range, out| {
            for (token, out) in tokens[range].iter().zip(out.chunks_exact_mut(width)) {
                let start = *token as usize * row_bytes;
                let row = bytes.get(start..start + row_bytes);
                if row.is_none_or(|row| dequantize_row(matrix.ty(), row, out).is_err()) {
                    broken.store(true, Ordering::Relaxed);
                }
                if scale != 1.0 {
                    out.iter_mut().for_each(|v| *v *= scale);
                }
            }
        });
        match broken.into_inner() {
            true => Err(CpuError::Program("a token has no row in the embedding table".into())),
            false => Ok(()),
        }
    }

    fn project(&self, x: Slot, items: &[Item], rows: usize, b: &mut Buffers) -> Result<(), CpuError> {
        let mut targets: [Vec<f32>; MOST] = Default::default();
        for (target, item) in targets.iter_mut().zip(items) {
            *target = b.open(item.out, rows);
        }
        {
            let mut outs = targets.iter_mut();
            let mut projections: [Option<Projection<'_>>; MOST] = [const { None }; MOST];
            for (projection, item) in projections.iter_mut().zip(items) {
                let Some(out) = outs.next() else { break };
                *projection = Some(Projection {
                    weight: self.matrix(item.weight)?,
                    bias: self.vector(item.bias),
                    residual: item.residual.map(|r| &b.rows[r.0][..]),
                    out,
                });
            }
            project(self.cpu, &b.quantized[x.0], projections.iter_mut().flatten());
        }
        for (target, item) in targets.into_iter().zip(items) {
            b.rows[item.out.0] = target;
        }
        Ok(())
    }

    fn prepare(
        &self,
        changed: &[Changed],
        appended: &[super::step::Appended],
        b: &mut Buffers,
        store: &mut PageStore,
        batch: &Batch<'_>,
    ) {
        let mut taken: [Vec<f32>; 2] = Default::default();
        for (taken, c) in taken.iter_mut().zip(changed) {
            *taken = take(&mut b.rows[c.slot.0]);
        }
        let mut heads: Vec<HeadRows<'_>> = Vec::with_capacity(2);
        for (values, c) in taken.iter_mut().zip(changed) {
            let norm = c.norm.as_ref().map(|n| HeadNorm { weight: self.vector(n.weight), eps: n.eps });
            let rope = c.rope.map(|r| (&self.lowered.ropes[r].spec, &b.tables[r]));
            heads.push(HeadRows { values, width: c.width, steps: HeadSteps { head: c.head, norm, rope } });
        }
        let rows: Vec<AppendRows<'_>> = appended
            .iter()
            .map(|a| AppendRows {
                part: a.part,
                from: match a.from {
                    AppendedFrom::Changed(i) => AppendFrom::Changed(i),
                    AppendedFrom::Slot(slot) => AppendFrom::Rows(&b.rows[slot.0]),
                },
            })
            .collect();
        prepare(&self.cpu.pool, self.cpu.level, store, batch.runs, &mut heads, &rows);
        drop((heads, rows));
        for (taken, c) in taken.into_iter().zip(changed) {
            b.rows[c.slot.0] = taken;
        }
    }

    fn attend(&self, of: &AttendOf) -> AttentionSpec<'_> {
        AttentionSpec {
            heads: of.heads,
            kv_heads: of.kv_heads,
            key: of.key,
            value: of.value,
            scale: of.scale,
            softcap: of.softcap,
            window: of.window,
            sinks: self.vector(of.sinks),
            keys: of.keys,
            values: of.values,
        }
    }

    pub(super) fn route(&self, of: &RouteOf) -> RouteSpec<'_> {
        RouteSpec {
            experts: of.experts,
            used: of.used,
            score: of.score,
            groups: of.groups,
            bias: self.vector(of.bias),
            normalize: of.normalize,
            sum_floor: of.sum_floor,
            scale: of.scale,
        }
    }

    fn expert_weights(&self, of: &ExpertsOf) -> Result<ExpertWeights<'_>, CpuError> {
        Ok(ExpertWeights {
            gate: self.matrix(of.gate)?,
            up: of.up.map(|u| self.matrix(u)).transpose()?,
            down: self.matrix(of.down)?,
            gate_bias: self.vector(of.gate_bias),
            up_bias: self.vector(of.up_bias),
            down_bias: self.vector(of.down_bias),
        })
    }
}
