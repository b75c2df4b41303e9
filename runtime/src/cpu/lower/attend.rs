//! Appends with what is done to heads before them, attention, routers and gated norms.

use super::*;

impl Lowering<'_> {
    pub(super) fn append(&mut self, index: usize) -> Result<()> {
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

    pub(super) fn attention(&mut self, node: &Node, attention: &Attention) -> Result<()> {
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

    pub(super) fn router(&mut self, node: &Node, route: &Route) -> Result<()> {
        let of = self.route_of(node, route)?;
        let logits = self.operand(node, 0)?;
        let (ids, weights) = (self.result(node, 0)?, self.result(node, 1)?);
        self.push(Work::Route { logits, of, ids, weights }, node);
        Ok(())
    }

    pub(in crate::cpu) fn route_of(&mut self, node: &Node, route: &Route) -> Result<RouteOf> {
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
    pub(super) fn gated_norm(
        &mut self,
        node: &Node,
        eps: f32,
        group: u32,
        function: op::Function,
    ) -> Result<()> {
        let norm = self.norm(node, eps, group)?;
        let (x, gate, width) = (self.operand(node, 0)?, self.operand(node, 1)?, self.width(node.ins[0]));
        let up = self.new_slot(Class::Rows { width });
        self.push_part(Work::Norm { x, width, norm, out: up, quantized: vec![] }, node);
        let (function, out) = (function_of(function), self.result(node, 0)?);
        self.push(Work::Glu { gate, up, width, function, limits: None, out }, node);
        Ok(())
    }
}
