//! Where weights come from: f32 rows by tensor name, whole tensors never.

use crate::error::{ReferenceError, Result};
use bloomery_program::{ModelFacts, TensorFacts};
use std::collections::BTreeMap;

/// The tensors of a model as f32.
pub trait Weights {
    /// A tensor by its name in the file.
    ///
    /// # Errors
    /// There is none, or it cannot be read as numbers.
    fn tensor(&self, name: &str) -> Result<&dyn Tensor>;

    /// An integer array of the metadata, by its full key.
    fn integers(&self, key: &str) -> Option<Vec<u64>>;
}

/// One tensor. A row is a run of its fastest dimension, so `[in, out]` has `out` rows of `in` values.
pub trait Tensor {
    /// Dimensions in GGUF order, fastest first.
    fn dims(&self) -> &[u64];

    /// Values of a row, borrowed or written into `scratch`.
    ///
    /// # Errors
    /// The row does not exist or cannot be read.
    fn row<'a>(&'a self, index: usize, scratch: &'a mut Vec<f32>) -> std::result::Result<&'a [f32], String>;
}

/// Tensors held in memory: tests and small models.
#[derive(Debug, Clone, Default)]
pub struct MemoryWeights {
    tensors: BTreeMap<String, MemoryTensor>,
    arrays: BTreeMap<String, Vec<u64>>,
}

#[derive(Debug, Clone)]
struct MemoryTensor {
    dims: Vec<u64>,
    width: usize,
    data: Vec<f32>,
}

impl MemoryWeights {
    /// Adds a tensor with dimensions in GGUF order (fastest first).
    ///
    /// # Errors
    /// The number of values is not the product of the dimensions.
    pub fn insert(&mut self, name: &str, dims: &[u64], data: Vec<f32>) -> Result<()> {
        let elements = dims.iter().try_fold(1u64, |n, d| n.checked_mul(*d));
        if elements != Some(data.len() as u64) || data.is_empty() {
            let what = format!("{dims:?} does not hold {} values", data.len());
            return Err(ReferenceError::Tensor { tensor: name.to_string(), what });
        }
        let width = dims.first().map_or(1, |d| *d as usize);
        self.tensors.insert(name.to_string(), MemoryTensor { dims: dims.to_vec(), width, data });
        Ok(())
    }

    /// Adds an integer array of the metadata.
    pub fn insert_integers(&mut self, key: &str, values: Vec<u64>) {
        self.arrays.insert(key.to_string(), values);
    }

    /// The tensor directory, as a checker wants it.
    pub fn tensor_facts(&self) -> BTreeMap<String, TensorFacts> {
        let facts = |t: &MemoryTensor| TensorFacts { dims: t.dims.clone(), dtype: "F32".into() };
        self.tensors.iter().map(|(name, t)| (name.clone(), facts(t))).collect()
    }

    /// Facts about these tensors and arrays alone, for programs written by hand.
    pub fn facts(&self, arch: &str) -> ModelFacts {
        let elided = |v: &Vec<u64>| bloomery_program::Meta::Elided { elided: v.len() as u64 };
        ModelFacts {
            arch: arch.to_string(),
            meta: self.arrays.iter().map(|(key, v)| (key.clone(), elided(v))).collect(),
            tensors: self.tensor_facts(),
        }
    }
}

impl Weights for MemoryWeights {
    fn tensor(&self, name: &str) -> Result<&dyn Tensor> {
        match self.tensors.get(name) {
            Some(tensor) => Ok(tensor),
            None => {
                Err(ReferenceError::Tensor { tensor: name.to_string(), what: "is not in the model".into() })
            }
        }
    }

    fn integers(&self, key: &str) -> Option<Vec<u64>> {
        self.arrays.get(key).cloned()
    }
}

impl Tensor for MemoryTensor {
    fn dims(&self) -> &[u64] {
        &self.dims
    }

    fn row<'a>(&'a self, index: usize, _: &'a mut Vec<f32>) -> std::result::Result<&'a [f32], String> {
        let rows = self.data.len() / self.width;
        self.data
            .chunks_exact(self.width)
            .nth(index)
            .ok_or_else(|| format!("has {rows} rows, row {index} was asked for"))
    }
}
