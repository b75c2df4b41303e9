//! What a sequence remembers, as its program declares it.

use crate::error::{ReferenceError, Result};
use bloomery_program::{PartRole, State, StateId, StateKind};
use std::collections::BTreeMap;

/// Most snapshots that a sequence keeps.
const MOST_SNAPSHOTS: usize = 8;

/// Precision of stored key and value parts; parts declared exact are f32 always.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum CacheType {
    /// As computed.
    #[default]
    F32,
    /// Rounded to f16 when stored.
    F16,
}

/// The states of all sequences of one program.
#[derive(Debug, Clone)]
pub struct States {
    pub(crate) declared: Vec<State>,
    pub(crate) cache: CacheType,
    pub(crate) sequences: BTreeMap<u64, Sequence>,
}

/// The state of one sequence.
#[derive(Debug, Clone, PartialEq, Default)]
pub(crate) struct Sequence {
    /// Tokens that the target has seen.
    pub length: usize,
    /// One for each declared state.
    pub states: Vec<Memory>,
    /// Copies of the states that cannot be cut back, by the length at which they were made.
    pub snapshots: BTreeMap<usize, Vec<Option<Memory>>>,
    /// One more of them, the last mark.
    pub mark: Option<(usize, Vec<Option<Memory>>)>,
}

/// One state of one sequence.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Memory {
    /// Tokens that went into it. A drafter's states may differ from the target's.
    pub tokens: usize,
    pub stored: Stored,
}

/// The numbers of a state.
#[derive(Debug, Clone, PartialEq)]
pub(crate) enum Stored {
    /// `[rows, width]` for each part.
    Rows(Vec<Vec<f32>>),
    /// `[rows, width]`, oldest first, zero before the start.
    Recent(Vec<f32>),
    /// The block.
    Recurrent(Vec<f32>),
    /// The last ids, oldest first; fewer at the start.
    Tokens(Vec<u32>),
}

impl Memory {
    fn empty(kind: &StateKind) -> Self {
        let stored = match kind {
            StateKind::Rows { parts, .. } => Stored::Rows(vec![Vec::new(); parts.len()]),
            StateKind::Recent { rows, width } => Stored::Recent(vec![0.0; *rows as usize * *width as usize]),
            StateKind::Recurrent { dims } => {
                Stored::Recurrent(vec![0.0; dims.iter().map(|d| *d as usize).product()])
            }
            StateKind::Tokens { .. } => Stored::Tokens(Vec::new()),
        };
        Memory { tokens: 0, stored }
    }
}

impl States {
    /// No sequence yet.
    pub fn new(declared: &[State], cache: CacheType) -> Self {
        States { declared: declared.to_vec(), cache, sequences: BTreeMap::new() }
    }

    /// Starts an empty sequence.
    ///
    /// # Errors
    /// The number is taken.
    pub fn create(&mut self, sequence: u64) -> Result<()> {
        if self.sequences.contains_key(&sequence) {
            return Err(ReferenceError::SequenceTaken(sequence));
        }
        let states = self.declared.iter().map(|s| Memory::empty(&s.kind)).collect();
        self.sequences.insert(sequence, Sequence { states, ..Sequence::default() });
        Ok(())
    }

    /// Forgets a sequence, if there is one.
    pub fn remove(&mut self, sequence: u64) {
        self.sequences.remove(&sequence);
    }

    /// Tokens that the target has seen of a sequence.
    ///
    /// # Errors
    /// Unknown sequence.
    pub fn length(&self, sequence: u64) -> Result<usize> {
        Ok(self.get(sequence)?.length)
    }

    /// Tokens that went into one state; a drafter's may be behind the target's or before it.
    ///
    /// # Errors
    /// Unknown sequence; no such state.
    pub fn tokens(&self, sequence: u64, state: StateId) -> Result<usize> {
        let memory = self.get(sequence)?.states.get(state.0 as usize);
        memory
            .map(|memory| memory.tokens)
            .ok_or_else(|| ReferenceError::Step(format!("no state {}", state.0)))
    }

    /// Cuts stores that hold more than `n` tokens, at least as many as the target has seen: takes back what a drafter
    /// wrote on its own account.
    ///
    /// # Errors
    /// Unknown sequence; a position that the target has passed.
    pub fn cut_stores(&mut self, sequence: u64, n: usize) -> Result<()> {
        let declared = std::mem::take(&mut self.declared);
        let result = self.get_mut(sequence).and_then(|s| match s.length <= n {
            true => {
                s.cut_stores(&declared, n);
                Ok(())
            }
            false => Err(ReferenceError::NotResumable { asked: n, nearest: s.length }),
        });
        self.declared = declared;
        result
    }

    /// Every sequence with the tokens that the target has seen of it.
    pub fn sequences(&self) -> impl Iterator<Item = (u64, usize)> {
        self.sequences.iter().map(|(sequence, s)| (*sequence, s.length))
    }

    /// The largest position at most `n` that the sequence can go back to; 0 always is one.
    ///
    /// # Errors
    /// Unknown sequence.
    pub fn resumable(&self, sequence: u64, n: usize) -> Result<usize> {
        let s = self.get(sequence)?;
        let n = n.min(s.length);
        let free = s.states.iter().all(|m| m.tokens <= n || matches!(m.stored, Stored::Rows(_)));
        Ok(if free { n } else { s.snapshots.range(..=n).next_back().map_or(0, |(length, _)| *length) })
    }

