//! Two real models through the example seats and the cpu backend: logits near llama.cpp's with f32 activations, perplexity
//! within 0.1 % of llama-perplexity's mean NLL.

use bloomery_runtime::executor::{Executor, Row};
use bloomery_runtime::model::{CacheType, Model, OpenOptions};
use bloomery_tests::server::{binaries, server_binary};
use bloomery_tests::{RealModel, data, golden_kit, nmse, read_f32, read_json, real_model};

fn open(model: RealModel) -> Option<Model> {
    let (path, host) = (real_model(model)?, server_binary()?);
    let seats = binaries().join("seats");
    if !seats.join("libseat_llama.so").exists() {
        println!("skipped: {} has no example seats (cargo xtask test builds them)", seats.display());
        return None;
    }
    let mut options = OpenOptions::new(path);
    options.seat_options.folders.push(seats);
    // Seats answer in a child of the host's own binary, which a test is not.
    options.seat_options.probe_program = host;
    options.n_ctx = 1024;
    options.n_slots = Some(1);
    options.cache_type_k = CacheType::F32;
    options.cache_type_v = CacheType::F32;
    Some(Model::open(&options, &mut |_| {}).unwrap_or_else(|why| panic!("{why}")))
}

/// Logits `[wanted rows, n_vocab]` of one text run from scratch.
fn logits(executor: &mut dyn Executor, tokens: &[u32], wanted: impl Fn(usize) -> bool) -> Vec<f32> {
    let sequence = executor.create().unwrap();
    let rows: Vec<Row> = tokens
        .iter()
        .enumerate()
        .map(|(position, &token)| Row {
            token,
            position,
            sequence,
            wants_logits: wanted(position),
            wants_hidden: false,
        })
        .collect();
    let logits = executor.run(&rows).unwrap().logits.to_vec();
    executor.drop_sequence(sequence);
    logits
}

fn near_the_reference(model: RealModel, golden: &str) {
    let (Some(kit), Some(model)) = (golden_kit(), open(model)) else { return };
    let folder = kit.join("real").join(golden);
    let facts = read_json(&folder.join("golden.json")).unwrap();
    let n_vocab = facts["n_vocab"].as_u64().unwrap() as usize;
    let exact = read_f32(&folder.join("last.f32_activations.logits.bin")).unwrap();
    let mut executor = model.into_executor();
    for (i, prompt) in facts["prompts"].as_array().unwrap().iter().enumerate() {
        let tokens: Vec<u32> =
            prompt["tokens"].as_array().unwrap().iter().map(|t| t.as_u64().unwrap() as u32).collect();
        let last = tokens.len() - 1;
        let found = logits(executor.as_mut(), &tokens, |p| p == last);
        let found = &found[..n_vocab];
        let exact = &exact[i * n_vocab..][..n_vocab];
        let apart = nmse(found, exact);
        println!("{golden} prompt {i}: NMSE {apart:.2e} to f32 activations");
        // Rounding activations to 8 bits moves real models by up to 1.2e-2 (seen: gemma, prompt 4); a
        // wrong operator moves them by more than 0.1.
        assert!(apart <= 3e-2, "prompt {i}: {apart:.2e}");
    }
}

/// llama-perplexity's rule: windows of 256, the second half of each is scored.
fn perplexity(model: RealModel, expected: f64) {
    let Some(model) = open(model) else { return };
    let text = std::fs::read_to_string(data("text/heldout.txt")).unwrap();
    let tokenizer = model.tokenizer().clone();
    let tokens = tokenizer.encode(&text, true, false);
    let mut executor = model.into_executor();
    let (mut sum, mut count) = (0.0, 0);
    for window in tokens.chunks_exact(256) {
        let mut window = window.to_vec();
        if let Some(bos) = tokenizer.special().bos.filter(|_| tokenizer.add_bos()) {
            window[0] = bos;
        }
        let rows = logits(executor.as_mut(), &window, |p| (128..255).contains(&p));
        let n_vocab = executor.shape().n_vocab;
        for (row, next) in rows.chunks(n_vocab).zip(&window[129..]) {
            let most = row.iter().copied().fold(f32::MIN, f32::max);
            let total: f64 = row.iter().map(|l| f64::from(l - most).exp()).sum();
            sum += total.ln() - f64::from(row[*next as usize] - most);
            count += 1;
        }
    }
    let found = sum / f64::from(count);
    println!(
        "mean NLL {found:.6} over {count} tokens, perplexity {:.4}; llama.cpp {expected:.4}",
        found.exp()
    );
    assert!((found - expected.ln()).abs() < 1e-3 * expected.ln(), "{} against {expected}", found.exp());
}

#[test]
fn smollm2_is_near_the_reference() {
    near_the_reference(RealModel::SmolLm2, "SmolLM2-135M-Instruct");
}

#[test]
fn gemma3_is_near_the_reference() {
    near_the_reference(RealModel::Gemma3, "gemma-3-270m");
}

#[test]
fn smollm2_perplexity() {
    perplexity(RealModel::SmolLm2, 26.4845);
}

/// The figure is that of the file dequantised to F32: llama.cpp's own 8-bit run (26.7832) lies further from it than ours.
#[test]
fn gemma3_perplexity() {
    perplexity(RealModel::Gemma3, 26.4670);
}
