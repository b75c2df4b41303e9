//! Runs one graph of a program over a step's rows.

use crate::error::{ReferenceError, Result};
use crate::need::rows_of_nodes;
use crate::node::{Context, CustomOperator, run_node};
use crate::ops::decision::Question;
use crate::state::{CacheType, States, Stored};
use crate::table::{RowSet, Table, Value};
use crate::weights::Weights;
use bloomery_program::{
    Graph, InputKind, ModelFacts, Op, OutputKind, Program, Role, StateId, StateKind, ValueId, check,
};
use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::rc::Rc;

/// One token to run.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Row {
    /// The sequence that it extends.
    pub sequence: u64,
    /// Token id.
    pub token: u32,
    /// Index in its sequence, from 0.
    pub position: usize,
}

/// What one call computes. Rows of one sequence come in order of position; rows of other sequences may stand between.
#[derive(Debug, Clone, Copy, Default)]
pub struct Step<'a> {
    /// Which graph of the program; `None` is the target.
    pub graph: Option<usize>,
    /// The rows.
    pub rows: &'a [Row],
    /// Rows whose logits are wanted, all of them by default.
    pub logits: Option<&'a [bool]>,
    /// Rows whose hidden outputs are wanted, all of them by default.
    pub hidden: Option<&'a [bool]>,
    /// Target hidden rows by name, `[rows, width]`, for a drafter.
    pub target_hidden: &'a [(&'a str, &'a [f32])],
    /// The questions of a decision request. The step then holds the whole prompt of one sequence.
    pub questions: &'a [Question],
}

/// An output of the graph.
#[derive(Debug, Clone, PartialEq)]
pub struct NamedOutput {
    /// What it is.
    pub kind: OutputKind,
    /// Its name, where it has one.
    pub name: String,
    /// Its rows. A decision has one row for each option instead.
    pub table: Table<f32>,
}

/// A result of a node, shown as soon as it is there.
#[derive(Debug, Clone, Copy)]
pub struct Trace<'a> {
    /// Number of the node in its graph.
    pub node: usize,
    /// Name of the result.
    pub name: &'a str,
    /// The result, for the rows that are needed. Ask for all outputs to see all rows.
    pub value: &'a Value,
}

/// A checked program with its weights.
pub struct Reference<W> {
    program: Program,
    weights: W,
    custom: Option<Box<dyn CustomOperator>>,
}

/// The rows of a step by sequence, in order of first appearance.
#[derive(Debug, Clone)]
pub(crate) struct Batch<'a> {
    pub rows: &'a [Row],
    pub sequences: Vec<(u64, Vec<usize>)>,
}

impl<W: Weights> Reference<W> {
    /// Checks the program and takes the weights.
    ///
    /// # Errors
    /// The checker's faults.
    pub fn new(program: Program, facts: &ModelFacts, weights: W) -> Result<Self> {
        check(&program, facts).map_err(ReferenceError::Program)?;
        Ok(Reference { program, weights, custom: None })
    }

    /// Lets a seat's own operators run.
    #[must_use]
    pub fn with_custom(mut self, custom: Box<dyn CustomOperator>) -> Self {
        self.custom = Some(custom);
        self
    }

    /// The program.
    pub fn program(&self) -> &Program {
        &self.program
    }

    /// The weights.
    pub fn weights(&self) -> &W {
        &self.weights
    }

    /// States for this program.
    pub fn states(&self, cache: CacheType) -> States {
        States::new(&self.program.states, cache)
    }

