//! A file's header as a seat is asked about it, and as a tokenizer reads it.

use bloomery_gguf::{ArrayView, GgufError, GgufFile, Value, ValueType, optional};
use bloomery_program::{Meta, ModelFacts, TensorFacts, facts::crosses};
use bloomery_tokenizer::{Metadata, MetadataError};

/// Header keys and tensor directory of a file, long arrays of the tokenizer as their length only.
///
/// # Errors
/// The file does not name its architecture.
pub fn model_facts(file: &GgufFile) -> Result<ModelFacts, GgufError> {
    let metadata = file.metadata();
    let tensors = file.tensors().iter().map(|tensor| {
        let facts =
            TensorFacts { dims: tensor.dims().to_vec(), dtype: tensor.weight_type().name().to_owned() };
        (tensor.name().to_owned(), facts)
    });
    Ok(ModelFacts {
        arch: metadata.str("general.architecture")?.to_owned(),
        // Infinities and NaN have no JSON: such a key is as good as absent for a seat.
        meta: metadata.iter().filter_map(|(key, value)| Some((key.to_owned(), meta(key, value)?))).collect(),
        tensors: tensors.collect(),
    })
}

fn meta(key: &str, value: Value<'_>) -> Option<Meta> {
    if let Some(number) = value.as_integer() {
        return i64::try_from(number).map(Meta::Int).or_else(|_| u64::try_from(number).map(Meta::Uint)).ok();
    }
    if let Some(flag) = value.as_bool() {
        return Some(Meta::Bool(flag));
    }
    if let Some(text) = value.as_str() {
        return Some(Meta::Str(text.to_owned()));
    }
    if let Some(array) = value.as_array() {
        return Some(list(key, array));
    }
    value.as_float().filter(|number| number.is_finite()).map(Meta::Float)
}

fn list(key: &str, array: ArrayView<'_>) -> Meta {
    let elided = Meta::Elided { elided: array.len() as u64 };
    if !crosses(key, array.len()) {
        return elided;
    }
    array.iter().map(|value| meta(key, value)).collect::<Option<Vec<_>>>().map_or(elided, Meta::List)
}

/// A file's keys as a tokenizer reads them.
pub(crate) struct TokenizerKeys<'a>(pub bloomery_gguf::Metadata<'a>);

impl Metadata for TokenizerKeys<'_> {
    fn string(&self, key: &str) -> Result<Option<String>, MetadataError> {
        self.read(key, "a string", self.0.str(key).map(str::to_owned))
    }

    fn boolean(&self, key: &str) -> Result<Option<bool>, MetadataError> {
        self.read(key, "a boolean", self.0.bool(key))
    }

    fn unsigned(&self, key: &str) -> Result<Option<u32>, MetadataError> {
        self.read(key, "an unsigned number", self.0.u32(key))
    }

    fn strings(&self, key: &str) -> Result<Option<Vec<Vec<u8>>>, MetadataError> {
        let wanted = |kind| kind == ValueType::String;
        let array = self.array(key, "an array of strings", wanted)?;
        Ok(array.map(|array| array.byte_strings().map(<[u8]>::to_vec).collect()))
    }

    fn floats(&self, key: &str) -> Result<Option<Vec<f32>>, MetadataError> {
        let wanted = |kind| matches!(kind, ValueType::F32 | ValueType::I32);
        let array = self.array(key, "an array of f32 or i32", wanted)?;
        Ok(array.map(|array| match array.element_type() {
            ValueType::F32 => array.floats().map(|score| score as f32).collect(),
            _ => array.integers().map(|score| score as f32).collect(),
        }))
    }

    fn integers(&self, key: &str) -> Result<Option<Vec<i32>>, MetadataError> {
        self.read(key, "an array of i32", self.0.i32_array(key))
    }

    fn bytes(&self, key: &str) -> Result<Option<Vec<u8>>, MetadataError> {
        let wanted = |kind| matches!(kind, ValueType::U8 | ValueType::I8);
        let array = self.array(key, "an array of u8 or i8", wanted)?;
        Ok(array.map(|array| array.bytes().to_vec()))
    }
}

impl<'a> TokenizerKeys<'a> {
    fn array(
        &self,
        key: &str,
        expected: &'static str,
        wanted: impl Fn(ValueType) -> bool,
    ) -> Result<Option<ArrayView<'a>>, MetadataError> {
        match self.read(key, expected, self.0.array(key))? {
            Some(array) if !wanted(array.element_type()) => Err(self.mismatch(key, expected)),
            array => Ok(array),
        }
    }

    fn read<T>(
        &self,
        key: &str,
        expected: &'static str,
        value: Result<T, GgufError>,
    ) -> Result<Option<T>, MetadataError> {
        optional(value).map_err(|_| self.mismatch(key, expected))
    }

    fn mismatch(&self, key: &str, expected: &'static str) -> MetadataError {
        let found = self.0.get(key).map_or_else(|| "nothing".to_owned(), |value| value.describe());
        MetadataError { key: key.to_owned(), found, expected }
    }
}
