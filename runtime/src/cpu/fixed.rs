//! States of fixed size: the last rows of a value, recurrent blocks, and stores of which only a window is read. A sequence keeps them all in one
//! block of f32, zero at its start.

use bloomery_kernels_cpu::kv::CacheType;
use bloomery_program::{Graph, Op, Part, PartRole, Program, State, StateId, StateKind};
use std::ops::Range;

/// A store that is kept as a ring.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Ring {
    /// `[window - 1, width]` in a block: a row's own place in the window needs none.
    pub place: Range<usize>,
    pub width: usize,
    /// Rows are rounded as this type does.
    pub cache: CacheType,
}

/// Where the states lie in a sequence's block.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct FixedLayout {
    places: Vec<Option<Range<usize>>>,
    rings: Vec<Option<Ring>>,
    /// Values of the block.
    pub values: usize,
    /// Some operator reads the last token ids: sequences keep their text.
    pub text: bool,
}

impl FixedLayout {
    /// The states that the graph uses, one after the other.
    pub fn new(
        program: &Program,
        graph: &Graph,
        cache_key: CacheType,
        cache_value: CacheType,
    ) -> FixedLayout {
        let mut layout = FixedLayout::default();
        let rings = rings(program, graph);
        for (index, state) in program.states.iter().enumerate() {
            let used = graph.nodes.iter().any(|n| n.op.states().iter().any(|s| s.0 as usize == index));
            layout.text |= used && matches!(state.kind, StateKind::Tokens { .. });
            let mut ring = None;
            let place = match &state.kind {
                StateKind::Rows { parts, window: Some(window), .. } if rings[index] => {
                    let [part] = parts[..] else { continue };
                    let width = part.width as usize;
                    let start = layout.values;
                    layout.values =
                        start.saturating_add(width.saturating_mul((*window as usize).saturating_sub(1)));
                    let cache = match part.role {
                        PartRole::Key => cache_key,
                        PartRole::Value => cache_value,
                        PartRole::Exact => CacheType::F32,
                    };
                    ring = Some(Ring { place: start..layout.values, width, cache });
                    None
                }
                StateKind::Recent { .. } | StateKind::Recurrent { .. } if used => {
                    let values = usize::try_from(state.kind.fixed_bytes() / 4).unwrap_or(usize::MAX);
                    let start = layout.values;
                    layout.values = start.saturating_add(values);
                    Some(start..layout.values)
                }
                _ => None,
            };
            layout.places.push(place);
            layout.rings.push(ring);
        }
        layout
    }

    /// Where a state lies; `None` for stores, tokens and states that the graph does not use.
    pub fn place(&self, state: StateId) -> Option<Range<usize>> {
        self.places.get(state.0 as usize)?.clone()
    }

    /// How a store is kept that lies in no pages.
    pub fn ring(&self, state: StateId) -> Option<&Ring> {
        self.rings.get(state.0 as usize)?.as_ref()
    }
}

/// Which stores are kept as rings: those whose rows are key and value at once and are read through windows only, in a graph that goes back by
/// checkpoints anyway. A ring cannot be cut, so elsewhere such a store stays in pages.
pub(crate) fn rings(program: &Program, graph: &Graph) -> Vec<bool> {
    let uses = |index: usize, op: &Op| op.states().iter().any(|s| s.0 as usize == index);
    let used = |index: usize| graph.nodes.iter().any(|n| uses(index, &n.op));
    let by_checkpoints = program.states.iter().enumerate().any(|(index, state)| {
        matches!(state.kind, StateKind::Recent { .. } | StateKind::Recurrent { .. }) && used(index)
    });
    let read_through = |index: usize, window: u32| {
        let mut appends = 0;
        let fits = graph.nodes.iter().filter(|n| uses(index, &n.op)).all(|n| match &n.op {
            Op::Append { .. } => {
                appends += 1;
                appends == 1
            }
            Op::Attention(a) => a.sources.iter().filter(|s| s.state.0 as usize == index).all(|s| {
                let inside = s.window.is_some_and(|w| w > 0 && w <= window);
                inside && !s.selected && !a.block_bidirectional
            }),
            _ => false,
        });
        fits && appends == 1
    };
    let ring = |(index, state): (usize, &State)| match &state.kind {
        StateKind::Rows { parts, every: 1, window: Some(window) } => {
            by_checkpoints && matches!(parts[..], [Part { .. }]) && read_through(index, *window)
        }
        _ => false,
    };
    program.states.iter().enumerate().map(ring).collect()
}
