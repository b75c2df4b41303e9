//! Seats on the command line: `--list-seats`, `seat ...`, and where seats are looked for.

use std::{io::Write, path::Path, process::ExitCode};

use bloomery_gguf::GgufFile;
use bloomery_program::ModelFacts;
use bloomery_runtime::model::model_facts;
use bloomery_seat_host::{SeatOptions, command::SeatCommand};

use crate::flags::SeatFlags;

/// Where seats are looked for, as the flags wish.
#[must_use]
pub fn options(flags: &SeatFlags) -> SeatOptions {
    SeatOptions {
        folders: flags.seats_dir.clone(),
        config: flags.plugins.clone(),
        allow_untrusted: flags.allow_untrusted_seats,
        ..SeatOptions::from_environment()
    }
}

/// Runs a `seat` command.
#[must_use]
pub fn run(words: &[String], options: &SeatOptions) -> ExitCode {
    let command = match SeatCommand::parse(words) {
        Ok(command) => command,
        Err(problem) => {
            eprintln!("{problem}");
            return ExitCode::from(2);
        }
    };
    let mut out = std::io::stdout().lock();
    match command.run(options, &facts, &mut out).and_then(|well| out.flush().map(|()| well)) {
        Ok(true) => ExitCode::SUCCESS,
        // Whoever reads may have had enough.
        Err(error) if error.kind() == std::io::ErrorKind::BrokenPipe => ExitCode::SUCCESS,
        Ok(false) => ExitCode::FAILURE,
        Err(error) => {
            eprintln!("error: {error}");
            ExitCode::FAILURE
        }
    }
}

fn facts(path: &Path) -> Result<ModelFacts, String> {
    let file = GgufFile::open(path).map_err(|error| error.to_string())?;
    model_facts(&file).map_err(|error| error.to_string())
}
