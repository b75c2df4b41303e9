//! What a step tells the card: tokens, positions, page tables, and which rows want results.
//!
//! All of it lies in one block that is pinned on the host and mirrored on the card. The part that changes with every step is packed for
//! its number of rows and goes up with one copy, at the head of every recording; page tables go up where they changed, which
//! is once in `PAGE_TOKENS` tokens.

use crate::cpu::admit::Admitted;
use crate::executor::SequenceId;
use bloomery_kernels_gpu::{Buffer, Command, GpuError, Machine, PinnedId};
use std::collections::HashMap;
use std::ops::Range;

/// Words in front of the rows: rows, rows that want results, groups, nothing.
const HEAD: usize = 4;
/// Words of a row.
const PER_ROW: usize = 5;
/// Words of a group: first row, rows, position of the first, page table.
const GROUP: usize = 4;

/// Where a step's numbers lie on the card, for a number of rows.
#[derive(Debug, Clone, Copy)]
pub(crate) struct StepInput {
    /// `[rows]`.
    pub tokens: Buffer,
    /// `[rows]`.
    pub positions: Buffer,
    /// `[rows]`: page table of each row.
    pub table_of_row: Buffer,
    /// `[rows]`: numbers of the rows that want results, in the order of their results.
    pub tail: Buffer,
    /// `[tables, pages of a table]`.
    pub tables: Buffer,
    /// `[rows]`: 1 for rows that want results.
    pub wants: Buffer,
    /// Numbers of rows, rows that want results, groups.
    pub counts: Buffer,
    /// `[rows]`, as many as there are groups of them written: first row, rows, position of the first, page table.
    pub groups: Buffer,
    /// Everything but the tables.
    pub packed: Buffer,
}

/// The block.
pub(crate) struct InputBlock {
    pinned: PinnedId,
    memory: Buffer,
    max_rows: usize,
    table_pages: usize,
    tables: usize,
    /// The card's table of each sequence, and the step in which it was last used.
    held: HashMap<SequenceId, (usize, u64)>,
    /// What every table holds on the card.
    mirror: Vec<Vec<u32>>,
    step: u64,
}

impl InputBlock {
    /// Bytes of a block for steps of at most so many rows, and so many page tables of so many pages.
    pub fn bytes(max_rows: usize, tables: usize, table_pages: usize) -> u64 {
        4 * (packed_words(max_rows) + tables * table_pages) as u64
    }

    /// Over memory of [`bytes`](Self::bytes).
    pub fn new(
        pinned: PinnedId,
        memory: Buffer,
        max_rows: usize,
        tables: usize,
        table_pages: usize,
    ) -> InputBlock {
        let mirror = vec![Vec::new(); tables];
        InputBlock { pinned, memory, max_rows, table_pages, tables, held: HashMap::new(), mirror, step: 0 }
    }

    /// Pages of a table.
    pub fn table_pages(&self) -> usize {
        self.table_pages
    }

    /// The card's addresses for a step of `rows` rows.
    pub fn place(&self, rows: usize) -> Result<StepInput, GpuError> {
        let words = |from: usize, n: usize| self.memory.part(4 * from as u64, 4 * n as u64);
        Ok(StepInput {
            tokens: words(HEAD, rows)?,
            positions: words(HEAD + rows, rows)?,
            table_of_row: words(HEAD + 2 * rows, rows)?,
            tail: words(HEAD + 3 * rows, rows)?,
            wants: words(HEAD + 4 * rows, rows)?,
            counts: words(0, HEAD)?,
            groups: words(HEAD + PER_ROW * rows, GROUP * rows)?,
            tables: words(packed_words(self.max_rows), self.tables * self.table_pages)?,
            packed: words(0, packed_words(rows))?,
        })
    }

    /// The copy that opens every step of `rows` rows.
    pub fn upload(&self, rows: usize) -> Result<Command, GpuError> {
        Ok(Command::Upload { from: self.pinned, at: 0, to: self.place(rows)?.packed })
    }

