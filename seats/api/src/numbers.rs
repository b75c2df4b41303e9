//! A seat against numbers (feature `reference`): a tiny model's logits, computed by the naive executor from the seat's own
//! program, beside those of another implementation.
//!
//! A fixture is three files in one folder: `NAME.facts.json` ([`ModelFacts`]), `NAME.weights.bin` (the tensors in order of
//! their names, f32 little-endian, as they lie in a GGUF file), and `NAME.expected.json`
//! (`{"tokens": [...], "logits": [...]}`, logits row-major `[tokens, n_vocab]`).

use crate::error::{Error, Result};
use bloomery_program::graph::OutputKind;
use bloomery_program::{ModelFacts, Program};
use bloomery_reference::{CacheType, MemoryWeights, Reference, Row, Step};
use serde::Deserialize;
use std::path::Path;

/// A tiny model and what it must answer.
pub struct Fixture {
    /// Its facts.
    pub facts: ModelFacts,
    weights: MemoryWeights,
    expected: Expected,
}

#[derive(Deserialize)]
struct Expected {
    tokens: Vec<u32>,
    logits: Vec<f32>,
}

impl Fixture {
    /// Reads the three files.
    ///
    /// # Errors
    /// One is missing or does not fit the others.
    pub fn read(folder: impl AsRef<Path>, name: &str) -> Result<Fixture> {
        let read = |what: &str| {
            let path = folder.as_ref().join(format!("{name}.{what}"));
            std::fs::read(&path).map_err(|e| Error::refused(format!("{}: {e}", path.display())))
        };
        let json = |e: serde_json::Error| Error::refused(format!("{name}: {e}"));
        let facts: ModelFacts = serde_json::from_slice(&read("facts.json")?).map_err(json)?;
        let expected: Expected = serde_json::from_slice(&read("expected.json")?).map_err(json)?;
        let bytes = read("weights.bin")?;
        let mut rest = &bytes[..];
        let mut weights = MemoryWeights::default();
        for (tensor, found) in &facts.tensors {
            let len = found.elements().and_then(|n| usize::try_from(n).ok()).and_then(|n| n.checked_mul(4));
            let (data, after) = len
                .and_then(|len| rest.split_at_checked(len))
                .ok_or_else(|| Error::refused(format!("{name}: the weights end before {tensor}")))?;
            rest = after;
            let data = data.as_chunks::<4>().0.iter().map(|b| f32::from_le_bytes(*b)).collect();
            weights.insert(tensor, &found.dims, data).map_err(|e| Error::refused(e.to_string()))?;
        }
        if !rest.is_empty() {
            return Err(Error::refused(format!("{name}: {} bytes of weights too many", rest.len())));
        }
        Ok(Fixture { facts, weights, expected })
    }

    /// Largest difference of a logit from the expected one, divided by the largest expected logit. The tokens are run
    /// `at_once` at a time: 1 is decoding, their number is one prompt.
    ///
    /// # Errors
    /// The program does not check, or cannot be run.
    pub fn worst_difference(&self, program: Program, at_once: usize) -> Result<f32> {
        let fault = |e: bloomery_reference::ReferenceError| Error::refused(e.to_string());
        let reference = Reference::new(program, &self.facts, self.weights.clone()).map_err(fault)?;
        let mut states = reference.states(CacheType::F32);
        states.create(0).map_err(fault)?;
        let rows: Vec<Row> = (self.expected.tokens.iter().enumerate())
            .map(|(position, token)| Row { sequence: 0, token: *token, position })
            .collect();
        let mut logits = Vec::new();
        for rows in rows.chunks(at_once.max(1)) {
            let step = Step { rows, ..Step::default() };
            let outputs = reference.forward(&step, &mut states, None).map_err(fault)?;
            let output = outputs.into_iter().find(|o| o.kind == OutputKind::Logits);
            logits.extend(output.ok_or_else(|| Error::refused("the program gives no logits"))?.table.data);
        }
        if logits.len() != self.expected.logits.len() {
            let found = logits.len();
            return Err(Error::refused(format!("{found} logits, expected {}", self.expected.logits.len())));
        }
        let largest = self.expected.logits.iter().fold(0f32, |a, b| a.max(b.abs()));
        let differences = logits.iter().zip(&self.expected.logits).map(|(a, b)| (a - b).abs());
        // A NaN must not hide behind `max`.
        let worst = differences.fold(0f32, |a, b| if b.is_nan() { f32::INFINITY } else { a.max(b) });
        Ok(worst / largest)
    }
}
