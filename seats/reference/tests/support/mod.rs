//! Models from files, expected numbers from files, and the comparison. Every seat has a test program of its own, because a
//! program can link one seat only.

#![allow(dead_code, reason = "each test program uses its part")]

use bloomery_formats::{WeightType, dequantize_row};
use bloomery_gguf::{GgufFile, Value};
use bloomery_program::graph::OutputKind;
use bloomery_program::{Meta, ModelFacts, Program, TensorFacts};
use bloomery_reference::{CacheType, MemoryWeights, Reference, Row, Step, Trace, Value as Traced};
use bloomery_seat::abi::SeatRef;
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

/// A model held in memory as f32.
pub struct Model {
    pub reference: Reference<MemoryWeights>,
}

/// Opens a file, lets the seat declare the program through its exported table, and reads every tensor.
pub fn open(path: &Path, seat: SeatRef) -> Model {
    let file = GgufFile::open(path).unwrap();
    let facts = facts(&file);
    let mut weights = MemoryWeights::default();
    for tensor in file.tensors() {
        let (ty, bytes) = (tensor.weight_type(), file.data(tensor));
        let mut data = vec![0.0; tensor.element_count() as usize];
        let width = tensor.row_length() as usize;
        let row_bytes = bytes.len() / tensor.row_count() as usize;
        for (row, out) in bytes.chunks_exact(row_bytes).zip(data.chunks_exact_mut(width)) {
            if ty == WeightType::I32 {
                for (id, out) in row.chunks_exact(4).zip(out) {
                    *out = i32::from_le_bytes(id.try_into().unwrap()) as f32;
                }
            } else {
                dequantize_row(ty, row, out).unwrap();
            }
        }
        weights.insert(tensor.name(), tensor.dims(), data).unwrap();
    }
    for (key, value) in file.metadata().iter() {
        if let Some(array) = value.as_array() {
            weights.insert_integers(key, array.integers().map(|v| v as u64).collect());
        }
    }
    let program = declare(seat, &facts).unwrap_or_else(|e| panic!("{}: {e}", path.display()));
    let reference = Reference::new(program, &facts, weights).unwrap();
    Model { reference }
}

/// What the host does: facts as bytes into the table, the program as bytes out of it.
pub fn declare(seat: SeatRef, facts: &ModelFacts) -> Result<Program, String> {
    let request = serde_json::to_vec(facts).unwrap();
    let answer = (seat.declare())(request.as_slice().into()).into_result();
    let answer: Vec<u8> = answer.map(Into::into).map_err(String::from)?;
    Ok(serde_json::from_slice(&answer).unwrap())
}

/// What a seat is told of a file.
pub fn facts(file: &GgufFile) -> ModelFacts {
    let tensor = |t: &bloomery_gguf::TensorInfo| TensorFacts {
        dims: t.dims().to_vec(),
        dtype: t.weight_type().to_string(),
    };
    ModelFacts {
        arch: file.metadata().str("general.architecture").unwrap().to_string(),
        meta: file.metadata().iter().map(|(k, v)| (k.to_string(), meta(k, v))).collect(),
        tensors: file.tensors().iter().map(|t| (t.name().to_string(), tensor(t))).collect(),
    }
}

fn meta(key: &str, value: Value<'_>) -> Meta {
    match value {
        Value::Bool(v) => Meta::Bool(v),
        Value::String(v) => Meta::Str(v.into()),
        Value::Array(v) if !bloomery_program::facts::crosses(key, v.len()) => {
            Meta::Elided { elided: v.len() as u64 }
        }
        Value::Array(v) => Meta::List(v.iter().map(|v| meta(key, v)).collect()),
        other => match (other.as_integer(), other.as_float()) {
            (Some(v), _) => i64::try_from(v).map_or_else(|_| Meta::Uint(v as u64), Meta::Int),
            (None, v) => Meta::Float(v.unwrap()),
        },
    }
}

/// Named results of a run: `[rows, width]` for each name.
pub type Named = BTreeMap<String, Vec<Vec<f32>>>;

