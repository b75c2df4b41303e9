//! `bloomery-bench gpu-check [MODEL...]`: the card against the processor, bit for bit.
//!
//! Routed experts of every weight type for 1, 2, 7, 33 and 300 rows, in a program of nothing else; then, for every model that is named,
//! logits and greedy text, recorded against not, and sequences side by side against each alone.

use bloomery_formats::WeightType;
use bloomery_program::TensorFacts;
use bloomery_runtime::cpu::{CpuExecutor, CpuOptions, MemoryTensors};
use bloomery_runtime::cuda::{CudaExecutor, CudaOptions};
use bloomery_runtime::executor::{Executor, Row, SequenceId};
use bloomery_runtime::model::{Backend, Model, OpenOptions};
use bloomery_seat::prelude::{Function, ModelFacts, Program, ProgramBuilder, Route, Score};
use std::path::PathBuf;
use std::sync::Arc;

const VOCABULARY: u32 = 512;
const WIDTH: u32 = 512;
const FF: u32 = 256;
const EXPERTS: u32 = 16;
const USED: u32 = 4;
const ROWS: [usize; 5] = [1, 2, 7, 33, 300];

/// Checks everything; the message counts what differed.
///
/// # Errors
/// Something differed or could not run.
pub fn run(words: &[String]) -> Result<(), String> {
    let (flags, models): (Vec<&String>, Vec<&String>) = words.iter().partition(|word| word.starts_with("--"));
    let seats: Vec<PathBuf> =
        flags.iter().filter_map(|flag| flag.strip_prefix("--seats-dir=")).map(PathBuf::from).collect();
    let known = |flag: &&&String| flag.as_str() == "--only-models" || flag.starts_with("--seats-dir=");
    if let Some(unknown) = flags.iter().find(|flag| !known(flag)) {
        return Err(format!("gpu-check takes models, --only-models and --seats-dir=FOLDER, not {unknown}"));
    }
    let mut wrong = 0;
    println!("| check | rows | result |\n| --- | --- | --- |");
    let types = WeightType::ALL.iter().filter(|ty| ty.activation_kind().is_some());
    for ty in types.filter(|_| !flags.iter().any(|flag| *flag == "--only-models")) {
        wrong += experts(*ty);
    }
    for path in models {
        wrong += model(path, &seats);
    }
    match wrong {
        0 => Ok(()),
        n => Err(format!("{n} checks failed")),
    }
}

fn report(check: &str, rows: &str, outcome: Result<(), String>) -> usize {
    let result = outcome.as_ref().map_or_else(|why| format!("FAILED: {why}"), |()| "equal".into());
    println!("| {check} | {rows} | {result} |");
    usize::from(outcome.is_err())
}

/// xorshift64*.
struct Random(u64);

impl Random {
    fn word(&mut self) -> u32 {
        self.0 ^= self.0 >> 12;
        self.0 ^= self.0 << 25;
        self.0 ^= self.0 >> 27;
        (self.0.wrapping_mul(0x2545_f491_4f6c_dd1d) >> 32) as u32
    }

    /// Within plus and minus a half.
    fn float(&mut self) -> f32 {
        (self.word() >> 8) as f32 / (1u32 << 24) as f32 - 0.5
    }

    /// A matrix of a type, its scales small normal numbers.
    fn matrix(&mut self, ty: WeightType, values: usize) -> Vec<u8> {
        match ty {
            WeightType::F32 => return (0..values).flat_map(|_| (self.float() * 0.1).to_le_bytes()).collect(),
            WeightType::F16 => {
                let half = |v: f32| bloomery_formats::f32_to_f16(v).to_le_bytes();
                return (0..values).flat_map(|_| half(self.float() * 0.1)).collect();
            }
            WeightType::BF16 => {
                let half = |v: f32| bloomery_formats::f32_to_bf16(v).to_le_bytes();
                return (0..values).flat_map(|_| half(self.float() * 0.1)).collect();
            }
            _ => {}
        }
        let bytes = values / ty.block_len() * ty.block_bytes();
        let mut raw: Vec<u8> = (0..bytes).map(|_| self.word() as u8).collect();
        for block in raw.chunks_exact_mut(ty.block_bytes()) {
            let sign = self.word() as u8 & 0x80;
            for (at, high) in scales(ty) {
                block[*at] = *high | if *high < 0x30 { sign } else { 0 };
            }
            if ty == WeightType::IQ1_M {
                // The scale lies in the high nibbles of the last four words.
                block[55] = 0x20 | block[55] & 0x0f;
            }
        }
        raw
    }
}

