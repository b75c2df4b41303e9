//! A GGUF file's metadata as a tokenizer reads it.

use bloomery_gguf::{GgufError, ValueType, optional};
use bloomery_tokenizer::{Metadata, MetadataError};

pub struct Keys<'a>(pub bloomery_gguf::Metadata<'a>);

impl Metadata for Keys<'_> {
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
        let expected = "an array of strings";
        match self.read(key, expected, self.0.array(key))? {
            Some(array) if array.element_type() == ValueType::String => {
                Ok(Some(array.byte_strings().map(<[u8]>::to_vec).collect()))
            }
            Some(_) => Err(self.mismatch(key, expected)),
            None => Ok(None),
        }
    }

    fn floats(&self, key: &str) -> Result<Option<Vec<f32>>, MetadataError> {
        let expected = "an array of f32 or i32";
        match self.read(key, expected, self.0.array(key))? {
            Some(array) if array.element_type() == ValueType::F32 => {
                Ok(Some(array.floats().map(|score| score as f32).collect()))
            }
            Some(array) if array.element_type() == ValueType::I32 => {
                Ok(Some(array.integers().map(|score| score as f32).collect()))
            }
            Some(_) => Err(self.mismatch(key, expected)),
            None => Ok(None),
        }
    }

    fn integers(&self, key: &str) -> Result<Option<Vec<i32>>, MetadataError> {
        self.read(key, "an array of i32", self.0.i32_array(key))
    }

    fn bytes(&self, key: &str) -> Result<Option<Vec<u8>>, MetadataError> {
        let expected = "an array of u8 or i8";
        match self.read(key, expected, self.0.array(key))? {
            Some(array) if matches!(array.element_type(), ValueType::U8 | ValueType::I8) => {
                Ok(Some(array.bytes().to_vec()))
            }
            Some(_) => Err(self.mismatch(key, expected)),
            None => Ok(None),
        }
    }
}

impl Keys<'_> {
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
