//! The program as a whole.

use super::GraphBuilder;
use crate::error::{Error, Result};
use bloomery_program::graph::{ChatHints, Graph, Role};
use bloomery_program::{LANGUAGE, ModelFacts, Program, State};
use std::collections::BTreeSet;

/// The program under construction: states that all graphs share, graphs, and the tensors that are accounted for.
pub struct ProgramBuilder<'m> {
    pub(super) facts: &'m ModelFacts,
    pub(super) states: Vec<State>,
    pub(super) graphs: Vec<Graph>,
    /// Tensors that a node reads or that the seat set aside.
    pub(super) read: BTreeSet<String>,
    seat: String,
    chat: ChatHints,
    notes: Vec<String>,
}

impl<'m> ProgramBuilder<'m> {
    /// A program of the seat of this name, the one that `export_seat!` states.
    pub fn new(seat: &str, facts: &'m ModelFacts) -> Self {
        ProgramBuilder {
            facts,
            states: vec![],
            graphs: vec![],
            read: BTreeSet::new(),
            seat: seat.into(),
            chat: ChatHints::default(),
            notes: vec![],
        }
    }

    /// Starts the graph of the model itself.
    pub fn target(&mut self) -> GraphBuilder<'_, 'm> {
        GraphBuilder::new(self, Role::Target {})
    }

    /// Starts a graph of any role.
    pub fn graph(&mut self, role: Role) -> GraphBuilder<'_, 'm> {
        GraphBuilder::new(self, role)
    }

    /// Facts about the family's chat format.
    pub fn chat(&mut self, hints: ChatHints) -> &mut Self {
        self.chat = hints;
        self
    }

    /// A remark for the operator, logged at load.
    pub fn note(&mut self, note: impl Into<String>) -> &mut Self {
        self.notes.push(note.into());
        self
    }

    /// Sets a tensor aside that no node reads, with the reason, which the operator is told. Nothing happens when the file
    /// does not have it.
    pub fn ignore(&mut self, tensor: &str, why: &str) -> &mut Self {
        if self.facts.has(tensor) && self.read.insert(tensor.into()) {
            self.notes.push(format!("tensor {tensor} is not used: {why}"));
        }
        self
    }

    /// The finished program, in the lowest version of the language that can say it.
    ///
    /// # Errors
    /// [`Error::Unread`] names every tensor of the file that no node reads; [`Error::Refused`] quotes what the checker finds.
    pub fn finish(self) -> Result<Program> {
        let unread: Vec<String> =
            self.facts.tensors.keys().filter(|name| !self.read.contains(*name)).cloned().collect();
        if !unread.is_empty() {
            return Err(Error::Unread { tensors: unread });
        }
        let mut program = Program {
            language: LANGUAGE,
            seat: self.seat,
            states: self.states,
            graphs: self.graphs,
            chat: self.chat,
            notes: self.notes,
        };
        program.language = program.required_language();
        // The host checks again; here a mistake of the seat's author shows in the seat's own tests.
        match bloomery_program::check(&program, self.facts) {
            Ok(_) => Ok(program),
            Err(faults) => {
                let faults: Vec<String> = faults.iter().map(ToString::to_string).collect();
                Err(Error::refused(faults.join("; ")))
            }
        }
    }
}
