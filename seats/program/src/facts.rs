//! What the host read from a model file: header keys and the tensor directory, never weights.

use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;

/// Arrays of the tokenizer longer than this cross the boundary as their length only.
pub const LONGEST_LIST: usize = 4096;

/// Other arrays may be a model's own tables, a map of token ids for example: they cross in full up to this length.
pub const LONGEST_TABLE: usize = 1 << 20;

/// Whether the array of this key and length crosses in full.
pub fn crosses(key: &str, len: usize) -> bool {
    let own = !key.starts_with("tokenizer.") && !key.starts_with("general.");
    len <= if own { LONGEST_TABLE } else { LONGEST_LIST }
}

/// Header keys and tensor directory of a GGUF file.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ModelFacts {
    /// `general.architecture`.
    pub arch: String,
    /// Every metadata key; arrays that do not [cross](crosses) are [`Meta::Elided`].
    pub meta: BTreeMap<String, Meta>,
    /// Every tensor by name.
    pub tensors: BTreeMap<String, TensorFacts>,
}

/// A metadata value.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(untagged)]
pub enum Meta {
    /// A truth value.
    Bool(bool),
    /// An integer of any GGUF width that fits.
    Int(i64),
    /// An integer above `i64::MAX`.
    Uint(u64),
    /// A number with a fraction; infinities and NaN do not cross (JSON has none).
    Float(f64),
    /// A string.
    Str(String),
    /// A short array.
    List(Vec<Meta>),
    /// A long array: its length.
    Elided {
        /// Number of elements.
        elided: u64,
    },
}

/// A tensor of the file.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct TensorFacts {
    /// Dimensions in GGUF order: fastest first, so a matrix is `[in, out]`.
    pub dims: Vec<u64>,
    /// ggml's name of the type, `Q4_K` for example.
    pub dtype: String,
}

impl TensorFacts {
    /// Number of elements, `None` when it does not fit 64 bits.
    pub fn elements(&self) -> Option<u64> {
        self.dims.iter().try_fold(1u64, |n, d| n.checked_mul(*d))
    }
}

impl ModelFacts {
    /// The value of `{arch}.{key}`, or of `key` itself.
    pub fn find(&self, key: &str) -> Option<&Meta> {
        self.meta.get(&format!("{}.{key}", self.arch)).or_else(|| self.meta.get(key))
    }

    /// Whether the file has this tensor.
    pub fn has(&self, tensor: &str) -> bool {
        self.tensors.contains_key(tensor)
    }
}
