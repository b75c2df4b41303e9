//! A program that is lowered for the card, and what it will take of it.

use super::super::memory::Sizes;
use super::super::weights::WeightPlan;
use super::super::{CudaError, CudaOptions, Needs, emit, kernel_set, rotations};
use crate::cpu::fixed::FixedLayout;
use crate::cpu::lower::LowerFor;
use crate::cpu::step::Lowered;
use crate::cpu::weights::WeightSource;
use bloomery_kernels_cpu::kv::{PAGE_TOKENS, PartSpec};
use bloomery_program::Program;

/// What recorded steps take of the card, by experience.
const GRAPHS: u64 = 64 << 20;

/// A program that is lowered for the card but has taken none of its memory.
pub(crate) struct Prepared {
    pub lowered: Lowered,
    pub weights: WeightPlan,
    pub sizes: Sizes,
    pub fingerprint: u64,
    pub specs: Vec<PartSpec>,
}

impl Prepared {
    pub fn new(
        program: &Program,
        source: &dyn WeightSource,
        options: &CudaOptions,
    ) -> Result<Prepared, CudaError> {
        for (option, value) in [
            ("--ubatch-size", options.max_rows),
            ("--ctx-size", options.max_tokens.min(options.store_tokens)),
            ("--parallel", options.max_sequences),
        ] {
            if value == 0 {
                return Err(CudaError::Option { option, value });
            }
        }
        let graph = program.target().ok_or_else(|| CudaError::Program("there is no target graph".into()))?;
        let (specs, parts) =
            crate::cpu::executor::page_parts(program, graph, options.cache_key, options.cache_value);
        let fixed = FixedLayout::new(program, graph, options.cache_key, options.cache_value);
        let to = LowerFor {
            parts: &parts,
            fixed: &fixed,
            max_tokens: options.max_tokens,
            fuse: true,
            every_row: None,
        };
        let lowered = crate::cpu::lower::lower(program, graph, source, &to)?;
        let missing = kernel_set::missing_kernels(&lowered, source);
        if !missing.is_empty() {
            return Err(CudaError::Missing { missing });
        }
        let weights = WeightPlan::new(&lowered, source);
        let sizes = Sizes::new(&lowered, &specs, options)?;
        let fingerprint = crate::cpu::executor::fingerprint(
            program,
            source,
            options.cache_key,
            options.cache_value,
            "cuda",
        );
        Ok(Prepared { lowered, weights, sizes, fingerprint, specs })
    }

    /// What it takes of a card.
    pub fn needs(&self) -> Needs {
        Needs {
            weights: self.weights.bytes,
            store_per_token: self.sizes.page_bytes as f64 / PAGE_TOKENS as f64,
            // Rotations of every position, and a page's number in every sequence's table.
            tables_per_token: rotations::bytes_per_token(&self.lowered) as f64
                + emit::partial_bytes_per_token(&self.lowered)
                + 1.0,
            scratch: self.sizes.slot_bytes + self.sizes.work_bytes,
            graphs: GRAPHS,
        }
    }
}
