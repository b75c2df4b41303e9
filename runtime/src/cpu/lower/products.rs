//! Products with weights: projections, gated units, routed experts, and the additions that join them.

use super::*;

impl Lowering<'_> {
    pub(super) fn linear(&mut self, index: usize) -> Result<()> {
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
    pub(super) fn residual(&mut self, index: usize) -> Result<(Option<Slot>, Slot)> {
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

    pub(super) fn gate_up(&mut self, first: usize, second: usize, glu: usize) -> Result<()> {
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

    pub(super) fn experts(&mut self, index: usize) -> Result<()> {
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
}
