//! A GGUF file on disk, in one piece or in parts, mapped into memory.
//!
//! # A file must not shrink while it is mapped
//! The operating system answers the reading of a mapped page that the file no longer has with `SIGBUS`, which ends the
//! process; no reader can turn that into an error. Sizes are checked when the file is opened, and
//! [`GgufFile::check_unchanged`] looks again, but a file that is being written to should not be served: replace a
//! model by renaming a new file over it, which leaves the old map intact.

use std::fs::File;
use std::path::{Path, PathBuf};

use memmap2::Mmap;

use crate::advice::{self, Access};
use crate::error::GgufError;
use crate::file_type;
use crate::header::Header;
use crate::metadata::{Metadata, MetadataIndex, optional};
use crate::split::{self, SplitKeys};
use crate::tensor::{TensorInfo, TensorTable};

/// A mapped GGUF file. Opening reads the head; tensor data is read from disk when it is touched.
#[derive(Debug)]
pub struct GgufFile {
    path: PathBuf,
    version: u32,
    metadata: MetadataIndex,
    tensors: TensorTable,
    shards: Vec<Shard>,
}

/// One file of a model: the whole of it, or a part.
#[derive(Debug)]
pub struct Shard {
    path: PathBuf,
    file: File,
    map: Mmap,
    alignment: u32,
    data_offset: u64,
}

impl GgufFile {
    /// Opens a file. If it is a part of a split file, any part opens all of them; names must follow llama.cpp's
    /// pattern `NAME-00001-of-00003.gguf`.
    ///
    /// # Errors
    /// The file cannot be read, breaks the format, or a part is missing or belongs elsewhere. The message names the
    /// file.
    pub fn open(path: &Path) -> Result<GgufFile, GgufError> {
        let (shard, header) = Shard::open(path)?;
        let keys = SplitKeys::read(header.metadata.view(&shard.map)).map_err(|error| shard.fault(error))?;
        let parts = match keys {
            Some(keys) => open_parts(keys, shard, header)?,
            None => vec![(shard, header)],
        };
        join(path, parts, keys)
    }

    /// GGUF version, 2 or 3 (the first part's).
    pub fn version(&self) -> u32 {
        self.version
    }

    /// The path that was opened.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// The files that hold the model, in order; one for a file in one piece.
    pub fn shards(&self) -> &[Shard] {
        &self.shards
    }

    /// Bytes of all files together.
    pub fn file_size(&self) -> u64 {
        self.shards.iter().map(Shard::file_size).sum()
    }

