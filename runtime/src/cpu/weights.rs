//! Where the executor's weights lie: bytes by number, in the file's own layout.

use bloomery_formats::{WeightType, dequantize_row};
use bloomery_gguf::GgufFile;
use bloomery_kernels_cpu::matrix::{MatmulError, Matrix};
use std::collections::HashMap;

/// Tensors by number. A mapped file, or memory in tests.
pub trait WeightSource: Send + Sync {
    /// The number of the tensor of this name.
    fn find(&self, name: &str) -> Option<usize>;
    /// Its type and dimensions, fastest first.
    fn shape(&self, tensor: usize) -> (WeightType, &[u64]);
    /// Its bytes, row-major.
    fn data(&self, tensor: usize) -> &[u8];
    /// An array of numbers of the file's header, by its full key.
    fn integers(&self, _key: &str) -> Option<Vec<u64>> {
        None
    }
    /// The file that holds them and where they begin there, when there is one: reading it passes the page table by.
    fn file(&self, _tensor: usize) -> Option<(&std::path::Path, u64)> {
        None
    }
}

impl WeightSource for GgufFile {
    fn find(&self, name: &str) -> Option<usize> {
        let found = self.tensor(name)?;
        self.tensors().iter().position(|t| std::ptr::eq(t, found))
    }
    fn shape(&self, tensor: usize) -> (WeightType, &[u64]) {
        let info = &self.tensors()[tensor];
        (info.weight_type(), info.dims())
    }
    fn data(&self, tensor: usize) -> &[u8] {
        GgufFile::data(self, &self.tensors()[tensor])
    }
    fn integers(&self, key: &str) -> Option<Vec<u64>> {
        let array = self.metadata().array(key).ok()?;
        let values: Vec<u64> = array.integers().map_while(|v| u64::try_from(v).ok()).collect();
        // A negative or fractional element ends the iteration early.
        (values.len() == array.len()).then_some(values)
    }
    fn file(&self, tensor: usize) -> Option<(&std::path::Path, u64)> {
        let info = &self.tensors()[tensor];
        Some((self.shards().get(info.shard())?.path(), info.offset()))
    }
}

/// Tensors held in memory.
#[derive(Debug, Clone, Default)]
pub struct MemoryTensors {
    names: HashMap<String, usize>,
    tensors: Vec<(WeightType, Vec<u64>, Vec<u8>)>,
    integers: HashMap<String, Vec<u64>>,
}

impl MemoryTensors {
    /// Adds a tensor; `dims` fastest first. A name that is there already is replaced.
    pub fn insert(&mut self, name: &str, ty: WeightType, dims: &[u64], data: Vec<u8>) {
        self.names.insert(name.to_string(), self.tensors.len());
        self.tensors.push((ty, dims.to_vec(), data));
    }

    /// Adds f32 values.
    pub fn insert_f32(&mut self, name: &str, dims: &[u64], values: &[f32]) {
        self.insert(name, WeightType::F32, dims, values.iter().flat_map(|v| v.to_le_bytes()).collect());
    }

    /// Adds an array of numbers, by its full key in the header.
    pub fn insert_integers(&mut self, key: &str, values: Vec<u64>) {
        self.integers.insert(key.to_string(), values);
    }

    /// The same tensors, every one dequantised to F32.
    ///
    /// # Errors
    /// A tensor's bytes do not fit its dimensions; the message names it.
    pub fn dequantized(source: &dyn WeightSource, names: &[&str]) -> Result<MemoryTensors, String> {
        let mut all = MemoryTensors::default();
        for name in names {
            let tensor = source.find(name).ok_or_else(|| format!("no tensor {name}"))?;
            let (_, dims) = source.shape(tensor);
            let values = floats(source, tensor).map_err(|what| format!("{name}: {what}"))?;
            all.insert_f32(name, dims, &values);
        }
        Ok(all)
    }
}

impl WeightSource for MemoryTensors {
    fn find(&self, name: &str) -> Option<usize> {
        self.names.get(name).copied()
    }
    fn shape(&self, tensor: usize) -> (WeightType, &[u64]) {
        let (ty, dims, _) = &self.tensors[tensor];
        (*ty, dims)
    }
    fn data(&self, tensor: usize) -> &[u8] {
        &self.tensors[tensor].2
    }
    fn integers(&self, key: &str) -> Option<Vec<u64>> {
        self.integers.get(key).cloned()
    }
}

/// All values of a tensor as f32: for norms, biases and other short vectors.
///
/// # Errors
/// The bytes do not fit the dimensions.
pub(crate) fn floats(source: &dyn WeightSource, tensor: usize) -> Result<Vec<f32>, String> {
    let (ty, dims) = source.shape(tensor);
    let elements = dims.iter().try_fold(1u64, |n, d| n.checked_mul(*d)).and_then(|n| usize::try_from(n).ok());
    let elements = elements.ok_or_else(|| format!("dimensions {dims:?} overflow"))?;
    // Whole rows of blocks lie one after another, so the tensor reads as one long row.
    let mut values = vec![0.0; elements];
    dequantize_row(ty, source.data(tensor), &mut values).map_err(|e| e.to_string())?;
    Ok(values)
}

/// A tensor that is used as a matrix: `[rows, cols]`, further dimensions stacked into the rows.
#[derive(Debug, Clone, Copy)]
pub(crate) struct TensorRef {
    pub tensor: usize,
    pub rows: usize,
    pub cols: usize,
}

impl TensorRef {
    pub fn new(source: &dyn WeightSource, tensor: usize) -> Option<TensorRef> {
        let (_, dims) = source.shape(tensor);
        let cols = usize::try_from(*dims.first()?).ok()?;
        let rows = dims[1..].iter().try_fold(1u64, |n, d| n.checked_mul(*d))?;
        Some(TensorRef { tensor, rows: usize::try_from(rows).ok()?, cols })
    }

    pub fn matrix(self, source: &dyn WeightSource) -> Result<Matrix<'_>, MatmulError> {
        Matrix::new(source.shape(self.tensor).0, source.data(self.tensor), self.rows, self.cols)
    }
}
