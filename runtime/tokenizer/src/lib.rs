//! Tokenizers built from a GGUF file's own metadata.
//!
//! A model is trained with exactly one way of cutting text into tokens, and a file carries it: the
//! list of pieces, their scores or merges, the name of the pre-tokenizer and a handful of flags. This
//! crate turns these facts into a [`Tokenizer`]. It knows nothing of files: the caller fills a
//! [`Vocabulary`] (by hand, or from anything that implements [`Metadata`]).
//!
//! What it does:
//! * byte-level BPE (`gpt2`), its raw UTF-8 form with escaped spaces (`gemma4`), score-driven
//!   SentencePiece BPE (`llama`) and unigram (`t5`);
//! * special tokens in text only where the caller asks for them;
//! * text back from ids as bytes, and [`StreamDecoder`] for text that leaves token by token;
//! * the set of tokens that end a generation.
//!
//! What it refuses to do: guess. A model, a pre-tokenizer or a metadata type that it does not know is an error that
//! names it ([`Error`]), because ids that are almost right make a model that is almost sane.
//!
//! Why the merge loop is ours. Ids must equal the reference implementation's for every input that a
//! client can send, the ones that are no UTF-8 too, and the time for one million equal characters
//! must stay near linear. Regular expressions with backtracking give up or go quadratic on such input;
//! here they run on `regex-automata` (finite automata), with the one look-ahead that published
//! patterns need done by rule (see [`split`]). Special tokens are found with `aho-corasick`.
//!
//! ```
//! use bloomery_tokenizer::{StreamDecoder, Tokenizer, Vocabulary};
//!
//! let vocabulary = Vocabulary {
//!     model: "gpt2".to_owned(),
//!     pre: Some("qwen2".to_owned()),
//!     tokens: ["h", "i", "hi", "Ġ", "Ġhi", "<|im_end|>"].map(|text| text.as_bytes().to_vec()).into(),
//!     token_types: Some(vec![1, 1, 1, 1, 1, 3]),
//!     merges: Some(["h i", "Ġ hi"].map(|merge| merge.as_bytes().to_vec()).into()),
//!     ..Vocabulary::default()
//! };
//! let tokenizer = Tokenizer::new(vocabulary)?;
//! let ids = tokenizer.encode("hi hi<|im_end|>", true, true);
//! assert_eq!(ids, [2, 4, 5]);
//! assert!(tokenizer.is_end_of_generation(5));
//!
//! let mut decoder = StreamDecoder::new(false);
//! let text: String = ids.iter().map(|&id| decoder.push(&tokenizer, id)).collect();
//! assert_eq!(text + &decoder.finish(), "hi hi");
//! # Ok::<(), bloomery_tokenizer::Error>(())
//! ```
#![forbid(unsafe_code)]

mod bpe;
mod bytes;
mod charsmap;
mod end_of_generation;
mod error;
mod metadata;
mod partition;
mod pieces;
mod pre_tokenizer;
mod sentencepiece;
pub mod split;
mod stream;
mod text_index;
mod tokenizer;
mod unigram;
mod vocabulary;
mod words;

pub use error::Error;
pub use metadata::{Metadata, MetadataError};
pub use pre_tokenizer::{PRE_TOKENIZERS, PreTokenizer, pre_tokenizer};
pub use stream::StreamDecoder;
pub use tokenizer::Tokenizer;
pub use vocabulary::{SpecialIds, Vocabulary};
