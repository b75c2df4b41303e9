//! The metadata of a file: keys in file order, values decoded where they lie. Getters name the key, the type that was
//! needed and the type that was found.

use std::collections::HashMap;

use crate::cursor::Cursor;
use crate::error::GgufError;
use crate::value::{self, ArrayView, MAX_ARRAY_DEPTH, Value, ValueFault, ValueType};

/// The longest key that the format allows, in bytes.
const MAX_KEY_BYTES: u64 = 65_535;

/// Where each value lies; owns the keys and nothing else.
#[derive(Debug, Default)]
pub(crate) struct MetadataIndex {
    entries: Vec<Entry>,
    by_key: HashMap<Box<str>, usize>,
}

#[derive(Debug)]
struct Entry {
    key: Box<str>,
    value_type: ValueType,
    /// The value's bytes in the file, after its type number.
    start: usize,
    end: usize,
}

impl MetadataIndex {
    /// Reads `count` entries. Memory grows with the entries that are really there, never with `count`.
    pub(crate) fn read(cursor: &mut Cursor<'_>, count: u64) -> Result<Self, GgufError> {
        let mut index = MetadataIndex::default();
        for number in 0..count {
            let start = cursor.offset() as u64;
            let key = read_key(cursor, number)?;
            if index.by_key.contains_key(key) {
                return Err(GgufError::DuplicateKey { key: key.to_owned(), offset: start });
            }
            let value_type = value::read_type(cursor).map_err(|fault| with_key(fault, key))?;
            let start = cursor.offset();
            value::check(cursor, value_type).map_err(|fault| with_key(fault, key))?;
            index.by_key.insert(key.into(), index.entries.len());
            index.entries.push(Entry { key: key.into(), value_type, start, end: cursor.offset() });
        }
        Ok(index)
    }

    pub(crate) fn view<'a>(&'a self, bytes: &'a [u8]) -> Metadata<'a> {
        Metadata { index: self, bytes }
    }
}

fn read_key<'a>(cursor: &mut Cursor<'a>, index: u64) -> Result<&'a str, GgufError> {
    let offset = cursor.offset() as u64;
    let name = || format!("the key of metadata entry {index}");
    let length = cursor.u64().map_err(|short| short.reading(name()))?;
    if length == 0 {
        return Err(GgufError::EmptyKey { index, offset });
    }
    if length > MAX_KEY_BYTES {
        return Err(GgufError::KeyTooLong { index, offset, length });
    }
    let bytes = cursor.take(length).map_err(|short| short.reading(name()))?;
    std::str::from_utf8(bytes).map_err(|_| GgufError::NotUtf8 { what: name(), offset: offset + 8 })
}

fn with_key(fault: ValueFault, key: &str) -> GgufError {
    match fault {
        ValueFault::Short(short) => short.reading(format!("the value of metadata key `{key}`")),
        ValueFault::UnknownType { id, offset } => {
            GgufError::UnknownValueType { key: key.to_owned(), id, offset }
        }
        ValueFault::TooDeep { offset } => {
            GgufError::ArrayTooDeep { key: key.to_owned(), offset, limit: MAX_ARRAY_DEPTH }
        }
        ValueFault::Bool { byte, offset } => GgufError::InvalidBool { key: key.to_owned(), byte, offset },
        ValueFault::NotUtf8 { offset } => {
            GgufError::NotUtf8 { what: format!("the value of metadata key `{key}`"), offset }
        }
    }
}

/// The metadata of a file, borrowed from it. Cheap to copy.
#[derive(Clone, Copy)]
pub struct Metadata<'a> {
    index: &'a MetadataIndex,
    bytes: &'a [u8],
}

impl<'a> Metadata<'a> {
    /// Number of keys.
    pub fn len(&self) -> usize {
        self.index.entries.len()
    }

    /// True for a file without metadata.
    pub fn is_empty(&self) -> bool {
        self.index.entries.is_empty()
    }

