//! A graph of a few nodes whose inputs are numbers written in the test.

use bloomery_program::infer::{Context, infer};
use bloomery_program::{
    Graph, Input, InputKind, LANGUAGE, ModelFacts, Node, NodeOutput, Op, Output, OutputKind, Part, PartRole,
    Program, Role, Rollback, Shape, State, StateId, StateKind, ValueId,
};
use bloomery_reference::{CacheType, MemoryWeights, Reference, Row, States, Step, Value};
use std::collections::BTreeMap;

/// The graph under construction.
pub struct Sketch {
    graph: Graph,
    shapes: Vec<Shape>,
    states: Vec<State>,
    weights: MemoryWeights,
    facts: ModelFacts,
    inputs: Vec<(String, Vec<f32>, usize)>,
    pub tokens: ValueId,
}

/// Results of a node, one row for each token.
#[derive(Debug, Clone, PartialEq)]
pub enum Found {
    Rows(Vec<Vec<f32>>),
    Index(Vec<Vec<u32>>),
    Scores(Vec<Vec<f32>>),
    Selection(Vec<Vec<usize>>),
}

impl Found {
    pub fn rows(self) -> Vec<Vec<f32>> {
        match self {
            Found::Rows(rows) | Found::Scores(rows) => rows,
            other => panic!("{other:?}"),
        }
    }
    pub fn index(self) -> Vec<Vec<u32>> {
        if let Found::Index(rows) = self { rows } else { panic!("{self:?}") }
    }
    pub fn selection(self) -> Vec<Vec<usize>> {
        if let Found::Selection(rows) = self { rows } else { panic!("{self:?}") }
    }
}

impl Sketch {
    pub fn new() -> Self {
        let graph = Graph { role: Role::Target {}, inputs: vec![], nodes: vec![], outputs: vec![] };
        let mut sketch = Sketch {
            graph,
            shapes: vec![],
            states: vec![],
            weights: MemoryWeights::default(),
            facts: ModelFacts::default(),
            inputs: vec![],
            tokens: ValueId(0),
        };
        let shape = Shape::Tokens {};
        sketch.tokens = sketch.value(shape);
        sketch.graph.inputs.push(Input { kind: InputKind::Tokens {}, value: sketch.tokens, shape });
        sketch
    }

    fn value(&mut self, shape: Shape) -> ValueId {
        self.shapes.push(shape);
        ValueId(self.shapes.len() as u32 - 1)
    }

    /// Rows given from outside.
    pub fn input(&mut self, rows: &[&[f32]]) -> ValueId {
        self.shaped(Shape::Rows { width: rows[0].len() as u32 }, rows)
    }

    /// One row for each of `n` tokens.
    pub fn same(&mut self, row: &[f32], n: usize) -> ValueId {
        self.input(&vec![row; n])
    }

    /// Rows of two or more streams given from outside.
    pub fn streams(&mut self, streams: u32, rows: &[&[f32]]) -> ValueId {
        self.shaped(Shape::Streams { streams, width: rows[0].len() as u32 / streams }, rows)
    }

    fn shaped(&mut self, shape: Shape, rows: &[&[f32]]) -> ValueId {
        let name = format!("x{}", self.inputs.len());
        let value = self.value(shape);
        let kind = InputKind::TargetHidden { name: name.clone(), same_position: true };
        self.graph.inputs.push(Input { kind, value, shape });
        self.graph.outputs.push(Output { kind: OutputKind::Hidden, name: name.clone(), value });
        self.inputs.push((name, rows.concat(), rows[0].len()));
        value
    }

    pub fn state(&mut self, kind: StateKind) -> StateId {
        self.states.push(State {
            name: format!("s{}", self.states.len()),
            kind,
            rollback: Rollback::Snapshot,
        });
        StateId(self.states.len() as u32 - 1)
    }

    pub fn store(&mut self, widths: &[u32], every: u32) -> StateId {
        let part = |width: &u32| Part { width: *width, role: PartRole::Exact };
        self.state(StateKind::Rows { parts: widths.iter().map(part).collect(), every, window: None })
    }

    pub fn integers(&mut self, key: &str, values: Vec<u64>) {
        self.facts.meta.insert(key.into(), bloomery_program::Meta::Elided { elided: values.len() as u64 });
        self.weights.insert_integers(key, values);
    }

    /// Adds a node; tensors are role, dimensions (fastest first) and values.
    pub fn node(&mut self, op: Op, ins: &[ValueId], tensors: &[(&str, &[u64], &[f32])]) -> Vec<ValueId> {
        let place = format!("n{}", self.graph.nodes.len());
        let mut roles = BTreeMap::new();
        for (role, dims, data) in tensors {
            let name = format!("{place}.{role}");
            self.weights.insert(&name, dims, data.to_vec()).unwrap();
            roles.insert((*role).to_string(), name);
        }
        self.facts.tensors = self.weights.tensor_facts();
        let shapes: Vec<Shape> = ins.iter().map(|v| self.shapes[v.0 as usize]).collect();
        let facts = roles.iter().map(|(role, name)| (role.as_str(), &self.facts.tensors[name])).collect();
        let inferred = infer(&op, &Context { ins: &shapes, tensors: &facts, states: &self.states }).unwrap();
        let mut outs = Vec::new();
        for shape in inferred {
            let value = self.value(shape);
            outs.push(NodeOutput { value, name: format!("v{}", value.0), shape });
        }
        let values = outs.iter().map(|o| o.value).collect();
        self.graph.nodes.push(Node { op, ins: ins.to_vec(), tensors: roles, outs, scope: place });
        values
    }

