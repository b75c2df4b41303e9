use crate::vocabulary::Vocabulary;

/// A file's metadata, as far as a tokenizer needs it.
///
/// Every method answers `Ok(None)` where the key is absent and `Err` where it is there with another type: a key that is
/// present is never passed over.
pub trait Metadata {
    /// A string.
    fn string(&self, key: &str) -> Result<Option<String>, MetadataError>;
    /// A boolean.
    fn boolean(&self, key: &str) -> Result<Option<bool>, MetadataError>;
    /// An unsigned number; any integer type that holds the value without loss.
    fn unsigned(&self, key: &str) -> Result<Option<u32>, MetadataError>;
    /// An array of strings; their bytes need not be UTF-8.
    fn strings(&self, key: &str) -> Result<Option<Vec<Vec<u8>>>, MetadataError>;
    /// An array of `f32`; an array of `i32` is turned into one.
    fn floats(&self, key: &str) -> Result<Option<Vec<f32>>, MetadataError>;
    /// An array of `i32`.
    fn integers(&self, key: &str) -> Result<Option<Vec<i32>>, MetadataError>;
    /// An array of `u8` or `i8`, as bytes.
    fn bytes(&self, key: &str) -> Result<Option<Vec<u8>>, MetadataError>;
}

/// A key that is there with a type that its meaning does not allow.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{key} is of type {found}, expected {expected}: the file is damaged or from a newer converter")]
pub struct MetadataError {
    /// The key.
    pub key: String,
    /// The type that is there.
    pub found: String,
    /// The type that is needed.
    pub expected: &'static str,
}

impl Vocabulary {
    /// Read every tokenizer key of a file.
    ///
    /// # Errors
    /// A key of the wrong type. An absent key is no error here; [`crate::Tokenizer::new`] says which ones are needed.
    pub fn from_metadata(metadata: &impl Metadata) -> Result<Self, MetadataError> {
        let mut vocabulary = Self {
            model: metadata.string("tokenizer.ggml.model")?.unwrap_or_default(),
            pre: metadata.string("tokenizer.ggml.pre")?,
            tokens: metadata.strings("tokenizer.ggml.tokens")?.unwrap_or_default(),
            scores: metadata.floats("tokenizer.ggml.scores")?,
            token_types: metadata.integers("tokenizer.ggml.token_type")?,
            merges: metadata.strings("tokenizer.ggml.merges")?,
            precompiled_charsmap: metadata.bytes("tokenizer.ggml.precompiled_charsmap")?,
            add_bos: metadata.boolean("tokenizer.ggml.add_bos_token")?,
            add_eos: metadata.boolean("tokenizer.ggml.add_eos_token")?,
            add_space_prefix: metadata.boolean("tokenizer.ggml.add_space_prefix")?,
            remove_extra_whitespaces: metadata.boolean("tokenizer.ggml.remove_extra_whitespaces")?,
            ignore_merges: None,
            suppress_tokens: Vec::new(),
            special: Default::default(),
        };
        for (key, id) in vocabulary.special.with_keys() {
            *id = metadata.unsigned(key)?;
        }
        // Names of the fill-in-the-middle keys before they were renamed.
        let special = &mut vocabulary.special;
        for (key, id) in [
            ("tokenizer.ggml.prefix_token_id", &mut special.fim_pre),
            ("tokenizer.ggml.suffix_token_id", &mut special.fim_suf),
            ("tokenizer.ggml.middle_token_id", &mut special.fim_mid),
        ] {
            if id.is_none() {
                *id = metadata.unsigned(key)?;
            }
        }
        if let Some(ids) = metadata.integers("tokenizer.ggml.suppress_tokens")? {
            vocabulary.suppress_tokens = ids.into_iter().filter_map(|id| u32::try_from(id).ok()).collect();
        }
        Ok(vocabulary)
    }
}
