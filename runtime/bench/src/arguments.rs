//! llama-bench's flags, as far as they mean something here. Lists are separated by commas; every combination is run.

use bloomery_runtime::model::{Backend, CacheType};
use clap::{Parser, ValueEnum};
use std::path::PathBuf;

/// Speed of prompts and of generation, as rows that llama-bench's rows can stand beside.
#[derive(Debug, Parser)]
#[command(name = "bloomery-bench", version)]
pub struct Arguments {
    /// GGUF files.
    #[arg(short = 'm', long, required = true, value_delimiter = ',')]
    pub model: Vec<PathBuf>,
    /// Prompt lengths; 0 for none.
    #[arg(short = 'p', long, default_value = "512", value_delimiter = ',')]
    pub n_prompt: Vec<usize>,
    /// Generated lengths; 0 for none.
    #[arg(short = 'n', long, default_value = "128", value_delimiter = ',')]
    pub n_gen: Vec<usize>,
    /// A prompt and a generation in one row: PROMPT,GENERATED; may be given again.
    #[arg(long = "pg", value_parser = pair, value_name = "PROMPT,GENERATED")]
    pub prompt_and_gen: Vec<(usize, usize)>,
    /// Tokens in the context before the clock starts.
    #[arg(short = 'd', long, default_value = "0", value_delimiter = ',')]
    pub n_depth: Vec<usize>,
    /// Sequences side by side: a prompt of each, then one token of each a step.
    #[arg(long = "n-parallel", alias = "npl", default_value = "1", value_delimiter = ',')]
    pub n_parallel: Vec<usize>,
    /// Repetitions of each row.
    #[arg(short = 'r', long, default_value_t = 5, value_parser = clap::value_parser!(u32).range(1..))]
    pub repetitions: u32,
    /// Threads; the machine's physical cores by default.
    #[arg(short = 't', long, value_delimiter = ',')]
    pub threads: Vec<usize>,
    /// Most prompt tokens in one call.
    #[arg(short = 'b', long, default_value_t = 2048)]
    pub batch_size: usize,
    /// Most tokens that are computed at once.
    #[arg(long = "ubatch-size", alias = "ub", default_value = "512", value_delimiter = ',')]
    pub ubatch_size: Vec<usize>,
    /// Storage of keys.
    #[arg(long = "cache-type-k", alias = "ctk", default_value = "f16", value_delimiter = ',')]
    pub cache_type_k: Vec<Cache>,
    /// Storage of values.
    #[arg(long = "cache-type-v", alias = "ctv", default_value = "f16", value_delimiter = ',')]
    pub cache_type_v: Vec<Cache>,
    /// Who computes.
    #[arg(long, default_value = "auto")]
    pub backend: Computer,
    /// The card: index, CUDA0 or UUID.
    #[arg(long, alias = "dev")]
    pub device: Option<String>,
    /// Most bytes of the card's memory to use.
    #[arg(long)]
    pub device_memory_limit: Option<u64>,
    /// Print what the engine logs, on the standard error.
    #[arg(long)]
    pub log: bool,
    /// Print time, bytes and share of the card's bandwidth of every operator of a decode step, on the standard error.
    #[arg(long)]
    pub profile: bool,
    /// Folder with seats, searched first; may be given again.
    #[arg(long)]
    pub seats_dir: Vec<PathBuf>,
    /// Start with the clock, without a run before it.
    #[arg(long)]
    pub no_warmup: bool,
    /// Form of the output.
    #[arg(short = 'o', long, default_value = "md")]
    pub output: Output,
}

/// Form of the output.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum Output {
    /// A table.
    Md,
    /// An array of objects.
    Json,
    /// Lines of quoted values.
    Csv,
}

/// `CacheType` as a flag.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum Cache {
    /// Single precision.
    F32,
    /// Half precision.
    F16,
    /// 8 bits.
    #[value(name = "q8_0")]
    Q8_0,
}

impl Cache {
    /// The engine's word for it.
    pub fn cache_type(self) -> CacheType {
        match self {
            Cache::F32 => CacheType::F32,
            Cache::F16 => CacheType::F16,
            Cache::Q8_0 => CacheType::Q8_0,
        }
    }

    /// As llama-bench prints it.
    pub fn name(self) -> &'static str {
        match self {
            Cache::F32 => "f32",
            Cache::F16 => "f16",
            Cache::Q8_0 => "q8_0",
        }
    }
}

/// `Backend` as a flag.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum Computer {
    /// A card where one is there and the model fits it, else the processor.
    Auto,
    /// An NVIDIA card.
    Cuda,
    /// Fast kernels.
    Cpu,
    /// Definitions as they read.
    Reference,
}

impl Computer {
    /// The engine's word for it.
    pub fn backend(self) -> Backend {
        match self {
            Computer::Auto => Backend::Auto,
            Computer::Cuda => Backend::Cuda,
            Computer::Cpu => Backend::Cpu,
            Computer::Reference => Backend::Reference,
        }
    }
}

/// llama-bench's flags of several letters behind one dash, which no argument parser takes.
const ONE_DASH: &[&str] = &["-pg", "-ub", "-ctk", "-ctv", "-npl", "-dev"];

/// The program's arguments, with llama-bench's spellings understood.
pub fn parse(words: impl Iterator<Item = String>) -> Arguments {
    Arguments::parse_from(words.map(|w| if ONE_DASH.contains(&w.as_str()) { format!("-{w}") } else { w }))
}

fn pair(text: &str) -> Result<(usize, usize), String> {
    let parsed = text.split_once(',').map(|(p, g)| (p.parse(), g.parse()));
    match parsed {
        Some((Ok(p), Ok(g))) if p + g > 0 => Ok((p, g)),
        _ => Err(format!("`{text}` is not PROMPT,GENERATED")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parsed(line: &str) -> Arguments {
        parse(line.split(' ').map(String::from))
    }

    #[test]
    fn llama_benchs_spelling_is_understood() {
        let a = parsed(
            "bloomery-bench -m a.gguf,b.gguf -p 512,1024 -n 0 -pg 64,16 -t 1,2 -ub 128 -ctk q8_0 -o json -r 3",
        );
        assert_eq!(a.model.len(), 2);
        assert_eq!((a.n_prompt, a.n_gen, a.prompt_and_gen), (vec![512, 1024], vec![0], vec![(64, 16)]));
        assert_eq!((a.threads, a.ubatch_size), (vec![1, 2], vec![128]));
        assert_eq!((a.cache_type_k, a.output, a.repetitions), (vec![Cache::Q8_0], Output::Json, 3));
    }

    #[test]
    fn nonsense_is_refused() {
        assert!(Arguments::try_parse_from(["b", "-m", "a", "--pg", "5"]).is_err());
        assert!(Arguments::try_parse_from(["b", "-m", "a", "-r", "0"]).is_err());
        assert!(Arguments::try_parse_from(["b"]).is_err());
    }
}
