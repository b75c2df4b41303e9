//! Why a seat or a model was turned down, and what to do about it.

use bloomery_program::{Fault, Version};
use std::path::PathBuf;
use std::time::Duration;

/// One refusal. The message says what was found; [`SeatError::hint`] says what to do.
#[derive(Debug, Clone, PartialEq, thiserror::Error)]
#[non_exhaustive]
pub enum SeatError {
    /// The file or folder cannot be read.
    #[error("cannot read it: {message}")]
    Read {
        /// The system's words.
        message: String,
    },
    /// Larger than any seat.
    #[error("{bytes} bytes, at most {most} are read")]
    TooLarge {
        /// Its size.
        bytes: u64,
        /// The limit.
        most: u64,
    },
    /// No library for this machine, or a broken copy of one.
    #[error("{0}")]
    Elf(#[from] crate::elf::ElfFault),
    /// Somebody else could change it.
    #[error("{path} {what}")]
    Untrusted {
        /// The file or the folder on the way to it.
        path: PathBuf,
        /// Who could.
        what: String,
    },
    /// Not the file that plugins.toml names.
    #[error("its sha256 is {found}, plugins.toml wants {expected}")]
    Hash {
        /// As configured.
        expected: String,
        /// As read.
        found: String,
    },
    /// Switched off in plugins.toml.
    #[error("disabled in plugins.toml")]
    Disabled,
    /// The same file under another path was found first.
    #[error("the same file as {first}")]
    Duplicate {
        /// The one that is used.
        first: PathBuf,
    },
    /// The probing child could not be started or given its work.
    #[error("the probe could not be run: {message}")]
    Probe {
        /// What failed.
        message: String,
    },
    /// The dynamic loader refused it.
    #[error("the loader refuses it: {message}")]
    Open {
        /// The loader's words.
        message: String,
    },
    /// A library, but no seat.
    #[error("it exports no seat table: {message}")]
    NoTable {
        /// The loader's words: they name the symbol.
        message: String,
    },
    /// A seat of another version or layout of the table.
    #[error("its table is not this host's: {message}")]
    Table {
        /// The layout check's words.
        message: String,
    },
    /// Built so that a panic ends the process.
    #[error("it was built with panic = \"abort\"")]
    Aborts,
    /// Its description of itself.
    #[error("{message}")]
    Info {
        /// What is wrong.
        message: String,
    },
    /// A signal ended the child.
    #[error("its code died on signal {signal} ({name}){}", last_words(last))]
    Died {
        /// Number.
        signal: i32,
        /// Name.
        name: &'static str,
        /// Last line that it wrote to stderr.
        last: String,
    },
    /// It ended the child before the answer.
    #[error("it ended the probe early (exit status {status}){}", last_words(last))]
    Exited {
        /// Exit status.
        status: i32,
        /// Last line that it wrote to stderr.
        last: String,
    },
    /// No answer in time.
    #[error("it gave no answer within {limit:?}")]
    Silent {
        /// The limit.
        limit: Duration,
    },
    /// The seat turned the model down in its own words.
    #[error("{message}")]
    Refused {
        /// The seat's words.
        message: String,
    },
    /// An answer that is no program.
    #[error("its answer is no program: {message}")]
    Answer {
        /// What is wrong.
        message: String,
    },
    /// A program in another version of the language.
    #[error("it speaks program language {seat}, this host speaks {host}")]
    Language {
        /// The seat's.
        seat: Version,
        /// The host's.
        host: Version,
    },
    /// A program that does not hold together.
    #[error("its program has {} faults: {}", faults.len(), list(faults))]
    Faults {
        /// All of them.
        faults: Vec<Fault>,
    },
    /// The seat asked for does not claim the model's architecture.
    #[error("seat {seat} claims {}, the model is `{architecture}`", claims.join(", "))]
    OtherArchitecture {
        /// The seat.
        seat: String,
        /// What it claims.
        claims: Vec<String>,
        /// The model's.
        architecture: String,
    },
    /// Two seats claim one architecture.
    #[error(
        "architecture `{architecture}` is claimed by seat {} ({}) and by seat {} ({})",
        first.0, first.1.display(), second.0, second.1.display()
    )]
    Clash {
        /// Which.
        architecture: String,
        /// Name and file.
        first: (String, PathBuf),
        /// Name and file.
        second: (String, PathBuf),
    },
    /// Two seats have the name that was asked for.
    #[error("two seats are named {name}: {} and {}", first.display(), second.display())]
    SameName {
        /// The name.
        name: String,
        /// File.
        first: PathBuf,
        /// File.
        second: PathBuf,
    },
    /// plugins.toml settles an architecture with a seat that does not claim it or is not there.
    #[error(
        "plugins.toml gives `{architecture}` to {chosen}, which is not among the seats that claim it: {}",
        names(claimants)
    )]
    Settlement {
        /// Which.
        architecture: String,
        /// As configured.
        chosen: String,
        /// Those that claim it.
        claimants: Vec<String>,
    },
    /// No seat for the model.
    #[error("no seat claims architecture `{architecture}`{}", known(known_architectures, unused))]
    NoSeat {
        /// The model's.
        architecture: String,
        /// What the found seats claim.
        known_architectures: Vec<String>,
        /// Files that were found and not used, with the reason.
        unused: Vec<(PathBuf, String)>,
    },
    /// No seat of the name that was asked for.
    #[error("no seat is named {name}; there are: {}{}", names(known_seats), because(unused))]
    UnknownName {
        /// As asked.
        name: String,
        /// Names found.
        known_seats: Vec<String>,
        /// Files of that name that were not used, with the reason.
        unused: Vec<(PathBuf, String)>,
    },
    /// plugins.toml cannot be read or says something unknown. Nothing is used then: it may switch seats off.
    #[error("{path}: {message}")]
    Config {
        /// The file.
        path: PathBuf,
        /// What is wrong.
        message: String,
    },
    /// The program needs the seat's own operators, which run inside this process.
    #[error("its program needs its own operators ({}), which would run inside this process", operators.join(", "))]
    NativeNotAllowed {
        /// Names.
        operators: Vec<String>,
    },
    /// The program needs operators that the seat does not bring.
    #[error("its program needs its own operators ({}), and it brings none", operators.join(", "))]
    NoNative {
        /// Names.
        operators: Vec<String>,
    },
}

