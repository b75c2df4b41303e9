//! A position in a byte slice. Every step checks what is left first, so a stated length is never trusted.

use crate::error::GgufError;

/// Bytes that a step wanted and did not find; the caller knows what it was reading and names it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Short {
    pub offset: u64,
    pub needed: u64,
    pub remaining: u64,
}

impl Short {
    pub(crate) fn reading(self, what: impl Into<String>) -> GgufError {
        let Short { offset, needed, remaining } = self;
        GgufError::Truncated { what: what.into(), offset, needed, remaining }
    }
}

#[derive(Debug, Clone)]
pub(crate) struct Cursor<'a> {
    bytes: &'a [u8],
    offset: usize,
}

impl<'a> Cursor<'a> {
    /// Starts at `offset`; one past the end counts as the end.
    pub(crate) fn at(bytes: &'a [u8], offset: usize) -> Self {
        Cursor { bytes, offset: offset.min(bytes.len()) }
    }

    pub(crate) fn offset(&self) -> usize {
        self.offset
    }

    pub(crate) fn bytes(&self) -> &'a [u8] {
        self.bytes
    }

    pub(crate) fn remaining(&self) -> usize {
        self.bytes.len() - self.offset
    }

    /// The next `count` bytes. `count` may be any foreign number.
    pub(crate) fn take(&mut self, count: u64) -> Result<&'a [u8], Short> {
        let rest = self.bytes.get(self.offset..).unwrap_or_default();
        let taken = usize::try_from(count).ok().and_then(|count| rest.get(..count));
        let Some(taken) = taken else {
            return Err(self.short(count));
        };
        self.offset += taken.len();
        Ok(taken)
    }

    /// The next `count` elements of at least `element_bytes` each, checked but not consumed.
    pub(crate) fn expect_elements(&self, count: u64, element_bytes: u64) -> Result<(), Short> {
        let needed = count.saturating_mul(element_bytes);
        if needed > self.remaining() as u64 { Err(self.short(needed)) } else { Ok(()) }
    }

    pub(crate) fn array<const N: usize>(&mut self) -> Result<[u8; N], Short> {
        let rest = self.bytes.get(self.offset..).unwrap_or_default();
        let Some(found) = rest.first_chunk::<N>() else {
            return Err(self.short(N as u64));
        };
        self.offset += N;
        Ok(*found)
    }

    pub(crate) fn u32(&mut self) -> Result<u32, Short> {
        self.array().map(u32::from_le_bytes)
    }

    pub(crate) fn u64(&mut self) -> Result<u64, Short> {
        self.array().map(u64::from_le_bytes)
    }

    /// A length (u64) and that many bytes.
    pub(crate) fn string(&mut self) -> Result<&'a [u8], Short> {
        let length = self.u64()?;
        self.take(length)
    }

    fn short(&self, needed: u64) -> Short {
        Short { offset: self.offset as u64, needed, remaining: self.remaining() as u64 }
    }
}
