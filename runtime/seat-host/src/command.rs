//! The `seat` subcommands, for the server's command line and for the seat author's tool.

use crate::discover::{Seats, Status};
use crate::error::SeatError;
use crate::options::SeatOptions;
use crate::seat::{Checked, Seat};
use bloomery_program::{ModelFacts, Op, dot, text};
use std::collections::BTreeMap;
use std::io::{self, Write};
use std::path::{Path, PathBuf};

/// One of the subcommands. `seat probe` is not among them: see [`crate::probe_main`].
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum SeatCommand {
    /// Everything that was found.
    List,
    /// One seat; with a model its program, as text or as a graph.
    Show {
        /// Name or file.
        seat: String,
        /// A model file.
        model: Option<PathBuf>,
        /// Graphviz in place of text.
        dot: bool,
    },
    /// One file through every check, step by step.
    Check {
        /// The seat's file.
        file: PathBuf,
        /// A model file.
        model: Option<PathBuf>,
    },
    /// What a seat is told about a model: JSON for a seat's own tests.
    Facts {
        /// A model file.
        model: PathBuf,
    },
}

/// How to use the subcommands.
pub const USAGE: &str =
    "usage: seat list | seat show NAME [MODEL] [--dot] | seat check FILE [MODEL] | seat facts MODEL";

impl SeatCommand {
    /// Reads the words after `seat`.
    ///
    /// # Errors
    /// What is wrong, with the usage.
    pub fn parse(words: &[String]) -> Result<SeatCommand, String> {
        let flags: Vec<&str> = words.iter().map(String::as_str).filter(|w| w.starts_with("--")).collect();
        let plain: Vec<&str> = words.iter().map(String::as_str).filter(|w| !w.starts_with("--")).collect();
        match (&plain[..], &flags[..]) {
            (["list"], []) => Ok(SeatCommand::List),
            (["show", seat, rest @ ..], [] | ["--dot"]) if rest.len() <= 1 => Ok(SeatCommand::Show {
                seat: (*seat).into(),
                model: rest.first().map(PathBuf::from),
                dot: !flags.is_empty(),
            }),
            (["check", file, rest @ ..], []) if rest.len() <= 1 => {
                Ok(SeatCommand::Check { file: file.into(), model: rest.first().map(PathBuf::from) })
            }
            (["facts", model], []) => Ok(SeatCommand::Facts { model: model.into() }),
            _ => Err(format!("{:?} is not understood\n{USAGE}", words.join(" "))),
        }
    }

    /// Runs it. `read_facts` reads a model file. Returns whether all is well.
    ///
    /// # Errors
    /// Of writing.
    pub fn run(
        &self,
        options: &SeatOptions,
        read_facts: &dyn Fn(&Path) -> Result<ModelFacts, String>,
        out: &mut dyn Write,
    ) -> io::Result<bool> {
        match self {
            SeatCommand::List => {
                let seats = Seats::discover(options);
                write!(out, "{seats}")?;
                Ok(seats.config_fault.is_none())
            }
            SeatCommand::Show { seat, model, dot } => {
                let mut options = options.clone();
                if Path::new(seat).is_file() {
                    options.files.insert(0, seat.into());
                }
                let seats = Seats::discover(&options);
                match seats.config_fault.clone().map_or_else(|| seats.named(seat), Err) {
                    Ok(found) => show(found, model.as_deref(), *dot, read_facts, out),
                    Err(why) => told(out, &why),
                }
            }
            SeatCommand::Facts { model } => match read_facts(model) {
                Ok(facts) => {
                    serde_json::to_writer_pretty(&mut *out, &facts)?;
                    writeln!(out)?;
                    Ok(true)
                }
                Err(why) => {
                    writeln!(out, "{}: {why}", model.display())?;
                    Ok(false)
                }
            },
            SeatCommand::Check { file, model } => {
                // Only this file, but with what plugins.toml says about it.
                let only = SeatOptions {
                    files: vec![file.clone()],
                    folders: vec![],
                    environment: None,
                    beside: None,
                    ..options.clone()
                };
                check(file, &Seats::discover(&only), model.as_deref(), read_facts, out)
            }
        }
    }
}

