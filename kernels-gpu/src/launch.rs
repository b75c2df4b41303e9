//! Work for a machine as data: launches, copies and marks, the same for a card and for the simulated grid.

use crate::memory::Buffer;

/// A kernel of a machine, by number.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct KernelId(pub(crate) u32);

/// Arguments of a kernel, each in eight bytes, the low ones used.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum Argument {
    /// An address; [`Buffer::NONE`] is null.
    Memory(Buffer),
    /// A 32-bit integer.
    U32(u32),
    /// A 64-bit integer.
    U64(u64),
    /// A float.
    F32(f32),
}

impl Argument {
    /// The eight bytes.
    #[must_use]
    pub fn word(self) -> u64 {
        match self {
            Argument::Memory(buffer) => buffer.address(),
            Argument::U32(value) => u64::from(value),
            Argument::U64(value) => value,
            Argument::F32(value) => u64::from(value.to_bits()),
        }
    }
}

impl From<Buffer> for Argument {
    fn from(buffer: Buffer) -> Self {
        Argument::Memory(buffer)
    }
}
impl From<Option<Buffer>> for Argument {
    fn from(buffer: Option<Buffer>) -> Self {
        Argument::Memory(buffer.unwrap_or(Buffer::NONE))
    }
}
impl From<u32> for Argument {
    fn from(value: u32) -> Self {
        Argument::U32(value)
    }
}
impl From<u64> for Argument {
    fn from(value: u64) -> Self {
        Argument::U64(value)
    }
}
impl From<f32> for Argument {
    fn from(value: f32) -> Self {
        Argument::F32(value)
    }
}

/// One launch.
#[derive(Debug, Clone, PartialEq)]
pub struct Launch {
    /// Which kernel.
    pub kernel: KernelId,
    /// Blocks.
    pub grid: [u32; 3],
    /// Threads of a block.
    pub threads: u32,
    /// Dynamic shared memory of a block, bytes.
    pub shared: u32,
    /// Arguments in order.
    pub arguments: Vec<Argument>,
    /// It may begin while the launch before it ends, and waits itself where it needs that one's results.
    pub overlaps: bool,
}

/// A piece of work, in the order of a stream.
#[derive(Debug, Clone, PartialEq)]
pub enum Command {
    /// A kernel.
    Launch(Launch),
    /// Pinned host memory to the card.
    Upload {
        /// Which pinned memory.
        from: PinnedId,
        /// Offset there, bytes.
        at: u64,
        /// Where to; its length counts.
        to: Buffer,
    },
    /// The card to pinned host memory.
    Download {
        /// Where from; its length counts.
        from: Buffer,
        /// Which pinned memory.
        to: PinnedId,
        /// Offset there, bytes.
        at: u64,
    },
    /// Within the card.
    Copy {
        /// Where from.
        from: Buffer,
        /// Where to, of the same length.
        to: Buffer,
    },
    /// Zeroes.
    Clear(Buffer),
}

/// Pinned host memory of a machine, by number.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct PinnedId(pub(crate) usize);

/// Recorded commands of a machine, by number.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct RecordingId(pub(crate) usize);
