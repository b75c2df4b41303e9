//! A private copy of a seat's file. Everything after the first read works on the copy, so a file that is overwritten
//! later (`cp` writes into the same inode) harms nobody.

use crate::error::SeatError;
use rustix::fs::{MemfdFlags, SealFlags, fcntl_add_seals, memfd_create};
use sha2::{Digest, Sha256};
use std::fs::File;
use std::io::{Read, Write};
use std::os::fd::AsFd;
use std::path::Path;

/// Largest file that is read.
pub const MOST_BYTES: u64 = 256 << 20;

/// The checked copy, in memory that nothing can change any more.
#[derive(Debug)]
pub struct Library {
    copy: File,
    len: u64,
    sha256: String,
}

impl Library {
    /// Reads a file once and checks that it is a whole shared library.
    ///
    /// # Errors
    /// [`SeatError::Read`], [`SeatError::TooLarge`], [`SeatError::Elf`].
    pub fn read(path: &Path) -> Result<Library, SeatError> {
        let read = |e: std::io::Error| SeatError::Read { message: e.to_string() };
        // Looked at before it is opened: opening a pipe would wait for a writer.
        let facts = std::fs::metadata(path).map_err(read)?;
        if !facts.is_file() {
            return Err(SeatError::Read { message: "not a regular file".into() });
        }
        if facts.len() > MOST_BYTES {
            return Err(SeatError::TooLarge { bytes: facts.len(), most: MOST_BYTES });
        }
        let mut bytes = Vec::new();
        File::open(path).map_err(read)?.take(MOST_BYTES + 1).read_to_end(&mut bytes).map_err(read)?;
        if bytes.len() as u64 > MOST_BYTES {
            return Err(SeatError::TooLarge { bytes: bytes.len() as u64, most: MOST_BYTES });
        }
        crate::elf::check(&bytes)?;
        let sha256 = Sha256::digest(&bytes).iter().map(|b| format!("{b:02x}")).collect();
        let probe = |e: std::io::Error| SeatError::Probe { message: format!("private copy: {e}") };
        let mut copy = memory_file("seat").map_err(probe)?;
        copy.write_all(&bytes).map_err(probe)?;
        let seals = SealFlags::WRITE | SealFlags::SHRINK | SealFlags::GROW | SealFlags::SEAL;
        fcntl_add_seals(copy.as_fd(), seals).map_err(|e| probe(e.into()))?;
        Ok(Library { copy, len: bytes.len() as u64, sha256 })
    }

    /// Bytes of the file.
    pub fn len(&self) -> u64 {
        self.len
    }

    /// Never: an empty file is no library.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Hash of the content, 64 hexadecimal digits.
    pub fn sha256(&self) -> &str {
        &self.sha256
    }

    /// The copy. Its offset is nobody's: read it by position.
    pub(crate) fn copy(&self) -> &File {
        &self.copy
    }
}

/// An anonymous file in memory.
pub(crate) fn memory_file(name: &str) -> std::io::Result<File> {
    Ok(File::from(memfd_create(name, MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING)?))
}
