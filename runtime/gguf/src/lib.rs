//! Reads GGUF files, versions 2 and 3, in one piece or split, through a memory map.
//!
//! Why a crate of its own: a model file is foreign data of tens of gigabytes. Everything that it says about itself is
//! checked here, once, against the bytes that are really there, so that the rest of the engine can take a tensor's
//! bytes as a plain slice. Opening a file touches its head and nothing else; a vocabulary stays in the file and is
//! decoded as it is read ([`ArrayView`]).
//!
//! What it refuses to do: it knows no architecture and no meaning of any key but `general.alignment`,
//! `general.file_type` and `split.*`; it does not dequantise; it does not repair. A key or tensor that appears twice,
//! data outside the file, a shape that overflows: each is a [`GgufError`] with the name and the byte, never a guess.
//! Memory spent is bounded by what the file holds, not by what it claims.
//!
//! [`GgufFile`] is a file on disk, [`Gguf`] one in memory, [`GgufWriter`] makes small ones for tests and tools.

mod advice;
mod cursor;
mod error;
mod file;
mod file_type;
mod header;
mod metadata;
mod split;
mod tensor;
mod value;
mod writer;

pub use advice::Access;
pub use bloomery_formats::WeightType;
pub use error::GgufError;
pub use file::{GgufFile, Shard};
pub use file_type::file_type_name;
pub use header::Gguf;
pub use metadata::{Metadata, optional};
pub use tensor::TensorInfo;
pub use value::{ArrayView, Value, ValueType};
pub use writer::{GgufWriter, OwnedValue, WriteError};
