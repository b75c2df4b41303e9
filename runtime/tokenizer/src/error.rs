use crate::pre_tokenizer::PRE_TOKENIZERS;

/// Why a tokenizer could not be built.
#[derive(Debug, Clone, PartialEq, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// The file says that it has no vocabulary; only token ids can be served.
    #[error(
        "the file has no vocabulary (tokenizer.ggml.model = \"{model}\"): send token ids instead of text"
    )]
    NoVocabulary {
        /// The value of `tokenizer.ggml.model`.
        model: String,
    },
    /// A kind of tokenizer that this crate does not implement.
    #[error(
        "tokenizer.ggml.model = \"{model}\" is not supported: known are gpt2, gemma4, llama and t5; \
         WordPiece (bert) and the others need a newer version"
    )]
    UnsupportedModel {
        /// The value of `tokenizer.ggml.model`.
        model: String,
    },
    /// A pre-tokenizer that this crate does not know.
    #[error(
        "tokenizer.ggml.pre = \"{pre}\" is unknown: the ids would be wrong in a way that is hard to see. \
         If the model is known to use one of the known ones, override the key with that name; known: {}",
        known_names()
    )]
    UnknownPreTokenizer {
        /// The value of `tokenizer.ggml.pre`.
        pre: String,
    },
    /// A byte-level BPE file that does not say which pre-tokenizer it needs.
    #[error(
        "the file does not name its pre-tokenizer (tokenizer.ggml.pre): convert it again, or override \
         the key with one of: {} (\"default\" is what old converters meant)",
        known_names()
    )]
    MissingPreTokenizer,
    /// An array that this kind of tokenizer cannot work without.
    #[error(
        "the file has no {key}, which tokenizer.ggml.model = \"{model}\" needs: the file is incomplete, convert it again"
    )]
    MissingArray {
        /// The metadata key.
        key: &'static str,
        /// The value of `tokenizer.ggml.model`.
        model: String,
    },
    /// An array whose length does not fit the number of tokens.
    #[error("{key} has {found} entries for {expected} tokens: the file is damaged")]
    LengthMismatch {
        /// The metadata key.
        key: &'static str,
        /// Entries found.
        found: usize,
        /// Entries needed.
        expected: usize,
    },
    /// More tokens, or longer text, than ids and offsets of 32 bits reach.
    #[error("{what} is {found}, more than the {limit} that fit: the file is damaged")]
    TooLarge {
        /// What is too large.
        what: &'static str,
        /// How large it is.
        found: usize,
        /// The limit.
        limit: usize,
    },
    /// Two tokens with the same text.
    #[error("tokens {first} and {second} have the same text {text:?}: the file is damaged")]
    DuplicateToken {
        /// The earlier id.
        first: u32,
        /// The later id.
        second: u32,
        /// Their text.
        text: String,
    },
    /// The file asks for a token in front or behind every text and does not say which.
    #[error("{flag} is set, but the file has no {key}: override one of the two keys")]
    MissingSpecial {
        /// The flag that asks for the token.
        flag: &'static str,
        /// The key that names it.
        key: &'static str,
    },
    /// Some text could not be turned into tokens at all.
    #[error(
        "the vocabulary has neither all byte tokens (<0x00> to <0xFF>) nor tokenizer.ggml.unknown_token_id: the file is incomplete"
    )]
    NoFallback,
    /// `tokenizer.ggml.precompiled_charsmap` is damaged.
    #[error("tokenizer.ggml.precompiled_charsmap is damaged: {detail} (at {offset} of {length} bytes)")]
    BadCharsmap {
        /// What is wrong.
        detail: &'static str,
        /// Where.
        offset: usize,
        /// Length of the array.
        length: usize,
    },
}

fn known_names() -> String {
    PRE_TOKENIZERS.iter().flat_map(|row| row.names).copied().collect::<Vec<_>>().join(", ")
}
