//! Attention over several stores or chosen rows, the scores and choices of those rows, and pooled rows.

use super::super::CpuError;
use super::super::execute::{Buffers, Held, Machine};
use super::super::fixed::Ring;
use super::super::lower::Lowering;
use super::super::step::{Class, Slot, Use, Vector, Work};
use super::broken;
use bloomery_kernels_cpu::attention::{RowsIn, SeenRows, UnionSpec, attention_over_union};
use bloomery_kernels_cpu::history::{as_stored, move_on};
use bloomery_kernels_cpu::indexer::{Choice, Chosen, IndexSpec, choose};
use bloomery_kernels_cpu::kv::{CacheType, PartIndex, Run};
use bloomery_kernels_cpu::pooled::{PoolSpec, PoolWeights, pool_rows};
use bloomery_kernels_cpu::selection::Selection;
use bloomery_program::op::{self, Attention};
use bloomery_program::{Node, Op, StateId, ValueId};
use std::ops::Range;

/// Chosen rows: the slot, and most numbers of a row.
#[derive(Debug, Clone, Copy)]
pub(crate) struct SelectedBy {
    pub slot: Slot,
    pub most: usize,
}

/// Where the rows of a store lie.
#[derive(Debug, Clone)]
pub(crate) enum RowsOf {
    Pages {
        keys: PartIndex,
        values: PartIndex,
    },
    /// The step's own rows, and those before it in a sequence's block.
    Ring {
        rows: Slot,
        width: usize,
        place: Range<usize>,
    },
}

/// Rows of a store that attention sees.
#[derive(Debug, Clone)]
pub(crate) struct SeenOf {
    pub rows: RowsOf,
    pub window: Option<usize>,
    pub selected: Option<SelectedBy>,
}

/// Attention over several stores.
#[derive(Debug, Clone)]
pub(crate) struct UnionOf {
    pub heads: usize,
    pub kv_heads: usize,
    pub key: usize,
    pub value: usize,
    pub scale: f32,
    pub softcap: Option<f32>,
    pub sinks: Option<Vector>,
    pub sources: Vec<SeenOf>,
}

/// One choice of a row's scores.
#[derive(Debug, Clone, Copy)]
pub(crate) struct ChoiceOf {
    pub what: WhatOf,
    pub out: SelectedBy,
}

#[derive(Debug, Clone, Copy)]
pub(crate) enum WhatOf {
    TopRows { top_k: usize, within: Option<SelectedBy>, expand: bool, tail: bool },
    Blocks { block: usize, keep: usize },
}

#[derive(Debug, Clone)]
pub(crate) enum SparseWork {
    Attend {
        q: Slot,
        out: Slot,
        of: UnionOf,
    },
    Choose {
        q: Slot,
        weights: Option<Slot>,
        spec: IndexSpec,
        choices: Vec<ChoiceOf>,
    },
    Pool {
        x: Slot,
        gate: Option<Slot>,
        of: PoolOf,
        out: Slot,
    },
    /// The step's rows of a ring, rounded as a store rounds them.
    Keep {
        x: Slot,
        width: usize,
        cache: CacheType,
        out: Slot,
    },
    /// Moves a ring on, once nothing reads it any more.
    MoveOn {
        rows: Slot,
        width: usize,
        place: Range<usize>,
    },
}

/// A pool.
#[derive(Debug, Clone)]
pub(crate) struct PoolOf {
    pub ratio: usize,
    pub width: usize,
    pub weights: PoolWeights,
    pub bias: Option<Vector>,
    /// The rows before, in a sequence's block.
    pub history: Range<usize>,
}

