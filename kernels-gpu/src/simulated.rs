//! The simulated grid as a machine: the device crate's own source, compiled for this processor, thread by thread. For tests: it
//! checks barriers, shuffles and alignment that a card would not, and is about as fast as one would fear.

use crate::error::GpuError;
use crate::launch::{Command, KernelId, Launch, PinnedId, RecordingId};
use crate::machine::{LoadError, LoadItem, Machine, same_length};
use crate::memory::{Allocation, Buffer, Ledger};
use crate::upload::fetch;
use std::alloc::{Layout, alloc_zeroed, dealloc};
use std::time::{Duration, Instant};

/// Every allocation starts at a multiple of this, as on a card.
const ALIGNMENT: usize = 256;

/// Memory and kernels on this processor.
#[derive(Default)]
pub struct SimulatedGrid {
    ledger: Ledger,
    blocks: Vec<Block>,
    pinned: Vec<Block>,
    kernels: Vec<String>,
    recordings: Vec<Vec<Command>>,
    /// Launches so far.
    launches: u64,
}

struct Block {
    pointer: *mut u8,
    layout: Layout,
}

// SAFETY: a block owns its memory.
unsafe impl Send for Block {}

impl Block {
    fn new(bytes: u64) -> Option<Block> {
        let bytes = usize::try_from(bytes.max(1)).ok()?;
        let layout = Layout::from_size_align(bytes, ALIGNMENT).ok()?;
        // SAFETY: the size is not zero.
        let pointer = unsafe { alloc_zeroed(layout) };
        (!pointer.is_null()).then_some(Block { pointer, layout })
    }

    fn bytes_mut(&mut self) -> &mut [u8] {
        // SAFETY: the block's own initialised memory, borrowed by `&mut self`.
        unsafe { std::slice::from_raw_parts_mut(self.pointer, self.layout.size()) }
    }
}

impl Drop for Block {
    fn drop(&mut self) {
        // SAFETY: allocated in `new` with this layout.
        unsafe { dealloc(self.pointer, self.layout) };
    }
}

impl SimulatedGrid {
    /// A machine with this much memory.
    #[must_use]
    pub fn new(memory_limit: Option<u64>) -> SimulatedGrid {
        SimulatedGrid { ledger: Ledger::new(memory_limit), ..SimulatedGrid::default() }
    }

    /// Launches so far.
    #[must_use]
    pub fn launches(&self) -> u64 {
        self.launches
    }

    /// The bytes behind a buffer that this machine made.
    fn bytes(&self, buffer: Buffer) -> Result<*mut u8, GpuError> {
        let (from, to) = (buffer.address(), buffer.address() + buffer.bytes());
        let inside = self.blocks.iter().any(|block| {
            let start = block.pointer as u64;
            start <= from && to <= start + block.layout.size() as u64
        });
        match inside || buffer.bytes() == 0 {
            true => Ok(buffer.address() as *mut u8),
            false => Err(GpuError::Range { what: "memory of the grid", from, to, bytes: buffer.bytes() }),
        }
    }

    fn give(&mut self, command: &Command) -> Result<(), GpuError> {
        let length = |buffer: &Buffer| usize::try_from(buffer.bytes()).unwrap_or(0);
        match command {
            Command::Launch(launch) => self.launch(launch),
            Command::Upload { from, at, to } => {
                let target = self.bytes(*to)?;
                let source = pinned_part(&mut self.pinned, *from, *at, to.bytes())?;
                // SAFETY: both ranges were checked; pinned memory and blocks are different allocations.
                unsafe { std::ptr::copy_nonoverlapping(source.as_ptr(), target, source.len()) };
                Ok(())
            }
            Command::Download { from, to, at } => {
                let source = self.bytes(*from)?;
                let target = pinned_part(&mut self.pinned, *to, *at, from.bytes())?;
                // SAFETY: as above.
                unsafe { std::ptr::copy_nonoverlapping(source, target.as_mut_ptr(), target.len()) };
                Ok(())
            }
            Command::Copy { from, to } => {
                same_length("a copy", from.bytes(), to.bytes())?;
                let (source, target) = (self.bytes(*from)?, self.bytes(*to)?);
                // SAFETY: both ranges were checked; `copy` allows overlap.
                unsafe { std::ptr::copy(source, target, length(from)) };
                Ok(())
            }
            Command::Clear(buffer) => {
                let target = self.bytes(*buffer)?;
                // SAFETY: the range was checked.
                unsafe { target.write_bytes(0, length(buffer)) };
                Ok(())
            }
        }
    }

    fn launch(&mut self, launch: &Launch) -> Result<(), GpuError> {
        let unknown = || GpuError::NoKernel(format!("kernel number {}", launch.kernel.0));
        let name = self.kernels.get(launch.kernel.0 as usize).ok_or_else(unknown)?;
        for argument in &launch.arguments {
            if let crate::launch::Argument::Memory(buffer) = argument {
                self.bytes(*buffer)?;
            }
        }
        let words: Vec<u64> = launch.arguments.iter().map(|argument| argument.word()).collect();
        self.launches += 1;
        // SAFETY: every address was found in this machine's memory; the launchers check the lengths.
        match unsafe {
            bloomery_kernels_device::run_entry(name, launch.grid, launch.threads, launch.shared, &words)
        } {
            true => Ok(()),
            false => Err(GpuError::NoKernel(name.clone())),
        }
    }
}

