//! What a machine for launches does: a card, or the simulated grid that runs the same kernels on this processor.

use crate::error::GpuError;
use crate::launch::{Command, KernelId, PinnedId, RecordingId};
use crate::memory::{Allocation, Buffer};
use std::fs::File;
use std::time::Duration;

/// Bytes on their way to the card.
#[derive(Debug, Clone, Copy)]
pub struct LoadItem<'a> {
    /// Where from.
    pub source: LoadSource<'a>,
    /// Where to; its length counts.
    pub to: Buffer,
}

/// Where bytes come from.
#[derive(Debug, Clone, Copy)]
pub enum LoadSource<'a> {
    /// A file from an offset on: read by several threads, past every page table.
    File(&'a File, u64),
    /// Memory.
    Memory(&'a [u8]),
}

/// Runs commands in order over memory of its own.
///
/// Commands of one machine run in the order in which they were given; nothing waits but [`Machine::wait`], [`Machine::read`],
/// [`Machine::write`] and [`Machine::load`].
pub trait Machine: Send {
    /// For people.
    fn describe(&self) -> String;

    /// Multiprocessors: launches of fewer blocks leave some idle.
    fn processors(&self) -> u32;

    /// Most shared memory of a block, bytes.
    fn shared_per_block(&self) -> u32;

    /// Launches that may begin early do so; whether that is faster only a clock tells.
    fn overlaps(&self) -> bool {
        false
    }

    /// Bytes that may still be allocated.
    ///
    /// # Errors
    /// The card does not answer.
    fn free_bytes(&self) -> Result<u64, GpuError>;

    /// Takes memory. It is freed with the machine. `advice` is what the user is told when there is none.
    ///
    /// # Errors
    /// [`GpuError::OutOfMemory`] names the buffer.
    fn allocate(&mut self, name: &str, bytes: u64, advice: &'static str) -> Result<Buffer, GpuError>;

    /// Everything allocated.
    fn allocations(&self) -> &[Allocation];

    /// Takes pinned host memory, zeroed.
    ///
    /// # Errors
    /// The system gives none.
    fn pin(&mut self, bytes: u64) -> Result<PinnedId, GpuError>;

    /// Pinned memory to read and write. Waits for everything given so far, so that nobody else touches it.
    ///
    /// # Errors
    /// The card does not answer; no such memory.
    fn pinned(&mut self, id: PinnedId) -> Result<&mut [u8], GpuError>;

    /// A kernel by its entry's name.
    ///
    /// # Errors
    /// [`GpuError::NoKernel`].
    fn kernel(&mut self, name: &str) -> Result<KernelId, GpuError>;

    /// Gives commands.
    ///
    /// # Errors
    /// The card refuses one.
    fn run(&mut self, commands: &[Command]) -> Result<(), GpuError>;

    /// Records commands for replaying at the cost of one call.
    ///
    /// # Errors
    /// As [`Machine::run`].
    fn record(&mut self, commands: &[Command]) -> Result<RecordingId, GpuError>;

    /// Gives all commands of a recording.
    ///
    /// # Errors
    /// The card refuses.
    fn replay(&mut self, recording: RecordingId) -> Result<(), GpuError>;

    /// Time on the card of this many replays in a row.
    ///
    /// # Errors
    /// The card refuses.
    fn time(&mut self, recording: RecordingId, replays: u32) -> Result<Duration, GpuError>;

    /// Waits for everything given so far.
    ///
    /// # Errors
    /// A kernel or a copy failed.
    fn wait(&mut self) -> Result<(), GpuError>;

    /// Writes and waits.
    ///
    /// # Errors
    /// Lengths differ; the card refuses.
    fn write(&mut self, to: Buffer, bytes: &[u8]) -> Result<(), GpuError>;

    /// Reads what all commands so far have left there.
    ///
    /// # Errors
    /// Lengths differ; the card refuses.
    fn read(&self, from: Buffer, bytes: &mut [u8]) -> Result<(), GpuError>;

    /// Fills memory from files and memory, several reads at a time; `progress` hears the bytes that are there.
    ///
    /// # Errors
    /// A file cannot be read; the card refuses.
    fn load(&mut self, items: &[LoadItem<'_>], progress: &mut dyn FnMut(u64)) -> Result<(), LoadError>;
}

/// Why weights did not reach the card.
#[derive(Debug, thiserror::Error)]
pub enum LoadError {
    /// The file.
    #[error("the model file cannot be read: {0}")]
    File(#[from] std::io::Error),
    /// The card.
    #[error(transparent)]
    Gpu(#[from] GpuError),
}

/// Lengths of two sides of a copy.
pub(crate) fn same_length(what: &'static str, a: u64, b: u64) -> Result<(), GpuError> {
    match a == b {
        true => Ok(()),
        false => Err(GpuError::Range { what, from: 0, to: b, bytes: a }),
    }
}