    pub fn one(&mut self, op: Op, ins: &[ValueId], tensors: &[(&str, &[u64], &[f32])]) -> ValueId {
        self.node(op, ins, tensors)[0]
    }

    /// Computes a value for tokens 0, 1, 2, ... of one sequence, all in one step.
    pub fn run(self, value: ValueId) -> Found {
        let n = self.inputs.first().map_or(1, |(_, data, width)| data.len() / width);
        self.run_tokens(value, &(0..n as u32).collect::<Vec<_>>())
    }

    /// Computes a value for these tokens of one sequence.
    pub fn run_tokens(mut self, value: ValueId, tokens: &[u32]) -> Found {
        // Some rows must be wanted for the value's node to run at all; scores and selections cannot go outside.
        match self.shapes[value.0 as usize] {
            Shape::Rows { .. } | Shape::Streams { .. } => {
                self.graph.outputs.push(Output { kind: OutputKind::Hidden, name: "result".into(), value });
            }
            _ => self.consume(value),
        }
        let program = Program {
            language: LANGUAGE,
            seat: "sketch".into(),
            states: self.states,
            graphs: vec![self.graph],
            chat: Default::default(),
            notes: vec![],
        };
        let name = format!("v{}", value.0);
        let reference = Reference::new(program, &self.facts, self.weights).unwrap();
        let mut states: States = reference.states(CacheType::F32);
        states.create(1).unwrap();
        let row = |(position, token): (usize, &u32)| Row { sequence: 1, token: *token, position };
        let rows: Vec<Row> = tokens.iter().enumerate().map(row).collect();
        let inputs: Vec<(&str, &[f32])> =
            self.inputs.iter().map(|(n, data, _)| (n.as_str(), data.as_slice())).collect();
        let mut found = None;
        let mut trace = |t: bloomery_reference::Trace<'_>| {
            if t.name == name {
                found = Some(match t.value {
                    Value::Rows(table) => {
                        Found::Rows(table.data.chunks(table.width).map(<[f32]>::to_vec).collect())
                    }
                    Value::Index(table) => {
                        Found::Index(table.data.chunks(table.width).map(<[u32]>::to_vec).collect())
                    }
                    Value::Scores { rows, .. } => Found::Scores(rows.clone()),
                    Value::Selection(rows) => Found::Selection(rows.clone()),
                    other => panic!("{other:?}"),
                });
            }
        };
        let step = Step { rows: &rows, target_hidden: &inputs, ..Step::default() };
        reference.forward(&step, &mut states, Some(&mut trace)).unwrap();
        found.expect("the value was computed")
    }

    /// Something that reads a value which cannot go outside.
    fn consume(&mut self, value: ValueId) {
        let rows: Vec<f32> = match &self.inputs[..] {
            [] => vec![0.0],
            [(_, data, width), ..] => vec![0.0; data.len() / width],
        };
        let rows: Vec<&[f32]> = rows.chunks(1).collect();
        let result = match self.shapes[value.0 as usize] {
            Shape::Index { width } => {
                let chunks = vec![0.0; 64];
                let wide: Vec<&[f32]> = rows.iter().map(|_| chunks.as_slice()).collect();
                assert!(width <= 64);
                let x = self.input(&wide);
                self.one(Op::Gather { width: 1 }, &[x, value], &[])
            }
            Shape::Scores { .. } => {
                let selection = self.one(Op::TopRows { top_k: 1, expand: false, tail: false }, &[value], &[]);
                return self.consume(selection);
            }
            Shape::Selection { every } => {
                let x = self.input(&rows);
                let state = self.store(&[1], every);
                self.node(Op::Append { state }, &[x], &[]);
                let source = bloomery_program::op::Source { state, window: None, selected: true };
                let attention = bloomery_program::op::Attention {
                    heads: 1,
                    kv_heads: 1,
                    key: 1,
                    value: 1,
                    scale: 1.0,
                    softcap: None,
                    block_bidirectional: false,
                    sources: vec![source],
                };
                self.one(Op::Attention(attention), &[x, value], &[])
            }
            other => panic!("{other}"),
        };
        self.graph.outputs.push(Output { kind: OutputKind::Hidden, name: "result".into(), value: result });
    }
}

/// Asserts that rows agree within a few units in the last place of f32.
#[track_caller]
pub fn close(found: &[Vec<f32>], expected: &[&[f64]]) {
    assert_eq!(found.len(), expected.len(), "rows: {found:?}");
    for (found, expected) in found.iter().zip(expected) {
        assert_eq!(found.len(), expected.len(), "width: {found:?}");
        for (f, e) in found.iter().zip(*expected) {
            assert!((f64::from(*f) - e).abs() <= 2e-6 * e.abs().max(0.5), "{found:?}, expected {expected:?}");
        }
    }
}
