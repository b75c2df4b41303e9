//! Metadata values, borrowed from the file's bytes. Arrays stay where they are: [`ArrayView`] is an element type, a
//! length and a slice, and decodes one element at a time, so a vocabulary of 150,000 tokens costs nothing until read.

use crate::cursor::{Cursor, Short};

/// The types a metadata value can have.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[allow(missing_docs)] // the names are the format's own
pub enum ValueType {
    U8,
    I8,
    U16,
    I16,
    U32,
    I32,
    F32,
    Bool,
    String,
    Array,
    U64,
    I64,
    F64,
}

impl ValueType {
    /// Every type, in the order of its number in the file (0 to 12).
    pub const ALL: [ValueType; 13] = [
        ValueType::U8,
        ValueType::I8,
        ValueType::U16,
        ValueType::I16,
        ValueType::U32,
        ValueType::I32,
        ValueType::F32,
        ValueType::Bool,
        ValueType::String,
        ValueType::Array,
        ValueType::U64,
        ValueType::I64,
        ValueType::F64,
    ];

    /// The type with this number in the file.
    pub fn from_id(id: u32) -> Option<Self> {
        Self::ALL.get(usize::try_from(id).ok()?).copied()
    }

    /// The type's number in the file.
    pub fn id(self) -> u32 {
        self as u32
    }

    /// The format's name of the type, as llama.cpp prints it.
    pub fn name(self) -> &'static str {
        match self {
            ValueType::U8 => "u8",
            ValueType::I8 => "i8",
            ValueType::U16 => "u16",
            ValueType::I16 => "i16",
            ValueType::U32 => "u32",
            ValueType::I32 => "i32",
            ValueType::F32 => "f32",
            ValueType::Bool => "bool",
            ValueType::String => "str",
            ValueType::Array => "arr",
            ValueType::U64 => "u64",
            ValueType::I64 => "i64",
            ValueType::F64 => "f64",
        }
    }

    /// Bytes of a value of a fixed-size type; `None` for strings and arrays.
    pub fn fixed_bytes(self) -> Option<usize> {
        match self {
            ValueType::U8 | ValueType::I8 | ValueType::Bool => Some(1),
            ValueType::U16 | ValueType::I16 => Some(2),
            ValueType::U32 | ValueType::I32 | ValueType::F32 => Some(4),
            ValueType::U64 | ValueType::I64 | ValueType::F64 => Some(8),
            ValueType::String | ValueType::Array => None,
        }
    }

    /// The fewest bytes that any value of the type takes: an empty string is its length, an empty array its head.
    pub(crate) fn least_bytes(self) -> u64 {
        match self {
            ValueType::String => 8,
            ValueType::Array => 12,
            fixed => fixed.fixed_bytes().unwrap_or(1) as u64,
        }
    }
}

/// One metadata value.
#[derive(Debug, Clone, Copy, PartialEq)]
#[allow(missing_docs)] // one variant a type
pub enum Value<'a> {
    U8(u8),
    I8(i8),
    U16(u16),
    I16(i16),
    U32(u32),
    I32(i32),
    F32(f32),
    Bool(bool),
    String(&'a str),
    Array(ArrayView<'a>),
    U64(u64),
    I64(i64),
    F64(f64),
}

impl<'a> Value<'a> {
    /// The value's type.
    pub fn value_type(&self) -> ValueType {
        match self {
            Value::U8(_) => ValueType::U8,
            Value::I8(_) => ValueType::I8,
            Value::U16(_) => ValueType::U16,
            Value::I16(_) => ValueType::I16,
            Value::U32(_) => ValueType::U32,
            Value::I32(_) => ValueType::I32,
            Value::F32(_) => ValueType::F32,
            Value::Bool(_) => ValueType::Bool,
            Value::String(_) => ValueType::String,
            Value::Array(_) => ValueType::Array,
            Value::U64(_) => ValueType::U64,
            Value::I64(_) => ValueType::I64,
            Value::F64(_) => ValueType::F64,
        }
    }

    /// The type in words, for messages: `u32`, `arr[str, 151936]`.
    pub fn describe(&self) -> String {
        match self {
            Value::Array(array) => format!("arr[{}, {}]", array.element_type().name(), array.len()),
            other => other.value_type().name().to_owned(),
        }
    }

    /// Any of the eight integer types, widened; `None` for everything else.
    pub fn as_integer(&self) -> Option<i128> {
        Some(match *self {
            Value::U8(value) => value.into(),
            Value::I8(value) => value.into(),
            Value::U16(value) => value.into(),
            Value::I16(value) => value.into(),
            Value::U32(value) => value.into(),
            Value::I32(value) => value.into(),
            Value::U64(value) => value.into(),
            Value::I64(value) => value.into(),
            _ => return None,
        })
    }

    /// A float of either width.
    pub fn as_float(&self) -> Option<f64> {
        match *self {
            Value::F32(value) => Some(value.into()),
            Value::F64(value) => Some(value),
            _ => None,
        }
    }

    /// A boolean.
    pub fn as_bool(&self) -> Option<bool> {
        if let Value::Bool(value) = *self { Some(value) } else { None }
    }

    /// Text.
    pub fn as_str(&self) -> Option<&'a str> {
        if let Value::String(value) = *self { Some(value) } else { None }
    }

    /// An array.
    pub fn as_array(&self) -> Option<ArrayView<'a>> {
        if let Value::Array(value) = *self { Some(value) } else { None }
    }
}

