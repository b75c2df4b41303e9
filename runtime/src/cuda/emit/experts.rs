//! Routed experts.

use super::linear::{Chosen, Product};
use super::many::gemm_step;
use super::rows::{RowJob, number};
use super::work::ExpertWork;
use super::{Emitter, FEW_ROWS, Label, Result};
use crate::cpu::step::Work;
use bloomery_kernels_gpu::{Argument, GpuError, layout};

impl Emitter<'_> {
    /// Every row's chosen experts, one row of an expert after another.
    pub(super) fn experts(&mut self, index: u32, rows: usize, work: &Work) -> Result<()> {
        let Work::Experts { x, x_up, ids, weights, residual, out, of } = work else { return Ok(()) };
        let (x, x_up, ids, weights, residual, out) = (*x, *x_up, *ids, *weights, *residual, *out);
        let b = self.buffers;
        let Some(up_matrix) = of.up else {
            return Err(GpuError::NoKernel("experts whose gate and up are one matrix".into()));
        };
        let (ff, width, experts, used) = (of.spec.ff, of.spec.width, of.spec.experts, of.used);
        let slots = rows * used;
        let places = ExpertWork::new(of, slots);
        let ids = b.rows_of(ids, rows, used)?;
        let gate = b.work.part(places.gate, (4 * slots * ff) as u64)?;
        let up = b.work.part(places.up, (4 * slots * ff) as u64)?;
        let results = b.work.part(places.results, (4 * slots * width) as u64)?;
        let pair = [(of.gate, x, of.gate_bias, gate), (up_matrix, x_up, of.up_bias, up)];
        let ty = self.source.shape(of.down.tensor).0;
        let types = [of.gate, up_matrix, of.down].map(|matrix| self.source.shape(matrix.tensor).0);
        let grouped =
            match rows > FEW_ROWS && types.iter().all(|ty| gemm_step(&ty.name().to_lowercase()).is_some()) {
                true => Some(self.sort(index, ids, slots, experts, &places)?),
                false => None,
            };
        let chosen = Chosen { ids: Some(ids), experts, used, grouped };
        self.pair("experts gate and up", index, pair, chosen, slots)?;
        let kind = ty.activation_kind().ok_or_else(|| GpuError::NoKernel(format!("{ty} weights")))?;
        let memory = b.work.part(places.hidden, places.results - places.hidden)?;
        let hidden = layout::quantized(memory, kind, ff, slots)?;
        let job = RowJob {
            up: Some(up),
            act: number(of.spec.function),
            limits: of.spec.limits,
            width: ff,
            quantized: vec![(hidden, kind)],
            ..RowJob::default()
        };
        self.row_job("experts activation", index, gate, slots, job)?;
        let product = Product {
            weight: of.down,
            x: hidden,
            kind,
            chosen: Chosen { used: 1, ..chosen },
            bias: of.down_bias,
            residual: None,
            out: results,
            rows: slots,
            more: Vec::new(),
        };
        self.product("experts down", index, product)?;
        let arguments = vec![
            results.into(),
            b.rows_of(weights, rows, used)?.into(),
            Argument::U32(used as u32),
            Argument::U32(width as u32),
            residual.map(|slot| b.rows_of(slot, rows, width)).transpose()?.into(),
            b.rows_of(out, rows, width)?.into(),
        ];
        let label = Label { operator: "experts combine", step: index, bytes: 0 };
        self.launch("combine_ranks", [width.div_ceil(128) as u32, rows as u32, 1], 128, 0, arguments, label)
    }
}
