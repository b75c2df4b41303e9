//! Which neighbours of a graph may join. Finds patterns only; lowering decides what to make of them.

use bloomery_program::{Graph, Op, Shape, StateId, ValueId};
use std::collections::HashMap;

/// Head norm and rotation between a projection and the store or attention.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct HeadChain {
    /// What comes in, used by nothing else: it may be changed in place.
    pub source: ValueId,
    /// What comes out.
    pub result: ValueId,
    pub norm: Option<usize>,
    pub rope: Option<usize>,
    /// Width of a head.
    pub head: usize,
}

/// Facts about a graph's edges, and which nodes are already lowered.
pub(crate) struct Patterns {
    shapes: HashMap<ValueId, Shape>,
    done: Vec<bool>,
    gate_up: HashMap<usize, (usize, usize)>,
    residual: HashMap<usize, (usize, ValueId)>,
    siblings: HashMap<usize, Vec<usize>>,
    heads: HashMap<usize, Vec<(bool, HeadChain)>>,
}

impl Patterns {
    /// Patterns never reach across `cut`: the nodes from there on run for fewer rows.
    pub fn new(graph: &Graph, cut: usize, fuse: bool) -> Patterns {
        let mut shapes: HashMap<ValueId, Shape> = graph.inputs.iter().map(|i| (i.value, i.shape)).collect();
        shapes.extend(graph.nodes.iter().flat_map(|n| n.outs.iter().map(|o| (o.value, o.shape))));
        let mut patterns = Patterns {
            shapes,
            done: vec![false; graph.nodes.len()],
            gate_up: HashMap::new(),
            residual: HashMap::new(),
            siblings: HashMap::new(),
            heads: HashMap::new(),
        };
        if fuse {
            let edges = Edges::new(graph, cut);
            patterns.find_gate_up(graph, &edges);
            patterns.find_residuals(graph, &edges);
            patterns.find_siblings(graph, &edges);
            patterns.find_heads(graph, &edges);
        }
        patterns
    }

    pub fn shape(&self, value: ValueId) -> Shape {
        self.shapes.get(&value).copied().unwrap_or(Shape::Tokens {})
    }

    pub fn is_done(&self, node: usize) -> bool {
        self.done[node]
    }

    pub fn done(&mut self, node: usize) {
        self.done[node] = true;
    }

    /// The other projection and the gated unit, when this projection is one half of a gated unit.
    pub fn gate_up(&self, node: usize) -> Option<(usize, usize)> {
        self.gate_up.get(&node).copied()
    }

    /// The addition that alone reads this node's result, and its other operand.
    pub fn residual(&self, node: usize) -> Option<(usize, ValueId)> {
        self.residual.get(&node).copied().filter(|(add, _)| !self.done[*add])
    }

    /// Later projections of the same value.
    pub fn siblings(&self, node: usize) -> Vec<usize> {
        let all = self.siblings.get(&node).map_or(&[][..], Vec::as_slice);
        all.iter().copied().filter(|n| !self.done[*n]).collect()
    }

    /// Chains that end in this append (`true`: its keys) or in the attention over its store (`false`: the queries).
    pub fn heads(&self, append: usize) -> Vec<(bool, HeadChain)> {
        self.heads.get(&append).cloned().unwrap_or_default()
    }

    fn find_gate_up(&mut self, graph: &Graph, edges: &Edges) {
        for (glu, node) in graph.nodes.iter().enumerate() {
            if !matches!(node.op, Op::Glu { .. }) || node.ins[0] == node.ins[1] {
                continue;
            }
            let projection = |value: ValueId| {
                let made = edges.made_in_segment(value, glu)?;
                let n = &graph.nodes[made];
                let plain = matches!(n.op, Op::Linear {}) && !n.tensors.contains_key("bias");
                (plain && edges.uses(value) == 1).then_some(made)
            };
            if let (Some(a), Some(b)) = (projection(node.ins[0]), projection(node.ins[1]))
                && graph.nodes[a].ins == graph.nodes[b].ins
                && self.shape(node.ins[0]) == self.shape(node.ins[1])
            {
                self.gate_up.insert(a, (b, glu));
                self.gate_up.insert(b, (a, glu));
            }
        }
    }

    fn find_residuals(&mut self, graph: &Graph, edges: &Edges) {
        for (add, node) in graph.nodes.iter().enumerate() {
            if !matches!(node.op, Op::Add {}) || self.shape(node.ins[0]) != self.shape(node.ins[1]) {
                continue;
            }
            // The later operand is the product; the earlier one is there before it.
            for (product, other) in [(node.ins[1], node.ins[0]), (node.ins[0], node.ins[1])] {
                let Some(made) = edges.made_in_segment(product, add) else { continue };
                let fits = matches!(graph.nodes[made].op, Op::Linear {} | Op::Experts { .. });
                let earlier = edges.made(other).is_none_or(|o| o < made);
                if fits
                    && earlier
                    && product != other
                    && edges.uses(product) == 1
                    && !self.gate_up.contains_key(&made)
                {
                    self.residual.insert(made, (add, other));
                    break;
                }
            }
        }
    }