/// An array in the file: element type, number of elements, and their bytes.
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct ArrayView<'a> {
    element_type: ValueType,
    len: usize,
    bytes: &'a [u8],
    /// Where `bytes` starts in the file, for messages.
    offset: usize,
}

impl<'a> ArrayView<'a> {
    /// Type of the elements.
    pub fn element_type(&self) -> ValueType {
        self.element_type
    }

    /// Number of elements.
    pub fn len(&self) -> usize {
        self.len
    }

    /// True for an array without elements.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// The elements as they lie in the file, little-endian.
    pub fn bytes(&self) -> &'a [u8] {
        self.bytes
    }

    /// Byte of the file where the first element starts.
    pub fn offset(&self) -> u64 {
        self.offset as u64
    }

    /// Element `index` of an array of fixed-size elements; `None` past the end, or for strings and arrays, which have
    /// to be walked from the start.
    pub fn get(&self, index: usize) -> Option<Value<'a>> {
        let width = self.element_type.fixed_bytes()?;
        let start = index.checked_mul(width)?;
        if index >= self.len {
            return None;
        }
        decode(&mut Cursor::at(self.bytes, start), self.element_type, self.offset)
    }

    /// The elements in order. A string that is not UTF-8 ends the iteration: use [`ArrayView::strings`] to see it.
    pub fn iter(&self) -> impl Iterator<Item = Value<'a>> + use<'a> {
        let (element_type, base) = (self.element_type, self.offset);
        let mut cursor = Cursor::at(self.bytes, 0);
        (0..self.len).map_while(move |_| decode(&mut cursor, element_type, base))
    }

    /// The strings of an array of strings, each as its raw bytes; nothing for other element types.
    pub fn byte_strings(&self) -> impl Iterator<Item = &'a [u8]> + use<'a> {
        let len = if self.element_type == ValueType::String { self.len } else { 0 };
        let mut cursor = Cursor::at(self.bytes, 0);
        (0..len).map_while(move |_| cursor.string().ok())
    }

    /// The strings of an array of strings; an element that is not UTF-8 is an error at its place, with its index.
    pub fn strings(&self) -> impl Iterator<Item = Result<&'a str, usize>> + use<'a> {
        self.byte_strings().enumerate().map(|(index, bytes)| std::str::from_utf8(bytes).map_err(|_| index))
    }

    /// The integers of an array of any integer type, widened; stops at once for other element types.
    pub fn integers(&self) -> impl Iterator<Item = i128> + use<'a> {
        self.iter().map_while(|value| value.as_integer())
    }

    /// The floats of an array of f32 or f64; stops at once for other element types.
    pub fn floats(&self) -> impl Iterator<Item = f64> + use<'a> {
        self.iter().map_while(|value| value.as_float())
    }
}

impl std::fmt::Debug for ArrayView<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "arr[{}, {}] at byte {}", self.element_type.name(), self.len, self.offset)
    }
}

/// Arrays of arrays of arrays ... end here. The format sets no limit; published files use depth 1.
pub(crate) const MAX_ARRAY_DEPTH: u32 = 8;

/// What can be wrong with a value; the caller adds the key.
#[derive(Debug)]
pub(crate) enum ValueFault {
    Short(Short),
    UnknownType { id: u32, offset: u64 },
    TooDeep { offset: u64 },
    Bool { byte: u8, offset: u64 },
    NotUtf8 { offset: u64 },
}

impl From<Short> for ValueFault {
    fn from(short: Short) -> Self {
        ValueFault::Short(short)
    }
}

/// Reads a value's type number.
pub(crate) fn read_type(cursor: &mut Cursor<'_>) -> Result<ValueType, ValueFault> {
    let offset = cursor.offset() as u64;
    let id = cursor.u32()?;
    ValueType::from_id(id).ok_or(ValueFault::UnknownType { id, offset })
}

