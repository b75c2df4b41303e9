//! The cpu backend on the golden kit's models of one seat: logits, named results, greedy text, cuts, exactness. Every seat has a test program of
//! its own, because a program can link one seat only.

#![allow(dead_code, reason = "each test program uses its part")]

use bloomery_gguf::GgufFile;
use bloomery_program::{ModelFacts, Program};
use bloomery_runtime::cpu::{CacheType, CpuExecutor, CpuOptions, MemoryTensors, WeightSource};
use bloomery_runtime::executor::{Executor, Rollback, Row, SequenceId};
use bloomery_runtime::model::model_facts;
use bloomery_tests::{golden_kit, nmse, read_f32, read_json};
use serde_json::Value;
use std::collections::BTreeMap;
use std::path::Path;
use std::sync::Arc;

/// Declares the program of a file.
pub type Declare = fn(&ModelFacts) -> Program;

/// A model as it stands or dequantised.
pub struct Model {
    program: Program,
    source: Arc<dyn WeightSource>,
}

impl Model {
    pub fn open(path: &Path, declare: Declare, dequantize: bool) -> Model {
        let file = GgufFile::open(path).unwrap();
        let facts = model_facts(&file).unwrap();
        let program = declare(&facts);
        bloomery_program::check(&program, &facts).unwrap();
        let source: Arc<dyn WeightSource> = if dequantize {
            let names: Vec<&str> = facts.tensors.keys().map(String::as_str).collect();
            Arc::new(MemoryTensors::dequantized(&file, &names).unwrap())
        } else {
            Arc::new(file)
        };
        Model { program, source }
    }

    pub fn executor(&self, change: impl FnOnce(&mut CpuOptions)) -> CpuExecutor {
        let mut options = CpuOptions {
            threads: Some(2),
            max_tokens: 1024,
            store_tokens: 8 * 1024,
            cache_key: CacheType::F32,
            cache_value: CacheType::F32,
            ..CpuOptions::default()
        };
        change(&mut options);
        CpuExecutor::new(&self.program, self.source.clone(), &options).unwrap()
    }
}

pub fn rows(tokens: &[u32], first: usize, sequence: SequenceId, wants: impl Fn(usize) -> bool) -> Vec<Row> {
    let row = |(i, token): (usize, &u32)| Row {
        token: *token,
        position: first + i,
        sequence,
        wants_logits: wants(first + i),
        wants_hidden: false,
    };
    tokens.iter().enumerate().map(row).collect()
}

/// Logits at all wanted positions of a text, in steps of `chunk` rows.
pub fn logits(
    executor: &mut CpuExecutor,
    tokens: &[u32],
    chunk: usize,
    wants: impl Fn(usize) -> bool + Copy,
) -> Vec<f32> {
    let sequence = executor.create().unwrap();
    let mut all = Vec::new();
    for (i, part) in tokens.chunks(chunk).enumerate() {
        all.extend_from_slice(executor.run(&rows(part, i * chunk, sequence, wants)).unwrap().logits);
    }
    executor.drop_sequence(sequence);
    all
}

pub fn numbers<T: TryFrom<u64>>(value: &Value) -> Vec<T> {
    value.as_array().unwrap().iter().map(|v| T::try_from(v.as_u64().unwrap()).ok().unwrap()).collect()
}

fn argmax(row: &[f32]) -> u32 {
    (0..row.len()).fold(0, |best, i| if row[i] > row[best] { i } else { best }) as u32
}

fn greedy(executor: &mut CpuExecutor, prompt: &[u32], count: usize) -> Vec<u32> {
    let sequence = executor.create().unwrap();
    let last = prompt.len() - 1;
    let mut next = argmax(executor.run(&rows(prompt, 0, sequence, |p| p == last)).unwrap().logits);
    let mut text = vec![next];
    while text.len() < count {
        let position = executor.len(sequence).unwrap();
        next = argmax(executor.run(&rows(&[next], position, sequence, |_| true)).unwrap().logits);
        text.push(next);
    }
    executor.drop_sequence(sequence);
    text
}

pub fn largest_difference(a: &[f32], b: &[f32]) -> f32 {
    assert_eq!(a.len(), b.len());
    a.iter().zip(b).map(|(a, b)| (a - b).abs()).fold(0.0, |m, d| if d > m || d.is_nan() { d } else { m })
}

fn prompts(golden: &Value) -> Vec<(&'static str, Vec<u32>, &Value)> {
    ["p5", "p40", "p300"]
        .into_iter()
        .map(|n| (n, numbers(&golden["prompts"][n]["tokens"]), &golden["prompts"][n]))
        .collect()
}

