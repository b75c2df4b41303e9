//! States of fixed size: the last rows of a value and recurrent blocks. A sequence keeps them all in one block of f32, zero at its start.

use bloomery_program::{Graph, Program, StateId, StateKind};
use std::ops::Range;

/// Where the states lie in a sequence's block.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct FixedLayout {
    places: Vec<Option<Range<usize>>>,
    /// Values of the block.
    pub values: usize,
    /// Some operator reads the last token ids: sequences keep their text.
    pub text: bool,
}

impl FixedLayout {
    /// The states that the graph uses, one after the other.
    pub fn new(program: &Program, graph: &Graph) -> FixedLayout {
        let mut layout = FixedLayout::default();
        for (index, state) in program.states.iter().enumerate() {
            let used = graph.nodes.iter().any(|n| n.op.states().iter().any(|s| s.0 as usize == index));
            layout.text |= used && matches!(state.kind, StateKind::Tokens { .. });
            let place = match &state.kind {
                StateKind::Recent { .. } | StateKind::Recurrent { .. } if used => {
                    let values = usize::try_from(state.kind.fixed_bytes() / 4).unwrap_or(usize::MAX);
                    let start = layout.values;
                    layout.values = start.saturating_add(values);
                    Some(start..layout.values)
                }
                _ => None,
            };
            layout.places.push(place);
        }
        layout
    }

    /// Where a state lies; `None` for stores, tokens and states that the graph does not use.
    pub fn place(&self, state: StateId) -> Option<Range<usize>> {
        self.places.get(state.0 as usize)?.clone()
    }
}
