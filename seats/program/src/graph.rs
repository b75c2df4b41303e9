//! Program, graphs and nodes.

use crate::{Op, Shape, State, ValueId};
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;

/// A version of the language.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Version {
    /// Readers refuse another major.
    pub major: u16,
    /// Readers refuse a higher minor.
    pub minor: u16,
}

impl std::fmt::Display for Version {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{}.{}", self.major, self.minor)
    }
}

/// Everything a seat says about one model file.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Program {
    /// Lowest version of the language that this program needs.
    pub language: Version,
    /// Name of the seat.
    pub seat: String,
    /// Per-sequence state, shared by all graphs.
    pub states: Vec<State>,
    /// Exactly one target, any number of drafters.
    pub graphs: Vec<Graph>,
    /// Facts about the family's chat format.
    #[serde(default, skip_serializing_if = "ChatHints::is_empty")]
    pub chat: ChatHints,
    /// Remarks for the operator, logged at load.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub notes: Vec<String>,
}

/// Facts about a family's chat format that the file's own template does not state.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct ChatHints {
    /// Template to use in place of the file's.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub template: Option<String>,
    /// Name of the tool-call markup (`hermes_json`, `qwen_xml`, `glm_xml`, `dsml`).
    #[serde(skip_serializing_if = "Option::is_none")]
    pub tool_format: Option<String>,
    /// Opening and closing tag of reasoning.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub thinking: Option<(String, String)>,
    /// Token texts that end an answer beside the file's own.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub stop_tokens: Vec<String>,
}

impl ChatHints {
    /// Nothing is said.
    pub fn is_empty(&self) -> bool {
        *self == ChatHints::default()
    }
}

/// A graph of nodes in execution order.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Graph {
    /// What it is for.
    pub role: Role,
    /// Values that come from outside.
    pub inputs: Vec<Input>,
    /// Nodes; an operand is defined before its use.
    pub nodes: Vec<Node>,
    /// Values that go outside.
    pub outputs: Vec<Output>,
}

/// What a graph is for.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "kind", rename_all = "snake_case", deny_unknown_fields)]
pub enum Role {
    /// The model.
    Target {},
    /// Guesses tokens that the target then verifies.
    Draft {
        /// Tokens proposed in one pass.
        depth: u32,
        /// The graph may be run again on its own hidden rows for more tokens.
        #[serde(default, skip_serializing_if = "std::ops::Not::not")]
        chain: bool,
        /// A block drafter: one pass over the last token and `depth - 1` rows of this token, taken back afterwards.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        mask_token: Option<u32>,
    },
    /// Runs over every row that the target has committed and only extends states: a block drafter's memory.
    Observe {},
}

/// A value from outside.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Input {
    /// Where it comes from.
    pub kind: InputKind,
    /// Its number.
    pub value: ValueId,
    /// Its shape.
    pub shape: Shape,
}

/// Where an input comes from.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "kind", rename_all = "snake_case", deny_unknown_fields)]
pub enum InputKind {
    /// Token ids of the batch.
    Tokens {},
    /// The target's output of this name at the position before (zeros before the first).
    TargetHidden {
        /// Name of a `hidden` output of the target.
        name: String,
        /// Take it at the row's own position instead.
        #[serde(default, skip_serializing_if = "std::ops::Not::not")]
        same_position: bool,
    },
    /// Questions and options of a decision request.
    Spans {},
}

/// A value that goes outside.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Output {
    /// What it is.
    pub kind: OutputKind,
    /// Name, for `hidden` outputs that a drafter reads.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub name: String,
    /// Its number.
    pub value: ValueId,
}

/// What an output is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum OutputKind {
    /// `[rows, n_vocab]`.
    Logits,
    /// Rows for a drafter or for embeddings.
    Hidden,
    /// How sure a drafter is, `[rows, 1]`.
    Confidence,
    /// One logit per option of a decision request.
    Decision,
}

/// An operator applied to values and tensors.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Node {
    /// Operator and constants.
    pub op: Op,
    /// Operands.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub ins: Vec<ValueId>,
    /// Role in the operator to tensor name in the file.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub tensors: BTreeMap<String, String>,
    /// Results.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub outs: Vec<NodeOutput>,
    /// Place for messages and profiles, `blk.3` for example.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub scope: String,
}

/// A result of a node.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct NodeOutput {
    /// Its number: unique in the graph.
    pub value: ValueId,
    /// The field's name for it, `l3.attn.q` for example: traces and goldens are compared by it.
    pub name: String,
    /// Its shape; the checker infers it again and compares.
    pub shape: Shape,
}

impl Node {
    /// How messages name the node: its first result, or its scope for one without results.
    pub fn label(&self) -> String {
        match self.outs.first() {
            Some(out) => out.name.clone(),
            None => format!("{}.{}", self.scope, self.op.name()),
        }
    }
}

impl Program {
    /// The graph of the model itself. A checked program has exactly one.
    pub fn target(&self) -> Option<&Graph> {
        self.graphs.iter().find(|g| matches!(g.role, Role::Target {}))
    }

    /// The lowest version of the language that can say this program.
    pub fn required_language(&self) -> Version {
        let minor = self.graphs.iter().flat_map(|g| &g.nodes).map(|n| n.op.since_minor()).max().unwrap_or(0);
        Version { major: crate::LANGUAGE.major, minor }
    }
}