/// Steps over a value and checks it on the way. Touches every byte of strings' lengths and of booleans, and none of
/// the payload of numeric arrays.
pub(crate) fn check(cursor: &mut Cursor<'_>, value_type: ValueType) -> Result<(), ValueFault> {
    match value_type {
        ValueType::Array => check_array(cursor, 1),
        ValueType::String => {
            let offset = cursor.offset() as u64 + 8;
            let text = cursor.string()?;
            std::str::from_utf8(text).map_err(|_| ValueFault::NotUtf8 { offset })?;
            Ok(())
        }
        fixed => check_fixed(cursor, fixed, 1),
    }
}

fn check_array(cursor: &mut Cursor<'_>, depth: u32) -> Result<(), ValueFault> {
    if depth > MAX_ARRAY_DEPTH {
        return Err(ValueFault::TooDeep { offset: cursor.offset() as u64 });
    }
    let element_type = read_type(cursor)?;
    let len = cursor.u64()?;
    cursor.expect_elements(len, element_type.least_bytes())?;
    match element_type {
        ValueType::Array => {
            for _ in 0..len {
                check_array(cursor, depth + 1)?;
            }
        }
        // Text inside arrays is checked where it is read: vocabularies are long and some tokens are raw bytes.
        ValueType::String => {
            for _ in 0..len {
                cursor.string()?;
            }
        }
        fixed => check_fixed(cursor, fixed, len)?,
    }
    Ok(())
}

fn check_fixed(cursor: &mut Cursor<'_>, value_type: ValueType, count: u64) -> Result<(), ValueFault> {
    let start = cursor.offset() as u64;
    let bytes = cursor.take(count.saturating_mul(value_type.least_bytes()))?;
    if value_type == ValueType::Bool {
        let wrong = bytes.iter().enumerate().find(|(_, byte)| **byte > 1);
        if let Some((index, byte)) = wrong {
            return Err(ValueFault::Bool { byte: *byte, offset: start + index as u64 });
        }
    }
    Ok(())
}

/// Decodes a value that [`check`] accepted. `base` is what to add to the cursor's offset for messages. `None` only if
/// the bytes changed since (a file rewritten under its map) or hold text that is not UTF-8.
pub(crate) fn decode<'a>(cursor: &mut Cursor<'a>, value_type: ValueType, base: usize) -> Option<Value<'a>> {
    Some(match value_type {
        ValueType::U8 => Value::U8(u8::from_le_bytes(cursor.array().ok()?)),
        ValueType::I8 => Value::I8(i8::from_le_bytes(cursor.array().ok()?)),
        ValueType::U16 => Value::U16(u16::from_le_bytes(cursor.array().ok()?)),
        ValueType::I16 => Value::I16(i16::from_le_bytes(cursor.array().ok()?)),
        ValueType::U32 => Value::U32(u32::from_le_bytes(cursor.array().ok()?)),
        ValueType::I32 => Value::I32(i32::from_le_bytes(cursor.array().ok()?)),
        ValueType::F32 => Value::F32(f32::from_le_bytes(cursor.array().ok()?)),
        ValueType::U64 => Value::U64(u64::from_le_bytes(cursor.array().ok()?)),
        ValueType::I64 => Value::I64(i64::from_le_bytes(cursor.array().ok()?)),
        ValueType::F64 => Value::F64(f64::from_le_bytes(cursor.array().ok()?)),
        ValueType::Bool => Value::Bool(cursor.array::<1>().ok()? != [0]),
        ValueType::String => Value::String(std::str::from_utf8(cursor.string().ok()?).ok()?),
        ValueType::Array => Value::Array(decode_array(cursor, base)?),
    })
}

/// The array whose type number, length and elements fill `start..end` of the file.
pub(crate) fn array_between(bytes: &[u8], start: usize, end: usize) -> Option<ArrayView<'_>> {
    let mut cursor = Cursor::at(bytes, start);
    let element_type = read_type(&mut cursor).ok()?;
    let len = usize::try_from(cursor.u64().ok()?).ok()?;
    let payload = bytes.get(cursor.offset()..end)?;
    Some(ArrayView { element_type, len, bytes: payload, offset: cursor.offset() })
}

fn decode_array<'a>(cursor: &mut Cursor<'a>, base: usize) -> Option<ArrayView<'a>> {
    let start = cursor.offset();
    // The end of an array of strings or arrays is only found by walking it.
    check_array(cursor, 1).ok()?;
    let inner = array_between(cursor.bytes(), start, cursor.offset())?;
    Some(ArrayView { offset: base + inner.offset, ..inner })
}