impl SparseWork {
    /// The operator's name.
    pub fn name(&self) -> &'static str {
        match self {
            SparseWork::Attend { .. } => "attention",
            SparseWork::Choose { .. } => "index_score",
            SparseWork::Pool { .. } => "pool",
            SparseWork::Keep { .. } | SparseWork::MoveOn { .. } => "append",
        }
    }

    /// Calls `f` with every slot.
    pub fn visit(&mut self, f: &mut impl FnMut(&mut Slot, Use)) {
        match self {
            SparseWork::Attend { q, out, of } => {
                f(q, Use::Read);
                for source in &mut of.sources {
                    if let RowsOf::Ring { rows, .. } = &mut source.rows {
                        f(rows, Use::Read);
                    }
                    if let Some(selected) = &mut source.selected {
                        f(&mut selected.slot, Use::Read);
                    }
                }
                f(out, Use::Write);
            }
            SparseWork::Choose { q, weights, choices, .. } => {
                f(q, Use::Read);
                weights.iter_mut().for_each(|w| f(w, Use::Read));
                for choice in choices.iter_mut() {
                    if let WhatOf::TopRows { within: Some(within), .. } = &mut choice.what {
                        f(&mut within.slot, Use::Read);
                    }
                }
                choices.iter_mut().for_each(|c| f(&mut c.out.slot, Use::Write));
            }
            SparseWork::Pool { x, gate, out, .. } => {
                f(x, Use::Read);
                gate.iter_mut().for_each(|g| f(g, Use::Read));
                f(out, Use::Write);
            }
            SparseWork::Keep { x, out, .. } => {
                f(x, Use::Read);
                f(out, Use::Write);
            }
            SparseWork::MoveOn { rows, .. } => f(rows, Use::Read),
        }
    }
}

