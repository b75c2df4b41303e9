//! Reading header keys: every getter names the key and what was found.

use crate::error::{Error, Result};
use bloomery_program::{Meta, ModelFacts};

/// Getters on [`ModelFacts`]. A key is given without the architecture: `block_count` finds `llama.block_count`, and a
/// key in full (`general.file_type`) is found too.
pub trait ReadFacts {
    /// An integer.
    ///
    /// # Errors
    /// The key is missing, is no integer, or does not fit 32 bits.
    fn int(&self, key: &str) -> Result<u32>;
    /// An integer, or `default` when the key is missing.
    ///
    /// # Errors
    /// The key is there and is no 32-bit integer.
    fn int_or(&self, key: &str, default: u32) -> Result<u32>;
    /// A 64-bit integer.
    ///
    /// # Errors
    /// The key is missing or no integer.
    fn long(&self, key: &str) -> Result<u64>;
    /// An integer of 1 to 65,535: the product of two of them fits 32 bits.
    ///
    /// # Errors
    /// As [`ReadFacts::int`], and for a number outside the range.
    fn count(&self, key: &str) -> Result<u32>;
    /// A count, or `default` when the key is missing.
    ///
    /// # Errors
    /// The key is there and is no count.
    fn count_or(&self, key: &str, default: u32) -> Result<u32>;
    /// A number.
    ///
    /// # Errors
    /// The key is missing, no number, or not finite in 32 bits.
    fn float(&self, key: &str) -> Result<f32>;
    /// A number, or `default` when the key is missing.
    ///
    /// # Errors
    /// The key is there and is no number.
    fn float_or(&self, key: &str, default: f32) -> Result<f32>;
    /// A truth value.
    ///
    /// # Errors
    /// The key is missing or no truth value.
    fn bool(&self, key: &str) -> Result<bool>;
    /// A truth value, or `default` when the key is missing.
    ///
    /// # Errors
    /// The key is there and is no truth value.
    fn bool_or(&self, key: &str, default: bool) -> Result<bool>;
    /// A string.
    ///
    /// # Errors
    /// The key is missing or no string.
    fn string(&self, key: &str) -> Result<&str>;
    /// A string, or `default` when the key is missing.
    ///
    /// # Errors
    /// The key is there and is no string.
    fn string_or<'a>(&'a self, key: &str, default: &'a str) -> Result<&'a str>;
    /// A list of integers.
    ///
    /// # Errors
    /// The key is missing, no list of 32-bit integers, or too long to cross the boundary.
    fn ints(&self, key: &str) -> Result<Vec<u32>>;
    /// A list of 64-bit integers.
    ///
    /// # Errors
    /// As [`ReadFacts::ints`].
    fn longs(&self, key: &str) -> Result<Vec<u64>>;
    /// A list of numbers.
    ///
    /// # Errors
    /// As [`ReadFacts::ints`].
    fn floats(&self, key: &str) -> Result<Vec<f32>>;
    /// A list of truth values.
    ///
    /// # Errors
    /// As [`ReadFacts::ints`].
    fn bools(&self, key: &str) -> Result<Vec<bool>>;
    /// Length of a list, also of one too long to cross the boundary.
    ///
    /// # Errors
    /// The key is missing or no list.
    fn list_len(&self, key: &str) -> Result<u64>;
    /// One count for each layer: a scalar stands for all, a list must have exactly `layers` entries.
    ///
    /// # Errors
    /// The key is missing, of another length, or holds something else than counts.
    fn counts_per_layer(&self, key: &str, layers: u32) -> Result<Vec<u32>>;
    /// One number for each layer, scalar or list.
    ///
    /// # Errors
    /// As [`ReadFacts::counts_per_layer`].
    fn floats_per_layer(&self, key: &str, layers: u32) -> Result<Vec<f32>>;
    /// One truth value for each layer, scalar or list.
    ///
    /// # Errors
    /// As [`ReadFacts::counts_per_layer`].
    fn bools_per_layer(&self, key: &str, layers: u32) -> Result<Vec<bool>>;
    /// Whether the file has the key.
    fn has_key(&self, key: &str) -> bool;
    /// Whether the file has the tensor.
    fn has_tensor(&self, tensor: &str) -> bool;
    /// Size of the vocabulary: length of `tokenizer.ggml.tokens`, or the key `vocab_size`, or for a file with neither
    /// the rows of `token_embd.weight`.
    ///
    /// # Errors
    /// The file says it nowhere.
    fn n_vocab(&self) -> Result<u32>;
}

