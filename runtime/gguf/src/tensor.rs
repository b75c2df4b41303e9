//! The tensor directory: names, shapes, types, and where the data lies. Everything is checked here once, so that
//! reading tensor data later is a plain slice.

use std::collections::HashMap;

use bloomery_formats::WeightType;

use crate::cursor::Cursor;
use crate::error::GgufError;

/// The most dimensions a tensor can have.
pub(crate) const MAX_DIMENSIONS: u32 = 4;

/// One tensor of a file.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TensorInfo {
    name: Box<str>,
    dims: [u64; MAX_DIMENSIONS as usize],
    n_dims: usize,
    weight_type: WeightType,
    shard: usize,
    offset: u64,
    byte_length: u64,
}

impl TensorInfo {
    /// The tensor's name, as in the file.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Elements along each dimension, fastest first (ggml's `ne`); empty for a scalar.
    pub fn dims(&self) -> &[u64] {
        self.dims.get(..self.n_dims).unwrap_or_default()
    }

    /// How the elements are stored.
    pub fn weight_type(&self) -> WeightType {
        self.weight_type
    }

    /// The file that holds the data: an index into [`crate::GgufFile::shards`], 0 for a file in one piece.
    pub fn shard(&self) -> usize {
        self.shard
    }

    /// Where the data starts, in bytes from the start of its file.
    pub fn offset(&self) -> u64 {
        self.offset
    }

    /// Bytes of the data.
    pub fn byte_length(&self) -> u64 {
        self.byte_length
    }

    /// Elements of one row (the fastest dimension; 1 for a scalar).
    pub fn row_length(&self) -> u64 {
        self.dims().first().copied().unwrap_or(1)
    }

    /// Number of elements. The product was checked when the file was read.
    pub fn element_count(&self) -> u64 {
        self.dims().iter().product()
    }

    /// Number of rows: all dimensions but the fastest.
    pub fn row_count(&self) -> u64 {
        self.dims().iter().skip(1).product()
    }

    pub(crate) fn set_shard(&mut self, shard: usize) {
        self.shard = shard;
    }

    /// Where the data lies in its file, as a slice range.
    pub(crate) fn range(&self) -> Option<std::ops::Range<usize>> {
        let start = usize::try_from(self.offset).ok()?;
        let length = usize::try_from(self.byte_length).ok()?;
        Some(start..start.checked_add(length)?)
    }
}

/// Tensors in file order, found by name.
#[derive(Debug, Default)]
pub(crate) struct TensorTable {
    tensors: Vec<TensorInfo>,
    by_name: HashMap<Box<str>, usize>,
}

impl TensorTable {
    pub(crate) fn push(&mut self, tensor: TensorInfo) -> Result<(), GgufError> {
        if self.by_name.contains_key(&tensor.name) {
            return Err(GgufError::DuplicateTensor { name: tensor.name.into() });
        }
        self.by_name.insert(tensor.name.clone(), self.tensors.len());
        self.tensors.push(tensor);
        Ok(())
    }

    pub(crate) fn get(&self, name: &str) -> Option<&TensorInfo> {
        self.tensors.get(*self.by_name.get(name)?)
    }

    pub(crate) fn as_slice(&self) -> &[TensorInfo] {
        &self.tensors
    }

    pub(crate) fn into_tensors(self) -> Vec<TensorInfo> {
        self.tensors
    }

    /// Reads `count` directory entries; offsets stay relative to the data section until [`TensorTable::place`].
    pub(crate) fn read(cursor: &mut Cursor<'_>, count: u64) -> Result<Self, GgufError> {
        let mut table = TensorTable::default();
        for index in 0..count {
            table.push(read_entry(cursor, index)?)?;
        }
        Ok(table)
    }