    /// Remembers the present position as one that can be gone back to. Does nothing when every state is rows. At most
    /// eight are kept: the one closest to its predecessor goes first.
    ///
    /// # Errors
    /// Unknown sequence.
    pub fn snapshot(&mut self, sequence: u64) -> Result<()> {
        let s = self.get_mut(sequence)?;
        if s.states.iter().all(|m| matches!(m.stored, Stored::Rows(_))) {
            return Ok(());
        }
        s.snapshots.insert(s.length, s.fixed());
        if s.snapshots.len() > MOST_SNAPSHOTS {
            let lengths: Vec<usize> = s.snapshots.keys().copied().collect();
            let closest = lengths.windows(2).take(MOST_SNAPSHOTS - 1).min_by_key(|pair| pair[1] - pair[0]);
            if let Some(pair) = closest {
                s.snapshots.remove(&pair[1]);
            }
        }
        Ok(())
    }

    /// Remembers the present position until the next mark, beside the snapshots.
    ///
    /// # Errors
    /// Unknown sequence.
    pub fn mark(&mut self, sequence: u64) -> Result<()> {
        let s = self.get_mut(sequence)?;
        s.mark = Some((s.length, s.fixed()));
        Ok(())
    }

    /// Goes back to the first `n` tokens or, where the states cannot be cut there, to the mark before them; returns
    /// where.
    ///
    /// # Errors
    /// Unknown sequence; neither can be had (nothing has changed then).
    pub fn take_back(&mut self, sequence: u64, n: usize) -> Result<usize> {
        let nearest = self.resumable(sequence, n)?;
        let s = self.get_mut(sequence)?;
        let Some((at, fixed)) = s.mark.take_if(|(at, _)| nearest < n && (nearest..n).contains(at)) else {
            return self.truncate(sequence, n).map(|()| n);
        };
        let is_snapshot = s.snapshots.insert(at, fixed).is_some();
        self.truncate(sequence, at)?;
        if !is_snapshot {
            self.get_mut(sequence)?.snapshots.remove(&at);
        }
        Ok(at)
    }

    /// Goes back to the first `n` tokens.
    ///
    /// # Errors
    /// Unknown sequence; a state that cannot be cut there (nothing has changed then).
    pub fn truncate(&mut self, sequence: u64, n: usize) -> Result<()> {
        let nearest = self.resumable(sequence, n)?;
        let declared = std::mem::take(&mut self.declared);
        let result = self.get_mut(sequence).and_then(|s| s.truncate(&declared, n, nearest));
        self.declared = declared;
        result
    }

    /// Makes the new sequence `target` equal to the first `n` tokens of `source`.
    ///
    /// # Errors
    /// As `truncate` and `create`; nothing has changed then.
    pub fn copy(&mut self, source: u64, target: u64, n: usize) -> Result<()> {
        if self.sequences.contains_key(&target) {
            return Err(ReferenceError::SequenceTaken(target));
        }
        let nearest = self.resumable(source, n)?;
        let mut copy = self.get(source)?.clone();
        copy.truncate(&self.declared, n, nearest)?;
        self.sequences.insert(target, copy);
        Ok(())
    }

    /// Bytes that a sequence occupies, without its snapshots.
    ///
    /// # Errors
    /// Unknown sequence.
    pub fn bytes(&self, sequence: u64) -> Result<usize> {
        let values = |m: &Memory| match &m.stored {
            Stored::Rows(parts) => parts.iter().map(Vec::len).sum(),
            Stored::Recent(v) | Stored::Recurrent(v) => v.len(),
            Stored::Tokens(v) => v.len(),
        };
        Ok(4 * self.get(sequence)?.states.iter().map(values).sum::<usize>())
    }

    pub(crate) fn get(&self, sequence: u64) -> Result<&Sequence> {
        self.sequences.get(&sequence).ok_or(ReferenceError::UnknownSequence(sequence))
    }

    pub(crate) fn get_mut(&mut self, sequence: u64) -> Result<&mut Sequence> {
        self.sequences.get_mut(&sequence).ok_or(ReferenceError::UnknownSequence(sequence))
    }

    /// The parts of a rows state, and how a value is rounded when it is stored.
    pub(crate) fn round(&self, role: PartRole, value: f32) -> f32 {
        match (self.cache, role) {
            (CacheType::F32, _) | (_, PartRole::Exact) => value,
            (CacheType::F16, _) => half::f16::from_f32(value).to_f32(),
        }
    }
}

impl Sequence {
    fn cut_stores(&mut self, declared: &[State], n: usize) {
        for (memory, state) in self.states.iter_mut().zip(declared) {
            if let (StateKind::Rows { parts, every, .. }, Stored::Rows(stored), true) =
                (&state.kind, &mut memory.stored, memory.tokens > n)
            {
                for (part, values) in parts.iter().zip(stored) {
                    values.truncate(n / *every as usize * part.width as usize);
                }
                memory.tokens = n;
            }
        }
    }

    /// Copies of the states that cannot be cut back.
    fn fixed(&self) -> Vec<Option<Memory>> {
        self.states.iter().map(|m| (!matches!(m.stored, Stored::Rows(_))).then(|| m.clone())).collect()
    }

    fn truncate(&mut self, declared: &[State], n: usize, nearest: usize) -> Result<()> {
        if nearest != n {
            return Err(ReferenceError::NotResumable { asked: n, nearest });
        }
        let fixed = self.snapshots.get(&n).cloned();
        self.cut_stores(declared, n);
        for (i, (memory, state)) in self.states.iter_mut().zip(declared).enumerate() {
            if memory.tokens > n {
                *memory = match fixed.as_ref().and_then(|f| f.get(i)).and_then(Option::as_ref) {
                    Some(copy) => copy.clone(),
                    None => Memory::empty(&state.kind),
                };
            }
        }
        self.length = self.length.min(n);
        self.snapshots.split_off(&(n + 1));
        self.mark.take_if(|(at, _)| *at > n);
        Ok(())
    }
}