    /// Writes a step into the pinned block, and the copies of changed tables into `commands`.
    pub fn fill<'a>(
        &mut self,
        machine: &mut dyn Machine,
        admitted: &Admitted,
        pages: impl Fn(SequenceId) -> Option<&'a [u32]>,
        commands: &mut Vec<Command>,
    ) -> Result<(), GpuError> {
        self.step += 1;
        let rows = admitted.tokens.len();
        let mut changed: Vec<(usize, Range<usize>)> = Vec::new();
        let mut tables = Vec::with_capacity(admitted.groups.len());
        for group in &admitted.groups {
            let table = self.table_of(group.sequence);
            let now = pages(group.sequence).unwrap_or_default();
            let mirror = &mut self.mirror[table];
            // Past the end of the text the old numbers may stay: nobody reads them.
            let first = now
                .iter()
                .zip(mirror.iter())
                .position(|(a, b)| a != b)
                .unwrap_or(now.len().min(mirror.len()));
            if first < now.len() {
                mirror.truncate(first);
                mirror.extend_from_slice(&now[first..]);
                changed.push((table, first..now.len()));
            }
            tables.push(table);
        }
        let start = packed_words(self.max_rows);
        let bytes = machine.pinned(self.pinned)?;
        let words: &mut [u32] = bytemuck::cast_slice_mut(bytes);
        let (packed, rest) = words.split_at_mut(start);
        packed[..HEAD].copy_from_slice(&[rows as u32, admitted.tail.len() as u32, tables.len() as u32, 0]);
        let (row_words, groups) = packed[HEAD..].split_at_mut(PER_ROW * rows);
        row_words[..rows].copy_from_slice(&admitted.tokens);
        for (to, from) in row_words[rows..2 * rows].iter_mut().zip(&admitted.positions) {
            *to = *from as u32;
        }
        for (group, table) in admitted.groups.iter().zip(&tables) {
            let of_rows = &mut row_words[2 * rows..3 * rows];
            of_rows[group.first_row..group.first_row + group.rows].fill(*table as u32);
        }
        let (tail, wants) = row_words[3 * rows..].split_at_mut(rows);
        tail.fill(0);
        wants.fill(0);
        for (to, from) in tail.iter_mut().zip(&admitted.tail) {
            *to = *from as u32;
            wants[*from] = 1;
        }
        let groups = groups.as_chunks_mut::<GROUP>().0;
        for ((to, group), table) in groups.iter_mut().zip(&admitted.groups).zip(&tables) {
            *to = [group.first_row, group.rows, group.position, *table].map(|n| n as u32);
        }
        for (table, range) in changed {
            let from = table * self.table_pages + range.start;
            rest[from..from + range.len()].copy_from_slice(&self.mirror[table][range.clone()]);
            let at = 4 * (start + from) as u64;
            let to = self.memory.part(at, 4 * range.len() as u64)?;
            commands.push(Command::Upload { from: self.pinned, at, to });
        }
        Ok(())
    }

    /// Writes the rows of a further turn in place of those of the first.
    pub fn turn(
        &mut self,
        machine: &mut dyn Machine,
        admitted: &Admitted,
        done: usize,
        turn: usize,
    ) -> Result<(), GpuError> {
        let rows = admitted.tokens.len();
        let words: &mut [u32] = bytemuck::cast_slice_mut(machine.pinned(self.pinned)?);
        words[1] = turn as u32;
        let tail = &mut words[HEAD + 3 * rows..][..rows];
        for (to, from) in tail.iter_mut().zip(&admitted.tail[done..done + turn]) {
            *to = *from as u32;
        }
        Ok(())
    }

    /// Sequences that a step may hold.
    pub fn tables(&self) -> usize {
        self.tables
    }

    /// The table of a sequence: its own from before, an unused one, or that of whoever waited longest.
    fn table_of(&mut self, sequence: SequenceId) -> usize {
        let step = self.step;
        if let Some((table, used)) = self.held.get_mut(&sequence) {
            *used = step;
            return *table;
        }
        let table = match self.held.len() < self.tables {
            true => (0..self.tables).find(|t| self.held.values().all(|(held, _)| held != t)).unwrap_or(0),
            false => {
                let oldest =
                    self.held.iter().min_by_key(|(_, (_, used))| *used).map(|(id, (table, _))| (*id, *table));
                let (id, table) = oldest.unwrap_or((sequence, 0));
                self.held.remove(&id);
                table
            }
        };
        self.held.insert(sequence, (table, step));
        table
    }

    /// A sequence is gone.
    pub fn forget(&mut self, sequence: SequenceId) {
        self.held.remove(&sequence);
    }

    /// Every sequence is gone.
    pub fn forget_all(&mut self) {
        self.held.clear();
        self.mirror.iter_mut().for_each(Vec::clear);
    }
}

fn packed_words(rows: usize) -> usize {
    HEAD + (PER_ROW + GROUP) * rows
}
