//! From lowered steps to launches, for a number of rows.

use super::CudaOptions;
use super::input::StepInput;
use super::memory::CardBuffers;
use super::rotations::Rotations;
use super::weights::CardWeights;
use crate::cpu::step::{
    Appended, AppendedFrom, AttendOf, Changed, ExpertsOf, Item, Lowered, NormOf, Slot, Step, Vector, Work,
};
use crate::cpu::weights::{TensorRef, WeightSource};
use bloomery_formats::ActivationKind;
use bloomery_kernels_cpu::kv::{CacheType, Order, PartIndex};
use bloomery_kernels_cpu::pointwise::{Function, GateLimits};
use bloomery_kernels_gpu::layout::{self, Quantized};
use bloomery_kernels_gpu::{Argument, Buffer, Command, GpuError, Launch, Machine};

/// What a command is for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Label {
    /// Operators as people name them.
    pub operator: &'static str,
    /// The lowered step.
    pub step: u32,
    /// Bytes of weights and of the store that it reads.
    pub bytes: u64,
}

/// Commands of a step, each with what it is for.
#[derive(Debug, Clone, Default)]
pub(crate) struct Emitted {
    pub commands: Vec<Command>,
    pub labels: Vec<Label>,
}

/// Keys of a span of attention: `SPAN` pages in the device crate.
pub(crate) const SPAN_TOKENS: usize = 128;
/// Steps of at most so many rows spread the spans of a row over blocks.
pub(crate) const SPREAD_ROWS: usize = 8;

/// Bytes that a step's kernels work in, for so many rows.
pub(crate) fn work_bytes(step: &Step, rows: usize, options: &CudaOptions) -> u64 {
    match &step.work {
        Work::Attend { of, .. } => {
            let spans = options.max_tokens.div_ceil(SPAN_TOKENS);
            (rows.min(SPREAD_ROWS) * of.heads * spans * (2 + of.value) * 4) as u64
        }
        Work::Experts { of, .. } => {
            let slots = rows * of.used;
            ExpertWork::new(of, slots).bytes
        }
        Work::GateUp { gate, .. } => 2 * (4 * rows * gate.rows).next_multiple_of(256) as u64,
        _ => 256,
    }
}

/// Bytes of attention's partial sums for every token of context.
pub(crate) fn partial_bytes_per_token(lowered: &Lowered) -> f64 {
    let of = |step: &Step| match &step.work {
        Work::Attend { of, .. } => (SPREAD_ROWS * of.heads * (2 + of.value) * 4) as f64 / SPAN_TOKENS as f64,
        _ => 0.0,
    };
    lowered.steps.iter().map(of).fold(0.0, f64::max)
}

/// Where the phases of routed experts keep their rows.
struct ExpertWork {
    gate: u64,
    up: u64,
    hidden: u64,
    results: u64,
    bytes: u64,
}

impl ExpertWork {
    fn new(of: &ExpertsOf, slots: usize) -> ExpertWork {
        let (ff, width) = (of.spec.ff, of.spec.width);
        let half = (4 * slots * ff).next_multiple_of(256) as u64;
        // Whatever form the down matrix needs fits the room of f32 rows and their scales.
        let hidden = layout::quantized_bytes(ActivationKind::F32, ff.next_multiple_of(256), slots) + 256;
        let hidden =
            hidden.max(layout::quantized_bytes(ActivationKind::Q8Block32, ff, slots)).next_multiple_of(256);
        let results = (4 * slots * width).next_multiple_of(256) as u64;
        ExpertWork {
            gate: 0,
            up: half,
            hidden: 2 * half,
            results: 2 * half + hidden,
            bytes: 2 * half + hidden + results,
        }
    }
}