impl Model {
    /// Logits of every token, in chunks of at most `chunk` rows, and the traced rows of all chunks.
    pub fn run(&self, ids: &[u32], chunk: usize) -> (Vec<Vec<f32>>, Named) {
        let mut states = self.reference.states(CacheType::F32);
        states.create(1).unwrap();
        let (mut logits, mut named) = (Vec::new(), Named::new());
        for (c, ids) in ids.chunks(chunk).enumerate() {
            let row = |(i, token): (usize, &u32)| Row { sequence: 1, token: *token, position: c * chunk + i };
            let rows: Vec<Row> = ids.iter().enumerate().map(row).collect();
            let mut trace = |t: Trace<'_>| {
                let rows: Vec<Vec<f32>> = match t.value {
                    Traced::Rows(table) => table.data.chunks(table.width).map(<[f32]>::to_vec).collect(),
                    Traced::Index(table) => table
                        .data
                        .chunks(table.width)
                        .map(|r| r.iter().map(|v| *v as f32).collect())
                        .collect(),
                    _ => return,
                };
                named.entry(t.name.to_string()).or_default().extend(rows);
            };
            let step = Step { rows: &rows, ..Step::default() };
            let outputs = self.reference.forward(&step, &mut states, Some(&mut trace)).unwrap();
            let output = outputs.iter().find(|o| o.kind == OutputKind::Logits).unwrap();
            logits.extend(output.table.data.chunks(output.table.width).map(<[f32]>::to_vec));
        }
        (logits, named)
    }
}

/// Largest difference of two tables.
pub fn difference(a: &[Vec<f32>], b: &[Vec<f32>]) -> f32 {
    assert_eq!(a.len(), b.len(), "rows");
    let mut most = 0.0f32;
    for (a, b) in a.iter().zip(b) {
        assert_eq!(a.len(), b.len(), "width");
        for (a, b) in a.iter().zip(b) {
            // NaN must not hide behind max.
            assert!((a - b).is_finite(), "{a} against {b}");
            most = most.max((a - b).abs());
        }
    }
    most
}

/// A committed test file.
pub fn data(name: &str) -> PathBuf {
    let here = Path::new(env!("CARGO_MANIFEST_DIR"));
    let root = here.ancestors().find(|a| a.join("tests/data/oracle").is_dir()).unwrap();
    root.join("tests/data").join(name)
}

/// A folder of the golden kit, or a line that says why the test does nothing.
pub fn golden(name: &str) -> Option<PathBuf> {
    match std::env::var_os("BLOOMERY_GOLDEN") {
        Some(kit) => Some(Path::new(&kit).join(name)),
        None => {
            println!("skipped: no golden kit");
            None
        }
    }
}

/// f32 little-endian rows.
pub fn rows_of_file(path: &Path, width: usize) -> Vec<Vec<f32>> {
    let bytes = std::fs::read(path).unwrap();
    let values: Vec<f32> = bytes.chunks_exact(4).map(|b| f32::from_le_bytes(b.try_into().unwrap())).collect();
    values.chunks(width).map(<[f32]>::to_vec).collect()
}

/// An array of an uncompressed `.npz`: its values as f64 and its dimensions, slowest first.
pub fn npz(path: &Path, name: &str) -> (Vec<f64>, Vec<usize>) {
    let bytes = std::fs::read(path).unwrap();
    let wanted = format!("{name}.npy");
    let u16_at = |at: usize| u16::from_le_bytes(bytes[at..at + 2].try_into().unwrap()) as usize;
    let u32_at = |at: usize| u32::from_le_bytes(bytes[at..at + 4].try_into().unwrap()) as usize;
    let mut at = 0;
    // Local file headers, one after the other; numpy writes 64-bit sizes into the extra field.
    while bytes[at..].starts_with(b"PK\x03\x04") {
        assert_eq!(u16_at(at + 8), 0, "compressed");
        let (name_len, extra_len) = (u16_at(at + 26), u16_at(at + 28));
        let name = &bytes[at + 30..at + 30 + name_len];
        let extra = at + 30 + name_len;
        let size = match u32_at(at + 18) {
            0xffff_ffff => u64::from_le_bytes(bytes[extra + 12..extra + 20].try_into().unwrap()) as usize,
            size => size,
        };
        let start = extra + extra_len;
        if name == wanted.as_bytes() {
            return npy(&bytes[start..start + size]);
        }
        at = start + size;
    }
    panic!("no {wanted}");
}