impl SeatError {
    /// What to do, where there is something to do.
    pub fn hint(&self) -> Option<String> {
        use SeatError as E;
        Some(match self {
            E::Untrusted { .. } => {
                "take the right to write away from others (chmod go-w, chown), or start with --allow-untrusted-seats".into()
            }
            E::Elf(fault) => fault.hint().into(),
            E::Hash { .. } => "install the file that was meant, or write its sha256 into plugins.toml".into(),
            E::Aborts => "build the seat with panic = \"unwind\" (cargo's default)".into(),
            E::Table { .. } => "rebuild the seat with this host's bloomery-seat".into(),
            E::Language { seat, host } if seat > host => {
                format!("update the host to one that speaks {seat}, or rebuild the seat with an older bloomery-seat")
            }
            E::Language { .. } => "rebuild the seat with this host's bloomery-seat".into(),
            E::Silent { .. } => "report it to the seat's author; `seat check FILE` repeats the question".into(),
            E::Clash { architecture, first, .. } => {
                format!("write into plugins.toml, under [architectures]: {architecture} = \"{}\"; or choose with --seat", first.0)
            }
            E::SameName { .. } => "remove one, or choose by path".into(),
            E::NoSeat { .. } => {
                "put a seat for it into a seats folder (--seats-dir, $BLOOMERY_SEATS, `seats` beside the program); --list-seats shows what was found".into()
            }
            E::NativeNotAllowed { .. } => {
                "if you trust the seat as you trust this program, give its entry in plugins.toml: allow_native = true".into()
            }
            _ => return None,
        })
    }

    /// Message and hint in one line.
    pub fn with_hint(&self) -> String {
        match self.hint() {
            Some(hint) => format!("{self} (hint: {hint})"),
            None => self.to_string(),
        }
    }
}

fn last_words(last: &str) -> String {
    if last.is_empty() { String::new() } else { format!("; its last words: {last}") }
}

fn list(faults: &[Fault]) -> String {
    faults.iter().map(ToString::to_string).collect::<Vec<_>>().join("; ")
}

fn names(names: &[String]) -> String {
    if names.is_empty() { "none".into() } else { names.join(", ") }
}

fn because(unused: &[(PathBuf, String)]) -> String {
    unused.iter().map(|(path, why)| format!("; {} was not used: {why}", path.display())).collect()
}

fn known(architectures: &[String], unused: &[(PathBuf, String)]) -> String {
    let claimed = if architectures.is_empty() {
        "; no seat was found".to_string()
    } else {
        format!("; the seats found claim {}", architectures.join(", "))
    };
    format!("{claimed}{}", because(unused))
}