    fn find_siblings(&mut self, graph: &Graph, edges: &Edges) {
        let linear = |n: usize| matches!(graph.nodes[n].op, Op::Linear {}) && !self.gate_up.contains_key(&n);
        for first in (0..graph.nodes.len()).filter(|n| linear(*n)) {
            let value = graph.nodes[first].ins[0];
            let later: Vec<usize> = edges
                .readers(value)
                .iter()
                .copied()
                .filter(|n| *n > first && linear(*n) && edges.same_segment(first, *n))
                // A residual that is computed in between would be read too early.
                .filter(|n| {
                    self.residual.get(n).is_none_or(|(_, other)| edges.made(*other).is_none_or(|o| o < first))
                })
                .collect();
            self.siblings.insert(first, later);
        }
    }

    fn find_heads(&mut self, graph: &Graph, edges: &Edges) {
        let mut append_of: HashMap<StateId, usize> = HashMap::new();
        for (index, node) in graph.nodes.iter().enumerate() {
            match &node.op {
                Op::Append { state } => {
                    append_of.insert(*state, index);
                    if let Some(chain) = chain(graph, edges, node.ins[0], index) {
                        self.defer(index, true, chain);
                    }
                }
                Op::Attention(attention) => {
                    let append = attention.sources.first().and_then(|s| append_of.get(&s.state)).copied();
                    if let Some(append) = append
                        && edges.same_segment(append, index)
                        && let Some(chain) = chain(graph, edges, node.ins[0], index)
                        && edges.made(chain.source).is_some_and(|made| made < append)
                        && !self.heads.get(&append).is_some_and(|h| h.iter().any(|(is_key, _)| !is_key))
                    {
                        self.defer(append, false, chain);
                    }
                }
                _ => {}
            }
        }
    }

    fn defer(&mut self, append: usize, is_key: bool, chain: HeadChain) {
        for node in [chain.norm, chain.rope].into_iter().flatten() {
            self.done[node] = true;
        }
        self.heads.entry(append).or_default().push((is_key, chain));
    }
}

/// The norm and rotation that lead to `result`, each used by the next one only.
fn chain(graph: &Graph, edges: &Edges, result: ValueId, reader: usize) -> Option<HeadChain> {
    let step = |value: ValueId| {
        let made = edges.made_in_segment(value, reader)?;
        (edges.uses(value) == 1).then_some(made)
    };
    let mut found = HeadChain { source: result, result, norm: None, rope: None, head: 0 };
    if let Some(made) = step(found.source)
        && let Op::Rope(rope) = &graph.nodes[made].op
    {
        (found.rope, found.head, found.source) = (Some(made), rope.head as usize, graph.nodes[made].ins[0]);
    }
    if let Some(made) = step(found.source)
        && let Op::RmsNorm { group, .. } = graph.nodes[made].op
        && (found.rope.is_none() || found.head == group as usize)
        && edges.uses(graph.nodes[made].ins[0]) == 1
    {
        (found.norm, found.head, found.source) = (Some(made), group as usize, graph.nodes[made].ins[0]);
    }
    // The source is changed in place: it must be a projection's own result.
    let made = step(found.source)?;
    let own = matches!(graph.nodes[made].op, Op::Linear {});
    (own && (found.norm.is_some() || found.rope.is_some())).then_some(found)
}

/// Who makes and who reads a value.
struct Edges {
    made: HashMap<ValueId, usize>,
    readers: HashMap<ValueId, Vec<usize>>,
    outputs: HashMap<ValueId, usize>,
    cut: usize,
}

impl Edges {
    fn new(graph: &Graph, cut: usize) -> Edges {
        let mut edges = Edges { made: HashMap::new(), readers: HashMap::new(), outputs: HashMap::new(), cut };
        for (index, node) in graph.nodes.iter().enumerate() {
            edges.made.extend(node.outs.iter().map(|o| (o.value, index)));
            for value in &node.ins {
                edges.readers.entry(*value).or_default().push(index);
            }
        }
        for output in &graph.outputs {
            *edges.outputs.entry(output.value).or_default() += 1;
        }
        edges
    }

    fn made(&self, value: ValueId) -> Option<usize> {
        self.made.get(&value).copied()
    }

    fn readers(&self, value: ValueId) -> &[usize] {
        self.readers.get(&value).map_or(&[], Vec::as_slice)
    }

    fn uses(&self, value: ValueId) -> usize {
        self.readers(value).len() + self.outputs.get(&value).copied().unwrap_or(0)
    }

    fn same_segment(&self, a: usize, b: usize) -> bool {
        (a < self.cut) == (b < self.cut)
    }

    /// The node that made a value, when it runs for the same rows as `reader`.
    fn made_in_segment(&self, value: ValueId, reader: usize) -> Option<usize> {
        self.made(value).filter(|made| self.same_segment(*made, reader))
    }
}
