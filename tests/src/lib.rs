//! Where tests find their models and reference outputs.
//!
//! Three sources, from near to far: `tests/data` (committed), the golden kit (a folder named by `BLOOMERY_GOLDEN`),
//! and two real models that PyPI packages carry. A test that lacks its data prints one line that says so and passes.

#![forbid(unsafe_code)]

mod packages;
pub mod server;

pub use packages::{RealModel, real_model};

use std::path::{Path, PathBuf};

/// The repository's root.
pub fn repository() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).parent().map(Path::to_path_buf).unwrap_or_default()
}

/// A committed file under `tests/data`.
pub fn data(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("data").join(name)
}

/// The demo model.
pub fn demo_model() -> PathBuf {
    data("demo/ember-qwen3moe-25m-Q4_K_M.gguf")
}

/// The golden kit, or `None` after printing why the test is skipped.
pub fn golden_kit() -> Option<PathBuf> {
    match std::env::var_os("BLOOMERY_GOLDEN").map(PathBuf::from) {
        Some(folder) if folder.is_dir() => Some(folder),
        Some(folder) => {
            println!("skipped: no golden kit (BLOOMERY_GOLDEN is {}, which is no folder)", folder.display());
            None
        }
        None => {
            println!("skipped: no golden kit");
            None
        }
    }
}

/// Little-endian f32 values of a file.
///
/// # Errors
/// When the file cannot be read.
pub fn read_f32(path: &Path) -> std::io::Result<Vec<f32>> {
    let bytes = std::fs::read(path)?;
    Ok(bytes.as_chunks::<4>().0.iter().map(|b| f32::from_le_bytes(*b)).collect())
}

/// Parsed JSON of a file.
///
/// # Errors
/// When the file cannot be read or is no JSON.
pub fn read_json(path: &Path) -> std::io::Result<serde_json::Value> {
    serde_json::from_slice(&std::fs::read(path)?).map_err(std::io::Error::other)
}

/// Mean squared error of `found` over the mean square of `expected`.
pub fn nmse(found: &[f32], expected: &[f32]) -> f64 {
    assert_eq!(found.len(), expected.len(), "rows of different length");
    let error: f64 = found.iter().zip(expected).map(|(a, b)| f64::from(a - b).powi(2)).sum();
    let power: f64 = expected.iter().map(|b| f64::from(*b).powi(2)).sum();
    error / power
}
