//! The writer that a seat uses: graphs of nodes whose shapes are inferred as they are added.
//!
//! Tensor names are given without scope and without `.weight`: in scope `blk.3`, `attn_q` stands for
//! `blk.3.attn_q.weight` (or, where the file has no such tensor, for `blk.3.attn_q` itself). A leading `/` leaves the
//! scope: `/token_embd` is `token_embd.weight` anywhere.

mod operators;
mod program;
mod states;

pub use operators::CausalAttention;
pub use program::ProgramBuilder;

use crate::error::{Error, Result};
use crate::names;
use bloomery_program::graph::{Graph, Input, InputKind, Node, NodeOutput, Output, OutputKind, Role};
use bloomery_program::infer::{Context, infer};
use bloomery_program::{ModelFacts, Op, Shape, TensorFacts, ValueId};
use std::collections::{BTreeMap, HashSet};

/// One graph of the program under construction. [`GraphBuilder::finish`] hands it to the program; dropping it discards it.
pub struct GraphBuilder<'p, 'm> {
    program: &'p mut ProgramBuilder<'m>,
    graph: Graph,
    /// Shape and name of each value so far; a value's number is its index.
    values: Vec<(Shape, String)>,
    names: HashSet<String>,
    scope: String,
    next_name: Option<String>,
}

impl<'p, 'm> GraphBuilder<'p, 'm> {
    fn new(program: &'p mut ProgramBuilder<'m>, role: Role) -> Self {
        GraphBuilder {
            program,
            graph: Graph { role, inputs: vec![], nodes: vec![], outputs: vec![] },
            values: vec![],
            names: HashSet::new(),
            scope: String::new(),
            next_name: None,
        }
    }

