//! Writes GGUF version 3. Made for tests, which need small and sometimes odd files, and for tools; it keeps all tensor
//! data in memory.

use std::borrow::Cow;
use std::collections::HashSet;
use std::io::Write;
use std::path::Path;

use bloomery_formats::WeightType;

use crate::error::GgufError;
use crate::tensor::{self, MAX_DIMENSIONS};
use crate::value::{Value, ValueType};

/// A metadata value to write.
#[derive(Debug, Clone, PartialEq)]
#[allow(missing_docs)] // one variant a type
pub enum OwnedValue {
    U8(u8),
    I8(i8),
    U16(u16),
    I16(i16),
    U32(u32),
    I32(i32),
    F32(f32),
    Bool(bool),
    String(String),
    /// Element type (needed for an empty array) and elements.
    Array(ValueType, Vec<OwnedValue>),
    U64(u64),
    I64(i64),
    F64(f64),
}

/// Why a file was not written.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum WriteError {
    /// The output failed.
    #[error("cannot write: {0}")]
    Io(#[from] std::io::Error),
    /// A key was given twice.
    #[error("metadata key `{key}` was given twice")]
    DuplicateKey {
        /// The key.
        key: String,
    },
    /// A tensor was given twice.
    #[error("tensor `{name}` was given twice")]
    DuplicateTensor {
        /// The name.
        name: String,
    },
    /// An array holds an element of another type than it states.
    #[error("metadata key `{key}` is an array of {expected}, one element is {found}")]
    MixedArray {
        /// The key.
        key: String,
        /// The array's element type.
        expected: &'static str,
        /// The element's type.
        found: &'static str,
    },
    /// `general.alignment` is not a power of two of type u32.
    #[error("general.alignment must be a u32 and a power of two")]
    BadAlignment,
    /// The shape does not fit the type or the address space.
    #[error(transparent)]
    Shape(#[from] GgufError),
    /// Data of another length than shape and type need.
    #[error("tensor `{name}` needs {expected} bytes, {found} were given")]
    DataLength {
        /// The tensor.
        name: String,
        /// Bytes needed.
        expected: u64,
        /// Bytes given.
        found: u64,
    },
}

/// Collects metadata and tensors, then writes them. Everything is checked when writing.
#[derive(Debug, Default, Clone)]
pub struct GgufWriter<'a> {
    entries: Vec<(String, OwnedValue)>,
    tensors: Vec<PendingTensor<'a>>,
}

#[derive(Debug, Clone)]
struct PendingTensor<'a> {
    name: String,
    dims: Vec<u64>,
    weight_type: WeightType,
    data: Cow<'a, [u8]>,
}

impl<'a> GgufWriter<'a> {
    /// An empty file.
    pub fn new() -> Self {
        Self::default()
    }

    /// Adds a key. `general.alignment` (u32) also decides how tensors are aligned.
    pub fn metadata(&mut self, key: &str, value: impl Into<OwnedValue>) -> &mut Self {
        self.entries.push((key.to_owned(), value.into()));
        self
    }

    /// Adds a tensor; `dims` fastest first, `data` as the type's blocks, row after row.
    pub fn tensor(
        &mut self,
        name: &str,
        dims: &[u64],
        weight_type: WeightType,
        data: impl Into<Cow<'a, [u8]>>,
    ) -> &mut Self {
        let (name, dims, data) = (name.to_owned(), dims.to_vec(), data.into());
        self.tensors.push(PendingTensor { name, dims, weight_type, data });
        self
    }

    /// Adds a tensor of f32; `dims` fastest first.
    pub fn tensor_f32(&mut self, name: &str, dims: &[u64], elements: &[f32]) -> &mut Self {
        let data: Vec<u8> = elements.iter().flat_map(|element| element.to_le_bytes()).collect();
        self.tensor(name, dims, WeightType::F32, data)
    }

    /// The file as bytes.
    ///
    /// # Errors
    /// A name appears twice, or a value or tensor contradicts itself.
    pub fn to_bytes(&self) -> Result<Vec<u8>, WriteError> {
        let mut bytes = Vec::new();
        self.write_to(&mut bytes)?;
        Ok(bytes)
    }