/// Logits of the F32 model at the kit's positions within 1e-3, greedy text as far as it is certain.
pub fn check_f32(arch: &str, declare: Declare) {
    let Some(kit) = golden_kit() else { return };
    let folder = kit.join(arch);
    let golden = read_json(&folder.join("golden.json")).unwrap();
    let model = Model::open(&folder.join(format!("tiny-{arch}-Q8_0.gguf")), declare, true);
    let mut executor = model.executor(|_| {});
    for (name, tokens, prompt) in prompts(&golden) {
        let positions: Vec<usize> = numbers(&prompt["positions"]);
        let expected = read_f32(&folder.join(format!("{name}.logits.bin"))).unwrap();
        let found = logits(&mut executor, &tokens, 512, |p| positions.contains(&p));
        let difference = largest_difference(&found, &expected);
        println!("{arch} F32 {name}: largest difference of a logit {difference:e}");
        assert!(difference < 1e-3, "{arch} {name}: {difference}");
        let expected: Vec<u32> = numbers(&prompt["greedy"]);
        let gaps = prompt["greedy_gap"].as_array().unwrap();
        let sure = gaps.iter().position(|g| g.as_f64().unwrap() < 1e-3).unwrap_or(gaps.len());
        assert_eq!(greedy(&mut executor, &tokens, expected.len())[..sure], expected[..sure], "{arch} {name}");
        println!("{arch} F32 {name}: {sure} greedy tokens equal");
    }
}

/// Named results of the F32 model's shortest prompt within 1e-3; `layers` pairs a golden's name (with `-N` for the layer) with
/// the program's (with `{}`).
pub fn check_layers(arch: &str, layers: &[(&str, &str)], declare: Declare) {
    let Some(kit) = golden_kit() else { return };
    let folder = kit.join(arch);
    let golden = read_json(&folder.join("golden.json")).unwrap();
    let tokens: Vec<u32> = numbers(&golden["prompts"]["p5"]["tokens"]);
    let model = Model::open(&folder.join(format!("tiny-{arch}-Q8_0.gguf")), declare, true);
    let mut executor = model.executor(|o| o.fuse = false);
    let mut shown: BTreeMap<String, Vec<f32>> = BTreeMap::new();
    let sequence = executor.create().unwrap();
    executor
        .run_traced(&rows(&tokens, 0, sequence, |_| true), &mut |name, values, _| {
            shown.insert(name.to_string(), values.to_vec());
        })
        .unwrap();
    let manifest = read_json(&folder.join("p5.layers/manifest.json")).unwrap();
    let entries = manifest.as_array().or_else(|| manifest["tensors"].as_array()).unwrap();
    let (mut compared, mut most) = (0, 0.0f32);
    for entry in entries {
        let full = entry["name"].as_str().unwrap();
        let (word, layer) = full.rsplit_once('-').unwrap_or((full, ""));
        for (_, ours) in layers.iter().filter(|(golden, _)| *golden == word) {
            let found = &shown[&ours.replace("{}", layer)];
            let path = folder.join("p5.layers").join(entry["file"].as_str().unwrap());
            let mut expected = read_f32(&path).unwrap();
            if entry["dtype"] == "i32" {
                expected.iter_mut().for_each(|v| *v = v.to_bits() as f32);
            }
            // Some references compute the last layer for the last token only.
            let difference = largest_difference(&found[found.len() - expected.len()..], &expected);
            assert!(difference < 1e-3, "{full} ({}): {difference}", entry["file"]);
            most = most.max(difference);
            compared += 1;
        }
    }
    println!("{arch}: {compared} intermediate results agree to {most:e}");
    assert!(compared >= layers.len());
}

/// Rows that differ by nothing but the order of sums.
const EQUAL: f64 = 1e-9;

/// Twins of a text of which one must equal the reference.
const TWINS: u64 = 100;

/// Texts of more tokens meet so many middles that no twin meets all of them as the reference does. Where a recurrent state carries every
/// rounding on, a shorter one may do so too.
const SHORT: usize = 64;

/// Twins whose distances from us show what roundings alone make of a long text.
const SPREAD: u64 = 16;

