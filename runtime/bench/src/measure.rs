//! The clock around the executor: the same work as llama-bench's rows, without sampling and without a server.

use bloomery_runtime::executor::{Executor, Row, SequenceId, StepError};
use std::time::Instant;

/// Nanoseconds for `n_prompt` tokens at once, then `n_gen` one at a time, after `n_depth` that are not timed.
///
/// Token ids are a fixed pseudo-random text, so every repetition and every program version does the same work.
///
/// # Errors
/// The executor's own.
pub fn once(
    executor: &mut dyn Executor,
    n_prompt: usize,
    n_gen: usize,
    n_depth: usize,
) -> Result<u64, StepError> {
    let sequence = executor.create().map_err(|error| StepError::Executor(error.to_string()))?;
    let mut text =
        Text { sequence, position: 0, state: 0x2545_f491_4f6c_dd1d, n_vocab: executor.shape().n_vocab };
    prompt(executor, &mut text, n_depth)?;
    let start = Instant::now();
    prompt(executor, &mut text, n_prompt)?;
    for _ in 0..n_gen {
        executor.run(&[text.next(true)])?;
    }
    let elapsed = start.elapsed().as_nanos();
    executor.drop_sequence(sequence);
    Ok(u64::try_from(elapsed).unwrap_or(u64::MAX))
}

fn prompt(executor: &mut dyn Executor, text: &mut Text, n: usize) -> Result<(), StepError> {
    let most = executor.shape().max_rows.max(1);
    let mut left = n;
    while left > 0 {
        let rows: Vec<Row> = (0..left.min(most)).map(|i| text.next(i + 1 == left)).collect();
        left -= rows.len();
        executor.run(&rows)?;
    }
    Ok(())
}

struct Text {
    sequence: SequenceId,
    position: usize,
    state: u64,
    n_vocab: usize,
}

impl Text {
    /// The next token, by xorshift64*.
    fn next(&mut self, wants_logits: bool) -> Row {
        self.state ^= self.state >> 12;
        self.state ^= self.state << 25;
        self.state ^= self.state >> 27;
        let random = self.state.wrapping_mul(0x2545_f491_4f6c_dd1d) >> 33;
        let token = u32::try_from(random % self.n_vocab.max(1) as u64).unwrap_or(0);
        let row = Row {
            token,
            position: self.position,
            sequence: self.sequence,
            wants_logits,
            wants_hidden: false,
        };
        self.position += 1;
        row
    }
}
