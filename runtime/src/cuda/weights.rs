//! Weights on the card: which tensors, where each lies, how they come there.

use super::CudaError;
use crate::cpu::step::Lowered;
use crate::cpu::weights::{TensorRef, WeightSource};
use crate::model::LoadProgress;
use bloomery_kernels_gpu::{Buffer, GpuError, LoadItem, LoadSource, Machine};
use std::collections::{BTreeMap, HashMap};
use std::fs::File;
use std::path::Path;
use std::time::Instant;

/// Tensors begin at multiples of this, which every vector load may rely on.
const ALIGNMENT: u64 = 256;

/// Every matrix that a program reads, in the file's order, with its place in one allocation; then the short vectors as f32.
#[derive(Debug, Clone, Default)]
pub(crate) struct WeightPlan {
    /// Offset and bytes of each tensor.
    tensors: BTreeMap<usize, (u64, u64)>,
    /// Offset and bytes of each vector.
    vectors: Vec<(u64, u64)>,
    /// Of the allocation.
    pub bytes: u64,
}

impl WeightPlan {
    pub fn new(lowered: &Lowered, source: &dyn WeightSource) -> WeightPlan {
        let mut plan = WeightPlan::default();
        let wanted: std::collections::BTreeSet<usize> =
            lowered.steps.iter().flat_map(|step| step.matrices()).map(|matrix| matrix.tensor).collect();
        for tensor in wanted {
            let place = plan.take(source.data(tensor).len() as u64);
            plan.tensors.insert(tensor, place);
        }
        for vector in &lowered.vectors {
            let place = plan.take(4 * vector.len() as u64);
            plan.vectors.push(place);
        }
        plan
    }

    fn take(&mut self, bytes: u64) -> (u64, u64) {
        let at = self.bytes;
        // Room behind each: a kernel may load a whole vector of which it uses a part.
        self.bytes += (bytes + 16).next_multiple_of(ALIGNMENT);
        (at, bytes)
    }
}

/// Weights that are on the card.
pub(crate) struct CardWeights {
    tensors: HashMap<usize, Buffer>,
    vectors: Vec<Buffer>,
}

impl CardWeights {
    /// Allocates, streams everything there and says how fast that was.
    pub fn load(
        machine: &mut dyn Machine,
        plan: &WeightPlan,
        lowered: &Lowered,
        source: &dyn WeightSource,
        progress: &mut dyn FnMut(LoadProgress),
    ) -> Result<CardWeights, CudaError> {
        let memory = machine.allocate(
            "weights",
            plan.bytes,
            "a smaller quantisation or another card (--device) holds them; --backend cpu runs without",
        )?;
        let mut weights = CardWeights { tensors: HashMap::new(), vectors: Vec::new() };
        let mut files: Vec<(&Path, File)> = Vec::new();
        for tensor in plan.tensors.keys() {
            if let Some((path, _)) = source.file(*tensor)
                && !files.iter().any(|(known, _)| *known == path)
            {
                files.push((path, File::open(path).map_err(bloomery_kernels_gpu::LoadError::from)?));
            }
        }
        let mut items = Vec::with_capacity(plan.tensors.len() + plan.vectors.len());
        for (tensor, (at, bytes)) in &plan.tensors {
            let to = memory.part(*at, *bytes)?;
            weights.tensors.insert(*tensor, to);
            let opened = source.file(*tensor).and_then(|(path, offset)| {
                Some((&files.iter().find(|(known, _)| *known == path)?.1, offset))
            });
            let source = match opened {
                Some((file, offset)) => LoadSource::File(file, offset),
                None => LoadSource::Memory(source.data(*tensor)),
            };
            items.push(LoadItem { source, to });
        }
        for (values, (at, bytes)) in lowered.vectors.iter().zip(&plan.vectors) {
            let to = memory.part(*at, *bytes)?;
            weights.vectors.push(to);
            items.push(LoadItem { source: LoadSource::Memory(bytemuck::cast_slice(values)), to });
        }
        let total = items.iter().map(|item| item.to.bytes()).sum();
        progress(LoadProgress { done: 0, total });
        let started = Instant::now();
        machine.load(&items, &mut |done| progress(LoadProgress { done, total }))?;
        let seconds = started.elapsed().as_secs_f64();
        let gigabytes = total as f64 / 1e9;
        tracing::info!(
            "weights on the card: {gigabytes:.2} GB in {seconds:.2} s, {:.1} GB/s",
            gigabytes / seconds.max(1e-9)
        );
        Ok(weights)
    }

    /// Where a matrix lies.
    pub fn matrix(&self, matrix: TensorRef) -> Result<Buffer, GpuError> {
        let missing = || GpuError::NoKernel(format!("tensor {} is not on the card", matrix.tensor));
        self.tensors.get(&matrix.tensor).copied().ok_or_else(missing)
    }

    /// Where a short vector lies.
    pub fn vector(&self, vector: usize) -> Buffer {
        self.vectors.get(vector).copied().unwrap_or(Buffer::NONE)
    }
}
