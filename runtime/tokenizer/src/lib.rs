//! Tokenizers built from a GGUF file's own metadata.
