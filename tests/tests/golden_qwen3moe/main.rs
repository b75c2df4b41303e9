//! The cpu backend on the tiny qwen3moe models of the golden kit: logits, residual stream, greedy text, perplexity.

mod quantised;

use bloomery_gguf::GgufFile;
use bloomery_program::{Meta, ModelFacts, Program, TensorFacts};
use bloomery_runtime::cpu::{CacheType, CpuExecutor, CpuOptions, MemoryTensors, WeightSource};
use bloomery_runtime::executor::{Executor, Row, SequenceId};
use bloomery_tests::{golden_kit, read_f32, read_json};
use serde_json::Value;
use std::collections::BTreeMap;
use std::path::Path;
use std::sync::Arc;

const VOCABULARY: usize = 4096;

/// A model of the kit, as it stands or dequantised.
struct Model {
    program: Program,
    source: Arc<dyn WeightSource>,
}

impl Model {
    fn open(path: &Path, dequantize: bool) -> Model {
        let file = GgufFile::open(path).unwrap();
        let facts = facts_of(&file);
        let program = seat_qwen3::declare(&facts).unwrap();
        bloomery_program::check(&program, &facts).unwrap();
        let source: Arc<dyn WeightSource> = if dequantize {
            let names: Vec<&str> = facts.tensors.keys().map(String::as_str).collect();
            Arc::new(MemoryTensors::dequantized(&file, &names).unwrap())
        } else {
            Arc::new(file)
        };
        Model { program, source }
    }