impl Lowering<'_> {
    pub(crate) fn attention_over_union(
        &mut self,
        node: &Node,
        attention: &Attention,
    ) -> Result<(), CpuError> {
        let mut sources = Vec::with_capacity(attention.sources.len());
        let mut next = 1;
        for source in &attention.sources {
            let rows = match self.fixed.ring(source.state) {
                None => {
                    let store = self.store(source.state)?;
                    RowsOf::Pages { keys: store.keys, values: store.values }
                }
                Some(ring) => {
                    let kept = self.rings.get(&source.state).ok_or_else(|| broken("a ring without rows"))?;
                    RowsOf::Ring { rows: kept.0, width: ring.width, place: ring.place.clone() }
                }
            };
            let selected = match source.selected {
                true => {
                    let value = node.ins.get(next).ok_or_else(|| broken("a selection is missing"))?;
                    next += 1;
                    Some(self.selection(*value, node)?)
                }
                false => None,
            };
            sources.push(SeenOf { rows, window: source.window.map(|w| w as usize), selected });
        }
        let of = UnionOf {
            heads: attention.heads as usize,
            kv_heads: attention.kv_heads as usize,
            key: attention.key as usize,
            value: attention.value as usize,
            scale: attention.scale,
            softcap: attention.softcap,
            sinks: self.vector(node, "sinks")?,
            sources,
        };
        let (q, out) = (self.operand(node, 0)?, self.result(node, 0)?);
        self.push(Work::Sparse(SparseWork::Attend { q, out, of }), node);
        for source in &attention.sources {
            if let Some((_, readers)) = self.rings.get_mut(&source.state) {
                *readers -= 1;
                self.move_on(node, source.state);
            }
        }
        Ok(())
    }

    /// The step's own rows of a ring.
    pub(crate) fn keep_in_ring(&mut self, node: &Node, state: StateId, ring: &Ring, x: Slot) {
        let (width, cache) = (ring.width, ring.cache);
        let out = self.new_slot(Class::Rows { width });
        let reads = |n: &Node| match &n.op {
            Op::Attention(a) => a.sources.iter().filter(|s| s.state == state).count(),
            _ => 0,
        };
        let readers = self.graph.nodes.iter().map(reads).sum();
        self.rings.insert(state, (out, readers));
        self.push(Work::Sparse(SparseWork::Keep { x, width, cache, out }), node);
        self.move_on(node, state);
    }

    /// Moves a ring on if every reader is done.
    fn move_on(&mut self, node: &Node, state: StateId) {
        if let (Some((rows, 0)), Some(ring)) = (self.rings.get(&state).copied(), self.fixed.ring(state)) {
            let (width, place) = (ring.width, ring.place.clone());
            self.push_part(Work::Sparse(SparseWork::MoveOn { rows, width, place }), node);
        }
    }

    fn selection(&self, value: ValueId, node: &Node) -> Result<SelectedBy, CpuError> {
        let found = self.selections.get(&value).copied();
        found.ok_or_else(|| {
            broken(format!("{} reads selection {}, which is not there", node.label(), value.0))
        })
    }

    /// Scores never leave their step: everything that chooses by them joins it.
    pub(crate) fn choose(
        &mut self,
        node: &Node,
        heads: u32,
        key: u32,
        state: StateId,
    ) -> Result<(), CpuError> {
        let store = self.store(state)?;
        let scores = node.outs[0].value;
        let (q, weights) = (
            self.operand(node, 0)?,
            match node.ins.len() {
                0 | 1 => None,
                _ => Some(self.operand(node, 1)?),
            },
        );
        let graph = self.graph;
        let mut choices = Vec::new();
        for (index, reader) in graph.nodes.iter().enumerate().filter(|(_, n)| n.ins.contains(&scores)) {
            let what = match reader.op {
                Op::TopRows { top_k, expand, tail } => WhatOf::TopRows {
                    top_k: top_k as usize,
                    within: match reader.ins.get(1) {
                        Some(within) => Some(self.selection(*within, reader)?),
                        None => None,
                    },
                    expand,
                    tail,
                },
                Op::CandidateBlocks { block, keep } => {
                    WhatOf::Blocks { block: block as usize, keep: keep as usize }
                }
                _ => return Err(broken(format!("{} reads scores", reader.label()))),
            };
            let most = what.choice(None).most(store.every, self.max_tokens);
            let slot = self.new_slot(Class::Index { width: 1 + most });
            let out = SelectedBy { slot, most };
            choices.push((index, ChoiceOf { what, out }, reader.outs[0].value));
        }
        for (index, choice, value) in &choices {
            self.patterns.done(*index);
            self.selections.insert(*value, choice.out);
        }
        let choices = choices.into_iter().map(|(_, choice, _)| choice).collect();
        let spec = IndexSpec { heads: heads as usize, key: key as usize, part: store.keys };
        self.push(Work::Sparse(SparseWork::Choose { q, weights, spec, choices }), node);
        Ok(())
    }

    pub(crate) fn pool(
        &mut self,
        node: &Node,
        ratio: u32,
        weights: op::PoolWeights,
        state: StateId,
    ) -> Result<(), CpuError> {
        let history = self.fixed.place(state).ok_or_else(|| broken("a pool without a state"))?;
        let weights = match weights {
            op::PoolWeights::Mean {} => PoolWeights::Mean,
            op::PoolWeights::Softmax { overlap: false } => PoolWeights::Softmax,
            op::PoolWeights::Softmax { overlap: true } => PoolWeights::OverlappingSoftmax,
        };
        let x = self.operand(node, 0)?;
        let gate = if node.ins.len() > 1 { Some(self.operand(node, 1)?) } else { None };
        let bias = self.vector(node, "position_bias")?;
        let width = node.outs[0].shape.row_len().map_or(0, |w| w as usize);
        let out = self.result(node, 0)?;
        let of = PoolOf { ratio: ratio as usize, width, weights, bias, history };
        self.push(Work::Sparse(SparseWork::Pool { x, gate, of, out }), node);
        Ok(())
    }
}

impl WhatOf {
    fn choice<'a>(&self, rows: Option<&'a Buffers>) -> Choice<'a> {
        match *self {
            WhatOf::TopRows { top_k, within, expand, tail } => {
                let within = within.zip(rows).map(|(within, b)| within.of(b));
                Choice::TopRows { top_k, within, expand, tail }
            }
            WhatOf::Blocks { block, keep } => Choice::Blocks { block, keep },
        }
    }
}

