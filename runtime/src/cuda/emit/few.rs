//! Steps of few rows (generation): every weight is read once for all rows, in as few launches as possible.

use super::{Emitter, Result};
use crate::cpu::step::{AttendOf, Item, Slot, Work};

impl Emitter<'_> {
    pub(super) fn few_project(&mut self, index: u32, rows: usize, x: Slot, items: &[Item]) -> Result<()> {
        self.project(index, rows, x, items)
    }

    pub(super) fn few_gate_up(&mut self, index: u32, rows: usize, work: &Work) -> Result<()> {
        self.gate_up(index, rows, work)
    }

    pub(super) fn few_attend(
        &mut self,
        index: u32,
        rows: usize,
        q: Slot,
        out: Slot,
        of: &AttendOf,
    ) -> Result<()> {
        self.attend(index, rows, q, out, of)
    }

    pub(super) fn few_experts(&mut self, index: u32, rows: usize, work: &Work) -> Result<()> {
        self.experts(index, rows, work)
    }
}
