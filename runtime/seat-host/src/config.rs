//! plugins.toml: what the operator says about seats.
//!
//! ```toml
//! dirs = ["seats", "/usr/lib/bloomery/seats"]     # relative to this file
//!
//! [architectures]
//! llama = "llama"                                 # which seat, by name or file, where two claim one architecture
//!
//! [[seat]]
//! file = "seats/libseat_own.so"                   # a file to use, wherever it is
//! sha256 = "..."                                  # refuse any other content
//! allow_native = true                             # let its own operators run inside this process
//!
//! [[seat]]
//! name = "old"                                    # or by name, for seats that are found elsewhere
//! disabled = true
//! ```

use crate::error::SeatError;
use serde::Deserialize;
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

/// The file's content, paths made absolute.
#[derive(Debug, Clone, Default, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Config {
    /// Folders to search.
    pub dirs: Vec<PathBuf>,
    /// Architecture to the name or the file of its seat.
    pub architectures: BTreeMap<String, String>,
    /// What is said about single seats.
    #[serde(rename = "seat")]
    pub seats: Vec<SeatEntry>,
}

/// What is said about one seat.
#[derive(Debug, Clone, Default, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct SeatEntry {
    /// Its file.
    pub file: Option<PathBuf>,
    /// Its name, where no file is given.
    pub name: Option<String>,
    /// Hash of the only content that is taken, 64 hexadecimal digits.
    pub sha256: Option<String>,
    /// Its own operators may run inside this process.
    pub allow_native: bool,
    /// Never use it.
    pub disabled: bool,
}

impl Config {
    /// Reads a file.
    ///
    /// # Errors
    /// [`SeatError::Config`]: it cannot be read, is no TOML, or says something unknown or contradictory.
    pub fn read(path: &Path) -> Result<Config, SeatError> {
        let fault = |message: String| SeatError::Config { path: path.into(), message };
        let text = std::fs::read_to_string(path).map_err(|e| fault(e.to_string()))?;
        let folder = path.parent().unwrap_or(Path::new("."));
        Config::parse(&text, folder).map_err(fault)
    }

    /// Reads the text of a file that lies in `folder`.
    ///
    /// # Errors
    /// What is wrong, with the line where there is one.
    pub fn parse(text: &str, folder: &Path) -> Result<Config, String> {
        let mut config: Config = toml::from_str(text).map_err(|e| e.to_string().trim().replace('\n', " "))?;
        for dir in &mut config.dirs {
            *dir = folder.join(&*dir);
        }
        for (index, entry) in config.seats.iter_mut().enumerate() {
            match (&mut entry.file, &entry.name) {
                (Some(file), None) => *file = folder.join(&*file),
                (None, Some(_)) => {}
                _ => return Err(format!("[[seat]] number {}: give either `file` or `name`", index + 1)),
            }
            let hash_fits = |s: &String| s.len() == 64 && s.bytes().all(|b| b.is_ascii_hexdigit());
            if let Some(hash) = &mut entry.sha256 {
                if !hash_fits(hash) {
                    return Err(format!(
                        "[[seat]] number {}: sha256 {hash:?} is not 64 hexadecimal digits",
                        index + 1
                    ));
                }
                hash.make_ascii_lowercase();
            }
        }
        Ok(config)
    }

    /// The entry of a file.
    pub fn by_file(&self, path: &Path) -> Option<&SeatEntry> {
        self.seats.iter().find(|entry| entry.file.as_deref().is_some_and(|file| same_file(file, path)))
    }

    /// The entry of a name.
    pub fn by_name(&self, name: &str) -> Option<&SeatEntry> {
        self.seats.iter().find(|entry| entry.name.as_deref() == Some(name))
    }
}

/// Whether two paths lead to one file.
pub(crate) fn same_file(a: &Path, b: &Path) -> bool {
    a == b || matches!((a.canonicalize(), b.canonicalize()), (Ok(a), Ok(b)) if a == b)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_field_is_read() {
        let text = r#"
            dirs = ["seats", "/usr/lib/seats"]
            [architectures]
            llama = "mine"
            [[seat]]
            file = "a/libx.so"
            sha256 = "ABCDEF0123456789abcdef0123456789abcdef0123456789abcdef0123456789"
            allow_native = true
            [[seat]]
            name = "old"
            disabled = true
        "#;
        let config = Config::parse(text, Path::new("/etc/b")).expect("read");
        assert_eq!(config.dirs, [Path::new("/etc/b/seats"), Path::new("/usr/lib/seats")]);
        assert_eq!(config.architectures["llama"], "mine");
        let first = config.by_file(Path::new("/etc/b/a/libx.so")).expect("entry");
        assert!(first.allow_native && !first.disabled);
        assert!(first.sha256.as_deref().is_some_and(|s| s.starts_with("abcdef")));
        assert!(config.by_name("old").is_some_and(|entry| entry.disabled));
        assert!(config.by_name("mine").is_none());
    }

    #[test]
    fn what_is_unknown_or_contradictory_is_refused() {
        for (text, part) in [
            ("folders = []", "folders"),
            ("[[seat]]\nfile = \"x\"\nenabled = true", "enabled"),
            ("[[seat]]\ndisabled = true", "either"),
            ("[[seat]]\nfile = \"x\"\nname = \"y\"", "either"),
            ("[[seat]]\nname = \"x\"\nsha256 = \"12\"", "sha256"),
            ("dirs = \"seats\"", "sequence"),
            ("dirs = [", "expected"),
        ] {
            let error = Config::parse(text, Path::new("/")).expect_err(text);
            assert!(error.contains(part), "{text:?}: {error}");
        }
    }
}
