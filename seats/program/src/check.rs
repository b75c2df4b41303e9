//! The checker: trusts nothing that a program says. The same code runs in the SDK and in the host.

use crate::infer::{Context, infer};
use crate::{
    Graph, InputKind, LANGUAGE, Meta, ModelFacts, Node, Op, OutputKind, Part, Program, Role, Rollback, Shape,
    State, StateId, StateKind, ValueId,
};
use std::collections::{BTreeMap, BTreeSet, HashMap};

/// Most nodes of a graph.
pub const MOST_NODES: usize = 1 << 20;

/// What is wrong, and where.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum Fault {
    /// Another language.
    #[error("seat {seat} speaks program language {found}, this host speaks {host}: {hint}")]
    Language {
        /// The seat.
        seat: String,
        /// Its version.
        found: crate::Version,
        /// The host's version.
        host: crate::Version,
        /// What to do.
        hint: &'static str,
    },
    /// A fault of the program as a whole.
    #[error("program: {0}")]
    Program(String),
    /// A fault of a state.
    #[error("state {index} ({name}): {what}")]
    State {
        /// Number.
        index: usize,
        /// Name.
        name: String,
        /// What is wrong.
        what: String,
    },
    /// A fault of a node.
    #[error("{graph} node {index} ({name}) {op}: {what}")]
    Node {
        /// Graph.
        graph: String,
        /// Number.
        index: usize,
        /// Name of its first result.
        name: String,
        /// Operator.
        op: &'static str,
        /// What is wrong.
        what: String,
    },
    /// A fault of an input or output.
    #[error("{graph}: {what}")]
    Edge {
        /// Graph.
        graph: String,
        /// What is wrong.
        what: String,
    },
}

/// What a checked program amounts to.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct Summary {
    /// Nodes of all graphs.
    pub nodes: usize,
    /// Tensors that some node reads.
    pub tensors_read: usize,
    /// Parameters in them.
    pub parameters: u64,
    /// Tensors of the file that no node reads.
    pub unread: Vec<String>,
    /// Values that one token adds to the state.
    pub state_values_per_token: f64,
    /// Bytes of fixed-size state per sequence.
    pub state_fixed_bytes: u64,
}

/// Checks a program against the file's facts.
///
/// # Errors
/// Every fault found, at once.
pub fn check(program: &Program, facts: &ModelFacts) -> Result<Summary, Vec<Fault>> {
    if program.language.major != LANGUAGE.major || program.language.minor > LANGUAGE.minor {
        let hint = if program.language > LANGUAGE { "update the host" } else { "rebuild the seat" };
        return Err(vec![Fault::Language {
            seat: program.seat.clone(),
            found: program.language,
            host: LANGUAGE,
            hint,
        }]);
    }
    let mut faults = Vec::new();
    check_states(&program.states, &mut faults);
    let targets = program.graphs.iter().filter(|g| matches!(g.role, Role::Target {})).count();
    if targets != 1 {
        faults.push(Fault::Program(format!("exactly one target graph is needed, found {targets}")));
    }
    let mut read = BTreeSet::new();
    for (i, graph) in program.graphs.iter().enumerate() {
        let name = match graph.role {
            Role::Target {} => "target".to_string(),
            Role::Draft { .. } => format!("draft {i}"),
            Role::Observe {} => format!("observe {i}"),
        };
        check_graph(&name, graph, program, facts, &mut read, &mut faults);
    }
    if !faults.is_empty() {
        return Err(faults);
    }
    Ok(Summary {
        nodes: program.graphs.iter().map(|g| g.nodes.len()).sum(),
        tensors_read: read.len(),
        parameters: read
            .iter()
            .filter_map(|t| facts.tensors.get(*t)?.elements())
            .fold(0, u64::saturating_add),
        unread: facts.tensors.keys().filter(|t| !read.contains(t.as_str())).cloned().collect(),
        state_values_per_token: program.states.iter().map(|s| s.kind.values_per_token()).sum(),
        state_fixed_bytes: program.states.iter().map(|s| s.kind.fixed_bytes()).fold(0, u64::saturating_add),
    })
}

