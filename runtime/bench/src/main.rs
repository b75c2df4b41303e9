//! llama-bench's table over the bloomery engine: prompt and generation rows on stdout, so that both programs' outputs
//! can be laid side by side. It measures the executor alone: no sampling, no server.

#![forbid(unsafe_code)]

mod arguments;
mod check;
mod measure;
mod report;

use arguments::{Arguments, Cache, Output};
use bloomery_kernels_cpu::topology::Topology;
use bloomery_runtime::model::{Model, OpenOptions};
use measure::Test;
use report::{Row, Setting, Subject};
use std::path::Path;
use std::process::ExitCode;
use std::time::SystemTime;

fn main() -> ExitCode {
    // Seats run in a child process of this same binary.
    if std::env::args().skip(1).take(2).eq(["seat", "probe"]) {
        return bloomery_seat_host::probe_main();
    }
    let words: Vec<String> = std::env::args().skip(1).collect();
    if words.first().is_some_and(|word| word == "gpu-check") {
        return ended(check::run(&words[1..]));
    }
    let arguments = arguments::parse(std::env::args());
    if arguments.log || arguments.profile {
        tracing_subscriber::fmt().with_writer(std::io::stderr).with_ansi(false).with_target(false).init();
    }
    ended(run(&arguments))
}

fn ended(outcome: Result<(), String>) -> ExitCode {
    match outcome {
        Ok(()) => ExitCode::SUCCESS,
        Err(why) => {
            eprintln!("bloomery-bench: {why}");
            ExitCode::FAILURE
        }
    }
}

fn run(arguments: &Arguments) -> Result<(), String> {
    let mut rows = Vec::new();
    if arguments.output == Output::Md {
        print!("{}", report::markdown_header());
    }
    for (model, setup) in setups(arguments) {
        for row in measure_model(arguments, model, setup)? {
            match arguments.output {
                Output::Md => print!("{}", report::markdown_row(&row)),
                Output::Csv if rows.is_empty() => {
                    print!("{}{}", report::csv_header(&row), report::csv_row(&row));
                }
                Output::Csv => print!("{}", report::csv_row(&row)),
                Output::Json => {}
            }
            rows.push(row);
        }
    }
    match arguments.output {
        Output::Md => println!("\nbuild: bloomery {}", env!("CARGO_PKG_VERSION")),
        Output::Json => print!("{}", report::json(&rows)),
        Output::Csv => {}
    }
    Ok(())
}

/// Settings that a model is opened with.
#[derive(Debug, Clone, Copy)]
struct Setup {
    threads: Option<usize>,
    n_ubatch: usize,
    cache_k: Cache,
    cache_v: Cache,
}

fn setups(arguments: &Arguments) -> Vec<(&Path, Setup)> {
    let threads: Vec<Option<usize>> = match arguments.threads[..] {
        [] => vec![None],
        _ => arguments.threads.iter().copied().map(Some).collect(),
    };
    let mut out = Vec::new();
    for model in &arguments.model {
        for &n_ubatch in &arguments.ubatch_size {
            for &cache_k in &arguments.cache_type_k {
                for &cache_v in &arguments.cache_type_v {
                    let all = threads.iter().map(|&threads| Setup { threads, n_ubatch, cache_k, cache_v });
                    out.extend(all.map(|setup| (model.as_path(), setup)));
                }
            }
        }
    }
    out
}

/// The tests of one setup: prompts, then generations, then pairs, each at every depth and number of sequences.
fn tests(arguments: &Arguments) -> Vec<Test> {
    let prompts = arguments.n_prompt.iter().filter(|n| **n > 0).map(|n| (*n, 0));
    let generations = arguments.n_gen.iter().filter(|n| **n > 0).map(|n| (0, *n));
    let all: Vec<_> = prompts.chain(generations).chain(arguments.prompt_and_gen.iter().copied()).collect();
    let at = |n_depth: usize, n_parallel: usize| {
        all.iter().map(move |&(n_prompt, n_gen)| Test { n_prompt, n_gen, n_depth, n_parallel })
    };
    let parallel = arguments.n_parallel.iter().copied().filter(|n| *n > 0);
    parallel.flat_map(|n| arguments.n_depth.iter().flat_map(move |d| at(*d, n))).collect()
}

fn measure_model(arguments: &Arguments, path: &Path, setup: Setup) -> Result<Vec<Row>, String> {
    let tests = tests(arguments);
    let longest = tests.iter().map(|t| t.n_prompt + t.n_gen + t.n_depth).max().unwrap_or(0);
    // A page holds the tokens of one sequence: each needs whole pages.
    let all = tests.iter().map(|t| t.n_parallel * (t.n_prompt + t.n_gen + t.n_depth + 64)).max().unwrap_or(0);
    let most = tests.iter().map(|t| t.n_parallel).max().unwrap_or(1);
    let mut options = OpenOptions::new(path);
    options.seat_options.folders.extend(arguments.seats_dir.iter().cloned());
    options.n_ctx = all.max(longest).max(1);
    options.n_slots = Some(most);
    options.kv_unified = Some(true);
    options.threads = setup.threads;
    options.n_batch = arguments.batch_size;
    options.n_ubatch = setup.n_ubatch;
    options.cache_type_k = setup.cache_k.cache_type();
    options.cache_type_v = setup.cache_v.cache_type();
    options.backend = arguments.backend.backend();
    options.card.device.clone_from(&arguments.device);
    options.card.memory_limit = arguments.device_memory_limit;
    options.card.profile = arguments.profile;
    let model = Model::open(&options, &mut |_| {}).map_err(|error| error.to_string())?;
    let facts = model.facts().clone();
    let subject = Subject {
        version: env!("CARGO_PKG_VERSION").into(),
        cpu_info: cpu_info(),
        backend: if model.is_on_card() { "CUDA" } else { "CPU" }.into(),
        model_filename: path.display().to_string(),
        model_type: facts.description,
        model_size: facts.size_bytes,
        model_n_params: facts.n_params,
    };
    let n_threads = setup.threads.unwrap_or_else(|| Topology::detect().threads());
    let mut executor = model.into_executor();
    let mut rows = Vec::new();
    for test in tests {
        let Test { n_prompt, n_gen, n_depth, n_parallel } = test;
        if !arguments.no_warmup {
            let warmup = Test { n_gen: n_gen.min(2), n_depth: 0, ..test };
            measure::once(executor.as_mut(), warmup).map_err(|error| error.to_string())?;
        }
        let test_time = humantime::format_rfc3339_seconds(SystemTime::now()).to_string();
        let samples_ns = (0..arguments.repetitions)
            .map(|_| measure::once(executor.as_mut(), test))
            .collect::<Result<_, _>>()
            .map_err(|error| error.to_string())?;
        let setting = Setting {
            n_batch: arguments.batch_size,
            n_ubatch: setup.n_ubatch,
            n_threads,
            type_k: setup.cache_k.name(),
            type_v: setup.cache_v.name(),
            n_prompt,
            n_gen,
            n_depth,
            n_parallel,
        };
        rows.push(Row { subject: subject.clone(), setting, test_time, samples_ns });
    }
    Ok(rows)
}

fn cpu_info() -> String {
    let info = std::fs::read_to_string("/proc/cpuinfo").unwrap_or_default();
    let name = info.lines().find_map(|line| line.strip_prefix("model name")?.split_once(':'));
    name.map_or_else(|| "unknown".to_string(), |(_, name)| name.trim().to_string())
}
