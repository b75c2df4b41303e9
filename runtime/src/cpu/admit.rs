//! The rows of a step: checked, given their pages, sorted by sequence. Cpu and card alike.

use super::sequences::{Pages, Sequences};
use crate::executor::{ExecutorShape, Row, SequenceError, SequenceId, StepError};

/// Rows of one sequence in a step.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Group {
    pub sequence: SequenceId,
    /// Position of its first row.
    pub position: usize,
    pub rows: usize,
    pub first_row: usize,
}

/// An admitted step; its memory is kept for the next one.
#[derive(Default)]
pub(crate) struct Admitted {
    pub groups: Vec<Group>,
    /// In the order of the sorted rows.
    pub tokens: Vec<u32>,
    /// In the order of the sorted rows.
    pub positions: Vec<usize>,
    /// For every row that wants results, in the caller's order: its place among the sorted rows.
    pub tail: Vec<usize>,
}

impl Admitted {
    /// Checks the rows, takes the pages, sorts the rows by sequence.
    /// `n_tokens` is the number of rows of the embedding table.
    ///
    /// # Errors
    /// A refusal: nothing has changed.
    pub fn admit<P: Pages>(
        &mut self,
        rows: &[Row],
        sequences: &mut Sequences<P>,
        shape: &ExecutorShape,
        n_tokens: usize,
    ) -> Result<(), StepError> {
        if rows.len() > shape.max_rows {
            let what = format!("{} rows, at most {} are taken", rows.len(), shape.max_rows);
            return Err(StepError::Malformed(what));
        }
        self.groups.clear();
        for row in rows {
            let fault = |error: SequenceError| StepError::Sequence { sequence: row.sequence, error };
            let group = match self.groups.iter_mut().find(|g| g.sequence == row.sequence) {
                Some(group) => group,
                None => {
                    let position = sequences.get(row.sequence).map_err(fault)?.len;
                    self.groups.push(Group { sequence: row.sequence, position, rows: 0, first_row: 0 });
                    // Just pushed.
                    let last = self.groups.len() - 1;
                    &mut self.groups[last]
                }
            };
            let expected = group.position + group.rows;
            if row.position != expected {
                return Err(fault(SequenceError::Position { position: row.position, expected }));
            }
            if expected >= shape.max_tokens {
                let max_tokens = shape.max_tokens;
                return Err(fault(SequenceError::TooLong { asked: expected + 1, max_tokens }));
            }
            if row.token as usize >= n_tokens {
                return Err(fault(SequenceError::Token { token: row.token, n_vocab: n_tokens }));
            }
            group.rows += 1;
        }
        // All pages or none: a step that is refused has changed nothing.
        let mut free = sequences.store.pages_free();
        for group in &self.groups {
            let fault = |error: SequenceError| StepError::Sequence { sequence: group.sequence, error };
            let needed = sequences.pages_to_grow(group.sequence, group.rows).map_err(fault)?;
            if needed > free {
                return Err(fault(SequenceError::NoRoom { needed, free }));
            }
            free -= needed;
        }
        let mut first_row = 0;
        for group in &mut self.groups {
            let sequence = group.sequence;
            sequences.grow(sequence, group.rows).map_err(|error| StepError::Sequence { sequence, error })?;
            group.first_row = first_row;
            first_row += group.rows;
        }
        self.tokens.clear();
        self.tokens.resize(rows.len(), 0);
        self.positions.clear();
        self.positions.resize(rows.len(), 0);
        self.tail.clear();
        for row in rows {
            let Some(group) = self.groups.iter().find(|g| g.sequence == row.sequence) else { continue };
            let place = group.first_row + row.position - group.position;
            self.tokens[place] = row.token;
            self.positions[place] = row.position;
            if row.wants_logits || (row.wants_hidden && shape.n_hidden > 0) {
                self.tail.push(place);
            }
        }
        Ok(())
    }

    /// Counts the rows as written.
    pub fn advance<P: Pages>(&self, sequences: &mut Sequences<P>) {
        for group in &self.groups {
            let rows = group.first_row..group.first_row + group.rows;
            sequences.advance(group.sequence, &self.tokens[rows]);
        }
    }
}
