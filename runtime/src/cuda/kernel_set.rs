//! The kernel set of the card: what the CPU backend lacks is lacking here too, and a few shapes more. All of it is known before
//! anything is uploaded: a step that the card cannot run must not be met by a request.

use super::MissingKernel;
use crate::cpu::step::{Appended, AppendedFrom, Changed, Lowered, Step, Work};
use crate::cpu::weights::WeightSource;
use bloomery_formats::WeightType;
use bloomery_kernels_gpu::layout;

/// Values of a head that one warp holds.
const MOST_HEAD: usize = 512;
/// Values that stand before attention at once: queries, keys, values.
const MOST_PARTS: usize = 3;
/// Warps of a block.
const MOST_WARPS: usize = 32;

/// Every triple of a lowered graph that this backend lacks.
pub(crate) fn missing_kernels(lowered: &Lowered, source: &dyn WeightSource) -> Vec<MissingKernel> {
    let mut missing: Vec<MissingKernel> = Vec::new();
    for step in &lowered.steps {
        for (operator, class, weight_type) in missing_of(step, source) {
            let same = |m: &&mut MissingKernel| {
                m.operator == operator && m.class == class && m.weight_type == weight_type
            };
            match missing.iter_mut().find(same) {
                Some(known) => known.nodes += 1,
                None => missing.push(MissingKernel {
                    operator: operator.into(),
                    weight_type: weight_type.into(),
                    class,
                    node: step.place().into(),
                    nodes: 1,
                }),
            }
        }
    }
    missing
}

type Lack = (&'static str, String, &'static str);

/// What a step needs and the card lacks. Every kind of step is named, so that a new one is decided upon when it appears.
fn missing_of(step: &Step, source: &dyn WeightSource) -> Vec<Lack> {
    let none = |operator, class: String| vec![(operator, class, "-")];
    let mut missing = Vec::new();
    for matrix in step.matrices() {
        let ty: WeightType = source.shape(matrix.tensor).0;
        if ty.row_bytes(matrix.cols).is_none_or(|bytes| u32::try_from(bytes).is_err()) {
            missing.push(("linear", format!("rows of {} values", matrix.cols), ty.name()));
        }
    }
    match &step.work {
        Work::Attend { of, .. } => {
            let group = of.heads / of.kv_heads.max(1);
            if !layout::has_head_size(of.key, of.value) {
                missing.extend(none("attention", format!("heads of {} and {} values", of.key, of.value)));
            }
            if group > MOST_WARPS {
                missing.extend(none("attention", format!("{group} query heads to a key head")));
            }
        }
        Work::Route { of, .. } => {
            if of.groups.is_some() {
                missing.extend(none("route", "groups of experts".into()));
            }
            if !layout::has_router(of.experts, of.used) {
                missing.extend(none("route", format!("{} of {} experts", of.used, of.experts)));
            }
        }
        Work::Experts { of, .. } if of.up.is_none() => {
            let ty = source.shape(of.gate.tensor).0;
            missing.push(("experts", "gate and up in one matrix".into(), ty.name()));
        }
        Work::Prepare { changed, appended } => missing.extend(missing_heads(changed, appended)),
        Work::Rotate { head, .. } if *head > MOST_HEAD => {
            missing.extend(none("rope", format!("heads of {head} values")));
        }
        Work::Streams(work) => missing.extend(none(work.name(), "any shape".into())),
        Work::Sparse(work) => missing.extend(none(work.name(), "several stores or chosen rows".into())),
        Work::Plain(work) => missing.extend(none(work.name(), "any shape".into())),
        Work::Recurrent(work) => missing.extend(none(work.name(), "any shape".into())),
        Work::Lookup(work) => missing.extend(none(work.name(), "any shape".into())),
        Work::Embed { .. }
        | Work::Norm { .. }
        | Work::Quantize { .. }
        | Work::Project { .. }
        | Work::GateUp { .. }
        | Work::Rotate { .. }
        | Work::Experts { .. }
        | Work::Unary { .. }
        | Work::Glu { .. }
        | Work::Add { .. }
        | Work::Mul { .. }
        | Work::Scale { .. }
        | Work::Affine { .. }
        | Work::Concat { .. }
        | Work::Slice { .. }
        | Work::Copy { .. }
        | Work::Gather { .. } => {}
    }
    missing
}

fn missing_heads(changed: &[Changed], appended: &[Appended]) -> Vec<Lack> {
    let mut missing = Vec::new();
    let own = appended.iter().filter(|append| matches!(append.from, AppendedFrom::Slot(_))).count();
    if changed.len() + own > MOST_PARTS {
        missing.push(("append", format!("{} values at once", changed.len() + own), "-"));
    }
    for change in changed {
        if change.head > MOST_HEAD {
            missing.push(("rope", format!("heads of {} values", change.head), "-"));
        }
    }
    missing
}

#[cfg(test)]
mod tests {
    use super::super::{CudaError, CudaExecutor, CudaOptions};
    use crate::cpu::tests::small::model;
    use bloomery_kernels_gpu::SimulatedGrid;
    use std::sync::Arc;

    #[test]
    fn joined_experts_and_groups_are_refused_at_load() {
        let model = model(4);
        let machine = Box::new(SimulatedGrid::new(None));
        let opened = CudaExecutor::on_machine(
            &model.program,
            Arc::new(model.tensors.clone()),
            machine,
            &CudaOptions::default(),
        );
        match opened.err() {
            Some(CudaError::Missing { missing }) => {
                let classes: Vec<&str> = missing.iter().map(|m| m.class.as_str()).collect();
                assert!(classes.contains(&"gate and up in one matrix"), "{classes:?}");
                assert!(classes.contains(&"groups of experts"), "{classes:?}");
                assert!(missing.iter().all(|m| !m.node.is_empty()));
            }
            other => panic!("{other:?}"),
        }
    }
}
