//! Where seats are looked for, what became of every file that was found, and which seat serves a model.
//!
//! Search order: files and folders named by the user, `$BLOOMERY_SEATS`, plugins.toml, the `seats` folder beside the
//! program. The order decides nothing but which path of one and the same file is shown: where two different files claim an
//! architecture, only a name does (a file named by the user, `--seat`, a line in plugins.toml).

use crate::config::{Config, SeatEntry, same_file};
use crate::error::SeatError;
use crate::library::Library;
use crate::options::SeatOptions;
use crate::probe::probe;
use crate::seat::Seat;
use crate::trust;
use bloomery_seat::SeatInfo;
use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};
use std::sync::Arc;

/// How a file or folder came to be looked at.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Origin {
    /// The user named this file.
    NamedFile,
    /// In a folder that the user named (`--seats-dir`).
    NamedFolder,
    /// In `$BLOOMERY_SEATS`.
    Environment,
    /// In plugins.toml.
    Config,
    /// In the `seats` folder beside the program.
    Beside,
}

/// A file or folder and what became of it.
#[derive(Debug)]
pub struct Candidate {
    /// The file, or a folder that could not be searched.
    pub path: PathBuf,
    /// How it was found.
    pub origin: Origin,
    /// What became of it.
    pub status: Status,
}

/// What became of a candidate.
#[derive(Debug)]
pub enum Status {
    /// Can be used.
    Usable(Box<Seat>),
    /// Why not.
    Unused(SeatError),
}

/// Everything that was found.
#[derive(Debug, Default)]
pub struct Seats {
    /// In search order.
    pub candidates: Vec<Candidate>,
    /// Architecture to the name or file of its seat, from plugins.toml.
    pub settled: BTreeMap<String, String>,
    /// plugins.toml could not be read. Then no seat is given out: the file may switch seats off.
    pub config_fault: Option<SeatError>,
}

impl Seats {
    /// Looks everywhere and asks every file who it is. Never fails as a whole: each candidate says what became of it.
    pub fn discover(options: &SeatOptions) -> Seats {
        let (config, config_fault) = match read_config(options) {
            Ok(config) => (config, None),
            Err(fault) => (Config::default(), Some(fault)),
        };
        let mut search = Search {
            options: Arc::new(options.clone()),
            config,
            paths: BTreeSet::new(),
            hashes: BTreeMap::new(),
            candidates: vec![],
        };
        for file in &options.files {
            search.file(file, Origin::NamedFile);
        }
        for folder in &options.folders {
            search.folder(folder, Origin::NamedFolder);
        }
        for path in options.environment.iter().flat_map(std::env::split_paths) {
            match path.as_os_str().is_empty() {
                true => {}
                false if path.is_file() => search.file(&path, Origin::Environment),
                false => search.folder(&path, Origin::Environment),
            }
        }
        let listed: Vec<PathBuf> =
            search.config.seats.iter().filter_map(|entry| entry.file.clone()).collect();
        for file in listed {
            search.file(&file, Origin::Config);
        }
        for folder in search.config.dirs.clone() {
            search.folder(&folder, Origin::Config);
        }
        if let Some(folder) = options.beside.as_ref().filter(|folder| folder.exists()) {
            search.folder(folder, Origin::Beside);
        }
        Seats { candidates: search.candidates, settled: search.config.architectures, config_fault }
    }

    /// Seats that can be used, in search order.
    pub fn usable(&self) -> impl Iterator<Item = &Seat> {
        self.candidates.iter().filter_map(|candidate| match &candidate.status {
            Status::Usable(seat) => Some(&**seat),
            Status::Unused(_) => None,
        })
    }

    /// Files and folders that are not used, with the reason.
    pub fn unused(&self) -> impl Iterator<Item = (&Candidate, &SeatError)> {
        self.candidates.iter().filter_map(|candidate| match &candidate.status {
            Status::Usable(_) => None,
            Status::Unused(why) => Some((candidate, why)),
        })
    }