/// Places of the high bytes of a block's scales, with values that make them small.
fn scales(ty: WeightType) -> &'static [(usize, u8)] {
    match ty {
        WeightType::Q4_1 | WeightType::Q5_1 | WeightType::Q4_K | WeightType::Q5_K => &[(1, 0x1c), (3, 0x1c)],
        WeightType::Q2_K => &[(81, 0x1c), (83, 0x1c)],
        WeightType::Q3_K => &[(109, 0x1c)],
        WeightType::Q6_K => &[(209, 0x1c)],
        WeightType::TQ1_0 => &[(53, 0x24)],
        WeightType::TQ2_0 => &[(65, 0x24)],
        WeightType::MXFP4 => &[(0, 0x7a)],
        WeightType::NVFP4 => &[(0, 0x30), (1, 0x31), (2, 0x33), (3, 0x35)],
        WeightType::IQ1_M => &[],
        _ => &[(1, 0x1c)],
    }
}

/// A program whose hidden row is what the routed experts return.
fn program(ty: WeightType) -> Result<(Program, Arc<MemoryTensors>), String> {
    let mut random = Random(0x9e37_79b9_7f4a_7c15 ^ ty as u64);
    let mut tensors = MemoryTensors::default();
    let mut facts = ModelFacts { arch: "experts".into(), ..ModelFacts::default() };
    let (v, w, f, e) = (u64::from(VOCABULARY), u64::from(WIDTH), u64::from(FF), u64::from(EXPERTS));
    let shapes: [(&str, WeightType, Vec<u64>); 6] = [
        ("token_embd.weight", WeightType::F32, vec![w, v]),
        ("router.weight", WeightType::F32, vec![w, e]),
        ("ffn_gate_exps.weight", ty, vec![w, f, e]),
        ("ffn_up_exps.weight", ty, vec![w, f, e]),
        ("ffn_down_exps.weight", ty, vec![f, w, e]),
        ("output.weight", WeightType::F32, vec![w, v]),
    ];
    for (name, ty, dims) in shapes {
        let values = dims.iter().product::<u64>() as usize;
        let bytes = match name {
            "token_embd.weight" => (0..values).flat_map(|_| (4.0 * random.float()).to_le_bytes()).collect(),
            _ => random.matrix(ty, values),
        };
        facts.tensors.insert(name.into(), TensorFacts { dims: dims.clone(), dtype: ty.name().into() });
        tensors.insert(name, ty, &dims, bytes);
    }
    let mut builder = ProgramBuilder::new("experts", &facts);
    let mut build = || -> Result<(), bloomery_seat::Error> {
        let mut g = builder.target();
        let tokens = g.tokens();
        let x = g.embed(tokens, "token_embd", WIDTH, 1.0)?;
        let logits = g.linear(x, "router", EXPERTS)?;
        let route = Route {
            experts: EXPERTS,
            used: USED,
            score: Score::Softmax,
            groups: None,
            normalize: true,
            sum_floor: 0.0,
            scale: 1.0,
        };
        let chosen = g.route(logits, None, route)?;
        let out = g.experts(x, chosen, "ffn", (EXPERTS, USED, FF), Function::Silu, None)?;
        g.hidden("experts", out);
        let logits = g.linear(out, "output", VOCABULARY)?;
        g.logits(logits);
        g.finish();
        Ok(())
    };
    build().map_err(|error| error.to_string())?;
    let program = builder.finish().map_err(|error| error.to_string())?;
    Ok((program, Arc::new(tensors)))
}

