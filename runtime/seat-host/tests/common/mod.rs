//! Builds the test seats once a test binary, under the target directory, and puts variants of them into folders.

#![allow(dead_code)]

use bloomery_program::{Meta, ModelFacts};
use bloomery_seat_host::SeatOptions;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::OnceLock;
use std::time::Duration;

fn manifest_dir() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR"))
}

/// One target directory for every seat that tests build, so that their common dependencies are compiled once.
fn target_dir() -> PathBuf {
    Path::new(env!("CARGO_TARGET_TMPDIR")).join("../seat-builds")
}

/// Runs cargo on a manifest outside the workspace with the workspace's own lock, so that no newer version is fetched.
fn cargo(manifest: &Path, words: &[&str], rustc_words: &[&str]) {
    let lock = manifest.with_file_name("Cargo.lock");
    if !lock.exists() {
        fs::copy(manifest_dir().join("../../Cargo.lock"), &lock).expect("lock file");
    }
    let mut command = Command::new(env!("CARGO"));
    command.args(words).arg("--manifest-path").arg(manifest).arg("--target-dir").arg(target_dir());
    // What the outer cargo sets for this test must not leak into the inner one.
    for (name, _) in std::env::vars() {
        if name.starts_with("CARGO_PKG") || name == "CARGO_MANIFEST_DIR" || name == "RUSTFLAGS" {
            command.env_remove(name);
        }
    }
    command.env("CARGO_PROFILE_DEV_DEBUG", "0");
    if !rustc_words.is_empty() {
        command.arg("--").args(rustc_words);
    }
    let output = command.output().expect("cargo");
    assert!(output.status.success(), "{command:?}\n{}", String::from_utf8_lossy(&output.stderr));
}

fn built(file: &str) -> Vec<u8> {
    fs::read(target_dir().join("debug").join(file)).expect(file)
}

/// Builds a project and returns one of its libraries.
pub fn build(manifest: &Path, library: &str) -> Vec<u8> {
    let _one_at_a_time = BUILD.lock();
    cargo(manifest, &["build"], &[]);
    built(library)
}

/// Runs a project's own tests.
pub fn test_project(manifest: &Path) {
    let _one_at_a_time = BUILD.lock();
    cargo(manifest, &["test", "--quiet"], &[]);
}

/// Bytes of the seat that does as it is told.
pub fn bad_seat() -> &'static [u8] {
    static BYTES: OnceLock<Vec<u8>> = OnceLock::new();
    BYTES.get_or_init(|| {
        let _one_at_a_time = BUILD.lock();
        cargo(&manifest_dir().join("tests/seats/bad/Cargo.toml"), &["build"], &[]);
        built("libseat_bad.so")
    })
}

static BUILD: std::sync::Mutex<()> = std::sync::Mutex::new(());

/// The same seat with the strategy that ends the process on a panic.
pub fn aborting_seat() -> Vec<u8> {
    bad_seat();
    let _one_at_a_time = BUILD.lock();
    let manifest = manifest_dir().join("tests/seats/bad/Cargo.toml");
    cargo(&manifest, &["rustc", "--profile", "dev", "--lib"], &["-C", "panic=abort"]);
    let bytes = built("libseat_bad.so");
    // Put the other one back for the next test binary.
    cargo(&manifest, &["build"], &[]);
    bytes
}

/// A seat built against another table: feature `next` or `moved`.
pub fn other_table_seat(feature: &str) -> Vec<u8> {
    let _one_at_a_time = BUILD.lock();
    let manifest = manifest_dir().join("tests/seats/other-table/Cargo.toml");
    cargo(&manifest, &["build", "--features", feature], &[]);
    built("libseat_other_table.so")
}

/// A C file as a library (or, without `-shared`, as a program).
pub fn c_file(source: &str, words: &[&str], to: &Path) {
    let status = Command::new("cc")
        .args(words)
        .arg("-o")
        .arg(to)
        .arg(manifest_dir().join("tests/seats/c").join(source))
        .status()
        .expect("cc: the linker that rustc uses");
    assert!(status.success());
}

/// Replaces a text by one of the same length, wherever it stands in the file.
pub fn patched(bytes: &[u8], from: &str, to: &str) -> Vec<u8> {
    assert_eq!(from.len(), to.len());
    let mut patched = bytes.to_vec();
    let mut found = 0;
    let mut at = 0;
    while at + from.len() <= patched.len() {
        if &patched[at..at + from.len()] == from.as_bytes() {
            patched[at..at + from.len()].copy_from_slice(to.as_bytes());
            found += 1;
            at += from.len();
        } else {
            at += 1;
        }
    }
    assert!(found > 0, "{from} is not in the file");
    patched
}

/// A folder of seats that nobody else can write to.
pub fn folder() -> tempfile::TempDir {
    tempfile::tempdir().expect("folder")
}

/// Options that look into one folder.
pub fn options(folder: &Path) -> SeatOptions {
    SeatOptions {
        folders: vec![folder.into()],
        probe_program: env!("CARGO_BIN_EXE_bloomery-seat").into(),
        // Generous: test machines are busy. The tests of the limit itself set their own.
        limit: Duration::from_secs(60),
        ..SeatOptions::default()
    }
}

/// Facts that make the bad seat do something.
pub fn mode(mode: &str) -> ModelFacts {
    let mut facts = ModelFacts { arch: "bad".into(), ..ModelFacts::default() };
    facts.meta.insert("bad.mode".into(), Meta::Str(mode.into()));
    facts.meta.insert("bad.answer".into(), Meta::Str(identity_program("")));
    facts
}

/// Facts that make the bad seat answer with these bytes.
pub fn answer(bytes: &str) -> ModelFacts {
    let mut facts = mode("answer");
    facts.meta.insert("bad.answer".into(), Meta::Str(bytes.into()));
    facts
}

/// A program that holds together: one-hot rows through a table. `more` is put before the last brace.
pub fn identity_program(more: &str) -> String {
    format!(
        r#"{{"language":{{"major":1,"minor":0}},"seat":"bad-seat-a","states":[],"graphs":[{{"role":{{"kind":"target"}},
        "inputs":[{{"kind":{{"kind":"tokens"}},"value":0,"shape":{{"kind":"tokens"}}}}],
        "nodes":[{{"op":{{"kind":"embed"}},"ins":[0],"tensors":{{"weight":"token_embd.weight"}},
        "outs":[{{"value":1,"name":"logits","shape":{{"kind":"rows","width":8}}}}]}}],
        "outputs":[{{"kind":"logits","value":1}}]}}]{more}}}"#
    )
}

/// The tensor that [`identity_program`] reads.
pub fn with_table(mut facts: ModelFacts) -> ModelFacts {
    let table = bloomery_program::TensorFacts { dims: vec![8, 8], dtype: "F32".into() };
    facts.tensors.insert("token_embd.weight".into(), table);
    facts
}
