//! Lowering: a checked program becomes a flat list of steps.
//!
//! Without fusion every node is one step (and one quantisation where weights need it). With fusion neighbours join: projections of one
//! value, gate with up and activation, head norms with rotation and append, a residual with the product before it, a norm with
//! the quantisation of its result. Joined or not, every value is computed by the same chain of operations, so both forms
//! give the same bits; the unfused one exists to show every named result.

use super::CpuError;
use super::fixed::FixedLayout;
use super::kernel_set::missing_kernels;
use super::operators::decision::DecisionOf;
use super::operators::sparse::SelectedBy;
use super::pattern::Patterns;
use super::step::{
    Appended, AppendedFrom, AttendOf, Changed, Class, ExpertsOf, Item, Lowered, NormOf, RopeOf, RouteOf,
    Slot, Step, Vector, Work,
};
use super::weights::{TensorRef, WeightSource, floats};
mod attend;
mod products;
mod slots;

use bloomery_formats::ActivationKind;
use bloomery_kernels_cpu::experts::ExpertSpec;
use bloomery_kernels_cpu::kv::PartIndex;
use bloomery_kernels_cpu::pointwise::{Function, GateLimits};
use bloomery_kernels_cpu::rope::{RopeSpec, YarnSpec, frequencies};
use bloomery_kernels_cpu::route::Score;
use bloomery_program::op::{self, Attention, Pairing, Route};
use bloomery_program::{Graph, InputKind, Node, Op, OutputKind, Program, Shape, StateId, ValueId};
use std::collections::HashMap;

type Result<T> = std::result::Result<T, CpuError>;

/// The page parts of a state's rows.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct StoreParts {
    pub keys: PartIndex,
    /// The same part where a row is key and value at once.
    pub values: PartIndex,
    /// Tokens that a row stands for.
    pub every: usize,
}

/// What lowering takes beside the program and its weights.
#[derive(Debug, Clone, Copy)]
pub(crate) struct LowerFor<'a> {
    /// The page parts of every state.
    pub parts: &'a [Option<StoreParts>],
    /// Where states of fixed size lie.
    pub fixed: &'a FixedLayout,
    /// Most tokens of a sequence.
    pub max_tokens: usize,
    /// Join neighbours.
    pub fuse: bool,
    /// The hidden output that is wanted of all rows.
    pub every_row: Option<&'a str>,
}

/// Lowers a graph.
pub(crate) fn lower(
    program: &Program,
    graph: &Graph,
    source: &dyn WeightSource,
    to: &LowerFor<'_>,
) -> Result<Lowered> {
    let missing = missing_kernels(program, graph, source);
    if !missing.is_empty() {
        return Err(CpuError::missing(missing));
    }
    let cut = graph.nodes.iter().rposition(|n| !n.op.is_row_local()).map_or(0, |i| i + 1);
    let every_row = to.every_row.and_then(|name| {
        let output = graph.outputs.iter().find(|o| o.kind == OutputKind::Hidden && o.name == name)?;
        let made = graph.nodes.iter().position(|n| n.outs.iter().any(|o| o.value == output.value))?;
        Some((output.value, made + 1))
    });
    let cut = cut.max(every_row.map_or(0, |(_, behind)| behind));
    let mut lowering = Lowering {
        graph,
        source,
        parts: to.parts,
        fixed: to.fixed,
        max_tokens: to.max_tokens,
        every_row: every_row.map(|(value, _)| value),
        fuse: to.fuse,
        patterns: Patterns::new(graph, cut, to.fuse),
        out: Lowered::default(),
        slot_of: HashMap::new(),
        selections: HashMap::new(),
        rings: HashMap::new(),
        quantized: HashMap::new(),
        norm_step: HashMap::new(),
        vectors: HashMap::new(),
        cut,
        tail: false,
    };
    lowering.run()?;
    Ok(lowering.out)
}

pub(crate) struct Lowering<'a> {
    pub(super) graph: &'a Graph,
    pub(super) source: &'a dyn WeightSource,
    parts: &'a [Option<StoreParts>],
    pub(super) fixed: &'a FixedLayout,
    pub(super) max_tokens: usize,
    fuse: bool,
    every_row: Option<ValueId>,
    pub(super) patterns: Patterns,
    out: Lowered,
    slot_of: HashMap<ValueId, Slot>,
    /// Chosen rows of stores.
    pub(super) selections: HashMap<ValueId, SelectedBy>,
    /// The step's own rows of rings, and how many attentions have yet to read them.
    pub(super) rings: HashMap<StateId, (Slot, usize)>,
    quantized: HashMap<(ValueId, ActivationKind), Slot>,
    /// The step that made a value by a norm: quantisations of the value join it.
    norm_step: HashMap<ValueId, usize>,
    vectors: HashMap<usize, Vector>,
    cut: usize,
    pub(super) tail: bool,
}

