//! Which rows of which values a step has to compute.

use crate::table::RowSet;
use bloomery_program::{Graph, OutputKind, ValueId};
use std::collections::HashMap;
use std::rc::Rc;

/// For every node the rows of its results that somebody reads, `None` when the node need not run.
///
/// Logits are wanted for few rows, so everything that is row-local above the last attention is computed for those only.
pub fn rows_of_nodes(
    graph: &Graph,
    rows: usize,
    logits: Option<&[bool]>,
    hidden: Option<&[bool]>,
) -> Vec<Option<Rc<RowSet>>> {
    let all = vec![true; rows];
    let mut wanted: HashMap<ValueId, Vec<bool>> = HashMap::new();
    let mut want = |value: ValueId, mask: &[bool]| {
        let entry = wanted.entry(value).or_insert_with(|| vec![false; rows]);
        entry.iter_mut().zip(mask).for_each(|(e, m)| *e |= m);
    };
    for output in &graph.outputs {
        let mask = match output.kind {
            OutputKind::Hidden => hidden,
            OutputKind::Logits | OutputKind::Confidence => logits,
            OutputKind::Decision => None,
        };
        want(output.value, mask.unwrap_or(&all));
    }
    let mut sets: HashMap<Vec<bool>, Rc<RowSet>> = HashMap::new();
    let mut needs = vec![None; graph.nodes.len()];
    for (index, node) in graph.nodes.iter().enumerate().rev() {
        let mut mask = vec![false; rows];
        for out in &node.outs {
            if let Some(wanted) = wanted.get(&out.value) {
                mask.iter_mut().zip(wanted).for_each(|(m, w)| *m |= w);
            }
        }
        if node.op.writes().is_some() || (!node.op.is_row_local() && mask.contains(&true)) {
            mask.fill(true);
        }
        if !mask.contains(&true) {
            continue;
        }
        for operand in &node.ins {
            let entry = wanted.entry(*operand).or_insert_with(|| vec![false; rows]);
            entry.iter_mut().zip(&mask).for_each(|(e, m)| *e |= m);
        }
        let set = sets.entry(mask).or_insert_with_key(|mask| Rc::new(RowSet::from_mask(mask)));
        needs[index] = Some(Rc::clone(set));
    }
    needs
}