fn pinned_part(pinned: &mut [Block], id: PinnedId, at: u64, bytes: u64) -> Result<&mut [u8], GpuError> {
    let range =
        |bytes| GpuError::Range { what: "pinned memory", from: at, to: at.saturating_add(bytes), bytes };
    let block = pinned.get_mut(id.0).ok_or_else(|| range(bytes))?.bytes_mut();
    let (at, bytes) =
        (usize::try_from(at).unwrap_or(usize::MAX), usize::try_from(bytes).unwrap_or(usize::MAX));
    let length = block.len() as u64;
    at.checked_add(bytes).and_then(|end| block.get_mut(at..end)).ok_or_else(|| range(length))
}

impl Machine for SimulatedGrid {
    fn describe(&self) -> String {
        "the simulated grid on this processor".to_string()
    }

    fn processors(&self) -> u32 {
        4
    }

    fn shared_per_block(&self) -> u32 {
        227 << 10
    }

    fn free_bytes(&self) -> Result<u64, GpuError> {
        Ok(self.ledger.free(1 << 40))
    }

    fn allocate(&mut self, name: &str, bytes: u64, advice: &'static str) -> Result<Buffer, GpuError> {
        let free = self.free_bytes()?;
        self.ledger.admit(name, bytes, free, advice)?;
        let out = || GpuError::OutOfMemory { buffer: name.to_string(), bytes, free, advice };
        let mut block = Block::new(bytes).ok_or_else(out)?;
        // What was never written must not look like a zero.
        block.bytes_mut().fill(0xcd);
        let buffer = Buffer::new(block.pointer as u64, bytes);
        self.blocks.push(block);
        self.ledger.add(name, bytes);
        Ok(buffer)
    }

    fn allocations(&self) -> &[Allocation] {
        self.ledger.all()
    }

    fn pin(&mut self, bytes: u64) -> Result<PinnedId, GpuError> {
        let free = bytes;
        let out = || GpuError::OutOfMemory { buffer: "pinned memory".into(), bytes, free, advice: "" };
        self.pinned.push(Block::new(bytes).ok_or_else(out)?);
        Ok(PinnedId(self.pinned.len() - 1))
    }

    fn pinned(&mut self, id: PinnedId) -> Result<&mut [u8], GpuError> {
        let bytes = self.pinned.get(id.0).map_or(0, |block| block.layout.size() as u64);
        pinned_part(&mut self.pinned, id, 0, bytes)
    }

    fn kernel(&mut self, name: &str) -> Result<KernelId, GpuError> {
        if !bloomery_kernels_device::entry_exists(name) {
            return Err(GpuError::NoKernel(name.to_string()));
        }
        let known = self.kernels.iter().position(|known| known == name);
        let index = known.unwrap_or_else(|| {
            self.kernels.push(name.to_string());
            self.kernels.len() - 1
        });
        Ok(KernelId(u32::try_from(index).unwrap_or(u32::MAX)))
    }

    fn run(&mut self, commands: &[Command]) -> Result<(), GpuError> {
        commands.iter().try_for_each(|command| self.give(command))
    }

    fn record(&mut self, commands: &[Command]) -> Result<RecordingId, GpuError> {
        self.recordings.push(commands.to_vec());
        Ok(RecordingId(self.recordings.len() - 1))
    }

    fn replay(&mut self, recording: RecordingId) -> Result<(), GpuError> {
        let none = GpuError::Range { what: "a recording", from: 0, to: 0, bytes: 0 };
        let commands = self.recordings.get(recording.0).cloned().ok_or(none)?;
        self.run(&commands)
    }

    fn time(&mut self, recording: RecordingId, replays: u32) -> Result<Duration, GpuError> {
        let started = Instant::now();
        (0..replays).try_for_each(|_| self.replay(recording))?;
        Ok(started.elapsed())
    }

    fn wait(&mut self) -> Result<(), GpuError> {
        Ok(())
    }

    fn write(&mut self, to: Buffer, bytes: &[u8]) -> Result<(), GpuError> {
        same_length("a write", to.bytes(), bytes.len() as u64)?;
        let target = self.bytes(to)?;
        // SAFETY: the range was checked; the bytes are the caller's.
        unsafe { std::ptr::copy_nonoverlapping(bytes.as_ptr(), target, bytes.len()) };
        Ok(())
    }

    fn read(&self, from: Buffer, bytes: &mut [u8]) -> Result<(), GpuError> {
        same_length("a read", from.bytes(), bytes.len() as u64)?;
        let source = self.bytes(from)?;
        // SAFETY: as above.
        unsafe { std::ptr::copy_nonoverlapping(source, bytes.as_mut_ptr(), bytes.len()) };
        Ok(())
    }

    fn load(&mut self, items: &[LoadItem<'_>], progress: &mut dyn FnMut(u64)) -> Result<(), LoadError> {
        let mut done = 0;
        for item in items {
            let mut bytes = vec![0; usize::try_from(item.to.bytes()).unwrap_or(0)];
            fetch(item, &mut bytes)?;
            self.write(item.to, &bytes)?;
            done += item.to.bytes();
            progress(done);
        }
        Ok(())
    }
}
