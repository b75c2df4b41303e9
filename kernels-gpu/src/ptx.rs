//! The texts of the kernels. The driver turns them into code for the card that is there, once, and keeps that.

/// Name and text for a card of this compute capability.
pub(crate) fn for_card(_capability: (i32, i32)) -> (&'static str, &'static str) {
    ("kernels for sm_80 and newer", include_str!("../ptx/sm_80.ptx"))
}
