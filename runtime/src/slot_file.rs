//! Slot states on disk: a format of our own, read as if every file were hostile.
//!
//! Little-endian: magic, version, fingerprints of model and state layout, number of tokens, bytes of state, the token
//! ids, the state as the executor saved it, and an XXH3 checksum of everything before it. Lengths are checked
//! against the file's real size before anything is allocated.

use std::{
    fs::File,
    io::{Read, Write},
    path::Path,
};

use xxhash_rust::xxh3::Xxh3;

const MAGIC: [u8; 8] = *b"BLMYSLOT";
const VERSION: u32 = 1;
const HEADER: usize = 8 + 4 + 4 * 8;
const CHECKSUM: usize = 8;

/// What a slot file holds.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SlotState {
    /// Identifies the model file.
    pub model_fingerprint: u64,
    /// Identifies program, state layout and storage types.
    pub state_fingerprint: u64,
    /// Tokens whose state it is.
    pub tokens: Vec<u32>,
    /// The state, as the executor saved it.
    pub state: Vec<u8>,
}

/// Why a slot file could not be written or used.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum SlotFileError {
    /// The system refused.
    #[error("{path}: {message}")]
    Io {
        /// The file.
        path: String,
        /// The system's message.
        message: String,
    },
    /// Not one of our files.
    #[error("this is not a slot file of bloomery")]
    NotASlotFile,
    /// Written by another version.
    #[error("the slot file has version {found}, this engine reads version {expected}; save the slot again")]
    Version {
        /// Version in the file.
        found: u32,
        /// Version that is read.
        expected: u32,
    },
    /// Shorter or longer than it says.
    #[error("the slot file is damaged: it has {found} bytes and describes {expected}")]
    Length {
        /// Bytes of the file.
        found: u64,
        /// Bytes that the header describes.
        expected: u64,
    },
    /// The bytes have changed since they were written.
    #[error("the slot file is damaged: its checksum does not match")]
    Checksum,
    /// Saved with another model file.
    #[error("the slot file belongs to another model")]
    OtherModel,
    /// Saved with another cache type or by another version of the program.
    #[error(
        "the slot file has another state layout; start with the same --cache-type-k, --cache-type-v and seat that saved it"
    )]
    OtherLayout,
    /// The slot cannot hold it.
    #[error("the slot file holds {n_tokens} tokens, a slot holds {n_ctx}")]
    TooLong {
        /// Tokens in the file.
        n_tokens: usize,
        /// Tokens that a slot can hold.
        n_ctx: usize,
    },
    /// The executor did not take the state.
    #[error("{0}")]
    Refused(String),
}

impl SlotState {
    /// Writes the file beside its final name first, so that an interrupted write leaves no half file. Returns its size.
    ///
    /// # Errors
    /// The system's.
    pub fn write(&self, path: &Path) -> Result<u64, SlotFileError> {
        let io = |error: std::io::Error| SlotFileError::Io {
            path: path.display().to_string(),
            message: error.to_string(),
        };
        let mut name = path.file_name().map(ToOwned::to_owned).unwrap_or_default();
        name.push(format!(".{}.part", std::process::id()));
        let part = path.with_file_name(name);
        let written = self.write_to(&part).and_then(|size| std::fs::rename(&part, path).map(|()| size));
        written.map_err(|error| {
            // Whatever is left of the part file is of no use; the first error is the one to report.
            let _ = std::fs::remove_file(&part);
            io(error)
        })
    }

    fn write_to(&self, path: &Path) -> std::io::Result<u64> {
        let mut file = File::create(path)?;
        let mut head = Vec::with_capacity(HEADER + 4 * self.tokens.len());
        head.extend_from_slice(&MAGIC);
        head.extend_from_slice(&VERSION.to_le_bytes());
        for field in [
            self.model_fingerprint,
            self.state_fingerprint,
            self.tokens.len() as u64,
            self.state.len() as u64,
        ] {
            head.extend_from_slice(&field.to_le_bytes());
        }
        self.tokens.iter().for_each(|token| head.extend_from_slice(&token.to_le_bytes()));
        let mut checksum = Xxh3::new();
        checksum.update(&head);
        checksum.update(&self.state);
        file.write_all(&head)?;
        file.write_all(&self.state)?;
        file.write_all(&checksum.digest().to_le_bytes())?;
        file.flush()?;
        Ok((head.len() + self.state.len() + CHECKSUM) as u64)
    }

    /// Reads and verifies a file; returns it with its size.
    ///
    /// # Errors
    /// See [`SlotFileError`].
    pub fn read(path: &Path) -> Result<(Self, u64), SlotFileError> {
        let io = |error: std::io::Error| SlotFileError::Io {
            path: path.display().to_string(),
            message: error.to_string(),
        };
        let mut file = File::open(path).map_err(io)?;
        let size = file.metadata().map_err(io)?.len();
        let mut header = [0; HEADER];
        if size < HEADER as u64 {
            return Err(SlotFileError::NotASlotFile);
        }
        file.read_exact(&mut header).map_err(io)?;
        let sizes = Sizes::parse(&header, size)?;
        let mut rest = vec![0; sizes.body];
        file.read_exact(&mut rest).map_err(io)?;
        Self::parse(&header, &sizes, rest).map(|state| (state, size))
    }