    /// Keys and values in file order.
    pub fn iter(&self) -> impl Iterator<Item = (&'a str, Value<'a>)> + use<'a> {
        let (entries, bytes) = (&self.index.entries, self.bytes);
        entries.iter().filter_map(move |entry| Some((&*entry.key, entry.decode(bytes)?)))
    }

    /// The value of `key`, if the file has it.
    pub fn get(&self, key: &str) -> Option<Value<'a>> {
        let position = *self.index.by_key.get(key)?;
        self.index.entries.get(position)?.decode(self.bytes)
    }

    /// True if the file has `key`.
    pub fn contains(&self, key: &str) -> bool {
        self.index.by_key.contains_key(key)
    }

    /// The value of `key`.
    ///
    /// # Errors
    /// [`GgufError::MissingKey`].
    pub fn require(&self, key: &str) -> Result<Value<'a>, GgufError> {
        self.get(key).ok_or_else(|| GgufError::MissingKey { key: key.to_owned() })
    }

    /// An unsigned number of up to 32 bits. Every integer type is accepted as long as the value fits: converters differ
    /// in the width they write.
    ///
    /// # Errors
    /// The key is missing, not an integer, or out of range.
    pub fn u32(&self, key: &str) -> Result<u32, GgufError> {
        self.integer(key, "u32")
    }

    /// A signed number of up to 32 bits; accepts types as [`Metadata::u32`] does.
    ///
    /// # Errors
    /// The key is missing, not an integer, or out of range.
    pub fn i32(&self, key: &str) -> Result<i32, GgufError> {
        self.integer(key, "i32")
    }

    /// An unsigned number of up to 64 bits; accepts types as [`Metadata::u32`] does.
    ///
    /// # Errors
    /// The key is missing, not an integer, or negative.
    pub fn u64(&self, key: &str) -> Result<u64, GgufError> {
        self.integer(key, "u64")
    }

    /// A float; an f64 is rounded to f32.
    ///
    /// # Errors
    /// The key is missing or not a float.
    pub fn f32(&self, key: &str) -> Result<f32, GgufError> {
        let value = self.require(key)?;
        value.as_float().map(|wide| wide as f32).ok_or_else(|| mismatch(key, "a float", &value))
    }

    /// A boolean.
    ///
    /// # Errors
    /// The key is missing or not a boolean.
    pub fn bool(&self, key: &str) -> Result<bool, GgufError> {
        let value = self.require(key)?;
        value.as_bool().ok_or_else(|| mismatch(key, "bool", &value))
    }

    /// Text.
    ///
    /// # Errors
    /// The key is missing or not a string.
    pub fn str(&self, key: &str) -> Result<&'a str, GgufError> {
        let value = self.require(key)?;
        value.as_str().ok_or_else(|| mismatch(key, "str", &value))
    }

    /// An array of any element type.
    ///
    /// # Errors
    /// The key is missing or not an array.
    pub fn array(&self, key: &str) -> Result<ArrayView<'a>, GgufError> {
        let value = self.require(key)?;
        value.as_array().ok_or_else(|| mismatch(key, "an array", &value))
    }

    /// An array of integers of any width, each in the range of u32.
    ///
    /// # Errors
    /// The key is missing, not an array of integers, or an element is out of range.
    pub fn u32_array(&self, key: &str) -> Result<Vec<u32>, GgufError> {
        self.integer_array(key, "u32")
    }

    /// An array of integers of any width, each in the range of i32.
    ///
    /// # Errors
    /// The key is missing, not an array of integers, or an element is out of range.
    pub fn i32_array(&self, key: &str) -> Result<Vec<i32>, GgufError> {
        self.integer_array(key, "i32")
    }

    /// An array of f32 or f64 (rounded to f32).
    ///
    /// # Errors
    /// The key is missing or not an array of floats.
    pub fn f32_array(&self, key: &str) -> Result<Vec<f32>, GgufError> {
        let array = self.array(key)?;
        if !matches!(array.element_type(), ValueType::F32 | ValueType::F64) {
            return Err(mismatch(key, "an array of floats", &Value::Array(array)));
        }
        Ok(array.floats().map(|wide| wide as f32).collect())
    }

    /// An array of booleans.
    ///
    /// # Errors
    /// The key is missing or not an array of booleans.
    pub fn bool_array(&self, key: &str) -> Result<Vec<bool>, GgufError> {
        let array = self.array(key)?;
        if array.element_type() != ValueType::Bool {
            return Err(mismatch(key, "an array of booleans", &Value::Array(array)));
        }
        Ok(array.iter().filter_map(|value| value.as_bool()).collect())
    }

    /// An array of strings, borrowed. For a whole vocabulary without the `Vec`, iterate [`ArrayView::strings`].
    ///
    /// # Errors
    /// The key is missing, not an array of strings, or an element is not UTF-8.
    pub fn str_array(&self, key: &str) -> Result<Vec<&'a str>, GgufError> {
        let array = self.array(key)?;
        if array.element_type() != ValueType::String {
            return Err(mismatch(key, "an array of strings", &Value::Array(array)));
        }
        let not_utf8 = |index| GgufError::NotUtf8 {
            what: format!("element {index} of metadata key `{key}`"),
            offset: array.offset(),
        };
        array.strings().map(|text| text.map_err(not_utf8)).collect()
    }

    fn integer<T: TryFrom<i128>>(&self, key: &str, expected: &'static str) -> Result<T, GgufError> {
        let value = self.require(key)?;
        let wide = value.as_integer().ok_or_else(|| mismatch(key, expected, &value))?;
        narrow(key, expected, wide)
    }

    fn integer_array<T: TryFrom<i128>>(
        &self,
        key: &str,
        expected: &'static str,
    ) -> Result<Vec<T>, GgufError> {
        let array = self.array(key)?;
        let is_integer = !matches!(
            array.element_type(),
            ValueType::F32 | ValueType::F64 | ValueType::Bool | ValueType::String | ValueType::Array
        );
        if !is_integer {
            return Err(mismatch(key, "an array of integers", &Value::Array(array)));
        }
        array.integers().map(|wide| narrow(key, expected, wide)).collect()
    }
}

/// Turns "the key is missing" into `None`, and leaves every other fault an error: a key of the wrong type must not pass
/// for an absent one.
///
/// # Errors
/// Those of `result`, except a missing key.
pub fn optional<T>(result: Result<T, GgufError>) -> Result<Option<T>, GgufError> {
    match result {
        Ok(value) => Ok(Some(value)),
        Err(error) if error.is_missing_key() => Ok(None),
        Err(error) => Err(error),
    }
}

impl std::fmt::Debug for Metadata<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_map().entries(self.iter()).finish()
    }
}

impl Entry {
    fn decode<'a>(&self, bytes: &'a [u8]) -> Option<Value<'a>> {
        match self.value_type {
            // Its end is known: no need to walk a vocabulary again.
            ValueType::Array => value::array_between(bytes, self.start, self.end).map(Value::Array),
            other => value::decode(&mut Cursor::at(bytes, self.start), other, 0),
        }
    }
}

fn mismatch(key: &str, expected: &'static str, found: &Value<'_>) -> GgufError {
    GgufError::TypeMismatch { key: key.to_owned(), expected, found: found.describe() }
}

fn narrow<T: TryFrom<i128>>(key: &str, expected: &'static str, wide: i128) -> Result<T, GgufError> {
    T::try_from(wide).map_err(|_| GgufError::OutOfRange { key: key.to_owned(), expected, found: wide })
}
