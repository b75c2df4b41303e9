//! The seat author's tool: what `bloomery-serve seat` does, without a server and without models. A model is given as facts
//! in JSON, as a seat's own tests hold them.

use bloomery_seat_host::command::{SeatCommand, USAGE};
use bloomery_seat_host::{SeatOptions, probe_main};
use std::io::Write;
use std::path::Path;
use std::process::ExitCode;

fn main() -> ExitCode {
    let words: Vec<String> = std::env::args_os().skip(1).map(|w| w.to_string_lossy().into_owned()).collect();
    if words == ["seat", "probe"] {
        return probe_main();
    }
    let mut options = SeatOptions::from_environment();
    let mut rest = Vec::new();
    let mut words = words.into_iter();
    while let Some(word) = words.next() {
        match (word.as_str(), &word) {
            ("--allow-untrusted-seats", _) => options.allow_untrusted = true,
            ("--seats-dir" | "--plugins", flag) => match words.next() {
                Some(path) if flag == "--seats-dir" => options.folders.push(path.into()),
                Some(path) => options.config = Some(path.into()),
                None => return usage(&format!("{flag} needs a path")),
            },
            ("--help" | "-h", _) => return usage(""),
            _ => rest.push(word),
        }
    }
    let rest = rest.strip_prefix(&["seat".to_string()]).unwrap_or(&rest);
    let command = match SeatCommand::parse(rest) {
        Ok(command) => command,
        Err(why) => return usage(&why),
    };
    let mut out = std::io::stdout().lock();
    match command.run(&options, &read_facts, &mut out).and_then(|well| out.flush().map(|()| well)) {
        Ok(true) => ExitCode::SUCCESS,
        // A reader that had enough (`| head`) is no failure.
        Err(e) if e.kind() == std::io::ErrorKind::BrokenPipe => ExitCode::SUCCESS,
        _ => ExitCode::FAILURE,
    }
}

fn usage(why: &str) -> ExitCode {
    eprintln!(
        "{why}\n{USAGE}\noptions: --seats-dir DIR, --plugins FILE, --allow-untrusted-seats; MODEL is facts in JSON"
    );
    ExitCode::from(2)
}

fn read_facts(path: &Path) -> Result<bloomery_program::ModelFacts, String> {
    let text = std::fs::read_to_string(path).map_err(|e| e.to_string())?;
    serde_json::from_str(&text).map_err(|e| format!("no facts in JSON: {e}"))
}
