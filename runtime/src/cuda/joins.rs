//! Steps that go to the card together when rows are few: found once, at load, since what they share must stay in memory together.

use crate::cpu::step::{Lowered, Slot, Step, Use, Work};
use std::ops::Range;

/// What a group of steps is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Kind {
    /// Attention, then its result quantised.
    Attend,
    /// A norm, and projections of its result.
    NormProject,
    /// A router, and its experts.
    RouteExperts,
}

/// Steps that are emitted together.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Join {
    pub kind: Kind,
    /// Steps of the group.
    pub steps: usize,
}

/// Groups of a lowered program, and who reads what.
#[derive(Debug, Clone, Default)]
pub(crate) struct Joins {
    /// For the first step of every group.
    groups: Vec<Option<Join>>,
    /// For every slot: the last step that reads it; `usize::MAX` for results.
    last_read: Vec<Option<usize>>,
}

impl Joins {
    pub fn new(lowered: &Lowered) -> Joins {
        let mut last_read = vec![None; lowered.slots.len()];
        for (index, step) in lowered.steps.iter().enumerate() {
            step.clone().visit(&mut |slot: &mut Slot, usage| {
                if usage != Use::Write {
                    last_read[slot.0] = Some(index);
                }
            });
        }
        for (slot, _) in lowered.logits.iter().chain(&lowered.hidden) {
            last_read[slot.0] = Some(usize::MAX);
        }
        let mut groups = vec![None; lowered.steps.len()];
        let mut index = 0;
        while index < groups.len() {
            // A group has one number of rows.
            let end = if index < lowered.tail { lowered.tail } else { groups.len() };
            let join = group(&lowered.steps[index..end]);
            groups[index] = join;
            index += join.map_or(1, |join| join.steps);
        }
        Joins { groups, last_read }
    }

    /// The group that begins with a step.
    pub fn at(&self, index: usize) -> Option<Join> {
        self.groups.get(index).copied().flatten()
    }

    /// The steps that share a step's time: its group's, or itself alone.
    pub fn around(&self, index: usize) -> Range<usize> {
        let first =
            (0..=index).rev().find(|first| self.at(*first).is_some_and(|join| first + join.steps > index));
        match first.and_then(|first| Some(first..first + self.at(first)?.steps)) {
            Some(range) => range,
            None => index..index + 1,
        }
    }

    /// A step at or after `index` reads the slot, or it is a result.
    pub fn read_from(&self, slot: Slot, index: usize) -> bool {
        self.last_read.get(slot.0).copied().flatten().is_some_and(|last| last >= index)
    }
}

/// The group that stands at the head of these steps.
fn group(steps: &[Step]) -> Option<Join> {
    match (&steps.first()?.work, &steps.get(1)?.work) {
        (Work::Attend { out, .. }, _) => {
            let of_it = |step: &&Step| matches!(&step.work, Work::Quantize { x, .. } if x == out);
            let quantized = steps[1..].iter().take_while(of_it).count();
            (quantized > 0).then_some(Join { kind: Kind::Attend, steps: 1 + quantized })
        }
        (Work::Norm { quantized, .. }, Work::Project { x, .. }) if quantized.contains(x) => {
            Some(Join { kind: Kind::NormProject, steps: 2 })
        }
        (Work::Route { ids, .. }, Work::Experts { ids: chosen, .. }) if ids == chosen => {
            Some(Join { kind: Kind::RouteExperts, steps: 2 })
        }
        _ => None,
    }
}