fn npy(bytes: &[u8]) -> (Vec<f64>, Vec<usize>) {
    assert!(bytes.starts_with(b"\x93NUMPY\x01"));
    let header_len = u16::from_le_bytes(bytes[8..10].try_into().unwrap()) as usize;
    let header = std::str::from_utf8(&bytes[10..10 + header_len]).unwrap();
    let shape = header.split("'shape': (").nth(1).unwrap().split(')').next().unwrap();
    let dims = shape.split(',').filter_map(|d| d.trim().parse().ok()).collect();
    let body = &bytes[10 + header_len..];
    let values = if header.contains("'<f4'") {
        body.chunks_exact(4).map(|b| f32::from_le_bytes(b.try_into().unwrap()).into()).collect()
    } else {
        assert!(header.contains("'<i8'"), "{header}");
        body.chunks_exact(8).map(|b| i64::from_le_bytes(b.try_into().unwrap()) as f64).collect()
    };
    (values, dims)
}

/// Ids and logits of a committed oracle.
pub fn oracle(name: &str) -> (Vec<u32>, Vec<Vec<f32>>) {
    let path = data(&format!("oracle/{name}.npz"));
    let ids = npz(&path, "ids").0.iter().map(|v| *v as u32).collect();
    let (logits, dims) = npz(&path, "logits");
    let width = dims[dims.len() - 1];
    let row = |r: &[f64]| r.iter().map(|v| *v as f32).collect();
    (ids, logits.chunks(width).map(row).collect())
}

/// Compares a committed oracle's logits with the program's, all at once and token by token.
pub fn check_oracle(name: &str, seat: SeatRef) {
    let (ids, expected) = oracle(name);
    check_logits(name, &ids, &expected, seat);
}

/// Compares the logits of a committed model with expected ones.
pub fn check_logits(name: &str, ids: &[u32], expected: &[Vec<f32>], seat: SeatRef) {
    let model = open(&data(&format!("oracle/{name}.gguf")), seat);
    let (whole, _) = model.run(ids, ids.len());
    let (single, _) = model.run(ids, 1);
    let (seven, _) = model.run(ids, 7);
    println!("{name}: largest difference {:e}", difference(&whole, expected));
    assert!(difference(&whole, expected) < 1e-3);
    assert_eq!(whole, single, "a step's size must not change a bit");
    assert_eq!(whole, seven, "a step's size must not change a bit");
}

/// Compares a kit folder: logits of the three prompts, greedy continuation of the shortest, and `layers`, pairs of a
/// golden's name (with `-N` for the layer) and the program's (with `{}`).
pub fn check_golden(arch: &str, layers: &[(&str, &str)], seat: SeatRef) {
    let Some(folder) = golden(arch) else { return };
    let model = open(&folder.join(format!("tiny-{arch}-Q8_0.gguf")), seat);
    let golden: serde_json::Value =
        serde_json::from_slice(&std::fs::read(folder.join("golden.json")).unwrap()).unwrap();
    let ids = |v: &serde_json::Value| -> Vec<u32> {
        v.as_array().unwrap().iter().map(|v| v.as_u64().unwrap() as u32).collect()
    };
    for prompt in ["p5", "p40", "p300"] {
        let facts = &golden["prompts"][prompt];
        let tokens = ids(&facts["tokens"]);
        let (logits, named) = model.run(&tokens, 64);
        let positions = ids(&facts["positions"]);
        let found: Vec<Vec<f32>> = positions.iter().map(|p| logits[*p as usize].clone()).collect();
        let expected = rows_of_file(&folder.join(format!("{prompt}.logits.bin")), found[0].len());
        let most = difference(&found, &expected);
        println!("{arch} {prompt}: largest difference {most:e}");
        assert!(most < 1e-3, "{arch} {prompt}: {most}");
        if prompt == "p5" {
            check_layers(&folder, layers, &named);
            check_greedy(&model, &tokens, &ids(&facts["greedy"]), facts["greedy_gap"].as_array().unwrap());
        }
    }
}

