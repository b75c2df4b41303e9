//! What can keep a model from being fetched, and what to do about it.

use std::path::PathBuf;

/// Why a model is not at hand.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum HubError {
    /// The text after `-hf` is no repository.
    #[error("\"{text}\" is no model repository: write USER/MODEL or USER/MODEL:QUANT")]
    BadReference {
        /// The text as given.
        text: String,
    },
    /// No variable names a cache folder and there is no home.
    #[error("no folder for models: set HF_HOME, HF_HUB_CACHE or LLAMA_CACHE")]
    NoCacheFolder,
    /// The repository has GGUF files, none of the quantisation asked for.
    #[error("{repo} has no file for \"{tag}\"; it has: {}", available.join(", "))]
    NoSuchQuant {
        /// The repository.
        repo: String,
        /// The quantisation asked for.
        tag: String,
        /// The model files that are there.
        available: Vec<String>,
    },
    /// The file asked for by name is not in the repository.
    #[error("{repo} has no file \"{file}\"; it has: {}", available.join(", "))]
    NoSuchFile {
        /// The repository.
        repo: String,
        /// The file asked for.
        file: String,
        /// The GGUF files that are there.
        available: Vec<String>,
    },
    /// The repository has no GGUF model at all.
    #[error("{repo} has no GGUF model file")]
    NoModel {
        /// The repository.
        repo: String,
    },
    /// A part of a split model is not in the repository.
    #[error("{repo}: \"{file}\" is one of {expected} parts, {found} are there")]
    MissingPart {
        /// The repository.
        repo: String,
        /// The part that was chosen.
        file: String,
        /// Parts that its name states.
        expected: usize,
        /// Parts that are there.
        found: usize,
    },
    /// The model is not in the cache and the network may not be used.
    #[error("{repo} is not in the cache ({}) and the network is switched off (--offline or HF_HUB_OFFLINE)", cache.display())]
    NotCached {
        /// The repository.
        repo: String,
        /// The folder that was searched.
        cache: PathBuf,
    },
    /// The hub wants to know who asks.
    #[error(
        "{repo} is private, gated or misspelt (HTTP {status}): accept its terms on the hub, and give a token with --hf-token or HF_TOKEN"
    )]
    Denied {
        /// The repository.
        repo: String,
        /// HTTP status.
        status: u16,
    },
    /// The hub knows no such repository.
    #[error("{repo} does not exist on {endpoint}")]
    NoSuchRepository {
        /// The repository.
        repo: String,
        /// The hub.
        endpoint: String,
    },
    /// The hub could not be asked.
    #[error("cannot reach {endpoint} for {repo}: {error}")]
    Unreachable {
        /// The repository.
        repo: String,
        /// The hub.
        endpoint: String,
        /// What went wrong.
        error: Box<ureq::Error>,
    },
    /// The hub's answer is not what its protocol says.
    #[error("the answer of {endpoint} for {repo} makes no sense: {problem}")]
    BadAnswer {
        /// The repository.
        repo: String,
        /// The hub.
        endpoint: String,
        /// What is wrong with it.
        problem: String,
    },
    /// A transfer broke off and did not come back. What arrived is kept.
    #[error(
        "{file}: broke off after {received} of {size} bytes: {problem}; run the same command again to go on from there"
    )]
    BrokenOff {
        /// The file.
        file: String,
        /// Bytes that arrived so far.
        received: u64,
        /// Bytes of the whole file.
        size: u64,
        /// What went wrong last.
        problem: String,
    },
    /// The bytes that arrived are not those that the hub announced. They were deleted.
    #[error(
        "{file}: wrong checksum {found}, expected {expected}; the damaged download was deleted, run the same command again"
    )]
    WrongChecksum {
        /// The file.
        file: String,
        /// The checksum announced.
        expected: String,
        /// The checksum of what arrived.
        found: String,
    },
    /// Another process is fetching the same file.
    #[error("{file} is being downloaded by another process ({} is locked)", path.display())]
    Busy {
        /// The file.
        file: String,
        /// The locked file.
        path: PathBuf,
    },
    /// The cache folder could not be read or written.
    #[error("{}: {error}", path.display())]
    Io {
        /// The file or folder.
        path: PathBuf,
        /// What the system said.
        error: std::io::Error,
    },
}

impl HubError {
    pub(crate) fn io(path: &std::path::Path) -> impl FnOnce(std::io::Error) -> HubError {
        let path = path.to_owned();
        move |error| HubError::Io { path, error }
    }
}