fn show(
    seat: &Seat,
    model: Option<&Path>,
    as_dot: bool,
    read_facts: &dyn Fn(&Path) -> Result<ModelFacts, String>,
    out: &mut dyn Write,
) -> io::Result<bool> {
    let Some(model) = model else {
        if as_dot {
            writeln!(out, "a graph needs a model\n{USAGE}")?;
            return Ok(false);
        }
        describe(seat, out)?;
        return Ok(true);
    };
    match declare(seat, model, read_facts) {
        Ok(checked) if as_dot => write!(out, "{}", dot::dot(&checked.program))?,
        Ok(checked) => write!(out, "{}", text::text(&checked.program))?,
        Err(why) => {
            writeln!(out, "{why}")?;
            return Ok(false);
        }
    }
    Ok(true)
}

fn check(
    file: &Path,
    seats: &Seats,
    model: Option<&Path>,
    read_facts: &dyn Fn(&Path) -> Result<ModelFacts, String>,
    out: &mut dyn Write,
) -> io::Result<bool> {
    if let Some(fault) = &seats.config_fault {
        return told(out, fault);
    }
    let candidate = seats.candidates.iter().find(|candidate| candidate.path == file);
    let seat = match candidate.map(|candidate| &candidate.status) {
        Some(Status::Usable(seat)) => seat,
        Some(Status::Unused(why)) => return told(out, why),
        None => return Ok(false),
    };
    describe(seat, out)?;
    let Some(model) = model else { return Ok(true) };
    match declare(seat, model, read_facts) {
        Ok(checked) => {
            summarize(&checked, out)?;
            Ok(true)
        }
        Err(why) => {
            writeln!(out, "{why}")?;
            Ok(false)
        }
    }
}

fn declare(
    seat: &Seat,
    model: &Path,
    read_facts: &dyn Fn(&Path) -> Result<ModelFacts, String>,
) -> Result<Checked, String> {
    let facts = read_facts(model).map_err(|e| format!("{}: {e}", model.display()))?;
    seat.declare(&facts)
        .map_err(|e| format!("seat {} on {}: {}", seat.info.name, model.display(), e.with_hint()))
}

fn describe(seat: &Seat, out: &mut dyn Write) -> io::Result<()> {
    let info = &seat.info;
    writeln!(out, "seat           {} {}", info.name, info.version)?;
    writeln!(out, "licence        {}", if info.licence.is_empty() { "not stated" } else { &info.licence })?;
    writeln!(out, "architectures  {}", info.architectures.join(", "))?;
    writeln!(out, "language       {}", info.language)?;
    writeln!(out, "own operators  {}", if seat.cpu_op { "yes" } else { "no" })?;
    writeln!(out, "file           {}", seat.path.display())?;
    writeln!(out, "sha256         {}", seat.sha256())
}

fn summarize(checked: &Checked, out: &mut dyn Write) -> io::Result<()> {
    let (program, summary) = (&checked.program, &checked.summary);
    let mut operators: BTreeMap<&str, usize> = BTreeMap::new();
    for node in program.graphs.iter().flat_map(|g| &g.nodes) {
        *operators.entry(own_name(&node.op)).or_default() += 1;
    }
    let operators: Vec<String> = operators.iter().map(|(name, n)| format!("{name} x{n}")).collect();
    writeln!(
        out,
        "program        language {}, {} graphs, {} nodes",
        program.language,
        program.graphs.len(),
        summary.nodes
    )?;
    writeln!(out, "operators      {}", operators.join(", "))?;
    writeln!(out, "tensors        {} read, {} parameters", summary.tensors_read, summary.parameters)?;
    writeln!(
        out,
        "state          {} values a token, {} bytes fixed a sequence",
        summary.state_values_per_token, summary.state_fixed_bytes
    )?;
    if !summary.unread.is_empty() {
        writeln!(out, "unread         {}", summary.unread.join(", "))?;
    }
    for note in &program.notes {
        writeln!(out, "note           {note}")?;
    }
    Ok(())
}

fn own_name(op: &Op) -> &str {
    match op {
        Op::Custom { name, .. } => name,
        op => op.name(),
    }
}

fn told(out: &mut dyn Write, why: &SeatError) -> io::Result<bool> {
    writeln!(out, "{}", why.with_hint())?;
    Ok(false)
}