    /// Writes the file to `path`, over what is there.
    ///
    /// # Errors
    /// As [`GgufWriter::to_bytes`], or the output fails.
    pub fn write_file(&self, path: &Path) -> Result<(), WriteError> {
        let mut out = std::io::BufWriter::new(std::fs::File::create(path)?);
        self.write_to(&mut out)?;
        Ok(out.flush()?)
    }

    /// Writes the file to any output.
    ///
    /// # Errors
    /// As [`GgufWriter::to_bytes`], or the output fails.
    pub fn write_to(&self, out: &mut impl Write) -> Result<(), WriteError> {
        let alignment = self.check()?;
        let head = self.head(alignment);
        out.write_all(&head)?;
        pad(out, head.len() as u64, alignment)?;
        for tensor in &self.tensors {
            out.write_all(&tensor.data)?;
            pad(out, tensor.data.len() as u64, alignment)?;
        }
        Ok(())
    }

    /// Checks everything and gives the alignment.
    fn check(&self) -> Result<u64, WriteError> {
        let mut alignment = 32;
        let mut keys = HashSet::new();
        for (key, value) in &self.entries {
            if !keys.insert(key) {
                return Err(WriteError::DuplicateKey { key: key.clone() });
            }
            check_elements(key, value)?;
            if key == "general.alignment" {
                alignment = match value {
                    OwnedValue::U32(found) if found.is_power_of_two() => u64::from(*found),
                    _ => return Err(WriteError::BadAlignment),
                };
            }
        }
        let mut names = HashSet::new();
        for tensor in &self.tensors {
            let name = || tensor.name.clone();
            if !names.insert(&tensor.name) {
                return Err(WriteError::DuplicateTensor { name: name() });
            }
            let n_dims = tensor.dims.len();
            if n_dims > MAX_DIMENSIONS as usize {
                return Err(GgufError::TooManyDimensions { name: name(), found: n_dims as u32 }.into());
            }
            let expected = tensor::byte_length(&tensor.name, &tensor.dims, tensor.weight_type)?;
            let found = tensor.data.len() as u64;
            if found != expected {
                return Err(WriteError::DataLength { name: name(), expected, found });
            }
        }
        Ok(alignment)
    }

    fn head(&self, alignment: u64) -> Vec<u8> {
        let mut head = b"GGUF".to_vec();
        head.extend(3_u32.to_le_bytes());
        head.extend((self.tensors.len() as u64).to_le_bytes());
        head.extend((self.entries.len() as u64).to_le_bytes());
        for (key, value) in &self.entries {
            push_string(&mut head, key);
            head.extend(value.value_type().id().to_le_bytes());
            push_value(&mut head, value);
        }
        let mut offset = 0_u64;
        for tensor in &self.tensors {
            push_string(&mut head, &tensor.name);
            head.extend((tensor.dims.len() as u32).to_le_bytes());
            for dim in &tensor.dims {
                head.extend(dim.to_le_bytes());
            }
            head.extend(tensor.weight_type.id().to_le_bytes());
            head.extend(offset.to_le_bytes());
            offset += (tensor.data.len() as u64).next_multiple_of(alignment);
        }
        head
    }
}

impl OwnedValue {
    /// The value's type.
    pub fn value_type(&self) -> ValueType {
        match self {
            OwnedValue::U8(_) => ValueType::U8,
            OwnedValue::I8(_) => ValueType::I8,
            OwnedValue::U16(_) => ValueType::U16,
            OwnedValue::I16(_) => ValueType::I16,
            OwnedValue::U32(_) => ValueType::U32,
            OwnedValue::I32(_) => ValueType::I32,
            OwnedValue::F32(_) => ValueType::F32,
            OwnedValue::Bool(_) => ValueType::Bool,
            OwnedValue::String(_) => ValueType::String,
            OwnedValue::Array(..) => ValueType::Array,
            OwnedValue::U64(_) => ValueType::U64,
            OwnedValue::I64(_) => ValueType::I64,
            OwnedValue::F64(_) => ValueType::F64,
        }
    }
}