    /// Keys and values, in file order. Those of the first part, for a split file: the others repeat or count.
    pub fn metadata(&self) -> Metadata<'_> {
        // `join` keeps at least one shard; the empty slice stands for the state that does not occur.
        let bytes = self.shards.first().map_or(&[][..], |shard| &shard.map);
        self.metadata.view(bytes)
    }

    /// All tensors, in file order, parts one after another.
    pub fn tensors(&self) -> &[TensorInfo] {
        self.tensors.as_slice()
    }

    /// The tensor called `name`.
    pub fn tensor(&self, name: &str) -> Option<&TensorInfo> {
        self.tensors.get(name)
    }

    /// The bytes of one of this file's tensors, row-major, rows of `dims()[0]` elements in the type's blocks.
    ///
    /// # Panics
    /// If `tensor` comes from another file and does not lie inside this one.
    pub fn data(&self, tensor: &TensorInfo) -> &[u8] {
        self.shards
            .get(tensor.shard())
            .and_then(|shard| shard.map.get(tensor.range()?))
            .expect("a tensor of this file lies inside it: checked when the file was opened")
    }

    /// Elements of all tensors together.
    pub fn parameter_count(&self) -> u64 {
        self.tensors().iter().fold(0, |sum, tensor| sum.saturating_add(tensor.element_count()))
    }

    /// Bytes of all tensors together.
    pub fn weight_bytes(&self) -> u64 {
        self.tensors().iter().fold(0, |sum, tensor| sum.saturating_add(tensor.byte_length()))
    }

    /// The quantisation's name as llama.cpp prints it: `Q4_K - Medium`, or `(guessed) Q4_0` for a file that does not
    /// say.
    ///
    /// # Errors
    /// `general.file_type` is there but no number.
    pub fn file_type_name(&self) -> Result<String, GgufError> {
        let stated = optional(self.metadata().u32("general.file_type"))?;
        Ok(file_type::describe(stated, self.tensors()))
    }

    /// Checks that every file still has the size that it had when it was mapped.
    ///
    /// # Errors
    /// [`GgufError::Changed`], or the size cannot be read.
    pub fn check_unchanged(&self) -> Result<(), GgufError> {
        self.shards.iter().try_for_each(Shard::check_unchanged)
    }

    /// Tells the system how all of the file will be read.
    ///
    /// # Errors
    /// What the system says; the advice is a hint, so going on is safe.
    pub fn advise(&self, access: Access) -> std::io::Result<()> {
        self.shards.iter().try_for_each(|shard| advice::advise(&shard.map, 0..shard.map.len(), access))
    }

    /// Tells the system how a tensor will be read ([`Access::WillNeed`] starts reading it in the background).
    ///
    /// # Errors
    /// What the system says; the advice is a hint, so going on is safe.
    pub fn advise_tensor(&self, tensor: &TensorInfo, access: Access) -> std::io::Result<()> {
        self.advise_part(tensor, 0..tensor.byte_length(), access)
    }

    /// Tells the system how a range of a tensor's bytes (one expert, say) will be read.
    ///
    /// # Errors
    /// The range is outside the tensor; or what the system says.
    pub fn advise_part(
        &self,
        tensor: &TensorInfo,
        bytes: std::ops::Range<u64>,
        access: Access,
    ) -> std::io::Result<()> {
        let (map, range) = self.locate(tensor, bytes)?;
        advice::advise(map, range, access)
    }

    /// Gives the memory of a range of a tensor's bytes back: it was copied elsewhere, or is not needed for a while.
    /// Only whole pages inside the range go, so a neighbour's data stays. Reading the range again reads the disk.
    ///
    /// # Errors
    /// The range is outside the tensor; or what the system says.
    pub fn release_part(&self, tensor: &TensorInfo, bytes: std::ops::Range<u64>) -> std::io::Result<()> {
        let (map, range) = self.locate(tensor, bytes)?;
        advice::release(map, range)
    }

    /// [`GgufFile::release_part`] for a whole tensor.
    ///
    /// # Errors
    /// What the system says.
    pub fn release_tensor(&self, tensor: &TensorInfo) -> std::io::Result<()> {
        self.release_part(tensor, 0..tensor.byte_length())
    }

    fn locate(
        &self,
        tensor: &TensorInfo,
        bytes: std::ops::Range<u64>,
    ) -> std::io::Result<(&Mmap, std::ops::Range<usize>)> {
        let located = self.shards.get(tensor.shard()).and_then(|shard| {
            let whole = tensor.range().filter(|whole| whole.end <= shard.map.len())?;
            let start = whole.start.checked_add(usize::try_from(bytes.start).ok()?)?;
            let end = whole.start.checked_add(usize::try_from(bytes.end).ok()?)?;
            (start <= end && end <= whole.end).then_some((&shard.map, start..end))
        });
        located.ok_or_else(|| {
            let message = format!("bytes {bytes:?} are outside tensor `{}`", tensor.name());
            std::io::Error::new(std::io::ErrorKind::InvalidInput, message)
        })
    }
}

impl Shard {
    /// The file's path.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// The file's bytes, all of them.
    pub fn bytes(&self) -> &[u8] {
        &self.map
    }

    /// Bytes of the file.
    pub fn file_size(&self) -> u64 {
        self.map.len() as u64
    }

    /// `general.alignment`, 32 where the file does not say.
    pub fn alignment(&self) -> u32 {
        self.alignment
    }