    /// Turns offsets into file offsets and checks alignment, bounds and overlap.
    pub(crate) fn place(
        &mut self,
        data_offset: u64,
        alignment: u64,
        file_size: u64,
    ) -> Result<(), GgufError> {
        for tensor in &mut self.tensors {
            let relative = tensor.offset;
            let name = || tensor.name.to_string();
            if relative % alignment != 0 {
                return Err(GgufError::MisalignedTensor { name: name(), offset: relative, alignment });
            }
            let start = data_offset.saturating_add(relative);
            let end = start.checked_add(tensor.byte_length);
            if end.is_none_or(|end| end > file_size) {
                let bytes = tensor.byte_length;
                return Err(GgufError::TensorBeyondEnd { name: name(), offset: start, bytes, file_size });
            }
            tensor.offset = start;
        }
        self.check_overlap()
    }

    fn check_overlap(&self) -> Result<(), GgufError> {
        let mut in_order: Vec<&TensorInfo> =
            self.tensors.iter().filter(|tensor| tensor.byte_length > 0).collect();
        in_order.sort_by_key(|tensor| tensor.offset);
        for pair in in_order.windows(2) {
            let [first, second] = pair else { continue };
            if second.offset < first.offset.saturating_add(first.byte_length) {
                let (first, second) = (first.name.to_string(), second.name.to_string());
                return Err(GgufError::OverlappingTensors { first, second });
            }
        }
        Ok(())
    }
}

fn read_entry(cursor: &mut Cursor<'_>, index: u64) -> Result<TensorInfo, GgufError> {
    let entry = cursor.offset() as u64;
    let nameless = || format!("the name of tensor {index}");
    let name = cursor.string().map_err(|short| short.reading(nameless()))?;
    let name =
        std::str::from_utf8(name).map_err(|_| GgufError::NotUtf8 { what: nameless(), offset: entry + 8 })?;
    if name.is_empty() {
        return Err(GgufError::EmptyTensorName { index, offset: entry });
    }
    let owned = || name.to_owned();
    let within = |short: crate::cursor::Short| short.reading(format!("the entry of tensor `{name}`"));

    let found = cursor.u32().map_err(within)?;
    if found > MAX_DIMENSIONS {
        return Err(GgufError::TooManyDimensions { name: owned(), found });
    }
    let n_dims = found as usize;
    let mut dims = [1; MAX_DIMENSIONS as usize];
    for dim in dims.iter_mut().take(n_dims) {
        *dim = cursor.u64().map_err(within)?;
    }
    let id = cursor.u32().map_err(within)?;
    let weight_type =
        WeightType::from_id(id).ok_or_else(|| GgufError::UnknownTensorType { name: owned(), id })?;
    let offset = cursor.u64().map_err(within)?;

    let shape = dims.get(..n_dims).unwrap_or_default();
    let byte_length = byte_length(name, shape, weight_type)?;
    Ok(TensorInfo { name: name.into(), dims, n_dims, weight_type, shard: 0, offset, byte_length })
}

/// Bytes of a tensor: whole blocks in every row, and everything within 63 bits so that no later sum can wrap.
pub(crate) fn byte_length(name: &str, dims: &[u64], weight_type: WeightType) -> Result<u64, GgufError> {
    let overflow = || GgufError::ShapeOverflow { name: name.to_owned(), dims: dims.to_vec() };
    let row = dims.first().copied().unwrap_or(1);
    let (block, block_bytes) = (weight_type.block_len() as u64, weight_type.block_bytes() as u64);
    if block == 0 || row % block != 0 {
        let weight_type = weight_type.name();
        return Err(GgufError::PartialBlock { name: name.to_owned(), weight_type, row, block });
    }
    let product = |least: u64| dims.iter().try_fold(1_u64, |sum, dim| sum.checked_mul((*dim).max(least)));
    // Counted as if no dimension were zero, so that no partial product (rows, say) can wrap either.
    let bound = product(1).filter(|bound| *bound <= i64::MAX as u64).ok_or_else(overflow)?;
    (bound / block)
        .checked_mul(block_bytes)
        .filter(|bytes| *bytes <= i64::MAX as u64)
        .ok_or_else(overflow)?;
    let elements = product(0).ok_or_else(overflow)?;
    let bytes = (elements / block).checked_mul(block_bytes).ok_or_else(overflow)?;
    Ok(bytes)
}
