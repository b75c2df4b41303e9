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
use bloomery_formats::ActivationKind;
use bloomery_kernels_cpu::experts::ExpertSpec;
use bloomery_kernels_cpu::kv::PartIndex;
use bloomery_kernels_cpu::pointwise::{Function, GateLimits};
use bloomery_kernels_cpu::rope::{RopeSpec, YarnSpec, frequencies};
use bloomery_kernels_cpu::route::Score;
use bloomery_program::op::{self, Attention, Pairing, Route};
use bloomery_program::{Graph, Node, Op, OutputKind, Program, Shape, StateId, ValueId};
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
}

/// Lowers the target graph.
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
    let mut lowering = Lowering {
        graph,
        source,
        parts: to.parts,
        fixed: to.fixed,
        max_tokens: to.max_tokens,
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
        self.nodes(0..self.cut)?;
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
            return Err(CpuError::Program("the target graph gives neither logits nor decisions".into()));
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

    fn linear(&mut self, index: usize) -> Result<()> {
        let graph = self.graph;
        let node = &graph.nodes[index];
        if let Some((other, glu)) = self.patterns.gate_up(index) {
            return self.gate_up(index, other, glu);
        }
        let weight = self.matrix(node, "weight")?;
        let kind = self.kind(weight)?;
        let mut members = vec![index];
        for later in self.patterns.siblings(index) {
            let fits = self
                .matrix(&graph.nodes[later], "weight")
                .and_then(|w| self.kind(w))
                .is_ok_and(|k| k == kind);
            if fits && members.len() < bloomery_kernels_cpu::linear::MOST {
                members.push(later);
            }
        }
        let x = self.quantize(node.ins[0], kind)?;
        let mut items = Vec::with_capacity(members.len());
        for member in members {
            let node = &graph.nodes[member];
            let weight = self.matrix(node, "weight")?;
            let bias = self.vector(node, "bias")?;
            let (residual, out) = self.residual(member)?;
            items.push(Item { weight, bias, residual, out });
            self.patterns.done(member);
        }
        self.push(Work::Project { x, items }, node);
        Ok(())
    }

    /// The result of a product: the node's own, or that of the addition that follows it.
    fn residual(&mut self, index: usize) -> Result<(Option<Slot>, Slot)> {
        let graph = self.graph;
        if let Some((add, other)) = self.patterns.residual(index)
            && let Some(residual) = self.slot_of.get(&other).copied()
        {
            self.patterns.done(add);
            let out = self.result(&graph.nodes[add], 0)?;
            return Ok((Some(residual), out));
        }
        Ok((None, self.result(&graph.nodes[index], 0)?))
    }

    fn gate_up(&mut self, first: usize, second: usize, glu: usize) -> Result<()> {
        let graph = self.graph;
        let glu_node = &graph.nodes[glu];
        let Op::Glu { act, clamp } = &glu_node.op else {
            return Err(CpuError::Program(format!("{} is no gated unit", glu_node.label())));
        };
        let first_is_gate = graph.nodes[first].outs[0].value == glu_node.ins[0];
        let (gate_node, up_node) = if first_is_gate { (first, second) } else { (second, first) };
        let gate = self.matrix(&graph.nodes[gate_node], "weight")?;
        let up = self.matrix(&graph.nodes[up_node], "weight")?;
        let value = graph.nodes[first].ins[0];
        let (gate_kind, up_kind) = (self.kind(gate)?, self.kind(up)?);
        let x = self.quantize(value, gate_kind)?;
        let x_up = self.quantize(value, up_kind)?;
        let out = self.result(glu_node, 0)?;
        let (function, limits) = (function_of(*act), clamp.map(limits_of));
        self.push(Work::GateUp { x, x_up, gate, up, function, limits, out }, glu_node);
        for done in [first, second, glu] {
            self.patterns.done(done);
        }
        Ok(())
    }

    fn append(&mut self, index: usize) -> Result<()> {
        let graph = self.graph;
        let node = &graph.nodes[index];
        let Op::Append { state } = node.op else {
            return Err(CpuError::Program(format!("{} appends nothing", node.label())));
        };
        let mut changed = Vec::new();
        let mut key_from = None;
        for (is_key, chain) in self.patterns.heads(index) {
            let slot = self.slot(chain.source, node)?;
            let width = self.width(chain.source);
            let norm = match chain.norm {
                Some(n) => match graph.nodes[n].op {
                    Op::RmsNorm { eps, group } => Some(self.norm(&graph.nodes[n], eps, group)?),
                    _ => None,
                },
                None => None,
            };
            let rope = match chain.rope {
                Some(r) => match &graph.nodes[r].op {
                    Op::Rope(rope) => Some(self.rope(&graph.nodes[r], rope)?),
                    _ => None,
                },
                None => None,
            };
            if is_key {
                key_from = Some(AppendedFrom::Changed(changed.len()));
            }
            changed.push(Changed { slot, width, head: chain.head, norm, rope });
            self.slot_of.insert(chain.result, slot);
        }
        let key_from = match key_from {
            Some(from) => from,
            None => AppendedFrom::Slot(self.operand(node, 0)?),
        };
        if let Some(ring) = self.fixed.ring(state).cloned() {
            let x = match key_from {
                AppendedFrom::Changed(i) => changed[i].slot,
                AppendedFrom::Slot(slot) => slot,
            };
            if !changed.is_empty() {
                self.push_part(Work::Prepare { changed, appended: vec![] }, node);
            }
            self.keep_in_ring(node, state, &ring, x);
            return Ok(());
        }
        let store = self.store(state)?;
        let mut appended = vec![Appended { part: store.keys, from: key_from }];
        if store.values != store.keys {
            let from = AppendedFrom::Slot(self.operand(node, 1)?);
            appended.push(Appended { part: store.values, from });
        }
        self.push(Work::Prepare { changed, appended }, node);
        Ok(())
    }

    fn attention(&mut self, node: &Node, attention: &Attention) -> Result<()> {
        let Some(source) = attention.sources.first() else {
            return Err(CpuError::Program(format!("{} reads no store", node.label())));
        };
        if self.fixed.ring(source.state).is_some() {
            return self.attention_over_union(node, attention);
        }
        let StoreParts { keys, values, every } = self.store(source.state)?;
        if !is_dense(attention) || keys == values || every != 1 {
            return self.attention_over_union(node, attention);
        }
        let of = AttendOf {
            heads: attention.heads as usize,
            kv_heads: attention.kv_heads as usize,
            key: attention.key as usize,
            value: attention.value as usize,
            scale: attention.scale,
            softcap: attention.softcap,
            window: source.window.map(|w| w as usize),
            sinks: self.vector(node, "sinks")?,
            keys,
            values,
        };
        let (q, out) = (self.operand(node, 0)?, self.result(node, 0)?);
        self.push(Work::Attend { q, out, of }, node);
        Ok(())
    }

    fn router(&mut self, node: &Node, route: &Route) -> Result<()> {
        let of = self.route_of(node, route)?;
        let logits = self.operand(node, 0)?;
        let (ids, weights) = (self.result(node, 0)?, self.result(node, 1)?);
        self.push(Work::Route { logits, of, ids, weights }, node);
        Ok(())
    }

    pub(super) fn route_of(&mut self, node: &Node, route: &Route) -> Result<RouteOf> {
        Ok(RouteOf {
            experts: route.experts as usize,
            used: route.used as usize,
            score: match route.score {
                op::Score::Softmax => Score::Softmax,
                op::Score::Sigmoid => Score::Sigmoid,
                op::Score::SqrtSoftplus => Score::SqrtSoftplus,
                op::Score::SoftmaxChosen => Score::SoftmaxChosen,
            },
            groups: route.groups.map(|g| (g.count as usize, g.used as usize)),
            bias: self.vector(node, "bias")?,
            normalize: route.normalize,
            sum_floor: route.sum_floor,
            scale: route.scale,
        })
    }

    /// A norm, and a gated unit whose other half it is.
    fn gated_norm(&mut self, node: &Node, eps: f32, group: u32, function: op::Function) -> Result<()> {
        let norm = self.norm(node, eps, group)?;
        let (x, gate, width) = (self.operand(node, 0)?, self.operand(node, 1)?, self.width(node.ins[0]));
        let up = self.new_slot(Class::Rows { width });
        self.push_part(Work::Norm { x, width, norm, out: up, quantized: vec![] }, node);
        let (function, out) = (function_of(function), self.result(node, 0)?);
        self.push(Work::Glu { gate, up, width, function, limits: None, out }, node);
        Ok(())
    }

    fn experts(&mut self, index: usize) -> Result<()> {
        let graph = self.graph;
        let node = &graph.nodes[index];
        let Op::Experts { experts, used, act, clamp } = &node.op else {
            return Err(CpuError::Program(format!("{} holds no experts", node.label())));
        };
        let (gate, up) = match node.tensors.contains_key("gate_up") {
            true => (self.matrix(node, "gate_up")?, None),
            false => (self.matrix(node, "gate")?, Some(self.matrix(node, "up")?)),
        };
        let down = self.matrix(node, "down")?;
        let spec = ExpertSpec {
            experts: *experts as usize,
            ff: down.cols,
            width: self.width(node.ins[0]),
            function: function_of(*act),
            limits: clamp.map(limits_of),
        };
        let x = self.quantize(node.ins[0], self.kind(gate)?)?;
        let x_up = match up {
            Some(up) => self.quantize(node.ins[0], self.kind(up)?)?,
            None => x,
        };
        let kind = self.kind(down)?;
        let known = self
            .out
            .expert_buffers
            .iter()
            .position(|(s, d)| s.ff == spec.ff && self.kind(*d).is_ok_and(|k| k == kind));
        let buffers = known.unwrap_or(self.out.expert_buffers.len());
        if known.is_none() {
            self.out.expert_buffers.push((spec, down));
        }
        let of = ExpertsOf {
            spec,
            used: *used as usize,
            gate,
            up,
            down,
            gate_bias: self.vector(node, "gate_bias")?,
            up_bias: self.vector(node, "up_bias")?,
            down_bias: self.vector(node, "down_bias")?,
            buffers,
        };
        let (ids, weights) = (self.operand(node, 1)?, self.operand(node, 2)?);
        let (residual, out) = self.residual(index)?;
        self.push(Work::Experts { x, x_up, ids, weights, residual, out, of }, node);
        Ok(())
    }

    // ---- slots, vectors, tables

    /// The value in the form that weights of this kind multiply.
    fn quantize(&mut self, value: ValueId, kind: ActivationKind) -> Result<Slot> {
        if let Some(slot) = self.quantized.get(&(value, kind)) {
            return Ok(*slot);
        }
        let x = self.slot_of.get(&value).copied();
        let x =
            x.ok_or_else(|| CpuError::Program(format!("value {} is used before it is computed", value.0)))?;
        let out = self.new_slot(Class::Quantized { kind, width: self.width(value) });
        let joined = self.norm_step.get(&value).copied().filter(|_| self.fuse);
        match joined.map(|step| &mut self.out.steps[step].work) {
            Some(Work::Norm { quantized, .. }) if quantized.len() < 2 => quantized.push(out),
            _ => self.out.steps.push(Step {
                work: Work::Quantize { x, out },
                place: "quantize".into(),
                shows: vec![],
            }),
        }
        self.quantized.insert((value, kind), out);
        Ok(out)
    }

    /// The head that takes the place of logits.
    pub(super) fn set_decision(&mut self, head: DecisionOf) {
        self.out.decision = Some(head);
    }

    /// The page parts of a state.
    pub(super) fn store(&self, state: StateId) -> Result<StoreParts> {
        let found = self.parts.get(state.0 as usize).copied().flatten();
        found.ok_or_else(|| CpuError::Program(format!("state {} has no store", state.0)))
    }

    /// A step that a node's last one follows.
    pub(super) fn push_part(&mut self, work: Work, node: &Node) {
        self.out.steps.push(Step { work, place: node.label(), shows: vec![] });
    }

    pub(super) fn push(&mut self, work: Work, node: &Node) {
        let shows = match self.fuse {
            true => vec![],
            false => node
                .outs
                .iter()
                .filter_map(|o| {
                    let slot = *self.slot_of.get(&o.value)?;
                    Some((o.name.clone(), slot, self.width(o.value), matches!(o.shape, Shape::Index { .. })))
                })
                .collect(),
        };
        self.out.steps.push(Step { work, place: node.label(), shows });
    }

    pub(super) fn new_slot(&mut self, class: Class) -> Slot {
        self.out.slots.push(class);
        Slot(self.out.slots.len() - 1)
    }

    fn slot(&self, value: ValueId, node: &Node) -> Result<Slot> {
        let slot = self.slot_of.get(&value).copied();
        slot.ok_or_else(|| {
            CpuError::Program(format!("{} reads value {}, which is not there", node.label(), value.0))
        })
    }

    pub(super) fn operand(&self, node: &Node, i: usize) -> Result<Slot> {
        match node.ins.get(i) {
            Some(value) => self.slot(*value, node),
            None => Err(CpuError::Program(format!("{} lacks operand {i}", node.label()))),
        }
    }

    pub(super) fn result(&mut self, node: &Node, i: usize) -> Result<Slot> {
        let Some(out) = node.outs.get(i) else {
            return Err(CpuError::Program(format!("{} lacks result {i}", node.label())));
        };
        let width = out.shape.row_len().and_then(|w| usize::try_from(w).ok()).unwrap_or(0);
        let class = match out.shape {
            Shape::Index { .. } => Class::Index { width },
            _ => Class::Rows { width },
        };
        let slot = self.new_slot(class);
        self.slot_of.insert(out.value, slot);
        Ok(slot)
    }

    fn shape(&self, value: ValueId) -> Shape {
        self.patterns.shape(value)
    }

    pub(super) fn width(&self, value: ValueId) -> usize {
        self.shape(value).row_len().and_then(|w| usize::try_from(w).ok()).unwrap_or(0)
    }

    pub(super) fn matrix(&self, node: &Node, role: &str) -> Result<TensorRef> {
        let matrix = self.table(node, role)?;
        let name = node.tensors.get(role).cloned().unwrap_or_default();
        matrix.matrix(self.source).map_err(|e| CpuError::Tensor { name, what: e.to_string() })?;
        Ok(matrix)
    }

    /// A tensor of rows, of integers perhaps.
    pub(super) fn table(&self, node: &Node, role: &str) -> Result<TensorRef> {
        let name = node
            .tensors
            .get(role)
            .ok_or_else(|| CpuError::Program(format!("{} lacks {role}", node.label())))?;
        let tensor = self
            .source
            .find(name)
            .ok_or_else(|| CpuError::Tensor { name: name.clone(), what: "is not in the model".into() })?;
        let matrix = TensorRef::new(self.source, tensor);
        let fault = |what: String| CpuError::Tensor { name: name.clone(), what };
        matrix.ok_or_else(|| fault("has dimensions that overflow".into()))
    }

    pub(super) fn kind(&self, matrix: TensorRef) -> Result<ActivationKind> {
        let ty = self.source.shape(matrix.tensor).0;
        ty.activation_kind().ok_or_else(|| CpuError::Program(format!("{ty} is no weight type")))
    }

    /// A vector that the operator cannot do without.
    pub(super) fn needed(&mut self, node: &Node, role: &str) -> Result<Vector> {
        let found = self.vector(node, role)?;
        found.ok_or_else(|| CpuError::Program(format!("{} lacks {role}", node.label())))
    }

    pub(super) fn vector(&mut self, node: &Node, role: &str) -> Result<Option<Vector>> {
        let Some(name) = node.tensors.get(role) else { return Ok(None) };
        let fault = |what: String| CpuError::Tensor { name: name.clone(), what };
        let tensor = self.source.find(name).ok_or_else(|| fault("is not in the model".into()))?;
        if let Some(vector) = self.vectors.get(&tensor) {
            return Ok(Some(*vector));
        }
        self.out.vectors.push(floats(self.source, tensor).map_err(fault)?);
        let vector = self.out.vectors.len() - 1;
        self.vectors.insert(tensor, vector);
        Ok(Some(vector))
    }

    /// A vector `[n, of]` as `[of, n]`.
    pub(super) fn transposed(&mut self, vector: Vector, of: usize) -> Vector {
        let given = &self.out.vectors[vector];
        let n = given.len().checked_div(of).unwrap_or(0);
        let turned = (0..n * of).map(|i| given[i % n * of + i / n]).collect();
        self.out.vectors.push(turned);
        self.out.vectors.len() - 1
    }

    fn norm(&mut self, node: &Node, eps: f32, group: u32) -> Result<NormOf> {
        Ok(NormOf { weight: self.vector(node, "weight")?, group: group as usize, eps })
    }

    fn rope(&mut self, node: &Node, rope: &op::Rope) -> Result<usize> {
        let factors = self.vector(node, "freq_factors")?.map(|v| &self.out.vectors[v][..]);
        let yarn = rope.yarn.map(|y| YarnSpec {
            factor: f64::from(y.factor),
            original_context: f64::from(y.original_context),
            beta_fast: f64::from(y.beta_fast),
            beta_slow: f64::from(y.beta_slow),
        });
        let dims = rope.dims as usize;
        let spec = RopeSpec {
            dims,
            offset: rope.offset as usize,
            halves: rope.pairing == Pairing::Halves,
            inverse: rope.inverse,
            frequencies: frequencies(
                dims,
                f64::from(rope.theta),
                f64::from(rope.linear_factor),
                factors,
                yarn,
            ),
            magnitude: rope.yarn.map_or(1.0, |y| y.magnitude),
            group: rope.group as usize,
        };
        let of = RopeOf { spec, tail: self.tail };
        if let Some(known) = self.out.ropes.iter().position(|r| *r == of) {
            return Ok(known);
        }
        self.out.ropes.push(of);
        Ok(self.out.ropes.len() - 1)
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