fn experts(ty: WeightType) -> usize {
    let check = format!("experts {}", ty.name());
    let prepared = || -> Result<_, String> {
        let (program, tensors) = program(ty)?;
        let options = CpuOptions { max_tokens: 512, store_tokens: 512, ..CpuOptions::default() };
        let cpu = CpuExecutor::new(&program, tensors.clone(), &options).map_err(|error| error.to_string())?;
        let options =
            CudaOptions { max_tail: 512, max_tokens: 512, store_tokens: 512, ..CudaOptions::default() };
        let cuda = CudaExecutor::open(&program, tensors.clone(), &Default::default(), &options)
            .map_err(|error| error.to_string())?;
        Ok((cpu, cuda))
    };
    let (mut cpu, mut cuda) = match prepared() {
        Ok(both) => both,
        Err(why) => return report(&check, "all", Err(why)),
    };
    let mut wrong = 0;
    for rows in ROWS {
        let run = |executor: &mut dyn Executor| -> Result<Vec<f32>, String> {
            let sequence = executor.create().map_err(|error| error.to_string())?;
            let tokens: Vec<u32> = (0..rows).map(|i| (i * 37 % VOCABULARY as usize) as u32).collect();
            let step = steps(&tokens, 0, sequence, |_| (false, true));
            let out = executor.run(&step).map_err(|error| error.to_string())?.hidden.to_vec();
            executor.drop_sequence(sequence);
            Ok(out)
        };
        let outcome =
            run(&mut cpu).and_then(|expected| same_bits(&expected, &run(&mut cuda)?, WIDTH as usize));
        wrong += report(&check, &rows.to_string(), outcome);
    }
    wrong
}

fn steps(
    tokens: &[u32],
    first: usize,
    sequence: SequenceId,
    wants: impl Fn(usize) -> (bool, bool),
) -> Vec<Row> {
    let row = |(i, token): (usize, &u32)| {
        let (wants_logits, wants_hidden) = wants(first + i);
        Row { token: *token, position: first + i, sequence, wants_logits, wants_hidden }
    };
    tokens.iter().enumerate().map(row).collect()
}

/// Every bit, or the first place that differs.
fn same_bits(a: &[f32], b: &[f32], width: usize) -> Result<(), String> {
    if a.len() != b.len() {
        return Err(format!("{} values against {}", a.len(), b.len()));
    }
    let differs = |(x, y): (&f32, &f32)| x.to_bits() != y.to_bits();
    let Some(at) = a.iter().zip(b).position(differs) else { return Ok(()) };
    let n = a.iter().zip(b).filter(|pair| differs(*pair)).count();
    let worst = a.iter().zip(b).map(|(x, y)| (x - y).abs()).fold(0.0f32, f32::max);
    Err(format!(
        "{n} of {} values, first at row {} column {}: {} against {}, largest difference {worst:e}",
        a.len(),
        at / width,
        at % width,
        a[at],
        b[at]
    ))
}

/// What a run of a model gave.
struct Text {
    tokens: Vec<u32>,
    logits: Vec<f32>,
}

fn model(path: &str, seats: &[PathBuf]) -> usize {
    let open = |backend| -> Result<Box<dyn Executor>, String> {
        let mut options = OpenOptions::new(path);
        options.seat_options.folders.extend(seats.iter().cloned());
        options.backend = backend;
        options.n_ctx = 4096;
        options.n_slots = Some(8);
        options.kv_unified = Some(true);
        Ok(Model::open(&options, &mut |_| {}).map_err(|error| error.to_string())?.into_executor())
    };
    let name =
        PathBuf::from(path).file_name().map_or_else(String::new, |name| name.to_string_lossy().into_owned());
    let (mut cpu, mut cuda) = match open(Backend::Cpu).and_then(|cpu| Ok((cpu, open(Backend::Cuda)?))) {
        Ok(both) => both,
        Err(why) => return report(&name, "all", Err(why)),
    };
    let mut wrong = 0;
    let n_vocab = cpu.shape().n_vocab;
    for prompt in [1, 7, 40, 300] {
        let pair = text(cpu.as_mut(), prompt, prompt, 24)
            .and_then(|a| Ok((a, text(cuda.as_mut(), prompt, prompt, 24)?)));
        let rows = prompt.to_string();
        match pair {
            Err(why) => wrong += report(&format!("{name} runs"), &rows, Err(why)),
            Ok((a, b)) => {
                let same = if a.tokens == b.tokens {
                    Ok(())
                } else {
                    let at = a.tokens.iter().zip(&b.tokens).position(|(x, y)| x != y).unwrap_or(0);
                    Err(format!("token {at} is {} on the cpu, {} on the card", a.tokens[at], b.tokens[at]))
                };
                wrong += report(&format!("{name} greedy text"), &rows, same);
                let bits = same_bits(&a.logits, &b.logits, n_vocab);
                // Told, not counted: attention on the card may add in another order.
                println!(
                    "| {name} logits' bits | {rows} | {} |",
                    bits.map_or_else(|why| why, |()| "equal".into())
                );
                let steps =
                    text(cuda.as_mut(), prompt, 5, 24).and_then(|c| same_bits(&b.logits, &c.logits, n_vocab));
                wrong += report(&format!("{name} on the card, whole against steps of 5"), &rows, steps);
            }
        }
    }
    for streams in [2, 8] {
        let outcome = side_by_side(cuda.as_mut(), streams);
        wrong +=
            report(&format!("{name} on the card, side by side against alone"), &streams.to_string(), outcome);
    }
    wrong
}

