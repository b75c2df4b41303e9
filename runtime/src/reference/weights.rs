//! A GGUF file's tensors as f32 rows.
//!
//! A row is dequantised each time it is read and nothing is kept: the reference backend then needs no more memory than
//! the pages of the file that it touches.

use bloomery_formats::{WeightType, dequantize_row};
use bloomery_gguf::{GgufFile, TensorInfo};
use bloomery_reference::{ReferenceError, Tensor, Weights};
use std::collections::HashMap;
use std::sync::Arc;

/// The tensors of an open file.
#[derive(Debug)]
pub struct GgufWeights {
    file: Arc<GgufFile>,
    tensors: HashMap<String, FileTensor>,
}

#[derive(Debug)]
struct FileTensor {
    file: Arc<GgufFile>,
    info: TensorInfo,
    rows: usize,
    width: usize,
    row_bytes: usize,
}

impl GgufWeights {
    /// Takes the tensors of a file, by name.
    pub fn new(file: Arc<GgufFile>) -> Self {
        let tensors = file
            .tensors()
            .iter()
            .map(|info| {
                let rows = info.row_count() as usize;
                let tensor = FileTensor {
                    file: Arc::clone(&file),
                    info: info.clone(),
                    rows,
                    width: info.row_length() as usize,
                    row_bytes: (info.byte_length() as usize).checked_div(rows).unwrap_or(0),
                };
                (info.name().to_string(), tensor)
            })
            .collect();
        GgufWeights { file, tensors }
    }
}

impl Weights for GgufWeights {
    fn tensor(&self, name: &str) -> Result<&dyn Tensor, ReferenceError> {
        match self.tensors.get(name) {
            Some(tensor) => Ok(tensor),
            None => {
                Err(ReferenceError::Tensor { tensor: name.to_string(), what: "is not in the file".into() })
            }
        }
    }

    fn integers(&self, key: &str) -> Option<Vec<u64>> {
        let array = self.file.metadata().array(key).ok()?;
        let values: Vec<u64> = array.integers().map_while(|v| u64::try_from(v).ok()).collect();
        // A negative or fractional element ends the iteration early.
        (values.len() == array.len()).then_some(values)
    }
}

impl Tensor for FileTensor {
    fn dims(&self) -> &[u64] {
        self.info.dims()
    }

    fn row<'a>(&'a self, index: usize, scratch: &'a mut Vec<f32>) -> Result<&'a [f32], String> {
        let missing = || format!("{} has {} rows, row {index} was asked for", self.info.name(), self.rows);
        if index >= self.rows {
            return Err(missing());
        }
        let start = index.checked_mul(self.row_bytes).ok_or_else(missing)?;
        let end = start.checked_add(self.row_bytes).ok_or_else(missing)?;
        let bytes = self.file.data(&self.info).get(start..end).ok_or_else(missing)?;
        scratch.resize(self.width, 0.0);
        match self.info.weight_type() {
            // Tables of ids: exact in f32 below 2^24, and an expert's number is far below.
            WeightType::I32 => {
                for (out, id) in scratch.iter_mut().zip(bytes.as_chunks::<4>().0) {
                    *out = i32::from_le_bytes(*id) as f32;
                }
            }
            ty => {
                dequantize_row(ty, bytes, scratch).map_err(|e| format!("{}: {e}", self.info.name()))?;
            }
        }
        Ok(scratch)
    }
}