    /// Where tensor data starts.
    pub fn data_offset(&self) -> u64 {
        self.data_offset
    }

    fn open(path: &Path) -> Result<(Shard, Header), GgufError> {
        let open_error = |error| GgufError::Open { path: path.to_owned(), error };
        // Asked before opening: opening a pipe would wait for a writer.
        if !std::fs::metadata(path).map_err(open_error)?.is_file() {
            return Err(GgufError::NotAFile { path: path.to_owned() });
        }
        let file = File::open(path).map_err(open_error)?;
        // SAFETY: the map is read-only and private to this process's view of the file; nothing here writes to it. That
        // nobody else changes the file under the map cannot be proven, only asked for (see the module's text): bounds
        // come from the map's own fixed length, and values are checked again whenever they are decoded.
        let map =
            unsafe { Mmap::map(&file) }.map_err(|error| GgufError::Map { path: path.to_owned(), error })?;
        let in_file = |error| GgufError::InFile { path: path.to_owned(), error: Box::new(error) };
        let header = Header::read(&map).map_err(in_file)?;
        let (alignment, data_offset) = (header.alignment, header.data_offset);
        let shard = Shard { path: path.to_owned(), file, map, alignment, data_offset };
        // The header was checked against the map's length; if the file shrank meanwhile that check is void.
        shard.check_unchanged()?;
        Ok((shard, header))
    }

    fn check_unchanged(&self) -> Result<(), GgufError> {
        let path = || self.path.clone();
        let now = self.file.metadata().map_err(|error| GgufError::Open { path: path(), error })?.len();
        let mapped = self.file_size();
        if now == mapped { Ok(()) } else { Err(GgufError::Changed { path: path(), mapped, now }) }
    }

    fn fault(&self, error: GgufError) -> GgufError {
        GgufError::InFile { path: self.path.clone(), error: Box::new(error) }
    }
}

/// Opens the other parts of a split file and puts all in order.
fn open_parts(keys: SplitKeys, shard: Shard, header: Header) -> Result<Vec<(Shard, Header)>, GgufError> {
    let names = split::SplitName::of(&shard.path, keys)?;
    let mut given = Some((shard, header));
    let mut parts = Vec::new();
    for number in 0..keys.count {
        let opened = if number == keys.number { given.take() } else { None };
        let (shard, header) = match opened {
            Some(part) => part,
            None => open_part(&names.part(number), number, keys.count)?,
        };
        let found = SplitKeys::read(header.metadata.view(&shard.map)).map_err(|error| shard.fault(error))?;
        split::check_part(&shard.path, number, keys, found)?;
        parts.push((shard, header));
    }
    Ok(parts)
}

fn open_part(path: &Path, number: u64, count: u64) -> Result<(Shard, Header), GgufError> {
    Shard::open(path).map_err(|error| match error {
        GgufError::Open { path, error } => GgufError::SplitMissing { path, number, count, error },
        other => other,
    })
}

/// Merges the tensors of all parts; a name in two of them is refused.
fn join(path: &Path, parts: Vec<(Shard, Header)>, keys: Option<SplitKeys>) -> Result<GgufFile, GgufError> {
    let mut shards = Vec::with_capacity(parts.len());
    let mut tensors = TensorTable::default();
    let mut head = None;
    for (number, (shard, header)) in parts.into_iter().enumerate() {
        if shards.is_empty() {
            // The common case, a file in one piece, keeps its table as it is.
            tensors = header.tensors;
            head = Some((header.version, header.metadata));
        } else {
            for mut tensor in header.tensors.into_tensors() {
                tensor.set_shard(number);
                tensors.push(tensor).map_err(|error| shard.fault(error))?;
            }
        }
        shards.push(shard);
    }
    let (version, metadata) = head.unwrap_or_default();
    let file = GgufFile { path: path.to_owned(), version, metadata, tensors, shards };
    if let Some(keys) = keys {
        split::check_tensor_count(path, keys, file.tensors().len() as u64)?;
    }
    Ok(file)
}
