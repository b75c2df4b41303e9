//! The cache on disk, in the layout that the hub's tools and llama.cpp share:
//!
//! ```text
//! models--USER--MODEL/refs/main                      the commit that `main` was last seen at
//! models--USER--MODEL/snapshots/COMMIT/NAME          a link to the file's bytes
//! models--USER--MODEL/blobs/CHECKSUM                 the bytes
//! models--USER--MODEL/blobs/CHECKSUM.bloomery-part   what has arrived of them
//! ```
//! A blob appears under its checksum only when it is complete and right, and a snapshot holds only links to such blobs.

use std::path::{Component, Path, PathBuf};

use hf_hub::{Cache, CacheRepo, Repo};

use crate::digest::Digest;
use crate::error::HubError;
use crate::listing::RemoteFile;

/// True for 40 hexadecimal digits.
pub(crate) fn is_commit(text: &str) -> bool {
    text.len() == 40 && text.bytes().all(|byte| byte.is_ascii_hexdigit())
}

/// True for a relative path of plain names: no `..`, no root, no drive, nothing that another system would split.
pub(crate) fn is_plain(path: &Path) -> bool {
    let plain = |component| matches!(component, Component::Normal(_));
    let odd = |text: &str| text.contains(['\\', ':', '\0']);
    path.components().next().is_some()
        && path.components().all(plain)
        && path.to_str().is_some_and(|text| !odd(text))
}

/// The cache's folder of one repository.
#[derive(Debug)]
pub(crate) struct RepoCache {
    folder: PathBuf,
    layout: CacheRepo,
}

impl RepoCache {
    pub(crate) fn new(cache: &Path, repo: &str) -> Self {
        let main = Repo::model(repo.to_owned());
        let folder = cache.join(main.folder_name());
        RepoCache { folder, layout: Cache::new(cache.to_owned()).repo(main) }
    }

    /// Where `name` of `commit` is, or would be.
    pub(crate) fn file(&self, commit: &str, name: &str) -> PathBuf {
        self.layout.pointer_path(commit).join(name)
    }

    /// Where the bytes of a file are, or would be.
    pub(crate) fn blob(&self, digest: &Digest) -> PathBuf {
        self.layout.blob_path(digest.as_str())
    }

    /// Where the bytes of a file gather until they are complete.
    pub(crate) fn part(&self, digest: &Digest) -> PathBuf {
        self.layout.blob_path(&format!("{}.bloomery-part", digest.as_str()))
    }

    /// True if the snapshot or the blobs have the file at its full size.
    pub(crate) fn holds(&self, commit: &str, file: &RemoteFile) -> bool {
        let complete = |path: &Path| {
            std::fs::metadata(path).is_ok_and(|found| found.is_file() && found.len() == file.size)
        };
        complete(&self.file(commit, &file.name)) || complete(&self.blob(&file.digest))
    }

    /// Makes sure that the snapshot shows the file, whose bytes are in the cache.
    pub(crate) fn link(&self, commit: &str, file: &RemoteFile) -> Result<(), HubError> {
        let (link, blob) = (self.file(commit, &file.name), self.blob(&file.digest));
        if std::fs::metadata(&link).is_ok_and(|found| found.len() == file.size) {
            return Ok(());
        }
        let folder = link.parent().unwrap_or(&link);
        std::fs::create_dir_all(folder).map_err(HubError::io(folder))?;
        // A dangling or wrong link from an interrupted run.
        if std::fs::symlink_metadata(&link).is_ok() {
            std::fs::remove_file(&link).map_err(HubError::io(&link))?;
        }
        let depth = Path::new(&file.name).components().count();
        let up: PathBuf = std::iter::repeat_n("..", depth + 1).collect();
        let target = up.join("blobs").join(file.digest.as_str());
        show(&target, &blob, &link).map_err(HubError::io(&link))
    }

    /// Notes that `main` is at `commit`, for the next run without a network.
    pub(crate) fn set_main(&self, commit: &str) -> Result<(), HubError> {
        self.layout.create_ref(commit).map_err(HubError::io(&self.folder.join("refs")))
    }

    /// Commits that have a snapshot: `main`'s first, then the others from the newest.
    pub(crate) fn commits(&self) -> Vec<String> {
        let main = std::fs::read_to_string(self.folder.join("refs/main")).unwrap_or_default();
        let mut snapshots: Vec<(bool, std::time::SystemTime, String)> =
            std::fs::read_dir(self.folder.join("snapshots"))
                .into_iter()
                .flatten()
                .flatten()
                .filter_map(|entry| {
                    let commit = entry.file_name().into_string().ok().filter(|name| is_commit(name))?;
                    let modified = entry.metadata().and_then(|found| found.modified()).ok()?;
                    Some((commit == main.trim(), modified, commit))
                })
                .collect();
        snapshots.sort();
        snapshots.into_iter().rev().map(|(_, _, commit)| commit).collect()
    }

    /// Names of the models in a snapshot whose bytes are there, sorted.
    pub(crate) fn models(&self, commit: &str) -> Vec<String> {
        let mut names = Vec::new();
        collect(&self.layout.pointer_path(commit), "", &mut names);
        names.sort();
        names
    }
}

/// Walks real folders only; links are followed to files, never to folders, so the walk ends.
fn collect(folder: &Path, prefix: &str, names: &mut Vec<String>) {
    for entry in std::fs::read_dir(folder).into_iter().flatten().flatten() {
        let Ok(name) = entry.file_name().into_string() else { continue };
        let (path, name) = (entry.path(), format!("{prefix}{name}"));
        if entry.file_type().is_ok_and(|kind| kind.is_dir()) {
            collect(&path, &format!("{name}/"), names);
        } else if name.ends_with(".gguf") && std::fs::metadata(&path).is_ok_and(|found| found.is_file()) {
            names.push(name);
        }
    }
}

#[cfg(unix)]
fn show(target: &Path, _blob: &Path, link: &Path) -> std::io::Result<()> {
    std::os::unix::fs::symlink(target, link)
}

/// Symbolic links need a privilege on Windows: a second name for the same bytes does as well.
#[cfg(not(unix))]
fn show(_target: &Path, blob: &Path, link: &Path) -> std::io::Result<()> {
    std::fs::hard_link(blob, link).or_else(|_| std::fs::copy(blob, link).map(|_| ()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_plain_relative_names_are_joined_to_the_cache() {
        for name in ["a.gguf", "UD/a.gguf", "a b/ü.gguf", "..a.gguf"] {
            assert!(is_plain(Path::new(name)), "{name}");
        }
        for name in
            ["", "..", "../a.gguf", "a/../../b.gguf", "/a.gguf", "a\\..\\b.gguf", "c:a.gguf", "./a.gguf"]
        {
            assert!(!is_plain(Path::new(name)), "{name}");
        }
    }
}