    /// The model's facts.
    pub fn facts(&self) -> &'m ModelFacts {
        self.program.facts
    }

    /// Everything that follows belongs to this part of the model: `blk.3`, or the empty string.
    pub fn scope(&mut self, scope: impl Into<String>) -> &mut Self {
        self.scope = scope.into();
        self
    }

    /// The next node's first value gets this name (in the scope), for example `l_out`. See [`crate::names`].
    pub fn named(&mut self, name: impl Into<String>) -> &mut Self {
        self.next_name = Some(name.into());
        self
    }

    /// Shape of a value.
    ///
    /// # Errors
    /// The value belongs to another graph.
    pub fn shape(&self, value: ValueId) -> Result<Shape> {
        self.values
            .get(value.0 as usize)
            .map(|(shape, _)| *shape)
            .ok_or_else(|| Error::refused(format!("value {} does not belong to this graph", value.0)))
    }

    /// Values in a row.
    ///
    /// # Errors
    /// The value belongs to another graph, or has no rows of fixed length.
    pub fn width(&self, value: ValueId) -> Result<u32> {
        let shape = self.shape(value)?;
        shape
            .row_len()
            .and_then(|n| u32::try_from(n).ok())
            .ok_or_else(|| Error::refused(format!("a value of shape {shape} has no width")))
    }

    /// Whether the file has this tensor, named as the operators name it.
    pub fn has(&self, tensor: &str) -> bool {
        self.find(tensor).is_some()
    }

    /// Dimensions of a tensor, fastest first.
    ///
    /// # Errors
    /// The file has no such tensor.
    pub fn dims(&self, tensor: &str) -> Result<&'m [u64]> {
        let name = self.tensor(tensor)?;
        self.program
            .facts
            .tensors
            .get(&name)
            .map(|t| t.dims.as_slice())
            .ok_or(Error::MissingTensor { tensor: name })
    }

    /// Token ids of the batch.
    pub fn tokens(&mut self) -> ValueId {
        self.input(InputKind::Tokens {}, Shape::Tokens {}, "tokens")
    }

    /// The target's hidden output of this name, at the position before.
    pub fn target_hidden(&mut self, name: &str, width: u32) -> ValueId {
        let kind = InputKind::TargetHidden { name: name.into(), same_position: false };
        self.input(kind, Shape::Rows { width }, name)
    }

    /// A value from outside, for the kinds that have no method of their own.
    pub fn input(&mut self, kind: InputKind, shape: Shape, name: &str) -> ValueId {
        let name = self.unique(name.to_string());
        let value = self.value(shape, name);
        self.graph.inputs.push(Input { kind, value, shape });
        value
    }

    /// The vocabulary's logits.
    pub fn logits(&mut self, value: ValueId) {
        self.output(OutputKind::Logits, "", value);
    }

    /// Rows that a drafter reads or that serve as embeddings.
    pub fn hidden(&mut self, name: &str, value: ValueId) {
        self.output(OutputKind::Hidden, name, value);
    }

    /// A value that goes outside.
    pub fn output(&mut self, kind: OutputKind, name: &str, value: ValueId) {
        self.graph.outputs.push(Output { kind, name: name.into(), value });
    }

    /// Hands the graph to the program.
    pub fn finish(self) {
        self.program.graphs.push(self.graph);
    }

    /// Adds any operator; the other methods are this one with the tensors looked up and the name chosen. `tensors` are
    /// pairs of role and full name; `words` name the results, made unique with `.2`, `.3` where taken.
    ///
    /// # Errors
    /// An operand from another graph, a tensor that the file lacks, or what [`infer`] says does not fit.
    pub fn node(
        &mut self,
        op: Op,
        operands: &[ValueId],
        tensors: &[(&str, String)],
        words: &[&str],
    ) -> Result<Vec<ValueId>> {
        let chosen = self.next_name.take();
        let prefix = names::prefix(&self.scope);
        let first = format!("{prefix}{}", chosen.as_deref().or(words.first().copied()).unwrap_or(op.name()));
        let fault = |what: String| Error::Node {
            name: first.clone(),
            op: op.name(),
            what,
            tensors: tensors.iter().map(|(role, name)| ((*role).to_string(), name.clone())).collect(),
        };
        let ins = operands.iter().map(|v| self.shape(*v)).collect::<Result<Vec<_>>>()?;
        let found = tensors
            .iter()
            .map(|(role, name)| Ok((*role, self.facts_of(name)?)))
            .collect::<Result<BTreeMap<_, _>>>()?;
        let states = &self.program.states;
        let shapes = infer(&op, &Context { ins: &ins, tensors: &found, states }).map_err(&fault)?;
        if chosen.is_some() && self.names.contains(&first) {
            return Err(fault("another value has this name".into()));
        }
        let mut outs = Vec::with_capacity(shapes.len());
        for (i, shape) in shapes.iter().enumerate() {
            let name = match words.get(i) {
                _ if i == 0 => first.clone(),
                Some(word) => format!("{prefix}{word}"),
                None => format!("{first}.{i}"),
            };
            let name = self.unique(name);
            outs.push(NodeOutput { value: self.value(*shape, name.clone()), name, shape: *shape });
        }
        let values = outs.iter().map(|o| o.value).collect();
        self.push(op, operands, tensors, outs);
        Ok(values)
    }

    /// An operator of the seat's own, run by its `cpu_op`: the one kind of node whose result cannot be inferred.
    ///
    /// # Errors
    /// As [`GraphBuilder::node`].
    pub fn custom(
        &mut self,
        name: &str,
        version: u32,
        attributes: BTreeMap<String, f64>,
        operands: &[ValueId],
        width: u32,
    ) -> Result<ValueId> {
        for operand in operands {
            self.shape(*operand)?;
        }
        let word = self.next_name.take().unwrap_or_else(|| name.to_string());
        let full = self.unique(format!("{}{word}", names::prefix(&self.scope)));
        let shape = Shape::Rows { width };
        let value = self.value(shape, full.clone());
        let op = Op::Custom { name: name.into(), version, attributes };
        self.push(op, operands, &[], vec![NodeOutput { value, name: full, shape }]);
        Ok(value)
    }

    fn push(&mut self, op: Op, operands: &[ValueId], tensors: &[(&str, String)], outs: Vec<NodeOutput>) {
        self.program.read.extend(tensors.iter().map(|(_, name)| name.clone()));
        self.graph.nodes.push(Node {
            op,
            ins: operands.to_vec(),
            tensors: tensors.iter().map(|(role, name)| ((*role).to_string(), name.clone())).collect(),
            outs,
            scope: self.scope.clone(),
        });
    }

    fn value(&mut self, shape: Shape, name: String) -> ValueId {
        self.values.push((shape, name));
        ValueId(self.values.len() as u32 - 1)
    }

    fn unique(&mut self, name: String) -> String {
        let mut unique = name.clone();
        let mut n = 1;
        while !self.names.insert(unique.clone()) {
            n += 1;
            unique = format!("{name}.{n}");
        }
        unique
    }

    /// Word of a value's name, for names of what is made from it.
    fn word(&self, value: ValueId) -> &str {
        self.values.get(value.0 as usize).map_or("value", |(_, name)| names::word(name))
    }

    /// Full name of a tensor.
    ///
    /// # Errors
    /// The file has no such tensor.
    pub fn tensor(&self, tensor: &str) -> Result<String> {
        self.find(tensor)
            .ok_or_else(|| Error::MissingTensor { tensor: format!("{}.weight", self.path(tensor)) })
    }

    fn find(&self, tensor: &str) -> Option<String> {
        let path = self.path(tensor);
        let weight = format!("{path}.weight");
        [weight, path].into_iter().find(|name| self.program.facts.has(name))
    }

    fn path(&self, tensor: &str) -> String {
        match tensor.strip_prefix('/') {
            Some(absolute) => absolute.to_string(),
            None if self.scope.is_empty() => tensor.to_string(),
            None => format!("{}.{tensor}", self.scope),
        }
    }

    fn facts_of(&self, tensor: &str) -> Result<&'m TensorFacts> {
        self.program.facts.tensors.get(tensor).ok_or_else(|| Error::MissingTensor { tensor: tensor.into() })
    }

    /// A tensor whose dimensions follow from the keys. `None` stands for a dimension that does not.
    fn shaped(&self, tensor: &str, expected: &[Option<u64>]) -> Result<String> {
        let name = self.tensor(tensor)?;
        let found = &self.facts_of(&name)?.dims;
        let fits = found.len() == expected.len()
            && found.iter().zip(expected).all(|(f, e)| e.is_none_or(|e| e == *f));
        if fits {
            return Ok(name);
        }
        let expected: Vec<String> =
            expected.iter().map(|d| d.map_or("any".into(), |d| d.to_string())).collect();
        Err(Error::TensorShape {
            tensor: name,
            expected: format!("[{}]", expected.join(", ")),
            found: found.clone(),
        })
    }
}
