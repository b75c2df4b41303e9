//! Where to look and what to allow.

use bloomery_program::{LANGUAGE, Version};
use std::ffi::OsString;
use std::path::PathBuf;
use std::time::Duration;

/// What the user asked for. The default looks nowhere; [`SeatOptions::from_environment`] is what a program wants.
#[derive(Debug, Clone)]
pub struct SeatOptions {
    /// Seat files named by the user. Naming a file settles whatever it clashes with.
    pub files: Vec<PathBuf>,
    /// Folders named by the user (`--seats-dir`).
    pub folders: Vec<PathBuf>,
    /// `$BLOOMERY_SEATS`: files and folders separated by colons.
    pub environment: Option<OsString>,
    /// plugins.toml; it must be there.
    pub config: Option<PathBuf>,
    /// plugins.toml that is read if it is there.
    pub default_config: Option<PathBuf>,
    /// Folder that is searched last, if it is there (`seats` beside the program).
    pub beside: Option<PathBuf>,
    /// Use files and folders that others could change (`--allow-untrusted-seats`).
    pub allow_untrusted: bool,
    /// How long a seat may take to answer.
    pub limit: Duration,
    /// The program whose `seat probe` runs a seat; this very program by default.
    pub probe_program: PathBuf,
    /// The language that this host speaks.
    pub language: Version,
}

impl Default for SeatOptions {
    fn default() -> Self {
        SeatOptions {
            files: vec![],
            folders: vec![],
            environment: None,
            config: None,
            default_config: None,
            beside: None,
            allow_untrusted: false,
            limit: Duration::from_secs(5),
            // The link leads to the running program even after its file was replaced.
            probe_program: PathBuf::from("/proc/self/exe"),
            language: LANGUAGE,
        }
    }
}

impl SeatOptions {
    /// `$BLOOMERY_SEATS`, and `plugins.toml` and `seats` beside the running program.
    pub fn from_environment() -> Self {
        let beside = std::env::current_exe()
            .ok()
            .and_then(|program| program.parent().map(|folder| folder.to_path_buf()));
        SeatOptions {
            environment: std::env::var_os("BLOOMERY_SEATS"),
            default_config: beside.as_ref().map(|folder| folder.join("plugins.toml")),
            beside: beside.map(|folder| folder.join("seats")),
            ..SeatOptions::default()
        }
    }

    /// Takes the word of `--seat`: where it is a file, the file is looked at too. Give the same word to
    /// [`crate::Seats::choose`].
    #[must_use]
    pub fn wanting(mut self, wanted: Option<&str>) -> Self {
        if let Some(file) = wanted.map(PathBuf::from).filter(|path| path.is_file()) {
            self.files.push(file);
        }
        self
    }
}
