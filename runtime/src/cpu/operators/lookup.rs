//! What is read by token id: rows of hashed n-grams, experts of a table. And the two row operators that need a state or a matrix of their own:
//! layer norm and grouped products.

use super::super::CpuError;
use super::super::execute::{Batch, Buffers, Machine};
use super::super::lower::Lowering;
use super::super::step::{Class, RouteOf, Slot, Use, Vector, Work};
use super::super::weights::TensorRef;
use super::broken;
use bloomery_formats::dequantize_row;
use bloomery_kernels_cpu::grouped::grouped_linear;
use bloomery_kernels_cpu::ngram::{NgramSpec, ngram_embed, read_ahead};
use bloomery_kernels_cpu::route::weigh_given;
use bloomery_kernels_cpu::rows::{NormSpec, layer_norm};
use bloomery_program::op::Route;
use bloomery_program::{Node, Op};

#[derive(Debug, Clone)]
pub(crate) enum LookupWork {
    Ngram {
        table: TensorRef,
        spec: Box<NgramSpec>,
        out: Slot,
    },
    /// Experts by token id.
    RouteGiven {
        logits: Slot,
        table: TensorRef,
        of: RouteOf,
        /// The rows are those that want results.
        tail: bool,
        ids: Slot,
        weights: Slot,
    },
    Grouped {
        x: Slot,
        groups: usize,
        weight: TensorRef,
        quantized: Slot,
        out: Slot,
    },
    LayerNorm {
        x: Slot,
        width: usize,
        group: usize,
        eps: f32,
        weight: Option<Vector>,
        bias: Option<Vector>,
        out: Slot,
    },
}

impl LookupWork {
    /// The operator's name.
    pub fn name(&self) -> &'static str {
        match self {
            LookupWork::Ngram { .. } => "ngram_embed",
            LookupWork::RouteGiven { .. } => "route",
            LookupWork::Grouped { .. } => "grouped_linear",
            LookupWork::LayerNorm { .. } => "layer_norm",
        }
    }

    /// The matrix that it reads, whole or by rows.
    pub fn matrix(&self) -> Option<TensorRef> {
        match self {
            LookupWork::Ngram { table, .. } => Some(*table),
            LookupWork::Grouped { weight, .. } => Some(*weight),
            // A table of integers.
            LookupWork::RouteGiven { .. } | LookupWork::LayerNorm { .. } => None,
        }
    }

    /// Calls `f` with every slot.
    pub fn visit(&mut self, f: &mut impl FnMut(&mut Slot, Use)) {
        match self {
            LookupWork::Ngram { out, .. } => f(out, Use::Write),
            LookupWork::RouteGiven { logits, ids, weights, .. } => {
                f(logits, Use::Read);
                f(ids, Use::Write);
                f(weights, Use::Write);
            }
            LookupWork::Grouped { x, quantized, out, .. } => {
                f(x, Use::Read);
                f(quantized, Use::Write);
                f(out, Use::Write);
            }
            LookupWork::LayerNorm { x, out, .. } => {
                f(x, Use::Read);
                f(out, Use::Write);
            }
        }
    }
}

impl Lowering<'_> {
    pub(crate) fn ngram(&mut self, node: &Node) -> Result<(), CpuError> {
        let Op::NgramEmbed { max_ngram, heads, multipliers, moduli, offsets, fill, cut, token_map, .. } =
            &node.op
        else {
            return Err(broken("no n-gram embedding"));
        };
        let map = match token_map {
            None => None,
            Some(key) => Some(self.source.integers(key).ok_or_else(|| CpuError::Tensor {
                name: key.clone(),
                what: "is no array of numbers in the model's header".into(),
            })?),
        };
        let spec = NgramSpec {
            max_ngram: *max_ngram as usize,
            heads: *heads as usize,
            multipliers: multipliers.clone(),
            moduli: moduli.clone(),
            offsets: offsets.clone(),
            fill: *fill,
            cut: cut.clone(),
            map,
        };
        let (table, out) = (self.matrix(node, "weight")?, self.result(node, 0)?);
        self.push(Work::Lookup(LookupWork::Ngram { table, spec: Box::new(spec), out }), node);
        Ok(())
    }

    pub(crate) fn route_given(&mut self, node: &Node, route: &Route) -> Result<(), CpuError> {
        let of = self.route_of(node, route)?;
        let table = self.table(node, "table")?;
        if table.cols != of.used {
            return Err(broken(format!("{} gives {} experts of a token", node.label(), table.cols)));
        }
        let logits = self.operand(node, 0)?;
        let (ids, weights) = (self.result(node, 0)?, self.result(node, 1)?);
        let tail = self.tail;
        self.push(Work::Lookup(LookupWork::RouteGiven { logits, table, of, tail, ids, weights }), node);
        Ok(())
    }

    pub(crate) fn grouped(&mut self, node: &Node, groups: u32) -> Result<(), CpuError> {
        let weight = self.matrix(node, "weight")?;
        let kind = self.kind(weight)?;
        let quantized = self.new_slot(Class::Quantized { kind, width: weight.cols });
        let (x, out) = (self.operand(node, 0)?, self.result(node, 0)?);
        let groups = groups as usize;
        self.push(Work::Lookup(LookupWork::Grouped { x, groups, weight, quantized, out }), node);
        Ok(())
    }

    pub(crate) fn layer_norm(&mut self, node: &Node, eps: f32, group: u32) -> Result<(), CpuError> {
        let (weight, bias) = (self.vector(node, "weight")?, self.vector(node, "bias")?);
        let (x, width, out) = (self.operand(node, 0)?, self.width(node.ins[0]), self.result(node, 0)?);
        let group = group as usize;
        self.push(Work::Lookup(LookupWork::LayerNorm { x, width, group, eps, weight, bias, out }), node);
        Ok(())
    }
}

