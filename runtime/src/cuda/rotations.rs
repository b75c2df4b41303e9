//! Cosines and sines for every position, on the card: computed once, in f64, by the source that the CPU backend computes its own with.

use super::CudaError;
use crate::cpu::step::Lowered;
use bloomery_kernels_cpu::rope::{RopeSpec, RopeTable};
use bloomery_kernels_gpu::{Buffer, Machine};

/// A table `[positions, 2, pairs]` for each rotation of a program: a position's cosines, then its sines.
pub(crate) struct Rotations {
    tables: Vec<Buffer>,
}

/// Positions that one thread computes and uploads at a time.
const CHUNK: usize = 2048;

/// Bytes that every token of context takes.
pub(crate) fn bytes_per_token(lowered: &Lowered) -> usize {
    lowered.ropes.iter().map(|rope| 8 * rope.spec.frequencies.len()).sum()
}

impl Rotations {
    pub fn new(
        machine: &mut dyn Machine,
        lowered: &Lowered,
        positions: usize,
    ) -> Result<Rotations, CudaError> {
        let mut tables = Vec::with_capacity(lowered.ropes.len());
        let mut known: Vec<(&RopeSpec, Buffer)> = Vec::new();
        for rope in &lowered.ropes {
            // The same rotation for all rows and for the rows of the tail is one table.
            if let Some((_, table)) = known.iter().find(|(spec, _)| **spec == rope.spec) {
                tables.push(*table);
                continue;
            }
            let pairs = rope.spec.frequencies.len();
            let bytes = 8 * pairs as u64 * positions as u64;
            let table = machine.allocate("rotation tables", bytes, "--ctx-size makes them smaller")?;
            fill(machine, &rope.spec, table, positions)?;
            known.push((&rope.spec, table));
            tables.push(table);
        }
        Ok(Rotations { tables })
    }

    /// `[positions, 2, pairs]`.
    pub fn table(&self, rope: usize) -> Buffer {
        self.tables.get(rope).copied().unwrap_or(Buffer::NONE)
    }
}

fn fill(
    machine: &mut dyn Machine,
    spec: &RopeSpec,
    table: Buffer,
    positions: usize,
) -> Result<(), CudaError> {
    let pairs = spec.frequencies.len();
    let threads = std::thread::available_parallelism().map_or(1, std::num::NonZero::get);
    let starts: Vec<usize> = (0..positions).step_by(CHUNK).collect();
    for round in starts.chunks(threads) {
        let parts: Vec<Vec<f32>> = std::thread::scope(|scope| {
            let work = |start: usize| {
                move || {
                    let mut of = RopeTable::default();
                    of.fill(spec, start..positions.min(start + CHUNK));
                    of.interleaved()
                }
            };
            let workers: Vec<_> = round.iter().map(|start| scope.spawn(work(*start))).collect();
            workers
                .into_iter()
                .map(|worker| worker.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic)))
                .collect()
        });
        for (start, part) in round.iter().zip(parts) {
            let to = table.part(8 * (start * pairs) as u64, 4 * part.len() as u64)?;
            machine.write(to, bytemuck::cast_slice(&part))?;
        }
    }
    Ok(())
}
