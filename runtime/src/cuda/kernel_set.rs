//! The kernel set of the card: what the CPU backend lacks is lacking here too, and a few shapes more.

use super::{CudaOptions, MissingKernel};
use crate::cpu::kernel_set;
use crate::cpu::weights::WeightSource;
use bloomery_kernels_gpu::layout;
use bloomery_program::{Graph, Op, Program};

/// Every triple of the target graph that this backend lacks.
pub(crate) fn missing_kernels(
    program: &Program,
    graph: &Graph,
    source: &dyn WeightSource,
    _options: &CudaOptions,
) -> Vec<MissingKernel> {
    let mut missing = kernel_set::missing_kernels(program, graph, source);
    let mut add = |operator: &str, class: String, node: String| match missing
        .iter_mut()
        .find(|known| known.operator == operator && known.class == class)
    {
        Some(known) => known.nodes += 1,
        None => missing.push(MissingKernel {
            operator: operator.into(),
            weight_type: "-".into(),
            class,
            node,
            nodes: 1,
        }),
    };
    for node in &graph.nodes {
        match &node.op {
            Op::Attention(attention) => {
                let (key, value) = (attention.key as usize, attention.value as usize);
                if !layout::has_head_size(key, value) {
                    add(node.op.name(), format!("heads of {key} and {value} values"), node.label());
                }
            }
            Op::Route(route) if !layout::has_router(route.experts as usize, route.used as usize) => {
                add(node.op.name(), format!("{} of {} experts", route.used, route.experts), node.label());
            }
            _ => {}
        }
    }
    missing
}
