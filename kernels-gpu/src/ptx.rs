//! The texts of the kernels.

/// Name and text for a card of this compute capability.
pub(crate) fn for_card(_capability: (i32, i32)) -> (&'static str, &'static str) {
    ("sm_80", "")
}