/// Copies a value out of a file, arrays included.
impl From<Value<'_>> for OwnedValue {
    fn from(value: Value<'_>) -> Self {
        match value {
            Value::U8(value) => OwnedValue::U8(value),
            Value::I8(value) => OwnedValue::I8(value),
            Value::U16(value) => OwnedValue::U16(value),
            Value::I16(value) => OwnedValue::I16(value),
            Value::U32(value) => OwnedValue::U32(value),
            Value::I32(value) => OwnedValue::I32(value),
            Value::F32(value) => OwnedValue::F32(value),
            Value::Bool(value) => OwnedValue::Bool(value),
            Value::String(value) => OwnedValue::String(value.to_owned()),
            Value::Array(array) => {
                OwnedValue::Array(array.element_type(), array.iter().map(OwnedValue::from).collect())
            }
            Value::U64(value) => OwnedValue::U64(value),
            Value::I64(value) => OwnedValue::I64(value),
            Value::F64(value) => OwnedValue::F64(value),
        }
    }
}

macro_rules! owned_from {
    ($($native:ty => $variant:ident),* $(,)?) => {$(
        impl From<$native> for OwnedValue {
            fn from(value: $native) -> Self {
                OwnedValue::$variant(value.into())
            }
        }

        impl From<Vec<$native>> for OwnedValue {
            fn from(values: Vec<$native>) -> Self {
                OwnedValue::Array(ValueType::$variant, values.into_iter().map(OwnedValue::from).collect())
            }
        }
    )*};
}

owned_from! {
    u8 => U8, i8 => I8, u16 => U16, i16 => I16, u32 => U32, i32 => I32, u64 => U64, i64 => I64,
    f32 => F32, f64 => F64, bool => Bool, &str => String, String => String,
}

fn check_elements(key: &str, value: &OwnedValue) -> Result<(), WriteError> {
    let OwnedValue::Array(expected, elements) = value else { return Ok(()) };
    for element in elements {
        if element.value_type() != *expected {
            let (expected, found) = (expected.name(), element.value_type().name());
            return Err(WriteError::MixedArray { key: key.to_owned(), expected, found });
        }
        check_elements(key, element)?;
    }
    Ok(())
}

fn push_string(out: &mut Vec<u8>, text: &str) {
    out.extend((text.len() as u64).to_le_bytes());
    out.extend(text.as_bytes());
}

fn push_value(out: &mut Vec<u8>, value: &OwnedValue) {
    match value {
        OwnedValue::U8(value) => out.push(*value),
        OwnedValue::I8(value) => out.extend(value.to_le_bytes()),
        OwnedValue::U16(value) => out.extend(value.to_le_bytes()),
        OwnedValue::I16(value) => out.extend(value.to_le_bytes()),
        OwnedValue::U32(value) => out.extend(value.to_le_bytes()),
        OwnedValue::I32(value) => out.extend(value.to_le_bytes()),
        OwnedValue::F32(value) => out.extend(value.to_le_bytes()),
        OwnedValue::Bool(value) => out.push(u8::from(*value)),
        OwnedValue::String(value) => push_string(out, value),
        OwnedValue::Array(element_type, elements) => {
            out.extend(element_type.id().to_le_bytes());
            out.extend((elements.len() as u64).to_le_bytes());
            for element in elements {
                push_value(out, element);
            }
        }
        OwnedValue::U64(value) => out.extend(value.to_le_bytes()),
        OwnedValue::I64(value) => out.extend(value.to_le_bytes()),
        OwnedValue::F64(value) => out.extend(value.to_le_bytes()),
    }
}

fn pad(out: &mut impl Write, written: u64, alignment: u64) -> std::io::Result<()> {
    let padding = written.next_multiple_of(alignment) - written;
    std::io::copy(&mut std::io::Read::take(std::io::repeat(0), padding), out).map(|_| ())
}