impl ReadFacts for ModelFacts {
    fn int(&self, key: &str) -> Result<u32> {
        let value = get(self, key)?;
        integer(value)
            .and_then(|v| u32::try_from(v).ok())
            .ok_or_else(|| wrong(self, key, "a 32-bit unsigned integer", value))
    }
    fn int_or(&self, key: &str, default: u32) -> Result<u32> {
        if self.has_key(key) { self.int(key) } else { Ok(default) }
    }
    fn long(&self, key: &str) -> Result<u64> {
        let value = get(self, key)?;
        integer(value).ok_or_else(|| wrong(self, key, "an unsigned integer", value))
    }
    fn count(&self, key: &str) -> Result<u32> {
        let value = get(self, key)?;
        count(value).ok_or_else(|| wrong(self, key, COUNT, value))
    }
    fn count_or(&self, key: &str, default: u32) -> Result<u32> {
        if self.has_key(key) { self.count(key) } else { Ok(default) }
    }
    fn float(&self, key: &str) -> Result<f32> {
        let value = get(self, key)?;
        number(value).ok_or_else(|| wrong(self, key, "a number", value))
    }
    fn float_or(&self, key: &str, default: f32) -> Result<f32> {
        if self.has_key(key) { self.float(key) } else { Ok(default) }
    }
    fn bool(&self, key: &str) -> Result<bool> {
        let value = get(self, key)?;
        truth(value).ok_or_else(|| wrong(self, key, "true or false", value))
    }
    fn bool_or(&self, key: &str, default: bool) -> Result<bool> {
        if self.has_key(key) { self.bool(key) } else { Ok(default) }
    }
    fn string(&self, key: &str) -> Result<&str> {
        match get(self, key)? {
            Meta::Str(s) => Ok(s),
            other => Err(wrong(self, key, "a string", other)),
        }
    }
    fn string_or<'a>(&'a self, key: &str, default: &'a str) -> Result<&'a str> {
        if self.has_key(key) { self.string(key) } else { Ok(default) }
    }
    fn ints(&self, key: &str) -> Result<Vec<u32>> {
        list(self, key, "a list of 32-bit unsigned integers", |v| {
            integer(v).and_then(|v| u32::try_from(v).ok())
        })
    }
    fn longs(&self, key: &str) -> Result<Vec<u64>> {
        list(self, key, "a list of unsigned integers", integer)
    }
    fn floats(&self, key: &str) -> Result<Vec<f32>> {
        list(self, key, "a list of numbers", number)
    }
    fn bools(&self, key: &str) -> Result<Vec<bool>> {
        list(self, key, "a list of truth values", truth)
    }
    fn list_len(&self, key: &str) -> Result<u64> {
        match get(self, key)? {
            Meta::List(entries) => Ok(entries.len() as u64),
            Meta::Elided { elided } => Ok(*elided),
            other => Err(wrong(self, key, "a list", other)),
        }
    }
    fn counts_per_layer(&self, key: &str, layers: u32) -> Result<Vec<u32>> {
        per_layer(self, key, layers, COUNT, count)
    }
    fn floats_per_layer(&self, key: &str, layers: u32) -> Result<Vec<f32>> {
        per_layer(self, key, layers, "a number", number)
    }
    fn bools_per_layer(&self, key: &str, layers: u32) -> Result<Vec<bool>> {
        per_layer(self, key, layers, "true or false", truth)
    }
    fn has_key(&self, key: &str) -> bool {
        self.find(key).is_some()
    }
    fn has_tensor(&self, tensor: &str) -> bool {
        self.has(tensor)
    }
    fn n_vocab(&self) -> Result<u32> {
        let (source, size) = if self.has_key("tokenizer.ggml.tokens") {
            ("tokenizer.ggml.tokens", self.list_len("tokenizer.ggml.tokens")?)
        } else if self.has_key("vocab_size") {
            ("vocab_size", self.long("vocab_size")?)
        } else {
            let table = self
                .tensors
                .get("token_embd.weight")
                .ok_or_else(|| Error::MissingTensor { tensor: "token_embd.weight".into() })?;
            ("token_embd.weight", table.dims.get(1).copied().unwrap_or(0))
        };
        u32::try_from(size).ok().filter(|n| *n > 0).ok_or_else(|| Error::Key {
            key: source.into(),
            expected: "a vocabulary of 1 to 4,294,967,295 tokens".into(),
            found: size.to_string(),
        })
    }
}

