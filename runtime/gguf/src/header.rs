//! The head of one file: magic, version, counts, metadata, tensor directory, start of the data section.

use crate::cursor::Cursor;
use crate::error::GgufError;
use crate::metadata::{Metadata, MetadataIndex};
use crate::tensor::{TensorInfo, TensorTable};

const DEFAULT_ALIGNMENT: u32 = 32;

/// No published model has a thousandth of this; it bounds what a hostile file can make us allocate.
const MAX_ENTRIES: u64 = 1 << 20;

/// Everything that is known about one file, without its bytes.
#[derive(Debug)]
pub(crate) struct Header {
    pub version: u32,
    pub alignment: u32,
    /// Where tensor data starts, in bytes from the start of the file.
    pub data_offset: u64,
    pub metadata: MetadataIndex,
    pub tensors: TensorTable,
}

impl Header {
    pub(crate) fn read(bytes: &[u8]) -> Result<Self, GgufError> {
        let mut cursor = Cursor::at(bytes, 0);
        let version = read_version(&mut cursor)?;
        let tensor_count = read_count(&mut cursor, "tensors")?;
        let entry_count = read_count(&mut cursor, "metadata entries")?;
        let metadata = MetadataIndex::read(&mut cursor, entry_count)?;
        let mut tensors = TensorTable::read(&mut cursor, tensor_count)?;

        let alignment = read_alignment(metadata.view(bytes))?;
        let end = cursor.offset() as u64;
        let data_offset = end.checked_next_multiple_of(u64::from(alignment)).unwrap_or(end);
        tensors.place(data_offset, u64::from(alignment), bytes.len() as u64)?;
        Ok(Header { version, alignment, data_offset, metadata, tensors })
    }
}

fn read_version(cursor: &mut Cursor<'_>) -> Result<u32, GgufError> {
    let found = cursor.array::<4>().map_err(|short| short.reading("the magic number"))?;
    if &found != b"GGUF" {
        return Err(GgufError::BadMagic { found });
    }
    let version = cursor.u32().map_err(|short| short.reading("the version"))?;
    match version {
        2 | 3 => Ok(version),
        // Small numbers look huge in the other byte order: 3 becomes 0x03000000.
        swapped if (1..=0xffff).contains(&swapped.swap_bytes()) => {
            Err(GgufError::BigEndian { version: swapped.swap_bytes() })
        }
        version => Err(GgufError::UnsupportedVersion { version }),
    }
}

fn read_count(cursor: &mut Cursor<'_>, what: &'static str) -> Result<u64, GgufError> {
    let found = cursor.u64().map_err(|short| short.reading(format!("the number of {what}")))?;
    if found > MAX_ENTRIES {
        return Err(GgufError::TooMany { what, found, limit: MAX_ENTRIES });
    }
    Ok(found)
}

fn read_alignment(metadata: Metadata<'_>) -> Result<u32, GgufError> {
    match crate::optional(metadata.u32("general.alignment"))? {
        None => Ok(DEFAULT_ALIGNMENT),
        Some(found) if found.is_power_of_two() => Ok(found),
        Some(found) => Err(GgufError::BadAlignment { found }),
    }
}

/// A GGUF file in memory, read without a file system: for bytes that came from elsewhere, for tests and fuzzing.
/// It is one file; parts of a split file are joined by [`crate::GgufFile`] only.
#[derive(Debug)]
pub struct Gguf<'a> {
    bytes: &'a [u8],
    header: Header,
}

impl<'a> Gguf<'a> {
    /// Reads the head of the file and checks that all tensor data lies inside it.
    ///
    /// # Errors
    /// Any fault of the format, with its place.
    pub fn parse(bytes: &'a [u8]) -> Result<Self, GgufError> {
        Ok(Gguf { bytes, header: Header::read(bytes)? })
    }

    /// 2 or 3.
    pub fn version(&self) -> u32 {
        self.header.version
    }

    /// `general.alignment`, 32 where the file does not say.
    pub fn alignment(&self) -> u32 {
        self.header.alignment
    }

    /// Where tensor data starts.
    pub fn data_offset(&self) -> u64 {
        self.header.data_offset
    }

    /// Keys and values.
    pub fn metadata(&self) -> Metadata<'_> {
        self.header.metadata.view(self.bytes)
    }

    /// All tensors, in file order.
    pub fn tensors(&self) -> &[TensorInfo] {
        self.header.tensors.as_slice()
    }

    /// The tensor called `name`.
    pub fn tensor(&self, name: &str) -> Option<&TensorInfo> {
        self.header.tensors.get(name)
    }

    /// The bytes of a tensor of this file. (`None` only for a tensor of another one that does not fit here.)
    pub fn data(&self, tensor: &TensorInfo) -> Option<&'a [u8]> {
        self.bytes.get(tensor.range()?)
    }
}
