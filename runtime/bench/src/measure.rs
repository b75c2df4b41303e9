//! The clock around the executor: the same work as llama-bench's rows, without sampling and without a server.

use bloomery_runtime::executor::{Executor, Row, SequenceId, StepError};
use std::time::Instant;

/// One measurement.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Test {
    /// Prompt tokens of each sequence, at once.
    pub n_prompt: usize,
    /// Generated tokens of each sequence, one a step.
    pub n_gen: usize,
    /// Tokens before the clock starts.
    pub n_depth: usize,
    /// Sequences side by side.
    pub n_parallel: usize,
}

/// Nanoseconds of a test.
///
/// Token ids are a fixed pseudo-random text, so every repetition and every program version does the same work.
///
/// # Errors
/// The executor's own.
pub fn once(executor: &mut dyn Executor, test: Test) -> Result<u64, StepError> {
    let mut texts = Vec::with_capacity(test.n_parallel);
    for index in 0..test.n_parallel as u64 {
        let sequence = executor.create().map_err(|error| StepError::Executor(error.to_string()))?;
        let state = 0x2545_f491_4f6c_dd1d_u64.wrapping_add(index.wrapping_mul(0x9e37_79b9_7f4a_7c15));
        texts.push(Text { sequence, position: 0, state, n_vocab: executor.shape().n_vocab });
    }
    for text in &mut texts {
        prompt(executor, text, test.n_depth)?;
    }
    let start = Instant::now();
    for text in &mut texts {
        prompt(executor, text, test.n_prompt)?;
    }
    for _ in 0..test.n_gen {
        let rows: Vec<Row> = texts.iter_mut().map(|text| text.next(true)).collect();
        executor.run(&rows)?;
    }
    let elapsed = start.elapsed().as_nanos();
    texts.iter().for_each(|text| executor.drop_sequence(text.sequence));
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
