//! From lowered steps to launches, for a number of rows.

use super::CudaOptions;
use super::input::StepInput;
use super::memory::CardBuffers;
use super::rotations::Rotations;
use super::weights::CardWeights;
use crate::cpu::step::{Lowered, Step, Work};
use bloomery_kernels_gpu::{Argument, Command, GpuError, Launch, Machine};

/// What a command is for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Label {
    /// Operators as people name them.
    pub operator: &'static str,
    /// The lowered step.
    pub step: u32,
    /// Bytes of weights and of the store that it reads.
    pub bytes: u64,
}

/// Commands of a step, each with what it is for.
#[derive(Debug, Clone, Default)]
pub(crate) struct Emitted {
    pub commands: Vec<Command>,
    pub labels: Vec<Label>,
}

/// Bytes that a step's kernels work in, for so many rows.
pub(crate) fn work_bytes(_step: &Step, _rows: usize, _options: &CudaOptions) -> u64 {
    256
}

/// Emits the launches of all steps.
pub(crate) struct Emitter<'a> {
    pub machine: &'a mut dyn Machine,
    pub lowered: &'a Lowered,
    pub weights: &'a CardWeights,
    pub rotations: &'a Rotations,
    pub buffers: &'a CardBuffers,
    pub input: StepInput,
    pub table_pages: usize,
    pub rows: usize,
    pub tail: usize,
    pub out: Emitted,
}

impl Emitter<'_> {
    /// The steps of a range; those without rows emit nothing.
    pub fn steps(&mut self, range: std::ops::Range<usize>) -> Result<(), GpuError> {
        let lowered = self.lowered;
        for index in range {
            let Some(step) = lowered.steps.get(index) else { continue };
            let gather = matches!(step.work, Work::Gather { .. });
            let rows = if index < lowered.tail && !gather { self.rows } else { self.tail };
            if rows > 0 {
                self.step(index, step, rows)?;
            }
        }
        Ok(())
    }

    fn step(&mut self, index: usize, step: &Step, rows: usize) -> Result<(), GpuError> {
        let _ = (index, rows, self.table_pages, self.rotations, self.weights, self.buffers, self.input);
        Err(GpuError::NoKernel(format!("{:?}", std::mem::discriminant(&step.work))))
    }

    #[allow(dead_code)]
    fn launch(
        &mut self,
        name: &str,
        grid: [u32; 3],
        threads: u32,
        shared: u32,
        arguments: Vec<Argument>,
        label: Label,
    ) -> Result<(), GpuError> {
        let kernel = self.machine.kernel(name)?;
        let launch = Launch { kernel, grid, threads, shared, arguments, overlaps: false };
        self.out.commands.push(Command::Launch(launch));
        self.out.labels.push(label);
        Ok(())
    }
}
