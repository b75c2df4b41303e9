//! Quantised files against their own references, and why a row may lie apart from its reference.

use super::{Model, VOCABULARY, facts_of, largest_difference, logits, prompts, rows};
use bloomery_gguf::GgufFile;
use bloomery_runtime::cpu::MemoryTensors;
use bloomery_runtime::executor::Executor;
use bloomery_tests::{golden_kit, nmse, read_f32, read_json};
use std::path::Path;
use std::sync::Arc;

#[test]
fn quantised_variants_against_their_own_reference() {
    let Some(kit) = golden_kit() else { return };
    let folder = kit.join("qwen3moe");
    let golden = read_json(&folder.join("golden.json")).unwrap();
    let (mut parted, mut equal, mut compared) = (0, 0, 0);
    for (name, variant) in golden["quants"].as_object().unwrap() {
        let path = folder.join(variant["file"].as_str().unwrap());
        let model = Model::open(&path, false);
        let mut executor = model.executor(|_| {});
        let expected = read_f32(&folder.join(format!("{name}.q8_activations.logits.bin"))).unwrap();
        for ((prompt, tokens, _), expected) in prompts(&golden).iter().zip(expected.chunks_exact(VOCABULARY))
        {
            let last = tokens.len() - 1;
            let found = logits(&mut executor, tokens, 512, |p| p == last);
            let error = nmse(&found, expected);
            println!("{name} {prompt}: nmse {error:e}");
            if error >= 1e-4 {
                parted += 1;
                show_rounding_tie(&path, tokens, expected, &format!("{name} {prompt}"));
            }
            equal += usize::from(error < EQUAL);
            compared += 1;
        }
    }
    println!("{equal} of {compared} rows equal, {parted} part by 1e-4 or more");
    assert!(equal * 2 >= compared, "only {equal} of {compared} rows equal their reference");
    assert!(parted * 10 <= compared, "{parted} of {compared} rows part from their reference");
}

/// Rows that differ by nothing but the order of sums: seen are 1e-14 to 1e-13. The next larger distance seen is 4e-5.
const EQUAL: f64 = 1e-9;

/// Shows that a row parts because one activation lies between two 8-bit codes.
///
/// Activations are rounded to 8 bits before every product. Sums in another order leave the last bit of an f32 to chance, and
/// a value that lies within that bit of the middle between two codes gets one code here and the other one there: a
/// difference of 1/127 of its block's largest value from then on, which moves further values over further middles. So
/// rows either equal their reference or lie as far apart as 8-bit rounding does.
///
/// The proof is a twin: the same file with norm weights moved by at most [`LAST_PLACES`] units in the last place, a few
/// roundings of an f32, whose row equals the reference. The twin's run and ours are then laid side by side: up to some
/// product everything agrees to rounding, the experts too, and there it jumps.
fn show_rounding_tie(path: &Path, tokens: &[u32], expected: &[f32], what: &str) {
    let last = tokens.len() - 1;
    let twin = (0..200).find_map(|seed| {
        let twin = nudged(path, LAST_PLACES, seed);
        let found = logits(&mut twin.executor(|_| {}), tokens, 512, |p| p == last);
        (nmse(&found, expected) < EQUAL).then_some((seed, twin))
    });
    let (seed, twin) = twin.unwrap_or_else(|| panic!("{what} parts, and no twin meets its reference"));
    let (ours, theirs) = (trace(&Model::open(path, false), tokens), trace(&twin, tokens));
    let mut before: f32 = 0.0;
    let mut jump = None;
    for ((name, ours, width), (_, theirs, _)) in ours.iter().zip(&theirs) {
        let rows = ours.chunks_exact(*width).zip(theirs.chunks_exact(*width));
        let distances: Vec<f32> = rows.map(|(a, b)| distance(a, b)).collect();
        let far = distances.iter().position(|d| *d >= JUMP);
        if let Some(row) = far {
            jump = Some((name, row, distances[row]));
            break;
        }
        before = distances.iter().fold(before, |m, d| m.max(*d));
    }
    let (name, row, size) = jump.unwrap_or_else(|| panic!("{what}: the twin's run is the same"));
    let experts = |run: &[(String, Vec<f32>, usize)]| -> Vec<Vec<f32>> {
        run.iter().filter(|r| r.0.ends_with("ffn_moe_topk")).map(|r| r.1.clone()).collect()
    };
    let flips: usize = experts(&ours)
        .iter()
        .zip(&experts(&theirs))
        .map(|(a, b)| a.iter().zip(b).filter(|(a, b)| a != b).count())
        .sum();
    println!(
        "{what}: twin {seed} meets the reference; equal to {before:e} up to {name} of row {row}, there {size:e}; \
         {flips} experts differ"
    );
    assert!(before < 1e-5, "{what}: {before:e} before the jump is more than the order of sums explains");
    assert!(!name.ends_with("ffn_moe_topk"), "{what}: an expert is the first to differ");
}

/// Units in the last place by which a twin's norm weights may differ: 4 of 2^-23 are 5e-7.
const LAST_PLACES: i64 = 4;

/// Relative distance of a row from which on a code has changed.
const JUMP: f32 = 1e-4;

/// Largest difference over the root mean square.
fn distance(a: &[f32], b: &[f32]) -> f32 {
    let power = a.iter().map(|v| v * v).sum::<f32>() / a.len() as f32;
    largest_difference(a, b) / power.sqrt().max(f32::MIN_POSITIVE)
}

/// Every named result in the order of the run: name, values, width of a row.
fn trace(model: &Model, tokens: &[u32]) -> Vec<(String, Vec<f32>, usize)> {
    let mut executor = model.executor(|o| o.fuse = false);
    let sequence = executor.create().unwrap();
    let mut all = Vec::new();
    executor
        .run_traced(&rows(tokens, 0, sequence, |_| true), &mut |name, values, width| {
            all.push((name.to_string(), values.to_vec(), width));
        })
        .unwrap();
    all
}

/// The file with every norm weight moved by up to `steps` units in its last place, in a pattern drawn by `seed`.
fn nudged(path: &Path, steps: i64, seed: u64) -> Model {
    let file = GgufFile::open(path).unwrap();
    let program = seat_qwen3::declare(&facts_of(&file)).unwrap();
    let mut tensors = MemoryTensors::default();
    let mut state = seed;
    for info in file.tensors() {
        let mut data = file.data(info).to_vec();
        if info.name().ends_with("norm.weight") {
            for value in data.as_chunks_mut::<4>().0 {
                state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
                let by = (state >> 33) as i64 % (2 * steps + 1) - steps;
                *value = u32::from_le_bytes(*value).saturating_add_signed(by as i32).to_le_bytes();
            }
        }
        tensors.insert(info.name(), info.weight_type(), info.dims(), data);
    }
    Model { program, source: Arc::new(tensors) }
}
