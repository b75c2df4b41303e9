//! A toy executor whose logits are a hash of the whole token history: any mix-up of states changes the text.

use std::{
    collections::BTreeMap,
    sync::{Arc, Mutex},
};

use super::Vocabulary;
use crate::executor::{
    Capacity, DraftAsk, Executor, ExecutorShape, Rollback, Row, SequenceError, SequenceId, StepError,
    StepOutput,
};

pub const N_VOCAB: usize = 32;
/// Ends a generation.
pub const END: u32 = 0;
/// Its row is NaN when it is the last token.
pub const POISON: u32 = 31;

/// What the toy should do wrong.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Fault {
    Panic,
    Failure,
    /// Refuses the first sequence of the step.
    Sequence,
    /// Panics, and then cannot be reset.
    Broken,
}

/// Shared with the test that looks on.
#[derive(Debug, Default)]
pub struct Seen {
    /// Rows of each step that was run.
    pub steps: Vec<Vec<Row>>,
    pub n_sequences: usize,
    /// Fault of the n-th call of `run`.
    pub faults: BTreeMap<usize, Fault>,
    pub n_calls: usize,
}

#[derive(Debug, Clone, Default)]
struct State {
    len: usize,
    /// Hashes by position at which the state can resume, its end included. Under `Truncate` that is every one.
    hashes: BTreeMap<usize, u64>,
    mark: Option<(usize, u64)>,
}

pub struct Toy {
    shape: ExecutorShape,
    page_tokens: usize,
    pages_total: usize,
    sequences: BTreeMap<SequenceId, State>,
    next: u64,
    logits: Vec<f32>,
    broken: bool,
    /// Added to the logit of the token that each token is used to be followed by.
    habit: f32,
    pub seen: Arc<Mutex<Seen>>,
}

/// What a token is used to be followed by: circles of letters.
pub fn habit(token: u32) -> u32 {
    1 + (token * 5 + 2) % 25
}