    fn parse(header: &[u8; HEADER], sizes: &Sizes, mut body: Vec<u8>) -> Result<Self, SlotFileError> {
        let stored = body.split_off(body.len().saturating_sub(CHECKSUM));
        let mut checksum = Xxh3::new();
        checksum.update(header);
        checksum.update(&body);
        if stored != checksum.digest().to_le_bytes() {
            return Err(SlotFileError::Checksum);
        }
        let state = body.split_off(4 * sizes.n_tokens);
        let tokens = body
            .chunks_exact(4)
            .map(|bytes| bytes.iter().rev().fold(0, |id, &byte| id << 8 | u32::from(byte)));
        Ok(Self {
            model_fingerprint: sizes.model_fingerprint,
            state_fingerprint: sizes.state_fingerprint,
            tokens: tokens.collect(),
            state,
        })
    }
}

/// The checked header.
struct Sizes {
    model_fingerprint: u64,
    state_fingerprint: u64,
    n_tokens: usize,
    /// Bytes after the header.
    body: usize,
}

impl Sizes {
    fn parse(header: &[u8; HEADER], size: u64) -> Result<Self, SlotFileError> {
        let number = |from: usize, bytes: usize| {
            header.iter().skip(from).take(bytes).rev().fold(0u64, |value, &byte| value << 8 | u64::from(byte))
        };
        if !header.starts_with(&MAGIC) {
            return Err(SlotFileError::NotASlotFile);
        }
        let version = number(8, 4) as u32;
        if version != VERSION {
            return Err(SlotFileError::Version { found: version, expected: VERSION });
        }
        let (n_tokens, n_state) = (number(28, 8), number(36, 8));
        let body = n_tokens
            .checked_mul(4)
            .and_then(|bytes| bytes.checked_add(n_state)?.checked_add(CHECKSUM as u64));
        let expected = body.and_then(|body| body.checked_add(HEADER as u64)).unwrap_or(u64::MAX);
        let fits = |value: Option<u64>| value.and_then(|value| usize::try_from(value).ok());
        match (fits(body), fits(Some(n_tokens))) {
            (Some(body), Some(n_tokens)) if expected == size => Ok(Self {
                model_fingerprint: number(12, 8),
                state_fingerprint: number(20, 8),
                n_tokens,
                body,
            }),
            _ => Err(SlotFileError::Length { found: size, expected }),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn sample() -> SlotState {
        SlotState {
            model_fingerprint: 7,
            state_fingerprint: 9,
            tokens: vec![1, 0x0102_0304, u32::MAX],
            state: vec![5; 100],
        }
    }

    fn written(state: &SlotState) -> (tempfile::TempDir, std::path::PathBuf, Vec<u8>) {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("slot.bin");
        let size = state.write(&path).unwrap();
        let bytes = std::fs::read(&path).unwrap();
        assert_eq!(size, bytes.len() as u64);
        (folder, path, bytes)
    }

    #[test]
    fn what_was_written_comes_back() {
        let (folder, path, bytes) = written(&sample());
        assert_eq!(SlotState::read(&path), Ok((sample(), bytes.len() as u64)));
        assert_eq!(std::fs::read_dir(folder.path()).unwrap().count(), 1, "no part file stays");
    }

    #[test]
    fn every_truncation_and_every_flipped_byte_is_refused() {
        let (_folder, path, bytes) = written(&sample());
        for length in 0..bytes.len() {
            std::fs::write(&path, &bytes[..length]).unwrap();
            assert!(SlotState::read(&path).is_err(), "{length} bytes");
        }
        for index in 0..bytes.len() {
            let mut damaged = bytes.clone();
            damaged[index] ^= 0x41;
            std::fs::write(&path, &damaged).unwrap();
            assert!(SlotState::read(&path).is_err(), "byte {index}");
        }
    }

    #[test]
    fn huge_lengths_allocate_nothing() {
        let (_folder, path, mut bytes) = written(&sample());
        bytes[28..36].copy_from_slice(&u64::MAX.to_le_bytes());
        std::fs::write(&path, &bytes).unwrap();
        assert!(matches!(SlotState::read(&path), Err(SlotFileError::Length { .. })));
        bytes[8] = 9;
        std::fs::write(&path, &bytes).unwrap();
        assert_eq!(SlotState::read(&path), Err(SlotFileError::Version { found: 9, expected: 1 }));
        assert!(matches!(SlotState::read(Path::new("/no/such/file")), Err(SlotFileError::Io { .. })));
        assert!(matches!(sample().write(Path::new("/no/such/folder/file")), Err(SlotFileError::Io { .. })));
    }

    proptest! {
        #[test]
        fn any_bytes_are_an_error_or_a_file(mut bytes in prop::collection::vec(any::<u8>(), 0..200), real_head in any::<bool>()) {
            if real_head && bytes.len() >= 12 {
                bytes[..8].copy_from_slice(&MAGIC);
                bytes[8..12].copy_from_slice(&1u32.to_le_bytes());
            }
            let folder = tempfile::tempdir().unwrap();
            let path = folder.path().join("slot.bin");
            std::fs::write(&path, &bytes).unwrap();
            prop_assert!(SlotState::read(&path).is_err());
        }
    }
}