/// Emits the launches of all steps.
pub(crate) struct Emitter<'a> {
    pub machine: &'a mut dyn Machine,
    pub lowered: &'a Lowered,
    pub weights: &'a CardWeights,
    pub rotations: &'a Rotations,
    pub buffers: &'a CardBuffers,
    pub source: &'a dyn WeightSource,
    pub input: StepInput,
    pub table_pages: usize,
    pub max_tokens: usize,
    pub rows: usize,
    pub tail: usize,
    pub out: Emitted,
}

type Result<T> = std::result::Result<T, GpuError>;

/// Operands of a product.
struct Product {
    weight: TensorRef,
    x: Quantized,
    kind: ActivationKind,
    ids: Option<Buffer>,
    experts: usize,
    used: usize,
    bias: Option<Vector>,
    residual: Option<Buffer>,
    out: Buffer,
    /// Blocks in the second direction.
    rows: usize,
    /// More matrices of the same type and activations: weight, bias, out.
    more: Vec<(TensorRef, Option<Vector>, Buffer)>,
}

/// Operands of a row job.
#[derive(Default)]
struct RowJob {
    up: Option<Buffer>,
    act: u32,
    limits: Option<GateLimits>,
    norm: Option<NormOf>,
    width: usize,
    out: Option<Buffer>,
    quantized: Vec<(Quantized, ActivationKind)>,
}

/// Operands of a point-wise job.
#[derive(Default)]
struct Pointwise {
    mode: u32,
    b: Option<Buffer>,
    c: Option<Buffer>,
    index: Option<Buffer>,
    widths: [usize; 3],
    width: usize,
    out_width: usize,
    out_at: usize,
    piece: [usize; 3],
    by: f32,
    plus: f32,
    act: u32,
}

