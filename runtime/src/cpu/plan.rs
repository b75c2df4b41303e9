//! The memory plan: every value's buffer is chosen once, at load, so that a step allocates nothing.

use super::step::{Class, Lowered, Slot, Use};
use bloomery_formats::ActivationKind;

/// Buffers, in the three classes; slots of the planned steps are numbers within their class.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct MemoryPlan {
    /// Widest row that each f32 buffer holds.
    pub rows: Vec<usize>,
    /// Widest row that each index buffer holds.
    pub index: Vec<usize>,
    /// Kind and width of each buffer of quantised rows.
    pub quantized: Vec<(ActivationKind, usize)>,
}

/// Assigns buffers by lifetime: a buffer is free again after the last step that reads it. A step never writes a buffer that it
/// reads, except where it changes one in place.
pub(crate) fn plan(lowered: &mut Lowered) -> MemoryPlan {
    let classes = lowered.slots.clone();
    let mut last = vec![0usize; classes.len()];
    for (index, step) in lowered.steps.iter_mut().enumerate() {
        step.visit(&mut |slot, _| last[slot.0] = index);
    }
    let end = lowered.steps.len();
    let trunk = lowered.decision.as_ref().map(|d| d.hidden);
    let outputs = lowered.logits.iter().chain(&lowered.hidden).chain(&lowered.every_row);
    for (slot, _) in outputs.chain(&trunk) {
        last[slot.0] = end;
    }
    let mut memory = MemoryPlan::default();
    let mut place: Vec<Option<usize>> = vec![None; classes.len()];
    let mut free: Vec<(Class, usize)> = Vec::new();
    if let Some((slot, _)) = &mut lowered.given {
        let number = take(&mut memory, &mut free, classes[slot.0]);
        place[slot.0] = Some(number);
        *slot = Slot(number);
    }
    for (index, step) in lowered.steps.iter_mut().enumerate() {
        let mut ended = Vec::new();
        step.visit(&mut |slot, usage| {
            let class = classes[slot.0];
            if place[slot.0].is_none() {
                debug_assert!(usage == Use::Write, "slot {} is read before it is written", slot.0);
                place[slot.0] = Some(take(&mut memory, &mut free, class));
            }
            let number = place[slot.0].unwrap_or(0);
            if last[slot.0] == index && !ended.contains(&(class, number)) {
                ended.push((class, number));
            }
            *slot = Slot(number);
        });
        free.extend(ended);
    }
    let trunk = lowered.decision.as_mut().map(|d| &mut d.hidden);
    let outputs = lowered.logits.iter_mut().chain(&mut lowered.hidden).chain(&mut lowered.every_row);
    for (slot, _) in outputs.chain(trunk) {
        *slot = Slot(place[slot.0].unwrap_or(0));
    }
    memory
}

fn take(memory: &mut MemoryPlan, free: &mut Vec<(Class, usize)>, class: Class) -> usize {
    match class {
        Class::Rows { width } => {
            let fit = |(i, (c, n)): (usize, &(Class, usize))| match c {
                Class::Rows { .. } => Some((i, memory.rows[*n])),
                _ => None,
            };
            let candidates: Vec<(usize, usize)> = free.iter().enumerate().filter_map(fit).collect();
            let best = candidates.iter().filter(|(_, w)| *w >= width).min_by_key(|(_, w)| *w);
            match best.or_else(|| candidates.iter().max_by_key(|(_, w)| *w)) {
                Some((i, _)) => {
                    let number = free.swap_remove(*i).1;
                    memory.rows[number] = memory.rows[number].max(width);
                    number
                }
                None => {
                    memory.rows.push(width);
                    memory.rows.len() - 1
                }
            }
        }
        Class::Index { width } => match free.iter().position(|(c, _)| matches!(c, Class::Index { .. })) {
            Some(i) => {
                let number = free.swap_remove(i).1;
                memory.index[number] = memory.index[number].max(width);
                number
            }
            None => {
                memory.index.push(width);
                memory.index.len() - 1
            }
        },
        Class::Quantized { kind, width } => match free.iter().position(|(c, _)| *c == class) {
            Some(i) => free.swap_remove(i).1,
            None => {
                memory.quantized.push((kind, width));
                memory.quantized.len() - 1
            }
        },
    }
}
