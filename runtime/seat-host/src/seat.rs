//! A seat that was found, opened and asked who it is.

use crate::discover::Origin;
use crate::error::SeatError;
use crate::library::Library;
use crate::options::SeatOptions;
use crate::probe::probe;
use bloomery_program::{Fault, ModelFacts, Op, Program, Summary, Version};
use bloomery_seat::SeatInfo;
use serde::Deserialize;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

/// A usable seat. Cheap to clone.
#[derive(Debug, Clone)]
pub struct Seat {
    /// What it says about itself.
    pub info: SeatInfo,
    /// Its file.
    pub path: PathBuf,
    /// How it was found.
    pub origin: Origin,
    /// It brings operators of its own.
    pub cpu_op: bool,
    /// Its own operators may run inside this process.
    pub allow_native: bool,
    pub(crate) library: Arc<Library>,
    pub(crate) options: Arc<SeatOptions>,
}

/// A program that holds together, for the very file whose facts were given.
#[derive(Debug, Clone, PartialEq)]
pub struct Checked {
    /// The program.
    pub program: Program,
    /// What it amounts to.
    pub summary: Summary,
}

impl Seat {
    /// Hash of its file, 64 hexadecimal digits.
    pub fn sha256(&self) -> &str {
        self.library.sha256()
    }

    /// The same seat with another time limit for its answers.
    pub fn with_limit(&self, limit: Duration) -> Seat {
        let options = SeatOptions { limit, ..(*self.options).clone() };
        Seat { options: Arc::new(options), ..self.clone() }
    }

    /// Whether it claims an architecture.
    pub fn claims(&self, architecture: &str) -> bool {
        self.info.architectures.iter().any(|a| a == architecture)
    }

    /// Asks for the program of a model file and checks it.
    ///
    /// # Errors
    /// The model is of another architecture, the seat refuses it or fails, its answer is no program or one of another
    /// language version, the program does not hold together, or it needs operators that may not run here.
    pub fn declare(&self, facts: &ModelFacts) -> Result<Checked, SeatError> {
        if !self.claims(&facts.arch) {
            return Err(SeatError::OtherArchitecture {
                seat: self.info.name.clone(),
                claims: self.info.architectures.clone(),
                architecture: facts.arch.clone(),
            });
        }
        let request = serde_json::to_vec(facts)
            .map_err(|e| SeatError::Probe { message: format!("the model's facts: {e}") })?;
        let answer = probe(&self.library, Some(&request), &self.options)?;
        let bytes = answer.program.ok_or(SeatError::Answer { message: "no program".into() })?;
        let checked = read_program(&bytes, &self.info.name, facts, self.options.language)?;
        self.check_operators(&checked.program)?;
        Ok(checked)
    }

    fn check_operators(&self, program: &Program) -> Result<(), SeatError> {
        let nodes = program.graphs.iter().flat_map(|g| &g.nodes);
        let mut operators: Vec<String> = nodes
            .filter_map(|node| match &node.op {
                Op::Custom { name, version, .. } => Some(format!("{name} {version}")),
                _ => None,
            })
            .collect();
        operators.sort();
        operators.dedup();
        match (operators.is_empty(), self.cpu_op, self.allow_native) {
            (true, ..) | (false, true, true) => Ok(()),
            (false, false, _) => Err(SeatError::NoNative { operators }),
            (false, true, false) => Err(SeatError::NativeNotAllowed { operators }),
        }
    }
}

/// Takes a seat's bytes apart and believes nothing: version first, then every field by name, then the checker.
///
/// # Errors
/// [`SeatError::Language`], [`SeatError::Answer`], [`SeatError::Faults`].
pub fn read_program(
    bytes: &[u8],
    seat: &str,
    facts: &ModelFacts,
    host: Version,
) -> Result<Checked, SeatError> {
    /// The fields that every version of the language has; the others are read once the version is known.
    #[derive(Deserialize)]
    struct Opening {
        language: Version,
        seat: String,
    }
    let fault = |e: serde_json::Error| SeatError::Answer { message: e.to_string() };
    let opening: Opening = serde_json::from_slice(bytes).map_err(fault)?;
    let language = opening.language;
    if language.major != host.major || language.minor > host.minor {
        return Err(SeatError::Language { seat: language, host });
    }
    if opening.seat != seat {
        let message = format!("it is signed {:?}, the seat's name is {seat:?}", opening.seat);
        return Err(SeatError::Answer { message });
    }
    let program: Program = serde_json::from_slice(bytes).map_err(fault)?;
    let needed = program.required_language();
    if needed > language {
        let message = format!("it says language {language} and uses what came with {needed}");
        return Err(SeatError::Answer { message });
    }
    match bloomery_program::check(&program, facts) {
        Ok(summary) => Ok(Checked { program, summary }),
        Err(mut faults) => {
            let all = faults.len();
            faults.truncate(MOST_FAULTS);
            if all > MOST_FAULTS {
                faults.push(Fault::Program(format!("and {} more faults", all - MOST_FAULTS)));
            }
            Err(SeatError::Faults { faults })
        }
    }
}

/// Faults that are told; one mistake in a layer repeats in every layer.
const MOST_FAULTS: usize = 20;