/// The last row of each prompt of a quantised file against the same file run with 8-bit activations elsewhere: within 1e-4, or
/// parted by roundings alone.
///
/// Activations are rounded to 8 bits before every product. Sums in another order leave the last bit of an f32 to chance, and a
/// value within that bit of the middle between two codes gets one code here and the other one there; a few roundings later an
/// expert or a chosen row may be another. The proof that this is all is a twin of the file, its norm weights moved by a few units
/// in the last place: for a short text one whose row equals the reference; where there is none, the reference is about as far from us as
/// twins are.
pub fn check_quantised(arch: &str, ty: &str, declare: Declare) {
    let Some(kit) = golden_kit() else { return };
    let folder = kit.join(arch);
    let path = folder.join(format!("tiny-{arch}-{ty}.gguf"));
    let golden = read_json(&folder.join("golden.json")).unwrap();
    let model = Model::open(&path, declare, false);
    let mut executor = model.executor(|_| {});
    let expected = read_f32(&folder.join(format!("{ty}.q8_activations.logits.bin"))).unwrap();
    let width = executor.shape().n_vocab;
    for ((name, tokens, _), expected) in prompts(&golden).into_iter().zip(expected.chunks_exact(width)) {
        let last = tokens.len() - 1;
        let found = logits(&mut executor, &tokens, 512, |p| p == last);
        let error = nmse(&found, expected);
        println!("{arch} {ty} {name}: nmse {error:e}");
        if error <= 1e-4 {
            continue;
        }
        let twin = |seed: u64| {
            let twin = Model { program: model.program.clone(), source: nudged(&path, seed) };
            logits(&mut twin.executor(|_| {}), &tokens, 512, |p| p == last)
        };
        let equal = (0..TWINS).find(|seed| tokens.len() <= SHORT && nmse(&twin(*seed), expected) < EQUAL);
        if let Some(equal) = equal {
            println!("{arch} {ty} {name}: twin {equal} equals the reference");
        } else {
            let mut spread: Vec<f64> = (0..SPREAD).map(|seed| nmse(&twin(seed), &found)).collect();
            spread.sort_by(f64::total_cmp);
            println!("{arch} {ty} {name}: twins lie {:e} to {:e} apart", spread[0], spread[spread.len() - 1]);
            assert!(
                error <= 2.0 * spread[spread.len() - 1],
                "{arch} {ty} {name}: {error:e}, farther than twins"
            );
        }
    }
}

/// Mean negative log-likelihood of the first windows of 512 held-out tokens, run with 8-bit activations here and elsewhere.
pub fn check_held_out(arch: &str, ty: &str, windows: usize, declare: Declare) {
    let Some(kit) = golden_kit() else { return };
    let folder = kit.join(arch);
    let golden = read_json(&folder.join("golden.json")).unwrap();
    let mut executor =
        Model::open(&folder.join(format!("tiny-{arch}-{ty}.gguf")), declare, false).executor(|_| {});
    let width = executor.shape().n_vocab;
    let expected = &golden["quants"][ty]["q8_activations"]["perplexity"]["per_window_nll"];
    let text = std::fs::read_to_string(kit.join("heldout.ids")).unwrap();
    let ids: Vec<u32> = text.split_whitespace().map(|id| id.parse().unwrap()).collect();
    for (window, ids) in ids.chunks(512).take(windows).enumerate() {
        let found = logits(&mut executor, ids, 512, |p| p < 511);
        let cost = |(row, next): (&[f32], &u32)| {
            let most = row.iter().copied().fold(f32::NEG_INFINITY, f32::max);
            let sum: f64 = row.iter().map(|v| f64::from(v - most).exp()).sum();
            sum.ln() - f64::from(row[*next as usize] - most)
        };
        let mean = found.chunks_exact(width).zip(&ids[1..]).map(cost).sum::<f64>() / 511.0;
        let expected = expected[window].as_f64().unwrap();
        println!("{arch} {ty} window {window}: {mean:.6}, expected {expected:.6}");
        assert!((mean / expected - 1.0).abs() < 1e-3, "{arch} {ty} window {window}: {mean}, {expected}");
    }
}

/// A trained model's answers, as far as they are certain: its file is a K-quant, so gaps must be wide.
pub fn check_answers(file: &str, declare: Declare) {
    let Some(kit) = golden_kit() else { return };
    let golden = read_json(&kit.join("ember/golden.json")).unwrap();
    let model = Model::open(&kit.join("ember").join(file), declare, false);
    let mut executor = model.executor(|_| {});
    let mut all = 0;
    for (name, prompt) in golden[file]["prompts"].as_object().unwrap() {
        let (tokens, expected): (Vec<u32>, Vec<u32>) =
            (numbers(&prompt["tokens"]), numbers(&prompt["greedy"]));
        let gaps = prompt["greedy_gap"].as_array().unwrap();
        let sure = gaps.iter().position(|g| g.as_f64().unwrap() < 0.2).unwrap_or(expected.len());
        let found = greedy(&mut executor, &tokens, expected.len());
        let equal = found.iter().zip(&expected).take_while(|(a, b)| a == b).count();
        println!("{file} {name}: {equal} tokens equal, {sure} certain");
        assert!(equal >= sure, "{file} {name}: {found:?} for {expected:?}");
        all += equal;
    }
    assert!(all > 40, "{all} tokens");
}