fn check_states(states: &[State], faults: &mut Vec<Fault>) {
    let mut names = BTreeSet::new();
    for (index, state) in states.iter().enumerate() {
        let what = match &state.kind {
            StateKind::Rows { parts, every, window } => {
                let widths_fit =
                    parts.iter().all(|p: &Part| p.width > 0 && u64::from(p.width) <= crate::infer::WIDEST);
                (!(1..=2).contains(&parts.len()) || !widths_fit || *every == 0 || *window == Some(0))
                    .then(|| format!("parts {parts:?}, every {every}, window {window:?}"))
            }
            StateKind::Recent { rows, width } => bound(&[*rows, *width], true),
            StateKind::Recurrent { dims } => bound(dims, false),
            StateKind::Tokens { count } => bound(&[*count], false),
        };
        let rows = matches!(state.kind, StateKind::Rows { .. });
        let what = what.or_else(|| {
            (!rows && state.rollback == Rollback::Truncate)
                .then(|| "only rows can be truncated: roll back by snapshot or recompute".to_string())
        });
        let what = what.or_else(|| (!names.insert(&state.name)).then(|| "the name is taken".to_string()));
        if let Some(what) = what {
            faults.push(Fault::State { index, name: state.name.clone(), what });
        }
    }
}

fn bound(dims: &[u32], zero_allowed: bool) -> Option<String> {
    let product = dims.iter().try_fold(1u64, |n, d| n.checked_mul(u64::from(*d)));
    let fits =
        product.is_some_and(|n| n <= crate::infer::WIDEST && (zero_allowed || n > 0)) && !dims.is_empty();
    (!fits).then(|| format!("dimensions {dims:?}"))
}

