//! What every lowering asks for: slots, vectors, weights, rotations.

use super::*;

impl Lowering<'_> {
    /// The value in the form that weights of this kind multiply.
    pub(super) fn quantize(&mut self, value: ValueId, kind: ActivationKind) -> Result<Slot> {
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
    pub(in crate::cpu) fn set_decision(&mut self, head: DecisionOf) {
        self.out.decision = Some(head);
    }

    /// The page parts of a state.
    pub(in crate::cpu) fn store(&self, state: StateId) -> Result<StoreParts> {
        let found = self.parts.get(state.0 as usize).copied().flatten();
        found.ok_or_else(|| CpuError::Program(format!("state {} has no store", state.0)))
    }

    /// A step that a node's last one follows.
    pub(in crate::cpu) fn push_part(&mut self, work: Work, node: &Node) {
        self.out.steps.push(Step { work, place: node.label(), shows: vec![] });
    }

    pub(in crate::cpu) fn push(&mut self, work: Work, node: &Node) {
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

    pub(in crate::cpu) fn new_slot(&mut self, class: Class) -> Slot {
        self.out.slots.push(class);
        Slot(self.out.slots.len() - 1)
    }

    pub(super) fn slot(&self, value: ValueId, node: &Node) -> Result<Slot> {
        let slot = self.slot_of.get(&value).copied();
        slot.ok_or_else(|| {
            CpuError::Program(format!("{} reads value {}, which is not there", node.label(), value.0))
        })
    }

    pub(in crate::cpu) fn operand(&self, node: &Node, i: usize) -> Result<Slot> {
        match node.ins.get(i) {
            Some(value) => self.slot(*value, node),
            None => Err(CpuError::Program(format!("{} lacks operand {i}", node.label()))),
        }
    }

    pub(in crate::cpu) fn result(&mut self, node: &Node, i: usize) -> Result<Slot> {
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

    pub(super) fn shape(&self, value: ValueId) -> Shape {
        self.patterns.shape(value)
    }

    pub(in crate::cpu) fn width(&self, value: ValueId) -> usize {
        self.shape(value).row_len().and_then(|w| usize::try_from(w).ok()).unwrap_or(0)
    }

    pub(in crate::cpu) fn matrix(&self, node: &Node, role: &str) -> Result<TensorRef> {
        let matrix = self.table(node, role)?;
        let name = node.tensors.get(role).cloned().unwrap_or_default();
        matrix.matrix(self.source).map_err(|e| CpuError::Tensor { name, what: e.to_string() })?;
        Ok(matrix)
    }

    /// A tensor of rows, of integers perhaps.
    pub(in crate::cpu) fn table(&self, node: &Node, role: &str) -> Result<TensorRef> {
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

    pub(in crate::cpu) fn kind(&self, matrix: TensorRef) -> Result<ActivationKind> {
        let ty = self.source.shape(matrix.tensor).0;
        ty.activation_kind().ok_or_else(|| CpuError::Program(format!("{ty} is no weight type")))
    }

    /// A vector that the operator cannot do without.
    pub(in crate::cpu) fn needed(&mut self, node: &Node, role: &str) -> Result<Vector> {
        let found = self.vector(node, role)?;
        found.ok_or_else(|| CpuError::Program(format!("{} lacks {role}", node.label())))
    }

    pub(in crate::cpu) fn vector(&mut self, node: &Node, role: &str) -> Result<Option<Vector>> {
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
    pub(in crate::cpu) fn transposed(&mut self, vector: Vector, of: usize) -> Vector {
        let given = &self.out.vectors[vector];
        let n = given.len().checked_div(of).unwrap_or(0);
        let turned = (0..n * of).map(|i| given[i % n * of + i / n]).collect();
        self.out.vectors.push(turned);
        self.out.vectors.len() - 1
    }

    pub(super) fn norm(&mut self, node: &Node, eps: f32, group: u32) -> Result<NormOf> {
        Ok(NormOf { weight: self.vector(node, "weight")?, group: group as usize, eps })
    }

    pub(super) fn rope(&mut self, node: &Node, rope: &op::Rope) -> Result<usize> {
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