impl Machine<'_> {
    /// Asks for the table rows of a step before its first operator runs, so that the disk works meanwhile.
    pub(crate) fn read_ahead(&self, batch: &Batch<'_>) {
        for step in &self.lowered.steps {
            if let Work::Lookup(LookupWork::Ngram { table, spec, .. }) = &step.work
                && let Ok(table) = self.matrix(*table)
            {
                for (run, before) in batch.runs.iter().zip(batch.before) {
                    read_ahead(spec, &table, run, batch.tokens, before);
                }
            }
        }
    }

    pub(crate) fn lookup(
        &self,
        work: &LookupWork,
        rows: usize,
        b: &mut Buffers,
        batch: &Batch<'_>,
    ) -> Result<(), CpuError> {
        let cpu = self.cpu;
        match work {
            LookupWork::Ngram { table, spec, out } => {
                let table = self.matrix(*table)?;
                let mut target = b.open(*out, rows);
                let mut found = Ok(());
                for (run, before) in batch.runs.iter().zip(batch.before) {
                    let result = ngram_embed(cpu, spec, &table, run, batch.tokens, before, &mut target);
                    found = found.and(result);
                }
                b.rows[out.0] = target;
                found.map_err(broken)
            }
            LookupWork::RouteGiven { logits, table, of, tail, ids, weights } => {
                let (mut chosen, mut factors) = (b.open_index(*ids, rows), b.open(*weights, rows));
                let found = match tail {
                    false => self.experts_of(*table, of, batch.tokens.iter().copied(), &mut chosen),
                    true => {
                        let tokens = batch.tail.iter().map(|row| batch.tokens[*row]);
                        self.experts_of(*table, of, tokens, &mut chosen)
                    }
                };
                if found.is_ok() {
                    weigh_given(cpu, &self.route(of), rows, &b.rows[logits.0], &chosen, &mut factors);
                }
                b.index[ids.0] = chosen;
                b.rows[weights.0] = factors;
                found
            }
            LookupWork::Grouped { x, groups, weight, quantized, out } => {
                let weight = self.matrix(*weight)?;
                let mut target = b.open(*out, rows);
                let mut form = b.open_quantized(*quantized, rows * groups)?;
                grouped_linear(cpu, *groups, &weight, rows, &b.rows[x.0], &mut form, &mut target);
                b.quantized[quantized.0] = form;
                b.rows[out.0] = target;
                Ok(())
            }
            LookupWork::LayerNorm { x, width, group, eps, weight, bias, out } => {
                let mut target = b.open(*out, rows);
                let spec = NormSpec { weight: self.vector(*weight), group: *group, eps: *eps };
                layer_norm(cpu, spec, self.vector(*bias), rows, *width, &b.rows[x.0], &mut target);
                b.rows[out.0] = target;
                Ok(())
            }
        }
    }

    /// The table's experts of each token.
    fn experts_of(
        &self,
        table: TensorRef,
        of: &RouteOf,
        tokens: impl Iterator<Item = u32>,
        ids: &mut [u32],
    ) -> Result<(), CpuError> {
        let ty = self.source.shape(table.tensor).0;
        let bytes = self.source.data(table.tensor);
        let row_bytes = ty.row_bytes(table.cols).unwrap_or(0);
        let mut row = vec![0.0; of.used];
        for (token, ids) in tokens.zip(ids.chunks_exact_mut(of.used)) {
            let start = token as usize * row_bytes;
            let found = bytes.get(start..start + row_bytes);
            if found.is_none_or(|bytes| dequantize_row(ty, bytes, &mut row).is_err()) {
                return Err(broken(format!("token {token} has no row in the table of experts")));
            }
            for (id, v) in ids.iter_mut().zip(&row) {
                if !(*v >= 0.0 && *v < of.experts as f32 && v.fract() == 0.0) {
                    return Err(broken(format!(
                        "the table gives token {token} expert {v} of {}",
                        of.experts
                    )));
                }
                *id = *v as u32;
            }
        }
        Ok(())
    }
}
