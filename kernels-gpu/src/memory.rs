//! Memory of the card: named allocations under a limit, and ranges of them.

use crate::error::GpuError;

/// A range of the card's memory. Copying it copies a name, not the bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Buffer {
    address: u64,
    bytes: u64,
}

impl Buffer {
    /// No memory: kernels read it as "absent".
    pub const NONE: Buffer = Buffer { address: 0, bytes: 0 };

    /// Only whoever allocates knows addresses.
    pub(crate) fn new(address: u64, bytes: u64) -> Buffer {
        Buffer { address, bytes }
    }

    /// Its length.
    #[must_use]
    pub fn bytes(self) -> u64 {
        self.bytes
    }

    /// Where it lies, as a kernel's argument takes it.
    #[must_use]
    pub fn address(self) -> u64 {
        self.address
    }

    /// A part of it.
    ///
    /// # Errors
    /// [`GpuError::Range`] when it does not lie inside.
    pub fn part(self, from: u64, bytes: u64) -> Result<Buffer, GpuError> {
        let to = from.saturating_add(bytes);
        if to > self.bytes {
            return Err(GpuError::Range { what: "a part of a buffer", from, to, bytes: self.bytes });
        }
        Ok(Buffer { address: self.address + from, bytes })
    }
}

/// What one allocation is for.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Allocation {
    /// Its name, as out-of-memory reports it.
    pub name: String,
    /// Its size.
    pub bytes: u64,
}

/// Counts allocations against a limit.
#[derive(Debug, Default)]
pub(crate) struct Ledger {
    limit: Option<u64>,
    used: u64,
    all: Vec<Allocation>,
}

impl Ledger {
    pub fn new(limit: Option<u64>) -> Ledger {
        Ledger { limit, ..Ledger::default() }
    }

    /// What may still be taken when the card itself has `free` bytes.
    pub fn free(&self, free: u64) -> u64 {
        self.limit.map_or(free, |limit| free.min(limit.saturating_sub(self.used)))
    }

    /// Refuses what goes over the limit.
    pub fn admit(&self, name: &str, bytes: u64, free: u64, advice: &'static str) -> Result<(), GpuError> {
        let free = self.free(free);
        if bytes > free {
            return Err(GpuError::OutOfMemory { buffer: name.to_string(), bytes, free, advice });
        }
        Ok(())
    }

    pub fn add(&mut self, name: &str, bytes: u64) {
        self.used += bytes;
        self.all.push(Allocation { name: name.to_string(), bytes });
    }

    pub fn all(&self) -> &[Allocation] {
        &self.all
    }
}

/// MiB with one digit.
pub(crate) fn megabytes(bytes: u64) -> String {
    format!("{:.1} MiB", bytes as f64 / f64::from(1 << 20))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_limit_makes_a_small_card_of_a_large_one() {
        let mut ledger = Ledger::new(Some(1000));
        ledger.admit("weights", 900, 1 << 40, "use another card").unwrap();
        ledger.add("weights", 900);
        let error = ledger.admit("kv store", 101, 1 << 40, "--ctx-size makes it smaller").unwrap_err();
        assert_eq!(
            error,
            GpuError::OutOfMemory {
                buffer: "kv store".into(),
                bytes: 101,
                free: 100,
                advice: "--ctx-size makes it smaller"
            }
        );
        let text = error.to_string();
        assert!(text.contains("kv store") && text.contains("--ctx-size"), "{text}");
        ledger.admit("kv store", 100, 50, "").unwrap_err();
        ledger.admit("kv store", 100, 100, "").unwrap();
    }

    #[test]
    fn parts_lie_inside() {
        let buffer = Buffer::new(4096, 100);
        assert_eq!(buffer.part(40, 60).unwrap(), Buffer::new(4136, 60));
        assert!(matches!(buffer.part(41, 60), Err(GpuError::Range { to: 101, .. })));
        assert!(buffer.part(u64::MAX, 2).is_err());
    }
}