    /// Every architecture that some usable seat claims.
    pub fn architectures(&self) -> BTreeSet<&str> {
        self.usable().flat_map(|seat| seat.info.architectures.iter().map(String::as_str)).collect()
    }

    /// The seat for a model's architecture; `wanted` is the name or the file that the user asked for (`--seat`).
    ///
    /// # Errors
    /// [`SeatError::Config`], [`SeatError::UnknownName`], [`SeatError::SameName`], [`SeatError::OtherArchitecture`],
    /// [`SeatError::NoSeat`], [`SeatError::Settlement`] or [`SeatError::Clash`].
    pub fn choose(&self, architecture: &str, wanted: Option<&str>) -> Result<&Seat, SeatError> {
        if let Some(fault) = &self.config_fault {
            return Err(fault.clone());
        }
        if let Some(wanted) = wanted {
            let seat = self.named(wanted)?;
            return if seat.claims(architecture) {
                Ok(seat)
            } else {
                Err(SeatError::OtherArchitecture {
                    seat: seat.info.name.clone(),
                    claims: seat.info.architectures.clone(),
                    architecture: architecture.into(),
                })
            };
        }
        let claimants: Vec<&Seat> = self.usable().filter(|seat| seat.claims(architecture)).collect();
        let named: Vec<&Seat> =
            claimants.iter().copied().filter(|seat| seat.origin == Origin::NamedFile).collect();
        if let [seat] = named[..] {
            return Ok(seat);
        }
        match (&claimants[..], self.settled.get(architecture)) {
            ([], _) => Err(SeatError::NoSeat {
                architecture: architecture.into(),
                known_architectures: self.architectures().into_iter().map(String::from).collect(),
                unused: self.reasons(|_| true),
            }),
            (_, Some(chosen)) => {
                let chosen_ones: Vec<&Seat> =
                    claimants.iter().copied().filter(|seat| answers_to(seat, chosen)).collect();
                match chosen_ones[..] {
                    [seat] => Ok(seat),
                    [first, second, ..] => Err(same_name(chosen, first, second)),
                    [] => Err(SeatError::Settlement {
                        architecture: architecture.into(),
                        chosen: chosen.clone(),
                        claimants: claimants.iter().map(|seat| seat.info.name.clone()).collect(),
                    }),
                }
            }
            ([seat], None) => Ok(seat),
            ([first, second, ..], None) => Err(SeatError::Clash {
                architecture: architecture.into(),
                first: (first.info.name.clone(), first.path.clone()),
                second: (second.info.name.clone(), second.path.clone()),
            }),
        }
    }

    /// The seat of a name or file.
    ///
    /// # Errors
    /// [`SeatError::UnknownName`] or [`SeatError::SameName`].
    pub fn named(&self, wanted: &str) -> Result<&Seat, SeatError> {
        let found: Vec<&Seat> = self.usable().filter(|seat| answers_to(seat, wanted)).collect();
        let files: Vec<&Seat> = found.iter().copied().filter(|s| s.origin == Origin::NamedFile).collect();
        match (&found[..], &files[..]) {
            ([seat], _) | (_, [seat]) => Ok(seat),
            ([], _) => Err(SeatError::UnknownName {
                name: wanted.into(),
                known_seats: self.usable().map(|seat| seat.info.name.clone()).collect(),
                unused: self.reasons(|path| {
                    let stem = path.file_stem().unwrap_or_default().to_string_lossy();
                    same_file(path, Path::new(wanted)) || stem.contains(&wanted.replace('-', "_"))
                }),
            }),
            ([first, second, ..], _) => Err(same_name(wanted, first, second)),
        }
    }

    fn reasons(&self, of: impl Fn(&Path) -> bool) -> Vec<(PathBuf, String)> {
        let unused = self.unused().filter(|(candidate, _)| of(&candidate.path));
        unused.map(|(candidate, why)| (candidate.path.clone(), why.with_hint())).collect()
    }
}

