//! Why a seat turns a model down.

/// A refusal: names the key, the tensor or the node, what was expected and what was found.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// A key that the architecture needs.
    #[error("the model has no key `{key}`")]
    MissingKey {
        /// The key in full.
        key: String,
    },
    /// A key of the wrong kind or size.
    #[error("key `{key}`: expected {expected}, found {found}")]
    Key {
        /// The key in full.
        key: String,
        /// What the seat can read.
        expected: String,
        /// What the file says.
        found: String,
    },
    /// A tensor that the architecture needs.
    #[error("the model has no tensor `{tensor}`")]
    MissingTensor {
        /// Its name.
        tensor: String,
    },
    /// A tensor whose dimensions do not follow from the keys.
    #[error("tensor `{tensor}`: expected dimensions {expected}, found {found:?}")]
    TensorShape {
        /// Its name.
        tensor: String,
        /// Fastest first.
        expected: String,
        /// Fastest first.
        found: Vec<u64>,
    },
    /// A node whose operands, tensors or constants do not fit.
    #[error("node `{name}` ({op}): {what}{}", bound(tensors))]
    Node {
        /// Name of the node's first value.
        name: String,
        /// Operator.
        op: &'static str,
        /// What does not fit.
        what: String,
        /// Role and name of each tensor of the node.
        tensors: Vec<(String, String)>,
    },
    /// Tensors of the file that no node reads: a graph that ignores a weight gives other text, not an error.
    #[error(
        "{} of the model's tensors are read by no node: {}; bind them, or `ignore` them with a reason",
        tensors.len(), tensors.join(", ")
    )]
    Unread {
        /// Their names.
        tensors: Vec<String>,
    },
    /// Anything else the seat cannot do.
    #[error("{0}")]
    Refused(String),
}

/// Result with [`Error`].
pub type Result<T> = std::result::Result<T, Error>;

impl Error {
    /// A refusal in the seat's own words; name the key or tensor and what was found.
    pub fn refused(what: impl Into<String>) -> Self {
        Error::Refused(what.into())
    }
}

fn bound(tensors: &[(String, String)]) -> String {
    if tensors.is_empty() {
        return String::new();
    }
    let list: Vec<String> = tensors.iter().map(|(role, name)| format!("{role} = {name}")).collect();
    format!(" [{}]", list.join(", "))
}