    fn executor(&self, change: impl FnOnce(&mut CpuOptions)) -> CpuExecutor {
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

fn facts_of(file: &GgufFile) -> ModelFacts {
    use bloomery_gguf::Value as V;
    let metadata = file.metadata();
    let mut meta = BTreeMap::new();
    for (key, value) in metadata.iter() {
        let value = match value {
            V::Bool(v) => Meta::Bool(v),
            V::String(v) => Meta::Str(v.to_string()),
            V::F32(v) => Meta::Float(f64::from(v)),
            V::F64(v) => Meta::Float(v),
            V::U64(v) => i64::try_from(v).map_or(Meta::Uint(v), Meta::Int),
            V::U8(v) => Meta::Int(v.into()),
            V::I8(v) => Meta::Int(v.into()),
            V::U16(v) => Meta::Int(v.into()),
            V::I16(v) => Meta::Int(v.into()),
            V::U32(v) => Meta::Int(v.into()),
            V::I32(v) => Meta::Int(v.into()),
            V::I64(v) => Meta::Int(v),
            V::Array(v) => Meta::Elided { elided: v.len() as u64 },
        };
        meta.insert(key.to_string(), value);
    }
    let tensor = |t: &bloomery_gguf::TensorInfo| TensorFacts {
        dims: t.dims().to_vec(),
        dtype: t.weight_type().name().into(),
    };
    ModelFacts {
        arch: metadata.str("general.architecture").unwrap().to_string(),
        tensors: file.tensors().iter().map(|t| (t.name().to_string(), tensor(t))).collect(),
        meta,
    }
}

fn rows(tokens: &[u32], first: usize, sequence: SequenceId, wants: impl Fn(usize) -> bool) -> Vec<Row> {
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
fn logits(
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

fn numbers<T: TryFrom<u64>>(value: &Value) -> Vec<T> {
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

fn prompts(golden: &Value) -> Vec<(&'static str, Vec<u32>, &Value)> {
    ["p5", "p40", "p300"]
        .into_iter()
        .map(|n| (n, numbers(&golden["prompts"][n]["tokens"]), &golden["prompts"][n]))
        .collect()
}

fn largest_difference(a: &[f32], b: &[f32]) -> f32 {
    assert_eq!(a.len(), b.len());
    a.iter().zip(b).map(|(a, b)| (a - b).abs()).fold(0.0, |m, d| if d > m || d.is_nan() { d } else { m })
}

#[test]
fn f32_logits_and_greedy_text() {
    let Some(kit) = golden_kit() else { return };
    let folder = kit.join("qwen3moe");
    let golden = read_json(&folder.join("golden.json")).unwrap();
    let model = Model::open(&folder.join("tiny-qwen3moe-Q8_0.gguf"), true);
    let mut executor = model.executor(|_| {});
    for (name, tokens, prompt) in prompts(&golden) {
        let positions: Vec<usize> = numbers(&prompt["positions"]);
        let expected = read_f32(&folder.join(format!("{name}.logits.bin"))).unwrap();
        let found = logits(&mut executor, &tokens, 512, |p| positions.contains(&p));
        let difference = largest_difference(&found, &expected);
        println!("{name}: largest difference of a logit {difference:e}");
        assert!(difference < 1e-3, "{name}: {difference}");
        let expected: Vec<u32> = numbers(&prompt["greedy"]);
        let gaps = prompt["greedy_gap"].as_array().unwrap();
        let sure = gaps.iter().position(|g| g.as_f64().unwrap() < 1e-3).unwrap_or(gaps.len());
        assert_eq!(greedy(&mut executor, &tokens, expected.len())[..sure], expected[..sure], "{name}");
    }
}

#[test]
fn f32_residual_stream_after_every_layer() {
    let Some(kit) = golden_kit() else { return };
    let folder = kit.join("qwen3moe");
    let golden = read_json(&folder.join("golden.json")).unwrap();
    let tokens: Vec<u32> = numbers(&golden["prompts"]["p5"]["tokens"]);
    let model = Model::open(&folder.join("tiny-qwen3moe-Q8_0.gguf"), true);
    let mut executor = model.executor(|o| o.fuse = false);
    let mut shown: BTreeMap<String, Vec<f32>> = BTreeMap::new();
    let sequence = executor.create().unwrap();
    let rows = rows(&tokens, 0, sequence, |_| true);
    executor
        .run_traced(&rows, &mut |name, values, _| drop(shown.insert(name.to_string(), values.to_vec())))
        .unwrap();
    let dumps = read_json(&folder.join("p5.layers/manifest.json")).unwrap();
    let mut compared = 0;
    for dump in dumps.as_array().unwrap() {
        let name = dump["name"].as_str().unwrap();
        let ours = match name.rsplit_once('-') {
            Some((what, layer)) => format!("l{layer}.{what}"),
            None => name.to_string(),
        };
        let Some(found) = shown.get(&ours) else { continue };
        let mut expected = read_f32(&folder.join("p5.layers").join(dump["file"].as_str().unwrap())).unwrap();
        if dump["dtype"] == "i32" {
            expected.iter_mut().for_each(|v| *v = v.to_bits() as f32);
        }
        let difference = largest_difference(found, &expected);
        assert!(difference < 1e-3, "{name}: {difference}");
        compared += 1;
    }
    let names: Vec<&String> = shown.keys().collect();
    assert!(compared >= 10, "only {compared} of the dumps have a named result: {names:?}");
}

#[test]
fn no_bit_depends_on_company_steps_threads_or_fusion() {
    let Some(kit) = golden_kit() else { return };
    let folder = kit.join("qwen3moe");
    let golden = read_json(&folder.join("golden.json")).unwrap();
    let tokens: Vec<u32> = numbers(&golden["prompts"]["p300"]["tokens"]);
    for (file, cache) in [
        ("Q4_K_M", CacheType::F16),
        ("Q8_0", CacheType::Q8_0),
        ("IQ3_XXS", CacheType::F32),
        ("MXFP4_MOE", CacheType::F16),
    ] {
        let model = Model::open(&folder.join(format!("tiny-qwen3moe-{file}.gguf")), false);
        let whole = |o: &mut CpuOptions| {
            o.threads = Some(1);
            (o.cache_key, o.cache_value) = (cache, cache);
        };
        let expected = logits(&mut model.executor(whole), &tokens, 512, |p| p % 9 == 2);
        for threads in [1, 2] {
            for fuse in [true, false] {
                let mut executor = model.executor(|o| {
                    whole(o);
                    (o.threads, o.fuse) = (Some(threads), fuse);
                });
                for chunk in [1, 7, 64, 512] {
                    if chunk == 1 && !fuse {
                        continue;
                    }
                    let found = logits(&mut executor, &tokens, chunk, |p| p % 9 == 2);
                    assert!(
                        same(&expected, &found),
                        "{file}, {threads} threads, fused {fuse}, steps of {chunk}"
                    );
                }
                let found = in_company(&mut executor, &tokens);
                assert!(same(&expected, &found), "{file}, {threads} threads, fused {fuse}, among eight");
            }
        }
    }
}

fn same(a: &[f32], b: &[f32]) -> bool {
    a.len() == b.len() && a.iter().zip(b).all(|(a, b)| a.to_bits() == b.to_bits())
}

/// The text as the fourth of eight sequences, in steps of 37 of its rows, its rows between those of others.
fn in_company(executor: &mut CpuExecutor, tokens: &[u32]) -> Vec<f32> {
    let sequences: Vec<SequenceId> = (0..8).map(|_| executor.create().unwrap()).collect();
    let mut all = Vec::new();
    for (step, part) in tokens.chunks(37).enumerate() {
        let own = rows(part, step * 37, sequences[3], |p| p % 9 == 2);
        let mut mixed = Vec::new();
        for (i, row) in own.iter().enumerate() {
            for (s, sequence) in sequences.iter().enumerate() {
                // Others run at other speeds, with other tokens.
                if s != 3 && i % (s + 1) == 0 {
                    let position = executor.len(*sequence).unwrap()
                        + mixed.iter().filter(|r: &&Row| r.sequence == *sequence).count();
                    let token = (position * 31 + s * 7) as u32 % VOCABULARY as u32;
                    mixed.push(Row {
                        token,
                        position,
                        sequence: *sequence,
                        wants_logits: false,
                        wants_hidden: false,
                    });
                }
            }
            mixed.push(*row);
        }
        all.extend_from_slice(executor.run(&mixed).unwrap().logits);
    }
    sequences.into_iter().for_each(|s| executor.drop_sequence(s));
    all
}

#[test]
fn perplexity_of_held_out_text() {
    let Some(kit) = golden_kit() else { return };
    let folder = kit.join("qwen3moe");
    let golden = read_json(&folder.join("golden.json")).unwrap();
    let ids = std::fs::read_to_string(kit.join("heldout.ids")).unwrap();
    let ids: Vec<u32> = ids.split_whitespace().map(|w| w.parse().unwrap()).collect();
    assert_eq!(ids.len(), 2048);
    let f32_nll = golden["f32"]["perplexity"]["mean_nll"].as_f64().unwrap();
    let quantised =
        |n: &str| golden["quants"][n]["q8_activations"]["perplexity"]["mean_nll"].as_f64().unwrap();
    for (file, dequantize, expected) in [
        ("Q8_0", true, f32_nll),
        ("Q4_K_M", false, quantised("Q4_K_M")),
        ("IQ2_XS", false, quantised("IQ2_XS")),
    ] {
        let model = Model::open(&folder.join(format!("tiny-qwen3moe-{file}.gguf")), dequantize);
        let mut executor = model.executor(|_| {});
        let mut sum = 0.0;
        for window in ids.chunks_exact(512) {
            let found = logits(&mut executor, window, 512, |p| p < 511);
            for (row, next) in found.chunks_exact(VOCABULARY).zip(&window[1..]) {
                let top = row.iter().copied().fold(f32::MIN, f32::max);
                let total: f64 = row.iter().map(|v| f64::from(v - top).exp()).sum();
                sum += total.ln() - f64::from(row[*next as usize] - top);
            }
        }
        let mean = sum / 2044.0;
        println!("{file}: mean negative log likelihood {mean:.6}, expected {expected:.6}");
        assert!((mean / expected - 1.0).abs() < 1e-3, "{file}: {mean} against {expected}");
    }
}