fn same_name(name: &str, first: &Seat, second: &Seat) -> SeatError {
    SeatError::SameName { name: name.into(), first: first.path.clone(), second: second.path.clone() }
}

fn answers_to(seat: &Seat, name: &str) -> bool {
    seat.info.name == name || same_file(&seat.path, Path::new(name))
}

fn read_config(options: &SeatOptions) -> Result<Config, SeatError> {
    let path = match (&options.config, &options.default_config) {
        (Some(path), _) => path,
        (None, Some(path)) if path.exists() => path,
        _ => return Ok(Config::default()),
    };
    if !options.allow_untrusted {
        trust::check(path).map_err(|e| match e {
            SeatError::Read { message } => SeatError::Config { path: path.clone(), message },
            other => other,
        })?;
    }
    Config::read(path)
}

struct Search {
    options: Arc<SeatOptions>,
    config: Config,
    /// Real paths that were looked at.
    paths: BTreeSet<PathBuf>,
    /// Content to the file that has it.
    hashes: BTreeMap<String, PathBuf>,
    candidates: Vec<Candidate>,
}

impl Search {
    /// Every `*.so` of a folder, by name; not of the folders in it.
    fn folder(&mut self, folder: &Path, origin: Origin) {
        let entries = match std::fs::read_dir(folder) {
            Ok(entries) => entries,
            Err(e) => {
                let status = Status::Unused(SeatError::Read { message: e.to_string() });
                return self.candidates.push(Candidate { path: folder.into(), origin, status });
            }
        };
        let mut files: Vec<PathBuf> = entries
            .filter_map(|entry| entry.ok().map(|entry| entry.path()))
            .filter(|path| path.extension().is_some_and(|extension| extension == "so"))
            .collect();
        files.sort();
        for file in files {
            self.file(&file, origin);
        }
    }

    fn file(&mut self, path: &Path, origin: Origin) {
        let real = path.canonicalize().unwrap_or_else(|_| path.to_path_buf());
        if !self.paths.insert(real) {
            return;
        }
        let status = match self.examine(path, origin) {
            Ok(seat) => Status::Usable(Box::new(seat)),
            Err(why) => Status::Unused(why),
        };
        self.candidates.push(Candidate { path: path.into(), origin, status });
    }

    fn examine(&mut self, path: &Path, origin: Origin) -> Result<Seat, SeatError> {
        let by_file = self.config.by_file(path).cloned();
        if by_file.as_ref().is_some_and(|entry| entry.disabled) {
            return Err(SeatError::Disabled);
        }
        if !self.options.allow_untrusted {
            trust::check(path)?;
        }
        let library = Library::read(path)?;
        check_hash(by_file.as_ref(), &library)?;
        if let Some(first) = self.hashes.get(library.sha256()) {
            return Err(SeatError::Duplicate { first: first.clone() });
        }
        let probed = probe(&library, None, &self.options)?;
        let info = SeatInfo::parse(&probed.info).map_err(|message| SeatError::Info { message })?;
        if info.language.major != self.options.language.major {
            return Err(SeatError::Language { seat: info.language, host: self.options.language });
        }
        let by_name = self.config.by_name(&info.name);
        if by_name.is_some_and(|entry| entry.disabled) {
            return Err(SeatError::Disabled);
        }
        check_hash(by_name, &library)?;
        let allow_native = by_file.iter().chain(by_name).any(|entry| entry.allow_native);
        self.hashes.insert(library.sha256().into(), path.into());
        Ok(Seat {
            info,
            path: path.into(),
            origin,
            cpu_op: probed.cpu_op,
            allow_native,
            library: Arc::new(library),
            options: Arc::clone(&self.options),
        })
    }
}

fn check_hash(entry: Option<&SeatEntry>, library: &Library) -> Result<(), SeatError> {
    match entry.and_then(|entry| entry.sha256.as_ref()) {
        Some(expected) if expected != library.sha256() => {
            Err(SeatError::Hash { expected: expected.clone(), found: library.sha256().into() })
        }
        _ => Ok(()),
    }
}