impl Lowering<'_> {
    fn run(&mut self) -> Result<()> {
        for input in &self.graph.inputs {
            if matches!(input.kind, InputKind::TargetHidden { .. }) {
                let width = self.width(input.value);
                let slot = self.new_slot(Class::Rows { width });
                self.slot_of.insert(input.value, slot);
                self.out.given = Some((slot, width));
            }
        }
        self.nodes(0..self.cut)?;
        if let Some(value) = self.every_row {
            let slot = self.slot_of.get(&value).copied();
            self.out.every_row = slot.map(|slot| (slot, self.width(value)));
        }
        self.cross_into_tail();
        self.nodes(self.cut..self.graph.nodes.len())?;
        for output in &self.graph.outputs {
            let width = self.width(output.value);
            let Some(slot) = self.slot_of.get(&output.value).copied() else { continue };
            match output.kind {
                OutputKind::Logits => self.out.logits = Some((slot, width)),
                OutputKind::Hidden if self.out.hidden.is_none() => self.out.hidden = Some((slot, width)),
                _ => {}
            }
        }
        if self.out.logits.is_none() && self.out.decision.is_none() {
            return Err(CpuError::Program("the graph gives neither logits nor decisions".into()));
        }
        Ok(())
    }

    fn nodes(&mut self, range: std::ops::Range<usize>) -> Result<()> {
        for index in range {
            if !self.patterns.is_done(index) {
                self.node(index)?;
                self.patterns.done(index);
            }
        }
        Ok(())
    }

    /// Values that the tail reads are gathered for its rows.
    fn cross_into_tail(&mut self) {
        self.out.tail = self.out.steps.len();
        let graph = self.graph;
        let tail_reads = graph.nodes[self.cut..].iter().flat_map(|n| n.ins.iter().copied());
        let outputs = graph.outputs.iter().map(|o| o.value);
        let mut crossing: Vec<ValueId> =
            tail_reads.chain(outputs).filter(|v| self.slot_of.contains_key(v)).collect();
        crossing.sort_unstable();
        crossing.dedup();
        for value in crossing {
            // Expert numbers never cross: routers are row-local and stand beside their experts. A program that lets them
            // cross finds no slot in the tail and is refused by name.
            let (Some(from), Shape::Rows { .. } | Shape::Streams { .. }) =
                (self.slot_of.remove(&value), self.shape(value))
            else {
                continue;
            };
            let width = self.width(value);
            let to = self.new_slot(Class::Rows { width });
            self.out.steps.push(Step {
                work: Work::Gather { from, width, to },
                place: "gather".into(),
                shows: vec![],
            });
            self.slot_of.insert(value, to);
        }
        self.out.tail = self.out.steps.len();
        self.quantized.clear();
        self.norm_step.clear();
        self.tail = true;
    }

    fn node(&mut self, index: usize) -> Result<()> {
        let node = &self.graph.nodes[index];
        match &node.op {
            Op::Embed { scale } => {
                let (weight, out) = (self.matrix(node, "weight")?, self.result(node, 0)?);
                self.push(Work::Embed { weight, scale: *scale, out }, node);
            }
            Op::RmsNorm { eps, group } => {
                let norm = self.norm(node, *eps, *group)?;
                let (x, width, out) =
                    (self.operand(node, 0)?, self.width(node.ins[0]), self.result(node, 0)?);
                self.norm_step.insert(node.outs[0].value, self.out.steps.len());
                self.push(Work::Norm { x, width, norm, out, quantized: vec![] }, node);
            }
            Op::Linear {} => self.linear(index)?,
            Op::Add {} | Op::Mul {} => {
                let (a, b) = (self.operand(node, 0)?, self.operand(node, 1)?);
                let (width, one) = (self.width(node.ins[0]), self.width(node.ins[1]) == 1);
                let one = one && width != 1;
                let out = self.result(node, 0)?;
                let work = match node.op {
                    Op::Add {} => Work::Add { a, b, width, one, out },
                    _ => Work::Mul { a, b, width, one, out },
                };
                self.push(work, node);
            }
            Op::Scale { by, plus } => {
                let (x, width, out) =
                    (self.operand(node, 0)?, self.width(node.ins[0]), self.result(node, 0)?);
                self.push(Work::Scale { x, width, by: *by, plus: *plus, out }, node);
            }
            Op::Affine {} => {
                let (x, width, out) =
                    (self.operand(node, 0)?, self.width(node.ins[0]), self.result(node, 0)?);
                let (scale, bias) = (self.vector(node, "scale")?, self.vector(node, "bias")?);
                self.push(Work::Affine { x, width, scale, bias, out }, node);
            }
            Op::Unary { function } => {
                let (x, width, out) =
                    (self.operand(node, 0)?, self.width(node.ins[0]), self.result(node, 0)?);
                self.push(Work::Unary { x, width, function: function_of(*function), out }, node);
            }
            Op::Glu { act, clamp } => {
                let (gate, up) = (self.operand(node, 0)?, self.operand(node, 1)?);
                let (width, out) = (self.width(node.ins[0]), self.result(node, 0)?);
                let (function, limits) = (function_of(*act), clamp.map(limits_of));
                self.push(Work::Glu { gate, up, width, function, limits, out }, node);
            }
            Op::Concat {} => {
                let parts = (0..node.ins.len())
                    .map(|i| Ok((self.operand(node, i)?, self.width(node.ins[i]))))
                    .collect::<Result<Vec<_>>>()?;
                let out = self.result(node, 0)?;
                self.push(Work::Concat { parts, out }, node);
            }
            Op::Slice { group, start, width: take } => {
                let (x, width, out) =
                    (self.operand(node, 0)?, self.width(node.ins[0]), self.result(node, 0)?);
                let (group, start, take) = (*group as usize, *start as usize, *take as usize);
                self.push(Work::Slice { x, width, group, start, take, out }, node);
            }
            Op::Rope(rope) => {
                let (x, width, out) =
                    (self.operand(node, 0)?, self.width(node.ins[0]), self.result(node, 0)?);
                let rope_index = self.rope(node, rope)?;
                self.out.steps.push(Step {
                    work: Work::Copy { x, width, out },
                    place: node.label(),
                    shows: vec![],
                });
                self.push(Work::Rotate { x: out, width, head: rope.head as usize, rope: rope_index }, node);
            }
            Op::Append { .. } => self.append(index)?,
            Op::Attention(attention) => self.attention(node, attention)?,
            Op::Route(route) if node.tensors.contains_key("table") => self.route_given(node, route)?,
            Op::Route(route) => self.router(node, route)?,
            Op::Experts { .. } => self.experts(index)?,
            Op::GatedRmsNorm { eps, group, function } => self.gated_norm(node, *eps, *group, *function)?,
            Op::LayerNorm { eps, group } => self.layer_norm(node, *eps, *group)?,
            Op::GroupedLinear { groups } => self.grouped(node, *groups)?,
            Op::NgramEmbed { .. } => self.ngram(node)?,
            Op::Pool { ratio, weights, state } => self.pool(node, *ratio, *weights, *state)?,
            Op::IndexScore { heads, key, state } => self.choose(node, *heads, *key, *state)?,
            Op::CausalConv { .. } => self.conv(node)?,
            Op::GatedDelta(delta) => self.delta(node, delta)?,
            Op::StreamSpread { .. }
            | Op::StreamCollapse {}
            | Op::StreamCombine {}
            | Op::StreamScale {}
            | Op::HyperMix { .. }
            | Op::HyperHead { .. }
            | Op::MemoryGate { .. } => self.streams(node)?,
            Op::DecisionHead { .. } => self.decision(node)?,
            Op::L2Norm { .. }
            | Op::Softmax { .. }
            | Op::Reduce { .. }
            | Op::MatMul { .. }
            | Op::Transpose {}
            | Op::TopK { .. }
            | Op::Gather { .. } => self.plain(node)?,
            Op::Reshape { .. } => self.reshape(node)?,
            Op::LowRankMix { eps } => self.low_rank_mix(node, *eps)?,
            other => {
                return Err(CpuError::Program(format!("{}: no lowering for {}", node.label(), other.name())));
            }
        }
        Ok(())
    }
}

/// One store with rows for each token, all of them visible: what the paged kernel is for.
pub(crate) fn is_dense(attention: &Attention) -> bool {
    attention.sources.len() == 1 && attention.sources.iter().all(|s| !s.selected)
}

fn limits_of(clamp: op::Clamp) -> GateLimits {
    GateLimits { gate_max: clamp.gate_max, up_abs: clamp.up_abs }
}

pub(super) fn function_of(function: op::Function) -> Function {
    match function {
        op::Function::Silu => Function::Silu,
        op::Function::GeluTanh => Function::GeluTanh,
        op::Function::GeluErf => Function::GeluErf,
        op::Function::Sigmoid => Function::Sigmoid,
        op::Function::Softplus => Function::Softplus,
        op::Function::Exp => Function::Exp,
        op::Function::Relu => Function::Relu,
        op::Function::Tanh => Function::Tanh,
    }
}
