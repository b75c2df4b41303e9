//! One schema for flags, variables, `--help` and the manual; llama-server's other flags are known by name and refused.

mod docs;
mod llama_server;
mod normalise;
mod schema;

use clap::{CommandFactory as _, FromArgMatches as _};

pub use docs::{BEGIN, END, flags_section};
pub use llama_server::{LLAMA_SERVER, Row, Side, Standing};
pub use normalise::{FlagError, normalise};
pub use schema::{
    BackendFlag, CacheTypeFlag, ChatFlags, Command, ConfidenceFlag, DraftFlags, EngineFlags, Flags,
    HttpFlags, LayersFlag, LogFlags, ModelFlags, SamplingFlags, SeatFlags, SpecTypeFlag, WhenFlag,
};

/// Why a command line is not accepted.
#[derive(Debug, thiserror::Error)]
pub enum ParseError {
    /// A flag or variable of llama-server that is not there.
    #[error(transparent)]
    Flag(#[from] FlagError),
    /// Everything that clap says, `--help` and `--version` too.
    #[error(transparent)]
    Clap(#[from] clap::Error),
}

/// The schema as clap sees it, with llama-server's other names of each flag in the help.
#[must_use]
pub fn command() -> clap::Command {
    Flags::command().mut_args(|arg| {
        let Some(long) = arg.get_long().map(str::to_owned) else { return arg };
        let here = |row: &&Row| matches!(row.standing, Standing::Here(name) if name == long);
        let shown = format!("--{long}");
        // Names of one letter are clap's own.
        let others: Vec<&str> = LLAMA_SERVER
            .iter()
            .filter(here)
            .flat_map(|row| row.names.iter().chain(row.negative))
            .copied()
            .filter(|name| *name != shown && name.len() != 2)
            .collect();
        if others.is_empty() {
            return arg;
        }
        let help = arg.get_help().map(ToString::to_string).unwrap_or_default();
        arg.help(format!("{help} [also: {}]", others.join(", ")))
    })
}

/// Reads a command line (without the program's name) and the environment.
///
/// # Errors
/// A flag that is not there, or what clap says; see [`ParseError`].
pub fn parse<A: Into<String>>(
    words: impl IntoIterator<Item = A>,
    variable: &dyn Fn(&str) -> Option<String>,
) -> Result<Flags, ParseError> {
    let words = normalise(words.into_iter().map(Into::into), variable)?;
    let matches =
        command().try_get_matches_from(std::iter::once("bloomery-serve".to_owned()).chain(words))?;
    Ok(Flags::from_arg_matches(&matches)?)
}
