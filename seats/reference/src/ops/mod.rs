//! The operators as functions of plain slices, one file a group. `docs/operators.md` has the equations.
//!
//! Slices are row-major. A function takes one row of the step unless its name or its arguments say otherwise; `out` has
//! the width of the result. Lengths are the caller's business: the checker has fixed them.

pub mod attention;
pub mod decision;
pub mod embed;
pub mod experts;
pub mod linear;
pub mod markov;
pub mod norm;
pub mod plain;
pub mod pointwise;
pub mod recurrent;
pub mod rope;
pub mod selection;
pub mod streams;