fn prompt_of(seed: usize, n: usize, n_vocab: usize) -> Vec<u32> {
    (0..n).map(|i| ((i * i * 31 + i * 17 + seed * 101 + 3) % n_vocab) as u32).collect()
}

fn argmax(row: &[f32]) -> u32 {
    (0..row.len()).fold(0, |best, i| if row[i] > row[best] { i } else { best }) as u32
}

/// A prompt in steps of `chunk`, then greedy tokens; the logits of every token.
fn text(executor: &mut dyn Executor, prompt: usize, chunk: usize, count: usize) -> Result<Text, String> {
    let sequence = executor.create().map_err(|error| error.to_string())?;
    let tokens = prompt_of(prompt, prompt, executor.shape().n_vocab);
    let mut out = Text { tokens: vec![], logits: vec![] };
    for (i, part) in tokens.chunks(chunk.max(1)).enumerate() {
        let step = steps(part, i * chunk, sequence, |p| (p + 1 == prompt, false));
        out.logits.extend_from_slice(executor.run(&step).map_err(|error| error.to_string())?.logits);
    }
    let n_vocab = executor.shape().n_vocab;
    out.tokens.push(argmax(&out.logits));
    while out.tokens.len() < count {
        let position = prompt + out.tokens.len() - 1;
        let next = out.tokens[out.tokens.len() - 1];
        let step = steps(&[next], position, sequence, |_| (true, false));
        out.logits.extend_from_slice(executor.run(&step).map_err(|error| error.to_string())?.logits);
        out.tokens.push(argmax(&out.logits[out.logits.len() - n_vocab..]));
    }
    executor.drop_sequence(sequence);
    Ok(out)
}

/// Streams that decode in one step each give what each gives alone.
fn side_by_side(executor: &mut dyn Executor, streams: usize) -> Result<(), String> {
    let n_vocab = executor.shape().n_vocab;
    let failed = |error: bloomery_runtime::executor::StepError| error.to_string();
    let mut run = |members: &[usize]| -> Result<Vec<Vec<f32>>, String> {
        let mut logits = vec![Vec::new(); members.len()];
        let mut texts = Vec::new();
        for member in members {
            let sequence = executor.create().map_err(|error| error.to_string())?;
            let tokens = prompt_of(*member, 20 + 3 * member, n_vocab);
            executor.run(&steps(&tokens, 0, sequence, |_| (false, false))).map_err(failed)?;
            texts.push((sequence, tokens.len()));
        }
        for i in 0..16 {
            let mut step = Vec::new();
            for (member, (sequence, length)) in members.iter().zip(&texts) {
                let token = ((member * 7 + i * 13) % n_vocab) as u32;
                step.extend(steps(&[token], length + i, *sequence, |_| (true, false)));
            }
            let out = executor.run(&step).map_err(failed)?;
            for (all, row) in logits.iter_mut().zip(out.logits.chunks_exact(n_vocab)) {
                all.extend_from_slice(row);
            }
        }
        texts.iter().for_each(|(sequence, _)| executor.drop_sequence(*sequence));
        Ok(logits)
    };
    let together = run(&(0..streams).collect::<Vec<_>>())?;
    for (member, logits) in together.iter().enumerate() {
        let alone = run(&[member])?;
        same_bits(&alone[0], logits, n_vocab).map_err(|why| format!("stream {member}: {why}"))?;
    }
    Ok(())
}
