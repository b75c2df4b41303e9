//! Where the time of a decode step goes.

use super::super::CudaError;
use super::super::profile::{Profile, measure};
use super::CudaExecutor;
use crate::executor::{Executor, Row, SequenceId};
use bloomery_kernels_gpu::{Command, GpuError};

impl CudaExecutor {
    /// Measures every operator of a decode step of one row at the present length of the first sequence; the states are of no use
    /// afterwards and are dropped.
    ///
    /// # Errors
    /// The card fails.
    pub fn profile(&mut self) -> Result<Profile, CudaError> {
        let failed = |error: &dyn std::fmt::Display| CudaError::Program(error.to_string());
        let sequence = self.create().map_err(|error| failed(&error))?;
        let depth = PROFILE_DEPTH.min(self.shape.max_tokens.saturating_sub(2));
        for position in (0..depth).step_by(self.shape.max_rows) {
            let end = depth.min(position + self.shape.max_rows);
            let rows: Vec<Row> =
                (position..end).map(|position| profile_row(position, sequence, self.tokens)).collect();
            self.run(&rows).map_err(|error| failed(&error))?;
        }
        let last = Row { wants_logits: true, ..profile_row(depth, sequence, self.tokens) };
        self.run(&[last]).map_err(|error| failed(&error))?;
        let emitted = self.emit(1, 1, 0..self.lowered.steps.len())?;
        let bandwidth = self.bandwidth()?;
        let profile = measure(&mut *self.machine, 1, &emitted, bandwidth)?;
        self.machine.run(&[Command::Clear(self.buffers.report)])?;
        self.drop_sequence(sequence);
        Ok(profile)
    }

    /// What the launches of a decode step of so many rows are for, in order.
    #[cfg(test)]
    pub(crate) fn launches(&mut self, rows: usize) -> Result<Vec<&'static str>, GpuError> {
        let emitted = self.emit(rows, rows, 0..self.lowered.steps.len())?;
        Ok(emitted.labels.iter().map(|label| label.operator).collect())
    }

    /// Bytes a second, read and written, of copies within the card.
    fn bandwidth(&mut self) -> Result<f64, GpuError> {
        let half = (self.buffers.store.bytes() / 2 / 256 * 256).min(1 << 30);
        let (from, to) = (self.buffers.store.part(0, half)?, self.buffers.store.part(half, half)?);
        let recording = self.machine.record(&[Command::Copy { from, to }])?;
        self.machine.time(recording, 1)?;
        let time = self.machine.time(recording, 8)?;
        Ok(16.0 * half as f64 / time.as_secs_f64().max(1e-9))
    }
}

/// Tokens in the context of a profiled step.
const PROFILE_DEPTH: usize = 512;

fn profile_row(position: usize, sequence: SequenceId, tokens: usize) -> Row {
    let token = (position * 7919 + 13) % tokens.max(1);
    Row { token: token as u32, position, sequence, wants_logits: false, wants_hidden: false }
}
