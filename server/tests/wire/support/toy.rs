//! An executor that knows nothing: the logits after a token follow from that token, and every likely token is plain text.

use std::{
    collections::BTreeMap,
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicUsize, Ordering},
    },
    time::Duration,
};

use bloomery_runtime::executor::{
    Capacity, Executor, ExecutorShape, Rollback, Row, SequenceError, SequenceId, StepError, StepOutput,
};
use bloomery_tokenizer::Tokenizer;

/// How slow steps are, and what can be seen from outside.
#[derive(Debug, Clone, Default)]
pub struct Speed {
    /// Time of a step with decode rows only.
    pub decode: Duration,
    /// Time of a step with prompt rows.
    pub prompt: Duration,
    /// Steps so far.
    pub steps: Arc<AtomicUsize>,
    /// The next step panics.
    pub panic: Arc<AtomicBool>,
}

pub struct Toy {
    shape: ExecutorShape,
    lengths: BTreeMap<SequenceId, usize>,
    next: u64,
    /// Tokens that are whole words of ASCII.
    plain: Vec<u32>,
    logits: Vec<f32>,
    speed: Speed,
}

const PAGES: usize = 1 << 16;

impl Toy {
    pub fn new(tokenizer: &Tokenizer, speed: Speed) -> Self {
        let plain = (0..tokenizer.len() as u32)
            .filter(|&id| {
                let piece = tokenizer.piece(id, true);
                !tokenizer.is_control(id)
                    && !tokenizer.is_end_of_generation(id)
                    && piece.len() > 1
                    && piece.iter().all(|byte| byte.is_ascii_lowercase() || *byte == b' ')
            })
            .collect();
        Self {
            shape: ExecutorShape {
                n_vocab: tokenizer.len(),
                n_hidden: 0,
                max_rows: 64,
                max_tokens: 1 << 16,
                rollback: Rollback::Truncate,
                state_fingerprint: 1,
            },
            lengths: BTreeMap::new(),
            next: 0,
            plain,
            logits: Vec::new(),
            speed,
        }
    }

    fn insert(&mut self, length: usize) -> SequenceId {
        self.next += 1;
        self.lengths.insert(SequenceId(self.next), length);
        SequenceId(self.next)
    }
}

impl Executor for Toy {
    fn shape(&self) -> &ExecutorShape {
        &self.shape
    }

    fn capacity(&self) -> Capacity {
        Capacity { page_tokens: 16, pages_total: PAGES, pages_free: PAGES }
    }

    fn pages_to_grow(&self, _: SequenceId, n_tokens: usize) -> Result<usize, SequenceError> {
        Ok(n_tokens.div_ceil(16))
    }

    fn create(&mut self) -> Result<SequenceId, SequenceError> {
        Ok(self.insert(0))
    }

    fn drop_sequence(&mut self, sequence: SequenceId) {
        self.lengths.remove(&sequence);
    }

    fn len(&self, sequence: SequenceId) -> Result<usize, SequenceError> {
        self.lengths.get(&sequence).copied().ok_or(SequenceError::Unknown(sequence))
    }

    fn resumable(&self, sequence: SequenceId, n: usize) -> Result<usize, SequenceError> {
        Ok(self.len(sequence)?.min(n))
    }

    fn truncate(&mut self, sequence: SequenceId, n: usize) -> Result<(), SequenceError> {
        self.lengths.insert(sequence, n);
        Ok(())
    }

    fn copy_prefix(&mut self, _: SequenceId, target: SequenceId, n: usize) -> Result<(), SequenceError> {
        self.lengths.insert(target, n);
        Ok(())
    }

    fn checkpoint(&mut self, _: SequenceId) -> Result<(), SequenceError> {
        Ok(())
    }

    fn save(&self, sequence: SequenceId) -> Result<Vec<u8>, SequenceError> {
        Ok((self.len(sequence)? as u64).to_le_bytes().to_vec())
    }

    fn restore(&mut self, bytes: &[u8]) -> Result<SequenceId, SequenceError> {
        let bytes = bytes.try_into().map_err(|_| SequenceError::BadState("length".to_owned()))?;
        Ok(self.insert(u64::from_le_bytes(bytes) as usize))
    }

    fn run(&mut self, rows: &[Row]) -> Result<StepOutput<'_>, StepError> {
        self.speed.steps.fetch_add(1, Ordering::Relaxed);
        assert!(!self.speed.panic.swap(false, Ordering::Relaxed), "the toy was told to panic");
        let is_decode = rows.iter().all(|row| row.wants_logits);
        std::thread::sleep(if is_decode { self.speed.decode } else { self.speed.prompt });
        self.logits.clear();
        for row in rows {
            self.lengths.insert(row.sequence, row.position + 1);
            if row.wants_logits {
                let start = self.logits.len();
                self.logits.resize(start + self.shape.n_vocab, 0.0);
                for rank in 0..8 {
                    let mix = (row.token as usize + row.position * 7 + rank * 31).wrapping_mul(2_654_435_761);
                    let token = self.plain[(mix >> 7) % self.plain.len()];
                    self.logits[start + token as usize] = 14.0 - rank as f32;
                }
            }
        }
        Ok(StepOutput { logits: &self.logits, hidden: &[] })
    }

    fn reset(&mut self) -> Result<(), StepError> {
        self.lengths.clear();
        Ok(())
    }
}