impl SelectedBy {
    fn of<'a>(&self, b: &'a Buffers) -> Selection<'a> {
        Selection { numbers: &b.index[self.slot.0], most: self.most }
    }
}

impl Machine<'_> {
    pub(crate) fn sparse(
        &self,
        work: &SparseWork,
        rows: usize,
        b: &mut Buffers,
        held: &mut Held<'_>,
        runs: &[Run<'_>],
    ) {
        let cpu = self.cpu;
        match work {
            SparseWork::Attend { q, out, of } => {
                let mut target = b.open(*out, rows);
                let blocks: Vec<&[f32]> = held.blocks.iter().map(|block| &**block).collect();
                let seen = |s: &SeenOf| SeenRows {
                    rows: match &s.rows {
                        RowsOf::Pages { keys, values } => RowsIn::Pages { keys: *keys, values: *values },
                        RowsOf::Ring { rows, width, place } => {
                            RowsIn::Ring { rows: &b.rows[rows.0], width: *width, place: place.clone() }
                        }
                    },
                    window: s.window,
                    selected: s.selected.map(|s| s.of(b)),
                };
                let sources: Vec<SeenRows<'_>> = of.sources.iter().map(seen).collect();
                let spec = UnionSpec {
                    heads: of.heads,
                    kv_heads: of.kv_heads,
                    key: of.key,
                    value: of.value,
                    scale: of.scale,
                    softcap: of.softcap,
                    sinks: self.vector(of.sinks),
                    sources: &sources,
                    blocks: &blocks,
                };
                let q = &b.rows[q.0];
                attention_over_union(&cpu.pool, cpu.level, held.store, &spec, runs, q, &mut target);
                b.rows[out.0] = target;
            }
            SparseWork::Choose { q, weights, spec, choices } => {
                let mut scores = std::mem::take(&mut b.scores);
                let mut targets: Vec<Vec<u32>> =
                    choices.iter().map(|c| b.open_index(c.out.slot, rows)).collect();
                let mut chosen: Vec<Chosen<'_>> = choices
                    .iter()
                    .zip(&mut targets)
                    .map(|(c, out)| Chosen { choice: c.what.choice(Some(b)), out, most: c.out.most })
                    .collect();
                let weights = weights.map(|w| &b.rows[w.0][..]);
                choose(cpu, held.store, spec, runs, &b.rows[q.0], weights, &mut scores, &mut chosen);
                drop(chosen);
                for (choice, target) in choices.iter().zip(targets) {
                    b.index[choice.out.slot.0] = target;
                }
                b.scores = scores;
            }
            SparseWork::Pool { x, gate, of, out } => {
                let mut target = b.open(*out, rows);
                let spec = PoolSpec {
                    ratio: of.ratio,
                    width: of.width,
                    weights: of.weights,
                    bias: self.vector(of.bias),
                };
                let gate = gate.map(|g| &b.rows[g.0][..]);
                for (run, block) in runs.iter().zip(held.blocks.iter_mut()) {
                    let history = &mut block[of.history.clone()];
                    pool_rows(cpu, &spec, run, &b.rows[x.0], gate, history, &mut target);
                }
                b.rows[out.0] = target;
            }
            SparseWork::Keep { x, width, cache, out } => {
                let mut target = b.open(*out, rows);
                as_stored(&cpu.pool, *cache, rows, *width, &b.rows[x.0], &mut target);
                b.rows[out.0] = target;
            }
            SparseWork::MoveOn { rows, width, place } => {
                for (run, block) in runs.iter().zip(held.blocks.iter_mut()) {
                    move_on(&mut block[place.clone()], *width, run, &b.rows[rows.0]);
                }
            }
        }
    }
}