/// Compares a quantised file, dequantised to f32, with the same done by another program: the last row of each prompt.
pub fn check_quantised(arch: &str, ty: &str, seat: SeatRef) {
    let Some(folder) = golden(arch) else { return };
    let model = open(&folder.join(format!("tiny-{arch}-{ty}.gguf")), seat);
    let golden: serde_json::Value =
        serde_json::from_slice(&std::fs::read(folder.join("golden.json")).unwrap()).unwrap();
    let mut found = Vec::new();
    for prompt in ["p5", "p40", "p300"] {
        let tokens = golden["prompts"][prompt]["tokens"].as_array().unwrap();
        let tokens: Vec<u32> = tokens.iter().map(|v| v.as_u64().unwrap() as u32).collect();
        found.extend(model.run(&tokens, 64).0.pop());
    }
    let expected = rows_of_file(&folder.join(format!("{ty}.f32_activations.logits.bin")), found[0].len());
    let most = difference(&found, &expected);
    println!("{arch} {ty}: largest difference {most:e}");
    assert!(most < 1e-3, "{arch} {ty}: {most}");
}

/// Compares the mean negative log-likelihood of the first windows of 512 held-out tokens, scored at positions 1 to 511.
pub fn check_held_out(arch: &str, ty: &str, windows: usize, seat: SeatRef) {
    let Some(folder) = golden(arch) else { return };
    let model = open(&folder.join(format!("tiny-{arch}-{ty}.gguf")), seat);
    let golden: serde_json::Value =
        serde_json::from_slice(&std::fs::read(folder.join("golden.json")).unwrap()).unwrap();
    let expected = &golden["quants"][ty]["f32_activations"]["perplexity"]["per_window_nll"];
    let text = std::fs::read_to_string(folder.with_file_name("heldout.ids")).unwrap();
    let ids: Vec<u32> = text.split_whitespace().map(|id| id.parse().unwrap()).collect();
    for (window, ids) in ids.chunks(512).take(windows).enumerate() {
        let (logits, _) = model.run(ids, 128);
        let cost = |(row, next): (&Vec<f32>, &u32)| {
            let most = row.iter().copied().fold(f32::NEG_INFINITY, f32::max);
            let sum: f64 = row.iter().map(|v| f64::from(v - most).exp()).sum();
            sum.ln() - f64::from(row[*next as usize] - most)
        };
        let mean = logits.iter().zip(&ids[1..]).map(cost).sum::<f64>() / 511.0;
        let expected = expected[window].as_f64().unwrap();
        println!("{arch} {ty} window {window}: {mean:.6}, expected {expected}");
        assert!((mean / expected - 1.0).abs() < 1e-5, "{arch} {ty} window {window}: {mean}, {expected}");
    }
}

fn check_layers(folder: &Path, layers: &[(&str, &str)], named: &Named) {
    let manifest: serde_json::Value =
        serde_json::from_slice(&std::fs::read(folder.join("p5.layers/manifest.json")).unwrap()).unwrap();
    let entries = manifest.as_array().or_else(|| manifest["tensors"].as_array()).unwrap();
    let mut compared = 0;
    for entry in entries {
        let full = entry["name"].as_str().unwrap();
        let (word, layer) = full.rsplit_once('-').unwrap_or((full, ""));
        for (_, ours) in layers.iter().filter(|(golden, _)| *golden == word) {
            let found = &named[&ours.replace("{}", layer)];
            let path = folder.join("p5.layers").join(entry["file"].as_str().unwrap());
            let mut expected = rows_of_file(&path, found[0].len());
            if entry["dtype"] == "i32" {
                expected.iter_mut().flatten().for_each(|v| *v = v.to_bits() as f32);
            }
            // Some references compute the last layer for the last token only.
            let found = &found[found.len() - expected.len()..];
            let most = difference(found, &expected);
            assert!(most < 1e-3, "{full} ({}): {most}", entry["file"]);
            compared += 1;
        }
    }
    println!("{}: {compared} intermediate results agree", folder.display());
    assert!(compared >= layers.len());
}

/// Greedy ids agree up to the first step whose gap is below the tolerance.
fn check_greedy(model: &Model, prompt: &[u32], expected: &[u32], gaps: &[serde_json::Value]) {
    let mut ids = prompt.to_vec();
    for (expected, gap) in expected.iter().zip(gaps) {
        if gap.as_f64().unwrap() < 1e-3 {
            return;
        }
        let (logits, _) = model.run(&ids, ids.len());
        let last = &logits[logits.len() - 1];
        let best = (0..last.len()).max_by(|a, b| last[*a].total_cmp(&last[*b])).unwrap() as u32;
        assert_eq!(best, *expected, "after {} tokens", ids.len());
        ids.push(best);
    }
}
