//! Defaults of optional constants: what a program that leaves a field out means.

pub(super) fn one() -> u32 {
    1
}
pub(super) fn is_one(v: &u32) -> bool {
    *v == 1
}
pub(super) fn is_zero(v: &u32) -> bool {
    *v == 0
}
pub(super) fn one_f() -> f32 {
    1.0
}
pub(super) fn is_one_f(v: &f32) -> bool {
    *v == 1.0
}
pub(super) fn is_zero_f(v: &f32) -> bool {
    *v == 0.0
}
