//! Everything that can be wrong with a GGUF file, as facts: which key or tensor, at which byte, and what would have
//! been right. Offsets are bytes from the start of the file (of the part, for a split file).

use std::path::PathBuf;

/// Why a file was refused or a value could not be given.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum GgufError {
    /// The file could not be opened or its size could not be read.
    #[error("cannot open {}: {error}", path.display())]
    Open {
        /// The path as given.
        path: PathBuf,
        /// What the system said.
        error: std::io::Error,
    },
    /// A directory, pipe or device: only a regular file can be mapped and checked for its size.
    #[error("{} is not a regular file", path.display())]
    NotAFile {
        /// The path as given.
        path: PathBuf,
    },
    /// The system refused the memory map.
    #[error("cannot map {}: {error}", path.display())]
    Map {
        /// The path as given.
        path: PathBuf,
        /// What the system said.
        error: std::io::Error,
    },
    /// A fault inside one file; says which.
    #[error("{}: {error}", path.display())]
    InFile {
        /// The file (the part, for a split file).
        path: PathBuf,
        /// The fault.
        error: Box<GgufError>,
    },
    /// The file on disk is no longer as long as when it was mapped: reading the missing pages would end the process.
    #[error("{} changed while it was in use: it had {mapped} bytes, now {now}", path.display())]
    Changed {
        /// The file.
        path: PathBuf,
        /// Bytes when mapped.
        mapped: u64,
        /// Bytes now.
        now: u64,
    },

    /// The first four bytes are not `GGUF`.
    #[error("not a GGUF file: it starts with \"{}\", not \"GGUF\"", found.escape_ascii())]
    BadMagic {
        /// The first four bytes.
        found: [u8; 4],
    },
    /// A big-endian file.
    #[error("big-endian GGUF (version {version}) is not supported: convert the file to little-endian")]
    BigEndian {
        /// The version, read in the file's own byte order.
        version: u32,
    },
    /// A version that this reader does not know.
    #[error("GGUF version {version} is not supported, only 2 and 3 are")]
    UnsupportedVersion {
        /// The version field.
        version: u32,
    },
    /// A field, or the length that it states, reaches past the end of the file.
    #[error(
        "truncated or damaged: {what} at byte {offset} needs {needed} bytes, the file has {remaining} more"
    )]
    Truncated {
        /// The field.
        what: String,
        /// Where it starts.
        offset: u64,
        /// The bytes it would take (at least).
        needed: u64,
        /// The bytes that are left.
        remaining: u64,
    },
    /// More entries than any model has: refused before they are read.
    #[error("the file states {found} {what}, at most {limit} are read")]
    TooMany {
        /// `metadata entries` or `tensors`.
        what: &'static str,
        /// The number stated.
        found: u64,
        /// The limit.
        limit: u64,
    },
    /// Text that is not UTF-8.
    #[error("{what} at byte {offset} is not UTF-8")]
    NotUtf8 {
        /// Which text.
        what: String,
        /// Where its bytes start.
        offset: u64,
    },

    /// A metadata entry without a name.
    #[error("metadata entry {index} at byte {offset} has an empty key")]
    EmptyKey {
        /// Position in the file's metadata.
        index: u64,
        /// Where the entry starts.
        offset: u64,
    },
    /// The format limits keys to 65,535 bytes.
    #[error("the key of metadata entry {index} at byte {offset} has {length} bytes, the format allows 65535")]
    KeyTooLong {
        /// Position in the file's metadata.
        index: u64,
        /// Where the entry starts.
        offset: u64,
        /// Bytes of the key.
        length: u64,
    },
    /// Two entries with one key: which one is meant is anybody's guess.
    #[error("metadata key `{key}` appears twice, the second time at byte {offset}")]
    DuplicateKey {
        /// The key.
        key: String,
        /// Where the second one starts.
        offset: u64,
    },
    /// A metadata type number outside the format.
    #[error("metadata key `{key}` has the unknown value type {id} at byte {offset}")]
    UnknownValueType {
        /// The key.
        key: String,
        /// The number found.
        id: u32,
        /// Where it stands.
        offset: u64,
    },
    /// Arrays of arrays beyond the depth that this reader follows.
    #[error("metadata key `{key}` nests arrays deeper than {limit} at byte {offset}")]
    ArrayTooDeep {
        /// The key.
        key: String,
        /// Where the innermost one starts.
        offset: u64,
        /// The limit.
        limit: u32,
    },
    /// A boolean that is neither 0 nor 1.
    #[error("metadata key `{key}` holds the boolean {byte} at byte {offset}, only 0 and 1 are valid")]
    InvalidBool {
        /// The key.
        key: String,
        /// The byte found.
        byte: u8,
        /// Where it stands.
        offset: u64,
    },
    /// `general.alignment` is not a power of two.
    #[error("general.alignment is {found}, it must be a power of two")]
    BadAlignment {
        /// The value found.
        found: u32,
    },

    /// A key that the caller needs is not in the file.
    #[error("metadata key `{key}` is missing")]
    MissingKey {
        /// The key.
        key: String,
    },
    /// A key has another type than the caller needs.
    #[error("metadata key `{key}` must be {expected}, the file has {found}")]
    TypeMismatch {
        /// The key.
        key: String,
        /// The type needed.
        expected: &'static str,
        /// The type in the file.
        found: String,
    },
    /// An integer that does not fit the type asked for.
    #[error("metadata key `{key}` is {found}, which does not fit {expected}")]
    OutOfRange {
        /// The key.
        key: String,
        /// The type needed.
        expected: &'static str,
        /// The value in the file.
        found: i128,
    },

    /// A tensor without a name.
    #[error("tensor entry {index} at byte {offset} has an empty name")]
    EmptyTensorName {
        /// Position in the tensor directory.
        index: u64,
        /// Where the entry starts.
        offset: u64,
    },
    /// Two tensors with one name (in one file or in two parts).
    #[error("tensor `{name}` appears twice")]
    DuplicateTensor {
        /// The name.
        name: String,
    },
    /// More dimensions than the format knows.
    #[error("tensor `{name}` has {found} dimensions, at most 4 are allowed")]
    TooManyDimensions {
        /// The tensor.
        name: String,
        /// The number found.
        found: u32,
    },
    /// A tensor type number that is unknown or was withdrawn from the format.
    #[error("tensor `{name}` has the unknown or withdrawn type {id}")]
    UnknownTensorType {
        /// The tensor.
        name: String,
        /// The number found.
        id: u32,
    },
    /// The number of elements or bytes does not fit 63 bits.
    #[error("tensor `{name}` of shape {dims:?} is too large to address")]
    ShapeOverflow {
        /// The tensor.
        name: String,
        /// Dimensions, fastest first.
        dims: Vec<u64>,
    },
    /// A row that does not fill whole blocks of its type.
    #[error("tensor `{name}` has rows of {row} elements, {weight_type} stores blocks of {block}")]
    PartialBlock {
        /// The tensor.
        name: String,
        /// Its type.
        weight_type: &'static str,
        /// Elements of a row.
        row: u64,
        /// Elements of a block.
        block: u64,
    },
    /// An offset that breaks the file's own alignment.
    #[error("tensor `{name}` starts at data offset {offset}, not a multiple of the alignment {alignment}")]
    MisalignedTensor {
        /// The tensor.
        name: String,
        /// Offset from the start of the data section.
        offset: u64,
        /// The file's alignment.
        alignment: u64,
    },
    /// Tensor data outside the file.
    #[error(
        "truncated or damaged: tensor `{name}` takes {bytes} bytes from byte {offset}, the file has {file_size}"
    )]
    TensorBeyondEnd {
        /// The tensor.
        name: String,
        /// Where its data starts.
        offset: u64,
        /// Its bytes.
        bytes: u64,
        /// The file's bytes.
        file_size: u64,
    },
    /// Two tensors share bytes.
    #[error("tensors `{first}` and `{second}` overlap")]
    OverlappingTensors {
        /// The tensor that starts first.
        first: String,
        /// The one that starts inside it.
        second: String,
    },

    /// The metadata says "part of a split file", the file's name does not follow the pattern.
    #[error(
        "{} is part {} of {count} of a split file, so it must be named NAME-{:05}-of-{count:05}.gguf to find the others",
        path.display(), number + 1, number + 1
    )]
    SplitName {
        /// The file.
        path: PathBuf,
        /// `split.no`, from 0.
        number: u64,
        /// `split.count`.
        count: u64,
    },
    /// A part of a split file is not there.
    #[error("part {} of {count} is missing: {} ({error})", number + 1, path.display())]
    SplitMissing {
        /// The part that was looked for.
        path: PathBuf,
        /// Its number, from 0.
        number: u64,
        /// Parts in all.
        count: u64,
        /// What the system said.
        error: std::io::Error,
    },
    /// A part says something else than its place in the set requires.
    #[error("{}: {key} is {found}, expected {expected}: the parts do not belong together", path.display())]
    SplitMismatch {
        /// The part.
        path: PathBuf,
        /// The key.
        key: &'static str,
        /// Value required.
        expected: u64,
        /// Value found.
        found: String,
    },
}

impl GgufError {
    /// The fault itself, without the file that it was found in.
    pub fn fault(&self) -> &GgufError {
        match self {
            GgufError::InFile { error, .. } => error.fault(),
            other => other,
        }
    }

    /// True when a needed key is absent (and not merely of the wrong type).
    pub fn is_missing_key(&self) -> bool {
        matches!(self.fault(), GgufError::MissingKey { .. })
    }
}