/// The file with every norm weight moved by up to four units in its last place, in a pattern drawn by `seed`.
fn nudged(path: &Path, seed: u64) -> Arc<dyn WeightSource> {
    let file = GgufFile::open(path).unwrap();
    let mut tensors = MemoryTensors::default();
    let mut state = seed;
    for info in file.tensors() {
        let mut data = file.data(info).to_vec();
        if info.name().ends_with("norm.weight") {
            for value in data.as_chunks_mut::<4>().0 {
                state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
                let by = (state >> 33) as i64 % 9 - 4;
                *value = u32::from_le_bytes(*value).saturating_add_signed(by as i32).to_le_bytes();
            }
        }
        tensors.insert(info.name(), info.weight_type(), info.dims(), data);
    }
    Arc::new(tensors)
}

fn same(a: &[f32], b: &[f32]) -> bool {
    a.len() == b.len() && a.iter().zip(b).all(|(a, b)| a.to_bits() == b.to_bits())
}

/// No bit of a text's logits depends on steps, threads, fusion or company.
pub fn check_exact(model: &Model, tokens: &[u32], cache: CacheType) {
    let wants = |p: usize| p % 9 == 2;
    let with = |threads: usize, fuse: bool| {
        model.executor(|o| {
            (o.cache_key, o.cache_value) = (cache, cache);
            (o.threads, o.fuse) = (Some(threads), fuse);
        })
    };
    let expected = logits(&mut with(1, true), tokens, 512, wants);
    assert!(expected.iter().all(|v| v.is_finite()));
    for (threads, fuse, chunks) in [(1, true, &[7, 64][..]), (2, true, &[1, 7, 64, 512]), (2, false, &[64])] {
        let mut executor = with(threads, fuse);
        for chunk in chunks {
            let found = logits(&mut executor, tokens, *chunk, wants);
            assert!(same(&expected, &found), "{threads} threads, fused {fuse}, steps of {chunk}");
        }
        let found = in_company(&mut executor, tokens, wants);
        assert!(same(&expected, &found), "{threads} threads, fused {fuse}, in company");
    }
}

/// The text as one of four sequences, in steps of 37 of its rows, its rows between those of others.
fn in_company(executor: &mut CpuExecutor, tokens: &[u32], wants: impl Fn(usize) -> bool + Copy) -> Vec<f32> {
    let vocabulary = executor.shape().n_vocab;
    let sequences: Vec<SequenceId> = (0..4).map(|_| executor.create().unwrap()).collect();
    let mut all = Vec::new();
    for (step, part) in tokens.chunks(37).enumerate() {
        let mut mixed: Vec<Row> = Vec::new();
        for (i, row) in rows(part, step * 37, sequences[2], wants).into_iter().enumerate() {
            for (s, sequence) in sequences.iter().enumerate() {
                // Others run at other speeds, with other tokens.
                if s != 2 && i % (s + 1) == 0 {
                    let before = mixed.iter().filter(|r| r.sequence == *sequence).count();
                    let position = executor.len(*sequence).unwrap() + before;
                    let token = ((position * 31 + s * 7) % vocabulary) as u32;
                    mixed.push(Row { token, position, sequence: *sequence, wants_logits: false, ..row });
                }
            }
            mixed.push(row);
        }
        all.extend_from_slice(executor.run(&mixed).unwrap().logits);
    }
    sequences.into_iter().for_each(|s| executor.drop_sequence(s));
    all
}