impl Emitter<'_> {
    /// The steps of a range; those without rows emit nothing.
    pub fn steps(&mut self, range: std::ops::Range<usize>) -> Result<()> {
        let lowered = self.lowered;
        for index in range {
            let Some(step) = lowered.steps.get(index) else { continue };
            let gather = matches!(step.work, Work::Gather { .. });
            let rows = if index < lowered.tail && !gather { self.rows } else { self.tail };
            if rows > 0 {
                self.step(index as u32, step, rows)?;
            }
        }
        Ok(())
    }

    fn step(&mut self, index: u32, step: &Step, rows: usize) -> Result<()> {
        let b = self.buffers;
        let values = |slot: Slot, width: usize| b.rows_of(slot, rows, width);
        match &step.work {
            Work::Embed { weight, scale, out } => {
                let table = self.weights.matrix(*weight)?;
                let (ty, row_bytes) = self.row(*weight)?;
                let arguments = vec![
                    table.into(),
                    row_bytes.into(),
                    (weight.rows as u32).into(),
                    (weight.cols as u32).into(),
                    (*scale).into(),
                    self.input.tokens.into(),
                    values(*out, weight.cols)?.into(),
                ];
                let grid = [weight.cols.div_ceil(256 * 32) as u32, rows as u32, 1];
                let label =
                    Label { operator: "embed", step: index, bytes: u64::from(row_bytes) * rows as u64 };
                self.launch(&format!("embed_{ty}"), grid, 32, SCRATCH, arguments, label)
            }
            Work::Norm { x, width, norm, out, quantized } => {
                let quantized = self.targets(quantized)?;
                let job = RowJob {
                    norm: Some(*norm),
                    width: *width,
                    out: Some(values(*out, *width)?),
                    quantized,
                    ..RowJob::default()
                };
                self.row_job("norm and quantise", index, values(*x, *width)?, rows, job)
            }
            Work::Quantize { x, out } => {
                let quantized = self.targets(std::slice::from_ref(out))?;
                let width = b.quantized(*out)?.2;
                self.row_job(
                    "quantise",
                    index,
                    values(*x, width)?,
                    rows,
                    RowJob { width, quantized, ..RowJob::default() },
                )
            }
            Work::Project { x, items } => {
                let (x, kind, _) = b.quantized(*x)?;
                let ty = |item: &Item| self.source.shape(item.weight.tensor).0;
                let mut left: Vec<&Item> = items.iter().collect();
                while !left.is_empty() {
                    let item = left.remove(0);
                    let n = item.weight.rows;
                    let mut more = Vec::new();
                    let mut rest = Vec::new();
                    for other in left {
                        let joins = more.len() < 2
                            && ty(other) == ty(item)
                            && other.weight.cols == item.weight.cols
                            && other.residual.is_none();
                        match joins {
                            true => {
                                more.push((other.weight, other.bias, values(other.out, other.weight.rows)?))
                            }
                            false => rest.push(other),
                        }
                    }
                    left = rest;
                    let product = Product {
                        more,
                        weight: item.weight,
                        x,
                        kind,
                        ids: None,
                        experts: 0,
                        used: 1,
                        bias: item.bias,
                        residual: item.residual.map(|slot| values(slot, n)).transpose()?,
                        out: values(item.out, n)?,
                        rows,
                    };
                    self.product("linear", index, product)?;
                }
                Ok(())
            }
            Work::GateUp { x, x_up, gate, up, function, limits, out } => {
                let n = gate.rows;
                let half = (4 * rows * n).next_multiple_of(256) as u64;
                let (a, c) = (b.work.part(0, half)?, b.work.part(half, half)?);
                let pair = [(*gate, *x, None, a), (*up, *x_up, None, c)];
                self.pair("linear", index, pair, (None, 0, 1), rows)?;
                let job = Pointwise {
                    mode: 5,
                    b: Some(c),
                    widths: [n, n, 0],
                    width: n,
                    out_width: n,
                    by: limits.map_or(f32::INFINITY, |l| l.gate_max),
                    plus: limits.map_or(f32::INFINITY, |l| l.up_abs),
                    act: number(*function),
                    ..Pointwise::default()
                };
                self.pointwise(index, a, rows, job, values(*out, n)?)
            }
            Work::Prepare { changed, appended } => self.prepare(index, rows, changed, appended),
            Work::Rotate { x, width, head, rope } => {
                let changed = Changed { slot: *x, width: *width, head: *head, norm: None, rope: Some(*rope) };
                self.prepare(index, rows, &[changed], &[])
            }
            Work::Attend { q, out, of } => self.attend(index, rows, *q, *out, of),
            Work::Route { logits, of, ids, weights } => {
                let arguments = vec![
                    values(*logits, of.experts)?.into(),
                    self.vector(of.bias).into(),
                    (of.experts as u32).into(),
                    (of.used as u32).into(),
                    (of.score as u32).into(),
                    u32::from(of.normalize).into(),
                    of.sum_floor.into(),
                    of.scale.into(),
                    values(*ids, of.used)?.into(),
                    values(*weights, of.used)?.into(),
                    b.report.into(),
                    index.into(),
                ];
                let shared = 8 * (of.experts + of.used) as u32;
                let label = Label { operator: "route", step: index, bytes: 0 };
                self.launch("route_experts", [rows as u32, 1, 1], 32, shared, arguments, label)
            }
            Work::Experts { x, x_up, ids, weights, residual, out, of } => {
                self.experts(index, rows, (*x, *x_up, *ids, *weights), *residual, *out, of)
            }
            Work::Unary { x, width, function, out } => {
                let job = Pointwise { mode: 4, act: number(*function), ..one(*width) };
                self.pointwise(index, values(*x, *width)?, rows, job, values(*out, *width)?)
            }
            Work::Glu { gate, up, width, function, limits, out } => {
                let job = Pointwise {
                    mode: 5,
                    b: Some(values(*up, *width)?),
                    by: limits.map_or(f32::INFINITY, |l| l.gate_max),
                    plus: limits.map_or(f32::INFINITY, |l| l.up_abs),
                    act: number(*function),
                    ..one(*width)
                };
                self.pointwise(index, values(*gate, *width)?, rows, job, values(*out, *width)?)
            }
            Work::Add { a, b: other, width, one: single, out }
            | Work::Mul { a, b: other, width, one: single, out } => {
                let right = if *single { 1 } else { *width };
                let job = Pointwise {
                    mode: u32::from(matches!(step.work, Work::Mul { .. })),
                    b: Some(values(*other, right)?),
                    widths: [*width, right, 0],
                    ..one(*width)
                };
                self.pointwise(index, values(*a, *width)?, rows, job, values(*out, *width)?)
            }
            Work::Scale { x, width, by, plus, out } => {
                let job = Pointwise { mode: 2, by: *by, plus: *plus, ..one(*width) };
                self.pointwise(index, values(*x, *width)?, rows, job, values(*out, *width)?)
            }
            Work::Affine { x, width, scale, bias, out } => {
                let length = |vector: &Option<Vector>| vector.map_or(0, |v| self.lowered.vectors[v].len());
                let job = Pointwise {
                    mode: 3,
                    b: self.vector(*scale),
                    c: self.vector(*bias),
                    widths: [*width, length(scale), length(bias)],
                    ..one(*width)
                };
                self.pointwise(index, values(*x, *width)?, rows, job, values(*out, *width)?)
            }
            Work::Concat { parts, out } => {
                let total: usize = parts.iter().map(|(_, width)| width).sum();
                let mut at = 0;
                for (part, width) in parts {
                    let job = Pointwise {
                        mode: 6,
                        piece: [*width, 0, *width],
                        out_width: total,
                        out_at: at,
                        ..one(*width)
                    };
                    self.pointwise(index, values(*part, *width)?, rows, job, values(*out, total)?)?;
                    at += width;
                }
                Ok(())
            }
            Work::Slice { x, width, group, start, take, out } => {
                let taken = width / group * take;
                let job = Pointwise {
                    mode: 6,
                    piece: [*group, *start, *take],
                    widths: [*width, 0, 0],
                    ..one(taken)
                };
                self.pointwise(index, values(*x, *width)?, rows, job, values(*out, taken)?)
            }
            Work::Copy { x, width, out } => {
                let job = Pointwise { mode: 6, piece: [*width, 0, *width], ..one(*width) };
                self.pointwise(index, values(*x, *width)?, rows, job, values(*out, *width)?)
            }
            Work::Gather { from, width, to } => {
                let job = Pointwise { mode: 7, index: Some(self.input.tail), ..one(*width) };
                self.pointwise(index, b.rows_of(*from, self.rows, *width)?, rows, job, values(*to, *width)?)
            }
        }
    }

    /// Name of a matrix's type as entries carry it, and bytes of a row.
    fn row(&self, matrix: TensorRef) -> Result<(String, u32)> {
        let ty = self.source.shape(matrix.tensor).0;
        let bytes = ty.row_bytes(matrix.cols).and_then(|bytes| u32::try_from(bytes).ok());
        let none = || GpuError::NoKernel(format!("a {ty} row of {} values", matrix.cols));
        Ok((ty.name().to_lowercase(), bytes.ok_or_else(none)?))
    }

    fn vector(&self, vector: Option<Vector>) -> Option<Buffer> {
        vector.map(|v| self.weights.vector(v))
    }

    fn targets(&self, slots: &[Slot]) -> Result<Vec<(Quantized, ActivationKind)>> {
        slots
            .iter()
            .map(|slot| self.buffers.quantized(*slot).map(|(arrays, kind, _)| (arrays, kind)))
            .collect()
    }

    /// Two products, in one launch where type and activations are the same.
    fn pair(
        &mut self,
        operator: &'static str,
        index: u32,
        pair: [(TensorRef, Slot, Option<Vector>, Buffer); 2],
        (ids, experts, used): (Option<Buffer>, usize, usize),
        rows: usize,
    ) -> Result<()> {
        let ty = |matrix: TensorRef| self.source.shape(matrix.tensor).0;
        let joins =
            ty(pair[0].0) == ty(pair[1].0) && pair[0].1 == pair[1].1 && pair[0].0.cols == pair[1].0.cols;
        let list = if joins { &pair[..1] } else { &pair[..] };
        for (weight, x, bias, out) in list.iter().copied() {
            let (x, kind, _) = self.buffers.quantized(x)?;
            let more = if joins { vec![(pair[1].0, pair[1].2, pair[1].3)] } else { Vec::new() };
            let product =
                Product { weight, x, kind, ids, experts, used, bias, residual: None, out, rows, more };
            self.product(operator, index, product)?;
        }
        Ok(())
    }

    fn product(&mut self, operator: &'static str, index: u32, p: Product) -> Result<()> {
        let (ty, row_bytes) = self.row(p.weight)?;
        let of_expert = |rows: usize| if p.ids.is_some() { rows / p.experts.max(1) } else { rows };
        let n = of_expert(p.weight.rows);
        debug_assert_eq!(self.source.shape(p.weight.tensor).0.activation_kind(), Some(p.kind));
        let mut arguments = vec![
            self.weights.matrix(p.weight)?.into(),
            row_bytes.into(),
            (n as u32).into(),
            (p.weight.cols as u32).into(),
            p.x.quants.into(),
            p.x.scales.into(),
            p.x.sums.into(),
            p.ids.into(),
            (p.experts as u32).into(),
            (p.used as u32).into(),
            self.vector(p.bias).into(),
            p.residual.into(),
            p.out.into(),
        ];
        let mut all = n;
        let mut most = n;
        for i in 0..2 {
            let Some((weight, bias, out)) = p.more.get(i).copied() else {
                arguments.extend([
                    Buffer::NONE.into(),
                    Argument::U32(0),
                    Buffer::NONE.into(),
                    Buffer::NONE.into(),
                ]);
                continue;
            };
            let n = of_expert(weight.rows);
            (all, most) = (all + n, most.max(n));
            let vector: Argument = self.vector(bias).into();
            arguments.extend([
                self.weights.matrix(weight)?.into(),
                Argument::U32(n as u32),
                vector,
                out.into(),
            ]);
        }
        let direct = matches!(ty.as_str(), "q4_k" | "q6_k" | "q8_0" | "f32" | "f16" | "bf16");
        let warps: u32 = if n < 2048 { 2 } else { 4 };
        let shared = if direct { 0 } else { warps * SCRATCH };
        let sets = if p.ids.is_some() { p.rows } else { 1 };
        let bytes = u64::from(row_bytes) * all as u64 * sets as u64;
        let grid = [most.div_ceil(warps as usize) as u32, p.rows as u32, 1 + p.more.len() as u32];
        self.launch(
            &format!("gemv_{ty}"),
            grid,
            32 * warps,
            shared,
            arguments,
            Label { operator, step: index, bytes },
        )
    }

    fn row_job(
        &mut self,
        operator: &'static str,
        index: u32,
        x: Buffer,
        rows: usize,
        job: RowJob,
    ) -> Result<()> {
        let find = |kind| job.quantized.iter().find(|(_, k)| *k == kind).map(|(arrays, _)| *arrays);
        let (wide, narrow) = (find(ActivationKind::Q8K), find(ActivationKind::Q8Block32));
        let plain = find(ActivationKind::F32).map(|arrays| arrays.quants);
        let group = job.norm.map_or(job.width, |norm| norm.group);
        let weight = job.norm.and_then(|norm| norm.weight);
        let mut arguments: Vec<Argument> = vec![
            x.into(),
            job.up.into(),
            job.act.into(),
            job.limits.map_or(f32::INFINITY, |l| l.gate_max).into(),
            job.limits.map_or(f32::INFINITY, |l| l.up_abs).into(),
            u32::from(job.norm.is_some()).into(),
            self.vector(weight).into(),
            weight.map_or(0, |v| self.lowered.vectors[v].len() as u32).into(),
            (group as u32).into(),
            job.norm.map_or(0.0, |norm| norm.eps).into(),
            (job.width as u32).into(),
            job.out.into(),
        ];
        for arrays in [wide, narrow] {
            arguments.push(arrays.map(|a| a.quants).into());
            arguments.push(arrays.map(|a| a.scales).into());
            arguments.push(arrays.map(|a| a.sums).into());
        }
        let tail: [Argument; 3] = [plain.into(), self.buffers.report.into(), index.into()];
        arguments.extend(tail);
        let groups = job.width.div_ceil(group.max(1));
        let shared = 4 * (job.width.next_multiple_of(4) + groups + 4) as u32;
        let label = Label { operator, step: index, bytes: 0 };
        self.launch("row_quantize", [rows as u32, 1, 1], 256, shared, arguments, label)
    }

    fn pointwise(&mut self, index: u32, a: Buffer, rows: usize, job: Pointwise, out: Buffer) -> Result<()> {
        let n = |value: usize| Argument::U32(value as u32);
        let arguments = vec![
            job.mode.into(),
            a.into(),
            job.b.into(),
            job.c.into(),
            job.index.into(),
            n(job.widths[0]),
            n(job.widths[1]),
            n(job.widths[2]),
            n(job.width),
            n(job.out_width),
            n(job.out_at),
            n(job.piece[0]),
            n(job.piece[1]),
            n(job.piece[2]),
            job.by.into(),
            job.plus.into(),
            job.act.into(),
            out.into(),
        ];
        let label = Label { operator: "point-wise", step: index, bytes: 0 };
        self.launch(
            "pointwise_any",
            [job.width.div_ceil(128) as u32, rows as u32, 1],
            128,
            0,
            arguments,
            label,
        )
    }

    fn place(&self) -> Vec<Argument> {
        vec![
            self.input.positions.into(),
            self.input.table_of_row.into(),
            self.input.tables.into(),
            (self.table_pages as u32).into(),
            self.buffers.store.into(),
            self.buffers.sizes().page_bytes.into(),
        ]
    }

    fn prepare(&mut self, index: u32, rows: usize, changed: &[Changed], appended: &[Appended]) -> Result<()> {
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
        let mut arguments = self.place();
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

    fn attend(&mut self, index: u32, rows: usize, q: Slot, out: Slot, of: &AttendOf) -> Result<()> {
        let b = self.buffers;
        let (keys, values) = (b.sizes().part(of.keys), b.sizes().part(of.values));
        let size = [32, 64, 96, 128, 192, 256, 512].into_iter().find(|size| of.value <= *size);
        let size = size.ok_or_else(|| GpuError::NoKernel(format!("values of {}", of.value)))?;
        let spans = self.max_tokens.div_ceil(SPAN_TOKENS);
        let spread = rows <= SPREAD_ROWS && spans > 1;
        let shape = |arguments: &mut Vec<Argument>| {
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
            ]);
        };
        let sinks: Argument = self.vector(of.sinks).into();
        let out = b.rows_of(out, rows, of.heads * of.value)?;
        let spans_there = if spread { spans as u32 } else { 1 };
        let mut arguments = self.place();
        shape(&mut arguments);
        arguments.extend([
            sinks,
            b.rows_of(q, rows, of.heads * of.key)?.into(),
            out.into(),
            b.work.into(),
            spans_there.into(),
        ]);
        let warps = (of.heads / of.kv_heads.max(1)) as u32;
        let grid = [rows as u32, of.kv_heads as u32, spans_there];
        let label = Label { operator: "attention", step: index, bytes: 0 };
        self.launch(&format!("attend_{size}"), grid, 32 * warps, 0, arguments, label)?;
        if spread {
            let mut arguments: Vec<Argument> = vec![self.input.positions.into()];
            shape(&mut arguments);
            arguments.extend([sinks, out.into(), b.work.into(), spans_there.into()]);
            let grid = [rows as u32, of.heads as u32, 1];
            self.launch(&format!("merge_{size}"), grid, 32, 0, arguments, label)?;
        }
        Ok(())
    }

    fn experts(
        &mut self,
        index: u32,
        rows: usize,
        (x, x_up, ids, weights): (Slot, Slot, Slot, Slot),
        residual: Option<Slot>,
        out: Slot,
        of: &ExpertsOf,
    ) -> Result<()> {
        let b = self.buffers;
        let Some(up_matrix) = of.up else {
            return Err(GpuError::NoKernel("experts whose gate and up are one matrix".into()));
        };
        let (ff, width, experts, used) = (of.spec.ff, of.spec.width, of.spec.experts, of.used);
        let slots = rows * used;
        let work = ExpertWork::new(of, slots);
        let ids = b.rows_of(ids, rows, used)?;
        let gate = b.work.part(work.gate, (4 * slots * ff) as u64)?;
        let up = b.work.part(work.up, (4 * slots * ff) as u64)?;
        let results = b.work.part(work.results, (4 * slots * width) as u64)?;
        let pair = [(of.gate, x, of.gate_bias, gate), (up_matrix, x_up, of.up_bias, up)];
        self.pair("experts gate and up", index, pair, (Some(ids), experts, used), slots)?;
        let ty = self.source.shape(of.down.tensor).0;
        let kind = ty.activation_kind().ok_or_else(|| GpuError::NoKernel(format!("{ty} weights")))?;
        let memory = b.work.part(work.hidden, work.results - work.hidden)?;
        let hidden = layout::quantized(memory, kind, ff, slots)?;
        let job = RowJob {
            up: Some(up),
            act: number(of.spec.function),
            limits: of.spec.limits,
            width: ff,
            quantized: vec![(hidden, kind)],
            ..RowJob::default()
        };
        self.row_job("experts activation", index, gate, slots, job)?;
        let product = Product {
            weight: of.down,
            x: hidden,
            kind,
            ids: Some(ids),
            experts,
            used: 1,
            bias: of.down_bias,
            residual: None,
            out: results,
            rows: slots,
            more: Vec::new(),
        };
        self.product("experts down", index, product)?;
        let arguments = vec![
            results.into(),
            b.rows_of(weights, rows, used)?.into(),
            Argument::U32(used as u32),
            Argument::U32(width as u32),
            residual.map(|slot| b.rows_of(slot, rows, width)).transpose()?.into(),
            b.rows_of(out, rows, width)?.into(),
        ];
        let label = Label { operator: "experts combine", step: index, bytes: 0 };
        self.launch("combine_ranks", [width.div_ceil(128) as u32, rows as u32, 1], 128, 0, arguments, label)
    }

    fn launch(
        &mut self,
        name: &str,
        grid: [u32; 3],
        threads: u32,
        shared: u32,
        arguments: Vec<Argument>,
        label: Label,
    ) -> Result<()> {
        let kernel = self.machine.kernel(name)?;
        let launch = Launch { kernel, grid, threads, shared, arguments, overlaps: false };
        self.out.commands.push(Command::Launch(launch));
        self.out.labels.push(label);
        Ok(())
    }
}

/// Shared memory of a warp that unpacks groups, bytes.
const SCRATCH: u32 = 32 * 384 + 64;

fn one(width: usize) -> Pointwise {
    Pointwise { widths: [width, width, 0], width, out_width: width, ..Pointwise::default() }
}

fn number(function: Function) -> u32 {
    match function {
        Function::Silu => 0,
        Function::GeluTanh => 1,
        Function::GeluErf => 2,
        Function::Sigmoid => 3,
        Function::Softplus => 4,
        Function::Exp => 5,
        Function::Relu => 6,
        Function::Tanh => 7,
    }
}

fn cache_number(cache: CacheType) -> u32 {
    match cache {
        CacheType::F32 => 1,
        CacheType::F16 => 2,
        CacheType::Q8_0 => 3,
    }
}
