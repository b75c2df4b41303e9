//! A sequence's state as bytes. The bytes may come back from a damaged or hostile file.

use crate::error::{ReferenceError, Result};
use crate::state::{Memory, Sequence, States, Stored};
use bloomery_program::StateKind;
use std::collections::BTreeMap;

const MAGIC: u32 = u32::from_le_bytes(*b"BlS1");

impl States {
    /// Identifies the declaration and the cache type: states with equal fingerprints take each other's bytes.
    pub fn fingerprint(&self) -> u64 {
        // FNV-1a over the declaration as a person would print it.
        let text = format!("{:?} {:?}", self.declared, self.cache);
        text.bytes()
            .fold(0xcbf2_9ce4_8422_2325, |h, b| (h ^ u64::from(b)).wrapping_mul(0x0000_0100_0000_01b3))
    }

    /// The state of a sequence with its snapshots.
    ///
    /// # Errors
    /// Unknown sequence.
    pub fn save(&self, sequence: u64) -> Result<Vec<u8>> {
        let s = self.get(sequence)?;
        let mut out = Vec::new();
        out.extend(MAGIC.to_le_bytes());
        out.extend(self.fingerprint().to_le_bytes());
        put(&mut out, s.length);
        s.states.iter().for_each(|m| put_memory(&mut out, m));
        put(&mut out, s.snapshots.len());
        for (length, copies) in &s.snapshots {
            put(&mut out, *length);
            copies.iter().flatten().for_each(|m| put_memory(&mut out, m));
        }
        Ok(out)
    }

    /// Makes a new sequence from saved bytes.
    ///
    /// # Errors
    /// The number is taken; the bytes do not fit the declaration. Nothing has changed then.
    pub fn restore(&mut self, sequence: u64, bytes: &[u8]) -> Result<()> {
        if self.sequences.contains_key(&sequence) {
            return Err(ReferenceError::SequenceTaken(sequence));
        }
        let restored = self.read(bytes).map_err(ReferenceError::BadState)?;
        self.sequences.insert(sequence, restored);
        Ok(())
    }

    fn read(&self, bytes: &[u8]) -> std::result::Result<Sequence, String> {
        let mut reader = Reader { bytes };
        if reader.u32()? != MAGIC {
            return Err("not a saved state".into());
        }
        if reader.u64()? != self.fingerprint() {
            return Err("made by another program or cache type".into());
        }
        let length = reader.number()?;
        let mut states = Vec::new();
        for state in &self.declared {
            states.push(reader.memory(&state.kind, length)?);
        }
        let mut snapshots = BTreeMap::new();
        for _ in 0..reader.number()? {
            let at = reader.number()?;
            let mut copies = Vec::new();
            for state in &self.declared {
                let fixed = !matches!(state.kind, StateKind::Rows { .. });
                copies.push(if fixed { Some(reader.memory(&state.kind, at)?) } else { None });
            }
            if at > length || snapshots.insert(at, copies).is_some() {
                return Err(format!("a snapshot at {at} of {length} tokens"));
            }
        }
        if !reader.bytes.is_empty() {
            return Err(format!("{} bytes too many", reader.bytes.len()));
        }
        Ok(Sequence { length, states, snapshots, mark: None })
    }
}

fn put(out: &mut Vec<u8>, number: usize) {
    out.extend((number as u64).to_le_bytes());
}

fn put_memory(out: &mut Vec<u8>, memory: &Memory) {
    put(out, memory.tokens);
    match &memory.stored {
        Stored::Rows(parts) => parts.iter().flatten().for_each(|v| out.extend(v.to_le_bytes())),
        Stored::Recent(v) | Stored::Recurrent(v) => v.iter().for_each(|v| out.extend(v.to_le_bytes())),
        Stored::Tokens(ids) => ids.iter().for_each(|id| out.extend(id.to_le_bytes())),
    }
}

/// Takes numbers off the front; how many there are follows from the declaration, so nothing is believed.
struct Reader<'a> {
    bytes: &'a [u8],
}

impl<'a> Reader<'a> {
    fn take(&mut self, n: usize) -> std::result::Result<&'a [u8], String> {
        let (head, rest) = self.bytes.split_at_checked(n).ok_or("the bytes end early")?;
        self.bytes = rest;
        Ok(head)
    }

    fn u32(&mut self) -> std::result::Result<u32, String> {
        self.take(4)?.try_into().map(u32::from_le_bytes).map_err(|_| "the bytes end early".into())
    }

    fn u64(&mut self) -> std::result::Result<u64, String> {
        self.take(8)?.try_into().map(u64::from_le_bytes).map_err(|_| "the bytes end early".into())
    }

    fn number(&mut self) -> std::result::Result<usize, String> {
        usize::try_from(self.u64()?).map_err(|_| "a number too large for this machine".into())
    }

    fn floats(&mut self, n: Option<usize>) -> std::result::Result<Vec<f32>, String> {
        let bytes = n.and_then(|n| n.checked_mul(4)).ok_or("a number too large for this machine")?;
        let quad = |b: &[u8]| f32::from_le_bytes([b[0], b[1], b[2], b[3]]);
        Ok(self.take(bytes)?.chunks_exact(4).map(quad).collect())
    }

    fn memory(&mut self, kind: &StateKind, length: usize) -> std::result::Result<Memory, String> {
        let tokens = self.number()?;
        if tokens > length {
            return Err(format!("a state of {tokens} tokens in a sequence of {length}"));
        }
        let stored = match kind {
            StateKind::Rows { parts, every, .. } => {
                let rows = tokens / (*every).max(1) as usize;
                let mut read = Vec::new();
                for part in parts {
                    read.push(self.floats(rows.checked_mul(part.width as usize))?);
                }
                Stored::Rows(read)
            }
            StateKind::Recent { rows, width } => {
                Stored::Recent(self.floats((*rows as usize).checked_mul(*width as usize))?)
            }
            StateKind::Recurrent { dims } => {
                let n = dims.iter().try_fold(1usize, |n, d| n.checked_mul(*d as usize));
                Stored::Recurrent(self.floats(n)?)
            }
            StateKind::Tokens { count } => {
                let mut ids = Vec::new();
                for _ in 0..tokens.min(*count as usize) {
                    ids.push(self.u32()?);
                }
                Stored::Tokens(ids)
            }
        };
        Ok(Memory { tokens, stored })
    }
}