fn mix(hash: u64, value: u64) -> u64 {
    let mut x = hash ^ value.wrapping_add(0x9e37_79b9_7f4a_7c15).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    x = (x ^ (x >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    x ^ (x >> 31)
}

impl Toy {
    pub fn new(rollback: Rollback, max_rows: usize, page_tokens: usize, pages_total: usize) -> Self {
        Self {
            shape: ExecutorShape {
                n_vocab: N_VOCAB,
                n_hidden: 0,
                max_rows,
                max_tokens: page_tokens * pages_total,
                rollback,
                state_fingerprint: 77,
            },
            page_tokens,
            pages_total,
            sequences: BTreeMap::new(),
            next: 0,
            logits: Vec::new(),
            broken: false,
            habit: 0.0,
            seen: Arc::default(),
        }
    }

    pub fn with_habit(self, habit: f32) -> Self {
        Self { habit, ..self }
    }

    fn state(&self, sequence: SequenceId) -> Result<&State, SequenceError> {
        self.sequences.get(&sequence).ok_or(SequenceError::Unknown(sequence))
    }

    fn pages(&self, n: usize) -> usize {
        n.div_ceil(self.page_tokens)
    }

    fn free(&self) -> usize {
        self.pages_total - self.sequences.values().map(|state| self.pages(state.len)).sum::<usize>()
    }

    fn insert(&mut self, state: State) -> SequenceId {
        self.next += 1;
        let id = SequenceId(self.next);
        self.sequences.insert(id, state);
        self.seen.lock().unwrap().n_sequences = self.sequences.len();
        id
    }

    fn cut(&self, sequence: SequenceId, n: usize) -> Result<State, SequenceError> {
        let nearest = self.resumable(sequence, n)?;
        if nearest != n {
            return Err(SequenceError::NotResumable { asked: n, nearest });
        }
        let mut state = self.state(sequence)?.clone();
        state.hashes.retain(|&position, _| position <= n);
        state.mark.take_if(|mark| mark.0 > n);
        state.len = n;
        Ok(state)
    }

    fn check(&self, rows: &[Row]) -> Result<(), StepError> {
        if rows.len() > self.shape.max_rows || rows.is_empty() {
            return Err(StepError::Malformed(format!("{} rows", rows.len())));
        }
        let mut ends: BTreeMap<SequenceId, usize> = BTreeMap::new();
        for row in rows {
            let sequence = row.sequence;
            let refuse = |error| StepError::Sequence { sequence, error };
            let len = self.state(sequence).map_err(refuse)?.len;
            let end = ends.entry(sequence).or_insert(len);
            if row.position != *end {
                return Err(refuse(SequenceError::Position { position: row.position, expected: *end }));
            }
            *end += 1;
        }
        let grown: usize =
            ends.iter().map(|(id, &end)| self.pages(end) - self.pages(self.sequences[id].len)).sum();
        match ends.last_key_value() {
            Some((&sequence, _)) if grown > self.free() => Err(StepError::Sequence {
                sequence,
                error: SequenceError::NoRoom { needed: grown, free: self.free() },
            }),
            _ => Ok(()),
        }
    }
}

impl Executor for Toy {
    fn shape(&self) -> &ExecutorShape {
        &self.shape
    }

    fn capacity(&self) -> Capacity {
        Capacity { page_tokens: self.page_tokens, pages_total: self.pages_total, pages_free: self.free() }
    }

    fn pages_to_grow(&self, sequence: SequenceId, n_tokens: usize) -> Result<usize, SequenceError> {
        let len = self.state(sequence)?.len;
        Ok(self.pages(len + n_tokens) - self.pages(len))
    }

    fn create(&mut self) -> Result<SequenceId, SequenceError> {
        Ok(self.insert(State { len: 0, hashes: BTreeMap::from([(0, 1)]), mark: None }))
    }

    fn drop_sequence(&mut self, sequence: SequenceId) {
        self.sequences.remove(&sequence);
        self.seen.lock().unwrap().n_sequences = self.sequences.len();
    }

    fn len(&self, sequence: SequenceId) -> Result<usize, SequenceError> {
        Ok(self.state(sequence)?.len)
    }

    fn resumable(&self, sequence: SequenceId, n: usize) -> Result<usize, SequenceError> {
        Ok(self.state(sequence)?.hashes.range(..=n).next_back().map_or(0, |(&position, _)| position))
    }

    fn truncate(&mut self, sequence: SequenceId, n: usize) -> Result<(), SequenceError> {
        let state = self.cut(sequence, n)?;
        self.sequences.insert(sequence, state);
        Ok(())
    }

    fn copy_prefix(&mut self, source: SequenceId, target: SequenceId, n: usize) -> Result<(), SequenceError> {
        assert_eq!(self.state(target)?.len, 0, "the target of a copy must be empty");
        let state = self.cut(source, n)?;
        if self.pages(n) > self.free() {
            return Err(SequenceError::NoRoom { needed: self.pages(n), free: self.free() });
        }
        self.sequences.insert(target, state);
        Ok(())
    }

    fn checkpoint(&mut self, sequence: SequenceId) -> Result<(), SequenceError> {
        let state = self.sequences.get_mut(&sequence).ok_or(SequenceError::Unknown(sequence))?;
        // Marked by a second entry one bit up; see `run`, which forgets the end otherwise.
        let (len, hash) = (state.len, state.hashes[&state.len]);
        state.hashes.insert(len, hash | 1 << 63);
        Ok(())
    }

    fn mark(&mut self, sequence: SequenceId) -> Result<(), SequenceError> {
        let state = self.sequences.get_mut(&sequence).ok_or(SequenceError::Unknown(sequence))?;
        state.mark = Some((state.len, state.hashes[&state.len]));
        Ok(())
    }

    fn take_back(&mut self, sequence: SequenceId, n: usize) -> Result<usize, SequenceError> {
        let nearest = self.resumable(sequence, n)?;
        if nearest == n {
            return self.truncate(sequence, n).map(|()| n);
        }
        let state = self.sequences.get_mut(&sequence).ok_or(SequenceError::Unknown(sequence))?;
        let (at, hash) = state.mark.expect("marked before rows are taken back");
        assert!(nearest <= at && at < n, "the mark stands before the rows");
        state.hashes.retain(|&position, _| position < at);
        state.hashes.insert(at, hash);
        state.len = at;
        Ok(at)
    }

    fn save(&self, sequence: SequenceId) -> Result<Vec<u8>, SequenceError> {
        let state = self.state(sequence)?;
        let numbers = state.hashes.iter().flat_map(|(&position, &hash)| [position as u64, hash]);
        Ok(std::iter::once(state.len as u64).chain(numbers).flat_map(u64::to_le_bytes).collect())
    }

    fn restore(&mut self, bytes: &[u8]) -> Result<SequenceId, SequenceError> {
        let mut numbers = bytes.chunks(8).map(|bytes| bytes.try_into().map(u64::from_le_bytes).ok());
        let bad = || SequenceError::BadState("not a toy state".into());
        let len = numbers.next().flatten().ok_or_else(bad)? as usize;
        let mut hashes = BTreeMap::new();
        while let Some(position) = numbers.next() {
            hashes.insert(position.ok_or_else(bad)? as usize, numbers.next().flatten().ok_or_else(bad)?);
        }
        if hashes.last_key_value().map(|(&position, _)| position) != Some(len) || len > self.shape.max_tokens
        {
            return Err(bad());
        }
        if self.pages(len) > self.free() {
            return Err(SequenceError::NoRoom { needed: self.pages(len), free: self.free() });
        }
        Ok(self.insert(State { len, hashes, mark: None }))
    }

    fn run(&mut self, rows: &[Row]) -> Result<StepOutput<'_>, StepError> {
        let fault = {
            let mut seen = self.seen.lock().unwrap();
            let call = seen.n_calls;
            seen.n_calls += 1;
            seen.faults.get(&call).copied()
        };
        self.check(rows)?;
        match fault {
            Some(Fault::Panic) => panic!("the toy panics"),
            Some(Fault::Broken) => {
                self.broken = true;
                panic!("the toy breaks");
            }
            Some(Fault::Failure) => return Err(StepError::Executor("the toy fails".into())),
            Some(Fault::Sequence) => {
                let error = SequenceError::Failed("the toy refuses".into());
                return Err(StepError::Sequence { sequence: rows[0].sequence, error });
            }
            None => {}
        }
        self.seen.lock().unwrap().steps.push(rows.to_vec());
        self.logits.clear();
        for row in rows {
            let state = self.sequences.get_mut(&row.sequence).unwrap();
            let old = state.hashes[&state.len];
            let hash = mix(old & !(1 << 63), u64::from(row.token)) & !(1 << 63);
            let is_checkpoint = old >> 63 == 1 || state.len == 0;
            if self.shape.rollback == Rollback::Checkpoints && !is_checkpoint {
                state.hashes.remove(&state.len);
            }
            state.len += 1;
            state.hashes.insert(state.len, hash);
            if row.wants_logits {
                let logit = |id: u64| {
                    let bend = if id == u64::from(END) {
                        0.2
                    } else if id == u64::from(POISON) {
                        -100.0
                    } else {
                        0.0
                    };
                    let used_to = id == u64::from(habit(row.token));
                    (mix(hash, id) >> 40) as f32 / (1u64 << 22) as f32
                        + bend
                        + if used_to { self.habit } else { 0.0 }
                };
                let poisoned = row.token == POISON;
                self.logits.extend((0..N_VOCAB as u64).map(|id| if poisoned { f32::NAN } else { logit(id) }));
            }
        }
        Ok(StepOutput { logits: &self.logits, hidden: &[] })
    }

    fn drafts(&self) -> bool {
        true
    }

    /// Follows the habits, and errs often enough.
    fn draft(&mut self, asks: &[DraftAsk<'_>], _: f32) -> Result<Vec<Vec<u32>>, SequenceError> {
        let guess = |ask: &DraftAsk<'_>| {
            assert_eq!(ask.text.len(), self.state(ask.sequence)?.len + 1);
            let habits = std::iter::successors(ask.text.last().copied(), |&token| Some(habit(token)));
            let wrong =
                |(at, token): (usize, u32)| if (at + ask.text.len()).is_multiple_of(7) { END } else { token };
            Ok(habits.skip(1).enumerate().map(wrong).take(ask.n_max).collect())
        };
        asks.iter().map(guess).collect()
    }

    fn reset(&mut self) -> Result<(), StepError> {
        if self.broken {
            return Err(StepError::Executor("the toy stays broken".into()));
        }
        self.sequences.clear();
        Ok(())
    }
}

/// Letters, a new line, and a character in three pieces.
pub struct ToyVocabulary;

impl Vocabulary for ToyVocabulary {
    fn piece(&self, token: u32, special: bool) -> &[u8] {
        const LETTERS: &[u8] = b"abcdefghijklmnopqrstuvwxyz";
        match token {
            END => [b"", b"<end>".as_slice()][usize::from(special)],
            27 => b"\n",
            28 => &[0xe2],
            29 => &[0x82],
            30 => &[0xac],
            POISON => b"?",
            letter => &LETTERS[letter as usize - 1..letter as usize],
        }
    }

    fn is_end_of_generation(&self, token: u32) -> bool {
        token == END
    }

    fn end_tokens(&self) -> Vec<u32> {
        vec![END]
    }

    fn suppressed(&self) -> &[u32] {
        &[]
    }

    fn sequences_with(&self, text: &str) -> Vec<Vec<u32>> {
        (0..N_VOCAB as u32).filter(|&id| self.piece(id, true) == text.as_bytes()).map(|id| vec![id]).collect()
    }
}
