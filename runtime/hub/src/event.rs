//! What happens while a model is fetched: enough to draw a progress bar or to write log lines.

/// One step of a fetch.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub enum Event {
    /// The files are known. `bytes` is their size in all, `missing` what is to be transferred.
    Planned {
        /// Names in the repository.
        files: Vec<String>,
        /// Bytes of all files.
        bytes: u64,
        /// Bytes that are not in the cache yet.
        missing: u64,
    },
    /// An earlier attempt left `have` bytes, whose checksum is computed first: seconds for each gigabyte or so.
    Checking {
        /// Name in the repository.
        file: String,
        /// Bytes from the earlier attempt.
        have: u64,
    },
    /// A file begins, or goes on after `have` bytes.
    Started {
        /// Name in the repository.
        file: String,
        /// Bytes of the file.
        size: u64,
        /// Bytes from an earlier attempt.
        have: u64,
    },
    /// More bytes of the file that started last.
    Advanced {
        /// Bytes of the file that are here now.
        have: u64,
    },
    /// The transfer failed and is tried again.
    Retrying {
        /// What went wrong.
        problem: String,
        /// Attempts in a row without a new byte.
        attempt: u32,
    },
    /// A file is complete and its checksum right.
    Finished {
        /// Name in the repository.
        file: String,
    },
    /// The hub could not be asked, the cache has the model: it is used as it is.
    UsingCache {
        /// Why the hub was of no use.
        reason: String,
    },
}