/// A text that is cut at a position and goes on gives the logits of one that was never cut: after going back, in a copy, and from
/// saved bytes.
pub fn check_cuts(model: &Model, tokens: &[u32], cuts: &[usize]) {
    let mut executor = model.executor(|_| {});
    let last = tokens.len() - 1;
    let expected = logits(&mut executor, tokens, 512, |p| p >= last);
    let run = |executor: &mut CpuExecutor, sequence: SequenceId, tokens: &[u32]| {
        let first = executor.len(sequence).unwrap();
        executor.run(&rows(tokens, first, sequence, |p| p >= last)).unwrap().logits.to_vec()
    };
    for cut in cuts {
        let sequence = executor.create().unwrap();
        run(&mut executor, sequence, &tokens[..*cut]);
        executor.checkpoint(sequence).unwrap();
        let saved = executor.save(sequence).unwrap();
        // Other words first, which must leave nothing behind.
        let other: Vec<u32> = tokens.iter().rev().take(40).copied().collect();
        run(&mut executor, sequence, &other);
        let at_other = executor.len(sequence).unwrap();
        if executor.shape().rollback == Rollback::Checkpoints {
            assert_eq!(executor.resumable(sequence, at_other - 1).unwrap(), *cut);
            assert!(executor.truncate(sequence, at_other - 1).is_err());
        }
        let copy = executor.create().unwrap();
        executor.copy_prefix(sequence, copy, *cut).unwrap();
        executor.truncate(sequence, *cut).unwrap();
        assert!(same(&run(&mut executor, sequence, &tokens[*cut..]), &expected), "cut at {cut}");
        assert!(same(&run(&mut executor, copy, &tokens[*cut..]), &expected), "copied at {cut}");
        let mut elsewhere = model.executor(|o| o.threads = Some(1));
        let restored = elsewhere.restore(&saved).unwrap();
        assert!(same(&run(&mut elsewhere, restored, &tokens[*cut..]), &expected), "restored at {cut}");
        assert!(elsewhere.restore(&saved[..saved.len() - 1]).is_err());
        executor.drop_sequence(sequence);
        executor.drop_sequence(copy);
    }
    let capacity = executor.capacity();
    assert_eq!(capacity.pages_free, capacity.pages_total);
}

/// Every position of a text is one to cut at: the rows after it are those of a text that was never cut.
pub fn check_every_cut(model: &Model, tokens: &[u32], after: usize) {
    let mut executor = model.executor(|_| {});
    let expected = logits(&mut executor, tokens, 512, |_| true);
    let width = executor.shape().n_vocab;
    let whole = executor.create().unwrap();
    for cut in 1..tokens.len() {
        executor.run(&rows(&tokens[cut - 1..cut], cut - 1, whole, |_| false)).unwrap();
        executor.checkpoint(whole).unwrap();
        // The rows that follow are another sequence's; the one that is cut goes on from here all the same.
        let copy = executor.create().unwrap();
        executor.copy_prefix(whole, copy, cut).unwrap();
        let next = &tokens[cut..tokens.len().min(cut + after)];
        let found = executor.run(&rows(next, cut, copy, |_| true)).unwrap().logits;
        assert!(same(found, &expected[cut * width..(cut + next.len()) * width]), "cut at {cut}");
        executor.drop_sequence(copy);
    }
}

/// The kit's prompt of 300 tokens.
pub fn long_prompt(arch: &str) -> Option<(std::path::PathBuf, Vec<u32>)> {
    let folder = golden_kit()?.join(arch);
    let golden = read_json(&folder.join("golden.json")).unwrap();
    Some((folder, numbers(&golden["prompts"]["p300"]["tokens"])))
}

/// The array `ids` of an uncompressed `.npz`.
pub fn ids_of(path: &Path) -> Vec<u32> {
    array_of(path, "ids", "<i8").as_chunks().0.iter().map(|word| i64::from_le_bytes(*word) as u32).collect()
}

/// The array `logits` of an uncompressed `.npz`.
pub fn logits_of(path: &Path) -> Vec<f32> {
    array_of(path, "logits", "<f4").as_chunks().0.iter().map(|word| f32::from_le_bytes(*word)).collect()
}

/// The bytes of an array of that type.
fn array_of(path: &Path, name: &str, ty: &str) -> Vec<u8> {
    let bytes = std::fs::read(path).unwrap();
    let find =
        |from: usize, what: &[u8]| from + bytes[from..].windows(what.len()).position(|w| w == what).unwrap();
    let start = find(find(0, format!("{name}.npy").as_bytes()), b"\x93NUMPY");
    let header = u16::from_le_bytes([bytes[start + 8], bytes[start + 9]]) as usize;
    let text = String::from_utf8_lossy(&bytes[start + 10..start + 10 + header]).into_owned();
    assert!(text.contains(&format!("'{ty}'")), "{text}");
    let shape = text.split("'shape': (").nth(1).unwrap().split(')').next().unwrap();
    let count: usize = shape.split(',').filter_map(|d| d.trim().parse::<usize>().ok()).product();
    let width: usize = ty[2..].parse().unwrap();
    bytes[start + 10 + header..][..width * count].to_vec()
}
