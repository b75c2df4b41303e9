//! The program's next-token block, run by its definition.

use crate::executor::SequenceId;
use crate::next_token::{Block, BlockOf, BlockRow, Hear};
use bloomery_program::OutputKind;
use bloomery_reference::{Reference, ReferenceError, Row, States, Step, Weights};

/// The block and the states that it runs over, which are the target's too.
pub(super) struct ReferenceBlock<'a, W: Weights> {
    pub reference: &'a Reference<W>,
    pub states: &'a mut States,
    pub of: &'a BlockOf,
}

impl<W: Weights> Block for ReferenceBlock<'_, W> {
    type Error = ReferenceError;

    fn length(&self, sequence: SequenceId) -> Result<usize, ReferenceError> {
        self.states.length(sequence.0)
    }

    fn written(&mut self, sequence: SequenceId) -> Result<usize, ReferenceError> {
        self.states.tokens(sequence.0, self.of.store)
    }

    fn cut(&mut self, sequence: SequenceId, n: usize) -> Result<(), ReferenceError> {
        self.states.cut_stores(sequence.0, n)
    }

    fn forward(
        &mut self,
        rows: &[BlockRow],
        hidden: &[f32],
        hear: Option<Hear<'_>>,
    ) -> Result<(), ReferenceError> {
        let given = [(self.of.name.as_str(), hidden)];
        let wants = vec![hear.is_some(); rows.len()];
        let row = |r: &BlockRow| Row { sequence: r.sequence.0, token: r.token, position: r.position };
        let rows: Vec<Row> = rows.iter().map(row).collect();
        let step = Step {
            graph: Some(self.of.graph),
            rows: &rows,
            logits: Some(&wants),
            hidden: Some(&wants),
            target_hidden: &given,
            ..Step::default()
        };
        let outputs = self.reference.forward(&step, self.states, None)?;
        let Some(hear) = hear else { return Ok(()) };
        let find = |kind| {
            outputs.iter().find(|o| o.kind == kind && (kind == OutputKind::Logits || o.name == self.of.name))
        };
        let (Some(logits), Some(own)) = (find(OutputKind::Logits), find(OutputKind::Hidden)) else {
            return Err(ReferenceError::Step("the drafter gives no logits or no rows".into()));
        };
        (0..rows.len()).for_each(|row| hear(row, logits.table.row(row), own.table.row(row)));
        Ok(())
    }
}
