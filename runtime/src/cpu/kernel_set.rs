//! The kernel set: which (operator, weight type, shape class) triples this backend has. The planner asks before any load.

use super::weights::WeightSource;
use bloomery_formats::WeightType;
use bloomery_program::{Graph, Node, Op, Program, State, StateKind};
use std::collections::BTreeMap;
use std::fmt;

/// Something that a program needs and this backend lacks.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub struct MissingKernel {
    /// The operator's name, or `state` for a kind of state.
    pub operator: String,
    /// ggml's name of the weights' type; `-` where no weights take part.
    pub weight_type: String,
    /// What about it is missing: a shape, a mode.
    pub class: String,
    /// The first node that needs it.
    pub node: String,
    /// How many nodes need it.
    pub nodes: usize,
}

impl fmt::Display for MissingKernel {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "({}, {}, {}) for {}", self.operator, self.weight_type, self.class, self.node)?;
        if self.nodes > 1 {
            write!(f, " and {} more", self.nodes - 1)?;
        }
        Ok(())
    }
}

/// Every triple of the target graph that this backend lacks.
pub fn missing_kernels(program: &Program, graph: &Graph, source: &dyn WeightSource) -> Vec<MissingKernel> {
    let mut found: BTreeMap<(String, String, String), (String, usize)> = BTreeMap::new();
    let mut add = |operator: &str, weight_type: &str, class: String, node: String| {
        found.entry((operator.to_string(), weight_type.to_string(), class)).or_insert((node, 0)).1 += 1;
    };
    for (index, state) in program.states.iter().enumerate() {
        let used = graph.nodes.iter().any(|n| n.op.states().iter().any(|s| s.0 as usize == index));
        if let (true, Some(class)) = (used, missing_state(state)) {
            add("state", "-", class, state.name.clone());
        }
    }
    for node in &graph.nodes {
        for (weight_type, class) in missing_of(node, source) {
            add(node.op.name(), weight_type, class, node.label());
        }
    }
    found
        .into_iter()
        .map(|((operator, weight_type, class), (node, nodes))| MissingKernel {
            operator,
            weight_type,
            class,
            node,
            nodes,
        })
        .collect()
}

fn missing_state(state: &State) -> Option<String> {
    match &state.kind {
        StateKind::Rows { parts, .. } if matches!(parts.len(), 1 | 2) => None,
        StateKind::Rows { parts, .. } => Some(format!("rows of {} parts", parts.len())),
        StateKind::Recent { .. } | StateKind::Recurrent { .. } | StateKind::Tokens { .. } => None,
    }
}

/// Weight type and class of everything that one node needs and this backend lacks.
fn missing_of(node: &Node, source: &dyn WeightSource) -> Vec<(&'static str, String)> {
    let mut missing = Vec::new();
    let none = |class: &str| vec![("-", class.to_string())];
    match &node.op {
        Op::Embed { .. } => matrices(node, source, &["weight"], &mut missing),
        Op::Linear {} => matrices(node, source, &["weight"], &mut missing),
        Op::Experts { .. } => matrices(node, source, &["gate", "up", "gate_up", "down"], &mut missing),
        Op::GroupedLinear { .. } | Op::NgramEmbed { .. } => matrices(node, source, &["weight"], &mut missing),
        Op::HyperMix { .. } | Op::HyperHead { .. } => matrices(node, source, &["fn"], &mut missing),
        Op::DecisionHead { .. } => {
            let roles: Vec<&str> = node.tensors.keys().map(String::as_str).collect();
            // Norms and biases are read as vectors.
            let is_matrix = |role: &&str| {
                let tensor = node.tensors.get(*role).and_then(|name| source.find(name));
                tensor.is_some_and(|t| source.shape(t).1.len() > 1)
            };
            matrices(node, source, &roles.into_iter().filter(is_matrix).collect::<Vec<_>>(), &mut missing);
        }
        Op::LowRankMix { .. } => matrices(node, source, &["down", "up", "inject"], &mut missing),
        Op::RmsNorm { .. }
        | Op::GatedRmsNorm { .. }
        | Op::L2Norm { .. }
        | Op::Softmax { .. }
        | Op::Reduce { .. }
        | Op::MatMul { .. }
        | Op::Transpose {}
        | Op::TopK { .. }
        | Op::Gather { .. }
        | Op::Reshape { .. }
        | Op::LayerNorm { .. }
        | Op::Pool { .. }
        | Op::CausalConv { .. }
        | Op::GatedDelta(_)
        | Op::IndexScore { .. }
        | Op::TopRows { .. }
        | Op::CandidateBlocks { .. }
        | Op::StreamSpread { .. }
        | Op::StreamCollapse {}
        | Op::StreamCombine {}
        | Op::StreamScale {}
        | Op::MemoryGate { .. }
        | Op::Route(_)
        | Op::Add {}
        | Op::Mul {}
        | Op::Scale { .. }
        | Op::Affine {}
        | Op::Unary { .. }
        | Op::Glu { .. }
        | Op::Concat {}
        | Op::Slice { .. }
        | Op::Rope(_)
        | Op::Append { .. } => {}
        Op::Attention(attention) if attention.block_bidirectional => return none("bidirectional block"),
        Op::Attention(_) => {}
        _ => return none("any shape"),
    }
    missing
}

fn matrices(
    node: &Node,
    source: &dyn WeightSource,
    roles: &[&str],
    missing: &mut Vec<(&'static str, String)>,
) {
    for role in roles {
        let Some(tensor) = node.tensors.get(*role).and_then(|name| source.find(name)) else { continue };
        let (ty, dims) = source.shape(tensor);
        let cols = dims.first().copied().unwrap_or(0);
        let whole = usize::try_from(cols).ok().and_then(|c| ty.row_bytes(c)).is_some();
        if ty.activation_kind().is_none() {
            missing.push((ty.name(), "any shape".into()));
        } else if !whole || (ty == WeightType::NVFP4 && cols % 64 != 0) {
            missing.push((ty.name(), format!("rows of {cols} values")));
        }
    }
}
