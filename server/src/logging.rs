//! Logs, as the `--log-*` flags wish.

use std::{fs::File, io::IsTerminal as _, sync::Mutex};

use tracing::level_filters::LevelFilter;
use tracing_subscriber::{
    Layer, Registry, filter::Targets, fmt, layer::SubscriberExt as _, util::SubscriberInitExt as _,
};

use crate::flags::{LogFlags, WhenFlag};

/// Turns logs on.
///
/// # Errors
/// The log file cannot be written.
pub fn start(flags: &LogFlags) -> std::io::Result<()> {
    let level = level(flags);
    if level == LevelFilter::OFF {
        return Ok(());
    }
    let file = flags.log_file.as_ref().map(File::create).transpose()?;
    let filter = Targets::new().with_default(level.min(LevelFilter::WARN)).with_target("bloomery", level);
    // A program that has set up logs of its own keeps them.
    _ = tracing_subscriber::registry().with(layer(flags, file).with_filter(filter)).try_init();
    Ok(())
}

/// How much is logged.
#[must_use]
pub fn level(flags: &LogFlags) -> LevelFilter {
    if flags.log_disable {
        return LevelFilter::OFF;
    }
    if flags.verbose {
        return LevelFilter::TRACE;
    }
    match flags.verbosity {
        0 => LevelFilter::OFF,
        1 => LevelFilter::ERROR,
        2 => LevelFilter::WARN,
        3 => LevelFilter::INFO,
        4 => LevelFilter::DEBUG,
        _ => LevelFilter::TRACE,
    }
}

fn layer(flags: &LogFlags, file: Option<File>) -> Box<dyn Layer<Registry> + Send + Sync> {
    let colours = match flags.log_colors {
        WhenFlag::On => true,
        WhenFlag::Off => false,
        WhenFlag::Auto => file.is_none() && std::io::stderr().is_terminal(),
    };
    let prefix = flags.log_prefix;
    macro_rules! finish {
        ($layer:expr) => {
            match (file, flags.log_timestamps) {
                (Some(file), true) => $layer.with_writer(Mutex::new(file)).boxed(),
                (Some(file), false) => $layer.without_time().with_writer(Mutex::new(file)).boxed(),
                (None, true) => $layer.with_writer(std::io::stderr).boxed(),
                (None, false) => $layer.without_time().with_writer(std::io::stderr).boxed(),
            }
        };
    }
    if flags.log_jsonl {
        let json = fmt::layer().json().flatten_event(true);
        // llama-server writes these to the standard output.
        return match file {
            Some(file) => json.with_writer(Mutex::new(file)).boxed(),
            None => json.with_writer(std::io::stdout).boxed(),
        };
    }
    finish!(fmt::layer().with_ansi(colours).with_target(prefix).with_level(prefix))
}
