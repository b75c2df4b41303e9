//! The out-of-tree examples: projects of their own, built and tested as a third party would, dropped into a folder, found
//! and asked.

mod common;

use bloomery_program::ModelFacts;
use bloomery_seat_host::Seats;
use common::*;
use std::fs;
use std::path::{Path, PathBuf};

fn example(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/examples").join(name)
}

#[test]
fn examples_are_built_dropped_in_and_declare() {
    let folder = folder();
    for name in ["llama", "gemma3"] {
        let project = example(&format!("seat-{name}"));
        let library = build(&project.join("Cargo.toml"), &format!("libseat_{name}.so"));
        fs::write(folder.path().join(format!("libseat_{name}.so")), library).expect("dropped in");
    }
    let seats = Seats::discover(&options(folder.path()));
    assert_eq!(seats.unused().count(), 0, "{seats}");
    for (name, nodes) in [("llama", 35), ("gemma3", 63)] {
        let facts = example(&format!("seat-{name}")).join(format!("tests/data/{name}.facts.json"));
        let facts: ModelFacts = serde_json::from_slice(&fs::read(facts).expect("facts")).expect("facts");
        let seat = seats.choose(name, None).expect("found");
        let checked = seat.declare(&facts).expect("declared");
        assert_eq!(checked.summary.nodes, nodes, "{name}");
        assert!(checked.summary.unread.is_empty());
    }
}

#[test]
fn the_examples_own_tests_pass() {
    for name in ["llama", "gemma3"] {
        test_project(&example(&format!("seat-{name}")).join("Cargo.toml"));
    }
}

/// What the documentation promises: one dependency, and no more than 120 lines of Rust.
#[test]
fn examples_are_small_and_depend_on_the_sdk_alone() {
    for name in ["llama", "gemma3"] {
        let project = example(&format!("seat-{name}"));
        let lines = fs::read_to_string(project.join("src/lib.rs")).expect("source").lines().count();
        assert!(lines <= 120, "{name} has {lines} lines");
        let manifest = fs::read_to_string(project.join("Cargo.toml")).expect("manifest");
        let table: toml::Table = manifest.parse().expect("manifest");
        for kind in ["dependencies", "dev-dependencies"] {
            let names: Vec<&String> = table[kind].as_table().expect("table").keys().collect();
            assert_eq!(names, ["bloomery-seat"], "{name}: {kind}");
        }
    }
}