/// Facts from JSON, as `seat facts MODEL` prints them: for a seat's own fixtures.
///
/// # Errors
/// The text is no JSON of [`ModelFacts`].
pub fn facts_from_json(text: &str) -> Result<ModelFacts> {
    serde_json::from_str(text).map_err(|e| Error::refused(format!("facts: {e}")))
}

const COUNT: &str = "an integer of 1 to 65535";

fn integer(value: &Meta) -> Option<u64> {
    match value {
        Meta::Int(v) => u64::try_from(*v).ok(),
        Meta::Uint(v) => Some(*v),
        _ => None,
    }
}

fn count(value: &Meta) -> Option<u32> {
    integer(value).filter(|v| (1..=65_535).contains(v)).map(|v| v as u32)
}

fn number(value: &Meta) -> Option<f32> {
    let wide = match value {
        Meta::Float(v) => *v,
        Meta::Int(v) => *v as f64,
        Meta::Uint(v) => *v as f64,
        _ => return None,
    };
    Some(wide as f32).filter(|v| v.is_finite())
}

fn truth(value: &Meta) -> Option<bool> {
    if let Meta::Bool(v) = value { Some(*v) } else { None }
}

fn list<T>(
    facts: &ModelFacts,
    key: &str,
    expected: &str,
    read: impl Fn(&Meta) -> Option<T>,
) -> Result<Vec<T>> {
    let value = get(facts, key)?;
    let Meta::List(entries) = value else { return Err(wrong(facts, key, expected, value)) };
    entries.iter().map(|v| read(v).ok_or_else(|| wrong(facts, key, expected, v))).collect()
}

fn per_layer<T: Clone>(
    facts: &ModelFacts,
    key: &str,
    layers: u32,
    expected: &str,
    read: impl Fn(&Meta) -> Option<T>,
) -> Result<Vec<T>> {
    let value = get(facts, key)?;
    let Meta::List(entries) = value else {
        let one = read(value).ok_or_else(|| wrong(facts, key, expected, value))?;
        return Ok(vec![one; layers as usize]);
    };
    if entries.len() != layers as usize {
        return Err(wrong(facts, key, &format!("{expected}, or a list of {layers} of them"), value));
    }
    entries.iter().map(|v| read(v).ok_or_else(|| wrong(facts, key, expected, v))).collect()
}

fn get<'f>(facts: &'f ModelFacts, key: &str) -> Result<&'f Meta> {
    facts.find(key).ok_or_else(|| Error::MissingKey { key: full_name(facts, key) })
}

fn wrong(facts: &ModelFacts, key: &str, expected: &str, found: &Meta) -> Error {
    Error::Key { key: full_name(facts, key), expected: expected.into(), found: show(found) }
}

/// The key as it stands in the file, or as it would be looked for first.
pub(crate) fn full_name(facts: &ModelFacts, key: &str) -> String {
    let with_arch = format!("{}.{key}", facts.arch);
    let global = key.starts_with("general.") || key.starts_with("tokenizer.");
    if !facts.meta.contains_key(&with_arch) && (global || facts.meta.contains_key(key)) {
        key.to_string()
    } else {
        with_arch
    }
}

fn show(value: &Meta) -> String {
    match value {
        Meta::Bool(v) => v.to_string(),
        Meta::Int(v) => v.to_string(),
        Meta::Uint(v) => v.to_string(),
        Meta::Float(v) => format!("{v:?}"),
        Meta::Str(s) if s.chars().count() > 60 => {
            format!("the string {:?}...", s.chars().take(60).collect::<String>())
        }
        Meta::Str(s) => format!("the string {s:?}"),
        Meta::List(entries) => format!("a list of {}", entries.len()),
        Meta::Elided { elided } => format!("a list of {elided}, too long to cross to a seat"),
    }
}
