//! Steps of many rows (prompts).

use super::{Emitter, Result};
use crate::cpu::step::{AttendOf, Item, Slot, Work};

impl Emitter<'_> {
    pub(super) fn many_project(&mut self, index: u32, rows: usize, x: Slot, items: &[Item]) -> Result<()> {
        self.project(index, rows, x, items)
    }

    pub(super) fn many_gate_up(&mut self, index: u32, rows: usize, work: &Work) -> Result<()> {
        self.gate_up(index, rows, work)
    }

    pub(super) fn many_attend(
        &mut self,
        index: u32,
        rows: usize,
        q: Slot,
        out: Slot,
        of: &AttendOf,
    ) -> Result<()> {
        self.attend(index, rows, q, out, of)
    }

    pub(super) fn many_experts(&mut self, index: u32, rows: usize, work: &Work) -> Result<()> {
        self.experts(index, rows, work)
    }
}
