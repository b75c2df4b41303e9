//! Seat for DeepSeek V4.1 Flash (`deepseek41`) and V4 (`deepseek4`): latent attention over a window joined with compressed
//! rows, and four residual streams joined by Sinkhorn weights. The two differ in how rows are compressed and shared, in
//! whose weights collapse the streams, and in their drafters.

#![forbid(unsafe_code)]

mod block;
mod common;
mod deepseek4;
mod deepseek41;

use bloomery_seat::prelude::*;

/// The program of a file.
///
/// # Errors
/// A key that is missing or out of range, a tensor that is missing, has another shape or is read by nothing: by name.
pub fn declare(facts: &ModelFacts) -> Result<Program> {
    if facts.arch == "deepseek4" { deepseek4::declare(facts) } else { deepseek41::declare(facts) }
}

bloomery_seat::export_seat! { name: "ds41", architectures: ["deepseek41", "deepseek4"], declare: declare }
