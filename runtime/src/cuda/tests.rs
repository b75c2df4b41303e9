//! The lowered launches on the simulated grid, beside the CPU executor.

use super::{CacheType, CudaExecutor, CudaOptions};
use crate::cpu::tests::against_reference::{rows, text};
use crate::cpu::tests::small::{KINDS, Model, model};
use crate::cpu::{CpuExecutor, CpuOptions, MemoryTensors};
use crate::executor::Executor;
use bloomery_kernels_gpu::SimulatedGrid;
use std::sync::Arc;

fn on_grid(model: &Model, tensors: &MemoryTensors, change: impl FnOnce(&mut CudaOptions)) -> CudaExecutor {
    let mut options = CudaOptions {
        max_rows: 64,
        max_tail: 8,
        max_tokens: 256,
        store_tokens: 1024,
        cache_key: CacheType::F32,
        cache_value: CacheType::F32,
        ..CudaOptions::default()
    };
    change(&mut options);
    let machine = Box::new(SimulatedGrid::new(None));
    CudaExecutor::on_machine(&model.program, Arc::new(tensors.clone()), machine, &options).unwrap()
}

fn run(executor: &mut dyn Executor, tokens: &[u32], chunk: usize) -> Vec<u32> {
    let sequence = executor.create().unwrap();
    let mut bits = Vec::new();
    for (i, part) in tokens.chunks(chunk).enumerate() {
        let out = executor.run(&rows(part, i * chunk, sequence)).unwrap();
        bits.extend(out.logits.iter().chain(out.hidden).map(|v| v.to_bits()));
    }
    executor.drop_sequence(sequence);
    bits
}

#[test]
fn equals_the_cpu_bit_for_bit() {
    let tokens = text(3, 19);
    for kind in 0..KINDS {
        let model = model(kind);
        for (form, tensors) in [model.tensors.clone(), model.quantized()].into_iter().enumerate() {
            // One form of joined expert matrices has no kernel yet, nor have groups of experts.
            if kind == 4 {
                continue;
            }
            let options = CpuOptions {
                threads: Some(1),
                max_rows: 64,
                max_tokens: 256,
                store_tokens: 1024,
                cache_key: CacheType::F32,
                cache_value: CacheType::F32,
                fuse: true,
                draft: false,
            };
            let mut cpu = CpuExecutor::new(&model.program, Arc::new(tensors.clone()), &options).unwrap();
            for chunk in [1, 10] {
                let expected = run(&mut cpu, &tokens, chunk);
                let found = run(&mut on_grid(&model, &tensors, |_| ()), &tokens, chunk);
                let differ = expected.iter().zip(&found).filter(|(a, b)| a != b).count();
                assert!(
                    expected.len() == found.len() && differ == 0,
                    "kind {kind}, form {form}, steps of {chunk}: {differ} of {} values, first {:?} {:?}",
                    expected.len(),
                    f32::from_bits(expected[0]),
                    f32::from_bits(found[0]),
                );
            }
        }
    }
}

#[test]
fn golden_models_equal_the_cpu() {
    let Some(kit) = std::env::var_os("BLOOMERY_GOLDEN").map(std::path::PathBuf::from) else {
        eprintln!("skipped: no golden kit");
        return;
    };
    let mut files: Vec<_> =
        std::fs::read_dir(kit.join("qwen3moe")).unwrap().map(|e| e.unwrap().path()).collect();
    files.retain(|path| path.extension().is_some_and(|ext| ext == "gguf"));
    files.sort();
    for path in files {
        let file = Arc::new(bloomery_gguf::GgufFile::open(&path).unwrap());
        let facts = crate::model::model_facts(&file).unwrap();
        let program = seat_qwen3::declare(&facts).unwrap();
        let tokens: Vec<u32> = (0..35).map(|i| 11 + 37 * i).collect();
        // Few rows, and as many as go to tensor cores where the types have kernels there.
        let name = path.file_stem().unwrap().to_string_lossy().into_owned();
        let splits: &[_] = if ["Q4_K_M", "Q6_K"].iter().any(|ty| name.contains(ty)) {
            &[(4, 5), (34, 35)]
        } else {
            &[(4, 5)]
        };
        for cache in [CacheType::F32, CacheType::F16] {
            let options =
                CpuOptions { cache_key: cache, cache_value: cache, max_rows: 64, ..CpuOptions::default() };
            let mut cpu = CpuExecutor::new(&program, file.clone(), &options).unwrap();
            let options = CudaOptions {
                max_rows: 34,
                max_tail: 4,
                max_tokens: 512,
                cache_key: cache,
                cache_value: cache,
                ..CudaOptions::default()
            };
            let machine = Box::new(SimulatedGrid::new(None));
            let mut card = CudaExecutor::on_machine(&program, file.clone(), machine, &options).unwrap();
            // Eight launches a layer (nine where queries and keys take other activations), the embedding, two gathers and what they
            // part in the last layer, the head.
            let launches = card.launches(1).unwrap();
            let direct = ["Q4_K", "Q5_K", "Q6_K", "Q8_0"];
            if direct.iter().any(|ty| name.contains(ty)) {
                assert!(launches.len() <= 5 + 2 * 9, "{name}: {launches:?}");
            }
            for (first, count) in splits.iter().copied() {
                let tokens = &tokens[..count];
                let expected = asked(&mut cpu, tokens, &[first], first);
                let found = asked(&mut card, tokens, &[first], first);
                assert_eq!(expected.len(), found.len());
                if cache == CacheType::F32 {
                    let differ =
                        expected.iter().zip(&found).filter(|(a, b)| a.to_bits() != b.to_bits()).count();
                    assert_eq!(differ, 0, "{name}: of {} logits", expected.len());
                    continue;
                }
                // Prompts' attention adds up in another order.
                let width = expected.len() / 2;
                for (e, f) in expected.chunks(width).zip(found.chunks(width)) {
                    let worst = e.iter().zip(f).map(|(a, b)| (a - b).abs()).fold(0.0, f32::max);
                    assert!(worst < 1e-4, "{name}, {count} rows: {worst}");
                    assert_eq!(highest(e), highest(f), "{name}, {count} rows");
                }
                // However the prompt is cut, a row's bits are its own.
                for cuts in [&[1, 3, first][..], &[2, first]] {
                    let cut = asked(&mut card, tokens, cuts, first);
                    let differ = cut.iter().zip(&found).filter(|(a, b)| a.to_bits() != b.to_bits()).count();
                    assert_eq!(differ, 0, "{name}: cut at {cuts:?}");
                }
            }
        }
    }
}

/// Logits of the row before `first` and of the last one, of a text that is run in steps with these ends.
fn asked(executor: &mut dyn Executor, tokens: &[u32], cuts: &[usize], first: usize) -> Vec<f32> {
    let sequence = executor.create().unwrap();
    let mut logits = Vec::new();
    let mut from = 0;
    for end in cuts.iter().copied().chain([tokens.len()]) {
        let mut step = rows(&tokens[from..end], from, sequence);
        for row in &mut step {
            let wanted = row.position + 1 == first || row.position + 1 == tokens.len();
            (row.wants_logits, row.wants_hidden) = (wanted, false);
        }
        logits.extend_from_slice(executor.run(&step).unwrap().logits);
        from = end;
    }
    executor.drop_sequence(sequence);
    logits
}

fn highest(logits: &[f32]) -> usize {
    (0..logits.len()).fold(0, |best, i| if logits[i] > logits[best] { i } else { best })
}
