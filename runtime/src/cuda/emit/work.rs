//! Memory that a step's kernels work in.

use super::super::CudaOptions;
use crate::cpu::step::{ExpertsOf, Lowered, Step, Work};
use bloomery_formats::ActivationKind;
use bloomery_kernels_gpu::layout;

/// Keys of a span of attention: `SPAN` pages in the device crate.
pub(crate) const SPAN_TOKENS: usize = 128;
/// Rows whose spans are spread over blocks at a time.
pub(crate) const SPREAD_ROWS: usize = 32;

/// Bytes of a tile of sorted slots: its expert and its ends.
const TILE_BYTES: usize = 12;

/// Tiles that sorted slots can take: whole ones, and a rest for every expert.
pub(super) fn most_tiles(slots: usize, experts: usize) -> usize {
    slots.div_ceil(super::many::TILE_ROWS) + experts
}

/// Bytes that a step's kernels work in, for so many rows.
pub(crate) fn work_bytes(step: &Step, rows: usize, options: &CudaOptions) -> u64 {
    match &step.work {
        Work::Attend { of, .. } => {
            let spans = options.max_tokens.div_ceil(SPAN_TOKENS);
            (rows.min(SPREAD_ROWS) * of.heads * spans * (2 + of.value) * 4) as u64
        }
        Work::Experts { of, .. } => {
            let slots = rows * of.used;
            ExpertWork::new(of, slots).bytes
        }
        Work::GateUp { gate, .. } => 2 * (4 * rows * gate.rows).next_multiple_of(256) as u64,
        _ => 256,
    }
}

/// Bytes of attention's partial sums for every token of context.
pub(crate) fn partial_bytes_per_token(lowered: &Lowered) -> f64 {
    let of = |step: &Step| match &step.work {
        Work::Attend { of, .. } => (SPREAD_ROWS * of.heads * (2 + of.value) * 4) as f64 / SPAN_TOKENS as f64,
        _ => 0.0,
    };
    lowered.steps.iter().map(of).fold(0.0, f64::max)
}

/// Where the phases of routed experts keep their rows.
pub(super) struct ExpertWork {
    pub gate: u64,
    pub up: u64,
    pub hidden: u64,
    pub results: u64,
    /// Slots in the order of their experts, and tiles of them.
    pub order: u64,
    pub tiles: u64,
    pub bytes: u64,
}

impl ExpertWork {
    pub(super) fn new(of: &ExpertsOf, slots: usize) -> ExpertWork {
        let (ff, width) = (of.spec.ff, of.spec.width);
        let half = (4 * slots * ff).next_multiple_of(256) as u64;
        // Whatever form the down matrix needs fits the room of f32 rows and their scales.
        let hidden = layout::quantized_bytes(ActivationKind::F32, ff.next_multiple_of(256), slots) + 256;
        let hidden =
            hidden.max(layout::quantized_bytes(ActivationKind::Q8Block32, ff, slots)).next_multiple_of(256);
        let results = (4 * slots * width).next_multiple_of(256) as u64;
        let order = 2 * half + hidden + results;
        let tiles = order + (4 * slots).next_multiple_of(256) as u64;
        ExpertWork {
            gate: 0,
            up: half,
            hidden: 2 * half,
            results: 2 * half + hidden,
            order,
            tiles,
            bytes: tiles + (TILE_BYTES * most_tiles(slots, of.spec.experts)).next_multiple_of(256) as u64,
        }
    }
}
