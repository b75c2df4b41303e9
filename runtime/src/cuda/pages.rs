//! Pages of the key-value store on a card: their bookkeeping is here, their bytes are there.

use crate::cpu::sequences::Pages;
use bloomery_kernels_gpu::{Buffer, Command, GpuError};

/// Reference counts of pages in one buffer of the card.
pub(crate) struct CardPages {
    /// Every page, one after another.
    memory: Buffer,
    page_bytes: u64,
    /// Holders of every page that was ever taken.
    holders: Vec<u32>,
    free: Vec<u32>,
    most: usize,
    /// Copies (from, to) that were promised and must be made before anything else touches the pages.
    promised: Vec<(u32, u32)>,
}

impl CardPages {
    /// As many pages as the buffer has room for.
    pub fn new(memory: Buffer, page_bytes: u64) -> CardPages {
        let most = usize::try_from(memory.bytes() / page_bytes.max(1)).unwrap_or(0).min(u32::MAX as usize);
        CardPages { memory, page_bytes, holders: Vec::new(), free: Vec::new(), most, promised: Vec::new() }
    }

    pub fn pages_total(&self) -> usize {
        self.most
    }

    /// Where a page lies.
    pub fn page(&self, id: u32) -> Result<Buffer, GpuError> {
        self.memory.part(u64::from(id) * self.page_bytes, self.page_bytes)
    }

    /// The promised copies, each of them once.
    pub fn take_copies(&mut self, commands: &mut Vec<Command>) -> Result<(), GpuError> {
        for (from, to) in std::mem::take(&mut self.promised) {
            commands.push(Command::Copy { from: self.page(from)?, to: self.page(to)? });
        }
        Ok(())
    }
}

impl Pages for CardPages {
    type Id = u32;

    fn page_bytes(&self) -> usize {
        usize::try_from(self.page_bytes).unwrap_or(usize::MAX)
    }

    fn pages_free(&self) -> usize {
        self.free.len() + (self.most - self.holders.len())
    }

    fn take(&mut self) -> Option<u32> {
        if let Some(id) = self.free.pop() {
            self.holders[id as usize] = 1;
            return Some(id);
        }
        if self.holders.len() >= self.most {
            return None;
        }
        self.holders.push(1);
        Some(self.holders.len() as u32 - 1)
    }

    fn share(&mut self, id: u32) {
        self.holders[id as usize] += 1;
    }

    fn release(&mut self, id: u32) {
        let holders = &mut self.holders[id as usize];
        if *holders > 0 {
            *holders -= 1;
            if *holders == 0 {
                self.free.push(id);
            }
        }
    }

    fn is_shared(&self, id: u32) -> bool {
        self.holders[id as usize] > 1
    }

    fn copy(&mut self, id: u32) -> Option<u32> {
        let to = self.take()?;
        self.promised.push((id, to));
        Some(to)
    }

    fn forget_all(&mut self) {
        self.holders.clear();
        self.free.clear();
        self.promised.clear();
    }
}