    /// Computes a step and moves the states on.
    ///
    /// # Errors
    /// A step that does not fit the states leaves them as they were. An error in the middle (a weight that cannot be
    /// read, a custom operator that fails) leaves the step's sequences half moved: remove them.
    pub fn forward(
        &self,
        step: &Step<'_>,
        states: &mut States,
        mut trace: Option<&mut dyn FnMut(Trace<'_>)>,
    ) -> Result<Vec<NamedOutput>> {
        let graph = self.graph(step)?;
        let batch = Batch::new(step.rows);
        self.admit(graph, step, &batch, states)?;
        let mut values = self.inputs(graph, step)?;
        let needs = rows_of_nodes(graph, step.rows.len(), step.logits, step.hidden);
        for (index, (node, rows)) in graph.nodes.iter().zip(&needs).enumerate() {
            let Some(rows) = rows else { continue };
            let context = Context {
                node,
                rows,
                values: &values,
                weights: &self.weights,
                step,
                batch: &batch,
                custom: self.custom.as_deref(),
            };
            let results = run_node(&context, states)
                .map_err(|what| ReferenceError::Node { node: node.label(), what })?;
            for (out, value) in node.outs.iter().zip(results) {
                if let Some(trace) = &mut trace {
                    trace(Trace { node: index, name: &out.name, value: &value });
                }
                values.insert(out.value, value);
            }
        }
        self.advance(graph, &batch, states)?;
        let outputs = graph.outputs.iter().map(|output| match values.get(&output.value) {
            Some(Value::Rows(table)) => {
                Ok(NamedOutput { kind: output.kind, name: output.name.clone(), table: table.clone() })
            }
            // Nobody asked for a row of it.
            _ => Ok(NamedOutput {
                kind: output.kind,
                name: output.name.clone(),
                table: Table::new(&Rc::new(RowSet::from_mask(&vec![false; step.rows.len()])), 0),
            }),
        });
        outputs.collect()
    }

    fn graph(&self, step: &Step<'_>) -> Result<&Graph> {
        let graph = match step.graph {
            None => self.program.target(),
            Some(index) => self.program.graphs.get(index),
        };
        graph.ok_or_else(|| ReferenceError::Step(format!("no graph {:?}", step.graph)))
    }

    /// Refuses a step that does not continue its sequences, before anything is computed.
    fn admit(&self, graph: &Graph, step: &Step<'_>, batch: &Batch<'_>, states: &States) -> Result<()> {
        let malformed = |what: String| Err(ReferenceError::Step(what));
        if step.rows.is_empty() {
            return malformed("no rows".into());
        }
        for mask in [step.logits, step.hidden].into_iter().flatten() {
            if mask.len() != step.rows.len() {
                return malformed(format!("{} flags for {} rows", mask.len(), step.rows.len()));
            }
        }
        if states.declared != self.program.states {
            return malformed("the states belong to another program".into());
        }
        if !step.questions.is_empty() && batch.sequences.len() != 1 {
            return malformed("a decision request is a step of its own".into());
        }
        let touched = touched_states(graph);
        let mut histories: Vec<&[u32]> = Vec::new();
        for (number, rows) in &batch.sequences {
            let sequence = states.get(*number)?;
            let first = step.rows[rows[0]].position;
            let expect = |state: &str, expected: usize, position: usize| {
                let (sequence, state) = (*number, state.to_string());
                match expected == position {
                    true => Ok(()),
                    false => Err(ReferenceError::Position { sequence, position, state, expected }),
                }
            };
            if matches!(graph.role, Role::Target {}) {
                expect("of the target", sequence.length, first)?;
            }
            for state in &touched {
                let (state, memory) =
                    (&self.program.states[state.0 as usize], &sequence.states[state.0 as usize]);
                expect(&state.name, memory.tokens, first)?;
                if let Stored::Tokens(ids) = &memory.stored {
                    histories.push(ids);
                }
            }
            for (i, row) in rows.iter().enumerate() {
                expect("of the step", first + i, step.rows[*row].position)?;
            }
        }
        let embeds = graph.nodes.iter().filter(|n| matches!(n.op, Op::Embed { .. }));
        for table in embeds.filter_map(|n| n.tensors.get("weight")) {
            let n_vocab = self.weights.tensor(table)?.dims().get(1).copied().unwrap_or(0);
            let mut ids =
                step.rows.iter().map(|r| r.token).chain(histories.iter().copied().flatten().copied());
            if let Some(id) = ids.find(|id| u64::from(*id) >= n_vocab) {
                return malformed(format!("token {id} is outside the vocabulary of {n_vocab}"));
            }
        }
        Ok(())
    }

    fn inputs(&self, graph: &Graph, step: &Step<'_>) -> Result<HashMap<ValueId, Value>> {
        let mut values = HashMap::new();
        for input in &graph.inputs {
            let value = match &input.kind {
                InputKind::Tokens {} => Value::Tokens,
                InputKind::Spans {} => Value::Spans,
                InputKind::TargetHidden { name, .. } => {
                    let width = input.shape.row_len().unwrap_or(0) as usize;
                    let given = step.target_hidden.iter().find(|(n, _)| n == name).map(|(_, d)| *d);
                    match given {
                        Some(data) if data.len() == width * step.rows.len() => Value::Rows(Table {
                            width,
                            rows: Rc::new(RowSet::all(step.rows.len())),
                            data: data.to_vec(),
                        }),
                        _ => {
                            let found = given.map_or(0, <[f32]>::len);
                            let wanted = width * step.rows.len();
                            return Err(ReferenceError::Step(format!(
                                "target rows `{name}`: {wanted} values are needed, {found} given"
                            )));
                        }
                    }
                }
            };
            values.insert(input.value, value);
        }
        Ok(values)
    }

    /// Token histories and lengths move on once everything has read them.
    fn advance(&self, graph: &Graph, batch: &Batch<'_>, states: &mut States) -> Result<()> {
        let touched = touched_states(graph);
        for (number, rows) in &batch.sequences {
            let sequence = states.get_mut(*number)?;
            for id in &touched {
                let memory = &mut sequence.states[id.0 as usize];
                let kind = &self.program.states[id.0 as usize].kind;
                if let (StateKind::Tokens { count }, Stored::Tokens(ids)) = (kind, &mut memory.stored) {
                    ids.extend(rows.iter().map(|row| batch.rows[*row].token));
                    ids.drain(..ids.len().saturating_sub(*count as usize));
                }
                memory.tokens += rows.len();
            }
            if matches!(graph.role, Role::Target {}) {
                sequence.length += rows.len();
            }
        }
        Ok(())
    }
}

/// States that the graph moves on.
fn touched_states(graph: &Graph) -> BTreeSet<StateId> {
    let token_states = graph.nodes.iter().filter_map(|n| match n.op {
        Op::NgramEmbed { state, .. } => Some(state),
        _ => None,
    });
    graph.nodes.iter().filter_map(|n| n.op.writes()).chain(token_states).collect()
}

impl<'a> Batch<'a> {
    fn new(rows: &'a [Row]) -> Self {
        let mut places: BTreeMap<u64, usize> = BTreeMap::new();
        let mut sequences: Vec<(u64, Vec<usize>)> = Vec::new();
        for (i, row) in rows.iter().enumerate() {
            let place = *places.entry(row.sequence).or_insert_with(|| {
                sequences.push((row.sequence, Vec::new()));
                sequences.len() - 1
            });
            sequences[place].1.push(i);
        }
        Batch { rows, sequences }
    }
}