fn check_graph<'p>(
    name: &str,
    graph: &'p Graph,
    program: &'p Program,
    facts: &ModelFacts,
    read: &mut BTreeSet<&'p str>,
    faults: &mut Vec<Fault>,
) {
    let edge = |what: String| Fault::Edge { graph: name.to_string(), what };
    if graph.nodes.len() > MOST_NODES {
        return faults.push(edge(format!("{} nodes, at most {MOST_NODES} are taken", graph.nodes.len())));
    }
    let mut shapes: HashMap<ValueId, Shape> = HashMap::new();
    for input in &graph.inputs {
        let fits = match (&input.kind, input.shape) {
            (InputKind::Tokens {}, Shape::Tokens {}) | (InputKind::Spans {}, Shape::Spans {}) => true,
            (InputKind::TargetHidden { .. }, s) => {
                s.row_len().is_some_and(|n| n > 0 && n <= crate::infer::WIDEST)
            }
            _ => false,
        };
        if !fits {
            faults.push(edge(format!("input {:?} cannot have shape {}", input.kind, input.shape)));
        }
        if let InputKind::TargetHidden { name: hidden, .. } = &input.kind {
            let known = program
                .target()
                .is_some_and(|t| t.outputs.iter().any(|o| o.kind == OutputKind::Hidden && o.name == *hidden));
            if !known {
                faults.push(edge(format!("the target has no hidden output `{hidden}`")));
            }
        }
        if shapes.insert(input.value, input.shape).is_some() {
            faults.push(edge(format!("value {} is defined twice", input.value.0)));
        }
    }
    let mut names = BTreeSet::new();
    let mut first_writer: HashMap<StateId, usize> = HashMap::new();
    for (index, node) in graph.nodes.iter().enumerate() {
        if let Some(state) = node.op.writes() {
            first_writer.entry(state).or_insert(index);
        }
    }
    for (index, node) in graph.nodes.iter().enumerate() {
        let results = check_node(node, &shapes, program, facts);
        read.extend(node.tensors.values().map(String::as_str));
        let mut fault = |what: String| {
            faults.push(Fault::Node {
                graph: name.to_string(),
                index,
                name: node.label(),
                op: node.op.name(),
                what,
            });
        };
        match results {
            Err(what) => fault(what),
            Ok(inferred) => {
                let declared: Vec<Shape> = node.outs.iter().map(|o| o.shape).collect();
                if declared != inferred {
                    fault(format!("declares {}, its operands give {}", list(&declared), list(&inferred)));
                }
            }
        }
        // A state is moved on once a step, and before anything reads it: otherwise the step's own rows would be missing.
        if let Some(state) = node.op.writes()
            && first_writer.get(&state).is_some_and(|first| *first < index)
        {
            fault(format!("state {} is written by two nodes", state.0));
        }
        if let Some(state) =
            node.op.reads().iter().find(|s| first_writer.get(s).is_some_and(|first| *first > index))
        {
            fault(format!("reads state {} before the node that appends to it", state.0));
        }
        // Results count as defined even after a fault, so that one mistake is not told again by every later node.
        for out in &node.outs {
            let bounded = out.shape.row_len().is_none_or(|n| n <= crate::infer::WIDEST);
            let shape = if bounded { out.shape } else { Shape::Rows { width: 1 } };
            if shapes.insert(out.value, shape).is_some() {
                fault(format!("value {} is defined twice", out.value.0));
            }
            if !names.insert(out.name.as_str()) {
                fault(format!("the name `{}` is taken", out.name));
            }
        }
    }
    if let Role::Draft { depth: 0, .. } = graph.role {
        faults.push(edge("a draft of depth 0".into()));
    }
    let mut hidden_names = BTreeSet::new();
    for output in graph.outputs.iter().filter(|o| o.kind == OutputKind::Hidden) {
        if !hidden_names.insert(output.name.as_str()) {
            faults.push(edge(format!("two hidden outputs are named `{}`", output.name)));
        }
    }
    if graph.outputs.is_empty() && !matches!(graph.role, Role::Observe {}) {
        faults.push(edge("no output".into()));
    }
    for output in &graph.outputs {
        match shapes.get(&output.value) {
            Some(Shape::Rows { .. }) => {}
            Some(Shape::Streams { .. }) if output.kind == OutputKind::Hidden => {}
            Some(other) => faults.push(edge(format!("output {:?} has shape {other}", output.kind))),
            None => faults.push(edge(format!(
                "output {:?} reads value {}, which is not defined",
                output.kind, output.value.0
            ))),
        }
    }
}

fn check_node(
    node: &Node,
    shapes: &HashMap<ValueId, Shape>,
    program: &Program,
    facts: &ModelFacts,
) -> Result<Vec<Shape>, String> {
    let mut ins = Vec::with_capacity(node.ins.len());
    for value in &node.ins {
        ins.push(*shapes.get(value).ok_or_else(|| format!("operand {} is not defined before use", value.0))?);
    }
    let mut tensors = BTreeMap::new();
    for (role, tensor) in &node.tensors {
        let found =
            facts.tensors.get(tensor).ok_or_else(|| format!("tensor {tensor} is not in the model"))?;
        tensors.insert(role.as_str(), found);
    }
    if let Op::NgramEmbed { token_map: Some(key), .. } = &node.op
        && !matches!(facts.meta.get(key), Some(Meta::List(_) | Meta::Elided { .. }))
    {
        return Err(format!("the model has no array `{key}`"));
    }
    if let Op::Custom { .. } = node.op {
        let fits =
            node.outs.iter().all(|o| o.shape.row_len().is_some_and(|n| n > 0 && n <= crate::infer::WIDEST));
        return if fits {
            Ok(node.outs.iter().map(|o| o.shape).collect())
        } else {
            Err("results must be rows".into())
        };
    }
    infer(&node.op, &Context { ins: &ins, tensors: &tensors, states: &program.states }).map_err(|what| {
        match node.tensors.get("weight") {
            Some(tensor) => format!("{what} [weight = {tensor}]"),
            None => what,
        }
    })
}

fn list(shapes: &[Shape]) -> String {
    shapes.iter().map(Shape::to_string).collect::<Vec<_>>().join(", ")
}
