//! The schema: every flag that works, with its variable, default and help. `--help`, the table in `docs/serving.md` and the
//! environment variables all come from here.

use std::path::PathBuf;

use clap::{ArgAction, Args, Parser, Subcommand, ValueEnum};

/// Serve a GGUF model over llama-server's wire.
///
/// Flags keep llama-server's names, and so do the environment variables. A flag of llama-server that is not there yet is
/// refused with one line.
#[derive(Debug, Clone, Parser)]
#[command(
    name = "bloomery-serve",
    version,
    args_override_self = true,
    args_conflicts_with_subcommands = true,
    next_line_help = true,
    max_term_width = 110
)]
pub struct Flags {
    /// Which model.
    #[command(flatten)]
    pub model: ModelFlags,
    /// How it runs.
    #[command(flatten)]
    pub engine: EngineFlags,
    /// Drafts.
    #[command(flatten)]
    pub draft: DraftFlags,
    /// Defaults of the sampler.
    #[command(flatten)]
    pub sampling: SamplingFlags,
    /// Chat templates.
    #[command(flatten)]
    pub chat: ChatFlags,
    /// The HTTP side.
    #[command(flatten)]
    pub http: HttpFlags,
    /// Logs.
    #[command(flatten)]
    pub log: LogFlags,
    /// Seats.
    #[command(flatten)]
    pub seats: SeatFlags,
    /// Something other than serving.
    #[command(subcommand)]
    pub command: Option<Command>,
}

/// What to do in place of serving.
#[derive(Debug, Clone, Subcommand)]
pub enum Command {
    /// List, show and check the seats (architecture plugins) that this server can find.
    ///
    /// `seat list`, `seat show NAME [MODEL] [--dot]`, `seat check FILE [MODEL]`.
    Seat {
        /// What to do.
        #[arg(trailing_var_arg = true, allow_hyphen_values = true, value_name = "ACTION")]
        words: Vec<String>,
    },
    /// Print the generated part of the serving manual.
    #[command(hide = true)]
    DocsFlags,
}

/// Which model to serve.
#[derive(Debug, Clone, Args)]
#[command(next_help_heading = "Model")]
pub struct ModelFlags {
    /// The GGUF file (the first part of a split one).
    #[arg(short = 'm', long, value_name = "FILE", env = "LLAMA_ARG_MODEL")]
    pub model: Option<PathBuf>,
    /// A Hugging Face repository, with an optional quantisation (Q4_K_M where none is given).
    #[arg(long, value_name = "USER/MODEL[:QUANT]", env = "LLAMA_ARG_HF_REPO")]
    pub hf_repo: Option<String>,
    /// A file of that repository, in place of a quantisation.
    #[arg(long, value_name = "FILE", env = "LLAMA_ARG_HF_FILE")]
    pub hf_file: Option<String>,
    /// Access token of Hugging Face.
    #[arg(long, value_name = "TOKEN", env = "HF_TOKEN", hide_env_values = true)]
    pub hf_token: Option<String>,
    /// Take models from the cache only, never from the network.
    #[arg(long, num_args = 0..=1, require_equals = true, default_value = "false", default_missing_value = "true",
        value_parser = switch, env = "LLAMA_ARG_OFFLINE", action = ArgAction::Set)]
    pub offline: bool,
    /// Names of the model on the wire, separated by commas; the first in alphabetical order is its id.
    #[arg(short = 'a', long, value_name = "NAMES", env = "LLAMA_ARG_ALIAS", value_delimiter = ',')]
    pub alias: Vec<String>,
    /// Tags of the model, separated by commas; shown by /v1/models only.
    #[arg(long, value_name = "TAGS", env = "LLAMA_ARG_TAGS", value_delimiter = ',')]
    pub tags: Vec<String>,
    /// Print the program that the model's seat declares, and end.
    #[arg(long)]
    pub dump_program: bool,
}

/// How the engine runs.
#[derive(Debug, Clone, Args)]
#[command(next_help_heading = "Engine")]
pub struct EngineFlags {
    /// What computes: auto takes a card where one is there and the model fits it, else the processor.
    #[arg(long, value_enum, default_value = "auto")]
    pub backend: BackendFlag,
    /// Layers on the card: auto, all, or a number; 0 is the processor, as many as the model has (99, say) all of it.
    #[arg(long, value_name = "N", default_value = "auto", env = "LLAMA_ARG_N_GPU_LAYERS", value_parser = layers)]
    pub gpu_layers: LayersFlag,
    /// The card: an index, CUDA0, or a UUID; none is the processor.
    #[arg(long, value_name = "CARD", env = "LLAMA_ARG_DEVICE")]
    pub device: Option<String>,
    /// The same as an index.
    #[arg(long, value_name = "INDEX", env = "LLAMA_ARG_MAIN_GPU")]
    pub main_gpu: Option<u32>,
    /// Print the cards and end.
    #[arg(long)]
    pub list_devices: bool,
    /// Most bytes of the card's memory to use: makes a large card act like a small one.
    #[arg(long, value_name = "BYTES")]
    pub device_memory_limit: Option<u64>,
    /// Make an automatic context shorter until the model fits the card.
    #[arg(long, value_name = "on|off", num_args = 0..=1, require_equals = true, default_value = "on", default_missing_value = "on",
        value_parser = switch, env = "LLAMA_ARG_FIT", action = ArgAction::Set)]
    pub fit: bool,
    /// MiB of the card to leave free.
    #[arg(long, value_name = "MIB", default_value_t = 1024, env = "LLAMA_ARG_FIT_TARGET")]
    pub fit_target: u64,
    /// An automatic context is not made shorter than this to fit.
    #[arg(long, value_name = "N", default_value_t = 4096, env = "LLAMA_ARG_FIT_CTX")]
    pub fit_ctx: usize,
    /// Print what would lie where and how large it is, and end.
    #[arg(long)]
    pub plan: bool,
    /// Once the model is on the card, measure every operator of a decode step and print the table.
    #[arg(long)]
    pub profile: bool,
    /// Threads of a decode step; -1 counts the physical cores that this process may use.
    #[arg(short = 't', long, value_name = "N", default_value_t = -1, allow_negative_numbers = true, env = "LLAMA_ARG_THREADS")]
    pub threads: i32,
    /// Threads of prompt processing; --threads where it is not given.
    #[arg(long, value_name = "N", allow_negative_numbers = true)]
    pub threads_batch: Option<i32>,
    /// Tokens of context; 0 takes the model's own length.
    #[arg(short = 'c', long, value_name = "N", default_value_t = 0, env = "LLAMA_ARG_CTX_SIZE")]
    pub ctx_size: usize,
    /// Requests that run at the same time; -1 chooses, and each request may then use the whole context.
    #[arg(long, value_name = "N", default_value_t = -1, allow_negative_numbers = true, env = "LLAMA_ARG_N_PARALLEL",
        value_parser = clap::value_parser!(i32).range(-1..=4096))]
    pub parallel: i32,
    /// Let all requests share one context in place of a part each; on where --parallel is left to choose.
    #[arg(long, num_args = 0..=1, require_equals = true, default_missing_value = "true", value_parser = switch,
        env = "LLAMA_ARG_KV_UNIFIED", action = ArgAction::Set)]
    pub kv_unified: Option<bool>,
    /// Most prompt tokens that one step takes.
    #[arg(short = 'b', long, value_name = "N", default_value_t = 2048, env = "LLAMA_ARG_BATCH")]
    pub batch_size: usize,
    /// Most tokens that are computed at once.
    #[arg(long, value_name = "N", default_value_t = 512, env = "LLAMA_ARG_UBATCH")]
    pub ubatch_size: usize,
    /// Type of the stored keys.
    #[arg(long, value_name = "TYPE", value_enum, default_value = "f16", env = "LLAMA_ARG_CACHE_TYPE_K")]
    pub cache_type_k: CacheTypeFlag,
    /// Type of the stored values.
    #[arg(long, value_name = "TYPE", value_enum, default_value = "f16", env = "LLAMA_ARG_CACHE_TYPE_V")]
    pub cache_type_v: CacheTypeFlag,
    /// MiB of host memory for the states of earlier prompts; -1 is without a limit, 0 is off.
    #[arg(
        long,
        value_name = "MIB",
        default_value_t = 8192,
        allow_negative_numbers = true,
        env = "LLAMA_ARG_CACHE_RAM"
    )]
    pub cache_ram: i64,
    /// How much of a slot's text a prompt must share to be given that slot; 0 is off.
    #[arg(long, value_name = "SHARE", default_value_t = 0.1)]
    pub slot_prompt_similarity: f32,
    /// Reuse the state of earlier prompts, where a request does not say.
    #[arg(long, num_args = 0..=1, require_equals = true, default_value = "true", default_missing_value = "true",
        value_parser = switch, env = "LLAMA_ARG_CACHE_PROMPT", action = ArgAction::Set)]
    pub cache_prompt: bool,
}

/// Drafts: several tokens of a stream verified in one step.
#[derive(Debug, Clone, Args)]
#[command(next_help_heading = "Drafts")]
pub struct DraftFlags {
    /// Where drafts come from, separated by commas: draft-mtp asks the file's own next-token block, ngram-simple looks the
    /// text's last tokens up in the text before them and is asked first. auto takes the block where the file has one that
    /// the backend runs.
    #[arg(
        long,
        value_name = "TYPES",
        value_enum,
        default_value = "auto",
        env = "LLAMA_ARG_SPEC_TYPE",
        value_delimiter = ','
    )]
    pub spec_type: Vec<SpecTypeFlag>,
    /// Most tokens of a draft; where it is not given, 3 of a block and --spec-ngram-simple-size-m that were looked up. 0 is
    /// off. How many are drafted follows what is accepted and what it costs.
    #[arg(long, value_name = "N", env = "LLAMA_ARG_SPEC_DRAFT_N_MAX")]
    pub spec_draft_n_max: Option<usize>,
    /// Shorter drafts are not verified.
    #[arg(long, value_name = "N", default_value_t = 0, env = "LLAMA_ARG_SPEC_DRAFT_N_MIN")]
    pub spec_draft_n_min: usize,
    /// A token that the block holds for less likely than this ends its draft.
    #[arg(long, value_name = "P", default_value_t = 0.0, env = "LLAMA_ARG_SPEC_DRAFT_P_MIN")]
    pub spec_draft_p_min: f32,
    /// Tokens that must match, at least.
    #[arg(long, value_name = "N", default_value_t = 3, value_parser = clap::value_parser!(u16).range(1..))]
    pub spec_ngram_simple_size_n: u16,
    /// Most tokens that are taken from behind the match.
    #[arg(long, value_name = "N", default_value_t = 48)]
    pub spec_ngram_simple_size_m: usize,
}

/// Where drafts come from.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum SpecTypeFlag {
    /// The file's own block, where there is one.
    Auto,
    /// Nothing is drafted.
    None,
    /// The file's own block.
    DraftMtp,
    /// Prompt lookup.
    NgramSimple,
}

/// Defaults that a request may override.
#[derive(Debug, Clone, Args)]
#[command(next_help_heading = "Generation defaults (a request's own fields win)")]
pub struct SamplingFlags {
    /// Most tokens to generate; -1 is without a limit.
    #[arg(short = 'n', long, value_name = "N", default_value_t = -1, allow_negative_numbers = true, env = "LLAMA_ARG_N_PREDICT",
        value_parser = clap::value_parser!(i32).range(-1..))]
    pub n_predict: i32,
    /// Samplers in order, separated by ';'.
    #[arg(long, value_name = "NAMES")]
    pub samplers: Option<String>,
    /// The same as a word of letters, such as edskypmxt.
    #[arg(long, value_name = "LETTERS", conflicts_with = "samplers")]
    pub sampler_seq: Option<String>,
    /// Seed of the draws; -1 takes a new one for each request.
    #[arg(short = 's', long, value_name = "SEED", default_value_t = -1, allow_negative_numbers = true)]
    pub seed: i64,
    /// Go on past the end token.
    #[arg(long)]
    pub ignore_eos: bool,
    /// Temperature; 0 is greedy.
    #[arg(long, value_name = "T", allow_negative_numbers = true, env = "LLAMA_ARG_TEMPERATURE")]
    pub temp: Option<f32>,
    /// Keep the k best tokens; 0 is off.
    #[arg(long, value_name = "K", allow_negative_numbers = true, env = "LLAMA_ARG_TOP_K")]
    pub top_k: Option<i32>,
    /// Keep the smallest set of best tokens with this probability; 1 is off.
    #[arg(long, value_name = "P", env = "LLAMA_ARG_TOP_P")]
    pub top_p: Option<f32>,
    /// Keep tokens with this share of the best one's probability; 0 is off.
    #[arg(long, value_name = "P", env = "LLAMA_ARG_MIN_P")]
    pub min_p: Option<f32>,
    /// Keep logits within so many standard deviations of the best; negative is off.
    #[arg(long, value_name = "N", allow_negative_numbers = true)]
    pub top_n_sigma: Option<f32>,
    /// Chance of an XTC cut; 0 is off.
    #[arg(long, value_name = "P")]
    pub xtc_probability: Option<f32>,
    /// Threshold of XTC; above 0.5 is off.
    #[arg(long, value_name = "P")]
    pub xtc_threshold: Option<f32>,
    /// Locally typical sampling; 1 is off.
    #[arg(long, value_name = "P")]
    pub typical_p: Option<f32>,
    /// Tokens that the penalties look back on; 0 is off, -1 is the whole context.
    #[arg(long, value_name = "N", allow_negative_numbers = true)]
    pub repeat_last_n: Option<i32>,
    /// Penalty on repeated tokens; 1 is off.
    #[arg(long, value_name = "X", env = "LLAMA_ARG_REPEAT_PENALTY")]
    pub repeat_penalty: Option<f32>,
    /// Penalty on tokens that occurred; 0 is off.
    #[arg(long, value_name = "X", allow_negative_numbers = true, env = "LLAMA_ARG_PRESENCE_PENALTY")]
    pub presence_penalty: Option<f32>,
    /// Penalty for each occurrence; 0 is off.
    #[arg(long, value_name = "X", allow_negative_numbers = true, env = "LLAMA_ARG_FREQUENCY_PENALTY")]
    pub frequency_penalty: Option<f32>,
    /// DRY's multiplier; 0 is off.
    #[arg(long, value_name = "X")]
    pub dry_multiplier: Option<f32>,
    /// DRY's base.
    #[arg(long, value_name = "X")]
    pub dry_base: Option<f32>,
    /// Length of a repetition that DRY lets pass.
    #[arg(long, value_name = "N")]
    pub dry_allowed_length: Option<i32>,
    /// Tokens that DRY looks back on; 0 is off, -1 is the whole context.
    #[arg(long, value_name = "N", allow_negative_numbers = true)]
    pub dry_penalty_last_n: Option<i32>,
    /// A string over which DRY sees no repetition, in place of the default ones; may be given again. "none" leaves none.
    #[arg(long, value_name = "TEXT", action = ArgAction::Append)]
    pub dry_sequence_breaker: Vec<String>,
    /// Target probability of adaptive-p; negative is off.
    #[arg(long, value_name = "P", allow_negative_numbers = true)]
    pub adaptive_target: Option<f32>,
    /// Decay of adaptive-p, 0 to 0.99.
    #[arg(long, value_name = "X")]
    pub adaptive_decay: Option<f32>,
    /// Half width of the dynamic temperature; 0 is off.
    #[arg(long, value_name = "X")]
    pub dynatemp_range: Option<f32>,
    /// Exponent of the dynamic temperature.
    #[arg(long, value_name = "X")]
    pub dynatemp_exp: Option<f32>,
    /// Mirostat: 0 is off, 1 or 2.
    #[arg(long, value_name = "N")]
    pub mirostat: Option<u8>,
    /// Learning rate of Mirostat (eta).
    #[arg(long, value_name = "X")]
    pub mirostat_lr: Option<f32>,
    /// Target surprise of Mirostat (tau).
    #[arg(long, value_name = "X")]
    pub mirostat_ent: Option<f32>,
    /// A bias for a token id, such as 15043+1 or 15043-1; may be given again.
    #[arg(short = 'l', long, value_name = "ID+BIAS", action = ArgAction::Append)]
    pub logit_bias: Vec<String>,
    /// A string that ends the text; may be given again.
    #[arg(short = 'r', long, value_name = "TEXT", action = ArgAction::Append)]
    pub reverse_prompt: Vec<String>,
    /// Show control tokens as text.
    #[arg(long)]
    pub special: bool,
}

/// Chat templates.
#[derive(Debug, Clone, Args)]
#[command(next_help_heading = "Chat")]
pub struct ChatFlags {
    /// Render chats with templates in Jinja's language. `--jinja=false` (`--no-jinja`) is accepted for old scripts: the template
    /// is rendered all the same, but names of built-in templates are then the only --chat-template.
    #[arg(long, num_args = 0..=1, require_equals = true, default_value = "true", default_missing_value = "true",
        value_parser = switch, env = "LLAMA_ARG_JINJA", action = ArgAction::Set)]
    pub jinja: bool,
    /// A template's text, or the name of a built-in one, in place of the file's own.
    #[arg(long, value_name = "TEMPLATE", env = "LLAMA_ARG_CHAT_TEMPLATE")]
    pub chat_template: Option<String>,
    /// A file with a template, in place of the model's own.
    #[arg(long, value_name = "FILE", env = "LLAMA_ARG_CHAT_TEMPLATE_FILE")]
    pub chat_template_file: Option<PathBuf>,
    /// Variables for the template, as a JSON object.
    #[arg(long, value_name = "JSON", env = "LLAMA_ARG_CHAT_TEMPLATE_KWARGS")]
    pub chat_template_kwargs: Option<String>,
    /// Go on with a last message that is the assistant's, in place of opening a new one.
    #[arg(long, num_args = 0..=1, require_equals = true, default_value = "true", default_missing_value = "true",
        value_parser = switch, env = "LLAMA_ARG_PREFILL_ASSISTANT", action = ArgAction::Set)]
    pub prefill_assistant: bool,
    /// Ask the template for thinking, or for none.
    #[arg(long, value_name = "WHEN", value_enum, default_value = "auto", env = "LLAMA_ARG_REASONING")]
    pub reasoning: WhenFlag,
    /// Reasoning effort for the template; "default" leaves it to the template.
    #[arg(long, value_name = "LEVEL", default_value = "default", env = "LLAMA_ARG_REASONING_EFFORT")]
    pub reasoning_effort: String,
    /// What `confidence` is in the answer to a decision request: the margin over an even answer (as in llama.cpp), or the top
    /// probability (as in the vendor's release).
    #[arg(long, value_name = "MEANING", value_enum, default_value = "margin")]
    pub decision_confidence: ConfidenceFlag,
}

/// Meanings of `confidence`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum ConfidenceFlag {
    /// How far the answer is from an even one.
    Margin,
    /// The probability of the likeliest option.
    Top,
}

/// The HTTP side.
#[derive(Debug, Clone, Args)]
#[command(next_help_heading = "HTTP")]
pub struct HttpFlags {
    /// Addresses to listen on, separated by commas; a path that ends in .sock is a Unix socket.
    #[arg(
        long,
        value_name = "HOSTS",
        default_value = "127.0.0.1",
        env = "LLAMA_ARG_HOST",
        value_delimiter = ','
    )]
    pub host: Vec<String>,
    /// Port; 0 takes a free one and prints it.
    #[arg(long, value_name = "PORT", default_value_t = 8080, env = "LLAMA_ARG_PORT")]
    pub port: u16,
    /// Let several processes listen on the same port.
    #[arg(long, num_args = 0..=1, require_equals = true, default_value = "false", default_missing_value = "true",
        value_parser = switch, env = "LLAMA_ARG_REUSE_PORT", action = ArgAction::Set)]
    pub reuse_port: bool,
    /// A path in front of every route.
    #[arg(long, value_name = "PREFIX", default_value = "", env = "LLAMA_ARG_API_PREFIX")]
    pub api_prefix: String,
    /// Keys that clients must send (`Authorization: Bearer KEY` or `X-Api-Key: KEY`), separated by commas; may be given again.
    #[arg(long, value_name = "KEYS", env = "LLAMA_API_KEY", hide_env_values = true, value_delimiter = ',', action = ArgAction::Append)]
    pub api_key: Vec<String>,
    /// A file with one key a line; lines that begin with # are comments.
    #[arg(long, value_name = "FILE", env = "LLAMA_ARG_API_KEY_FILE")]
    pub api_key_file: Option<PathBuf>,
    /// Origins that may call from a browser, separated by commas; * is any, `localhost` any port of this machine.
    #[arg(long, value_name = "ORIGINS", default_value = "*", env = "LLAMA_ARG_CORS_ORIGINS")]
    pub cors_origins: String,
    /// Methods that a browser may use.
    #[arg(
        long,
        value_name = "METHODS",
        default_value = "GET, POST, DELETE, OPTIONS",
        env = "LLAMA_ARG_CORS_METHODS"
    )]
    pub cors_methods: String,
    /// Headers that a browser may send.
    #[arg(long, value_name = "HEADERS", default_value = "*", env = "LLAMA_ARG_CORS_HEADERS")]
    pub cors_headers: String,
    /// Let browsers send credentials.
    #[arg(long, num_args = 0..=1, require_equals = true, default_value = "true", default_missing_value = "true",
        value_parser = switch, env = "LLAMA_ARG_CORS_CREDENTIALS", action = ArgAction::Set)]
    pub cors_credentials: bool,
    /// Seconds that a client may take to send a request.
    #[arg(long, value_name = "SECONDS", default_value_t = 3600, env = "LLAMA_ARG_TIMEOUT",
        value_parser = clap::value_parser!(u64).range(1..))]
    pub timeout: u64,
    /// Seconds of silence in a stream before a comment is sent to keep it alive; -1 is off.
    #[arg(long, value_name = "SECONDS", default_value_t = 30, allow_negative_numbers = true, env = "LLAMA_ARG_SSE_PING_INTERVAL",
        value_parser = clap::value_parser!(i32).range(-1..))]
    pub sse_ping_interval: i32,
    /// Threads for HTTP; -1 chooses.
    #[arg(long, value_name = "N", default_value_t = -1, allow_negative_numbers = true, env = "LLAMA_ARG_THREADS_HTTP")]
    pub threads_http: i32,
    /// Serve /metrics.
    #[arg(long, num_args = 0..=1, require_equals = true, default_value = "false", default_missing_value = "true",
        value_parser = switch, env = "LLAMA_ARG_ENDPOINT_METRICS", action = ArgAction::Set)]
    pub metrics: bool,
    /// Accept POST /props.
    #[arg(long, num_args = 0..=1, require_equals = true, default_value = "false", default_missing_value = "true",
        value_parser = switch, env = "LLAMA_ARG_ENDPOINT_PROPS", action = ArgAction::Set)]
    pub props: bool,
    /// Serve /slots.
    #[arg(long, num_args = 0..=1, require_equals = true, default_value = "true", default_missing_value = "true",
        value_parser = switch, env = "LLAMA_ARG_ENDPOINT_SLOTS", action = ArgAction::Set)]
    pub slots: bool,
    /// Folder for the states that POST /slots saves and restores.
    #[arg(long, value_name = "FOLDER")]
    pub slot_save_path: Option<PathBuf>,
    /// Most bytes of a request.
    #[arg(long, value_name = "BYTES", default_value_t = 64 * 1024 * 1024)]
    pub max_request_size: usize,
    /// Seconds that running requests have to finish when the server is told to end.
    #[arg(long, value_name = "SECONDS", default_value_t = 10)]
    pub shutdown_grace: u64,
}

/// Logs.
#[derive(Debug, Clone, Args)]
#[command(next_help_heading = "Logs")]
pub struct LogFlags {
    /// Log everything, and add `__verbose` to answers.
    #[arg(short = 'v', long)]
    pub verbose: bool,
    /// How much to log: 1 errors, 2 warnings, 3 what happens, 4 more of it, 5 everything.
    #[arg(long, value_name = "N", default_value_t = 3, env = "LLAMA_ARG_LOG_VERBOSITY")]
    pub verbosity: u32,
    /// Log nothing.
    #[arg(long)]
    pub log_disable: bool,
    /// Log to this file.
    #[arg(long, value_name = "FILE", env = "LLAMA_ARG_LOG_FILE")]
    pub log_file: Option<PathBuf>,
    /// Log one JSON object a line.
    #[arg(long, num_args = 0..=1, require_equals = true, default_value = "false", default_missing_value = "true",
        value_parser = switch, env = "LLAMA_ARG_LOG_JSONL", action = ArgAction::Set)]
    pub log_jsonl: bool,
    /// Colours in logs.
    #[arg(long, value_name = "WHEN", value_enum, default_value = "auto", env = "LLAMA_ARG_LOG_COLORS")]
    pub log_colors: WhenFlag,
    /// The level and the origin in front of each line.
    #[arg(long, num_args = 0..=1, require_equals = true, default_value = "true", default_missing_value = "true",
        value_parser = switch, env = "LLAMA_ARG_LOG_PREFIX", action = ArgAction::Set)]
    pub log_prefix: bool,
    /// The time in front of each line.
    #[arg(long, num_args = 0..=1, require_equals = true, default_value = "true", default_missing_value = "true",
        value_parser = switch, env = "LLAMA_ARG_LOG_TIMESTAMPS", action = ArgAction::Set)]
    pub log_timestamps: bool,
}

/// Where architectures come from.
#[derive(Debug, Clone, Args)]
#[command(next_help_heading = "Seats")]
pub struct SeatFlags {
    /// Use this seat, whatever the file's architecture says.
    #[arg(long, value_name = "NAME")]
    pub seat: Option<String>,
    /// List the seats and end.
    #[arg(long)]
    pub list_seats: bool,
    /// A folder with seats, searched first; may be given again.
    #[arg(long, value_name = "FOLDER", action = ArgAction::Append)]
    pub seats_dir: Vec<PathBuf>,
    /// The plugins file.
    #[arg(long, value_name = "FILE")]
    pub plugins: Option<PathBuf>,
    /// Use seats from files and folders that others may write to.
    #[arg(long)]
    pub allow_untrusted_seats: bool,
}

/// Layers on the card.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum LayersFlag {
    /// All, where they fit.
    Auto,
    /// All.
    All,
    /// So many.
    Count(usize),
}

fn layers(word: &str) -> Result<LayersFlag, String> {
    match word {
        "auto" | "-1" => Ok(LayersFlag::Auto),
        "all" | "-2" => Ok(LayersFlag::All),
        _ => word.parse().map(LayersFlag::Count).map_err(|_| "expected auto, all or a number".to_owned()),
    }
}

/// What computes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum BackendFlag {
    /// A card where one is there and the model fits it, else the processor.
    Auto,
    /// An NVIDIA card.
    Cuda,
    /// The processor's own kernels.
    Cpu,
    /// The naive definition of every operator, in f32: slow, for checks.
    Reference,
}

/// Types of stored keys and values.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
#[value(rename_all = "snake_case")]
pub enum CacheTypeFlag {
    /// 32-bit floats.
    #[value(name = "f32")]
    F32,
    /// 16-bit floats.
    #[value(name = "f16")]
    F16,
    /// 8-bit integers in blocks of 32.
    #[value(name = "q8_0")]
    Q80,
}

/// On, off, or as the situation asks.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum WhenFlag {
    /// Always.
    On,
    /// Never.
    Off,
    /// As the situation asks.
    Auto,
}

/// llama-server's words for yes and no.
fn switch(word: &str) -> Result<bool, String> {
    match word {
        "1" | "true" | "on" | "enabled" => Ok(true),
        "0" | "false" | "off" | "disabled" => Ok(false),
        _ => Err("expected true or false".to_owned()),
    }
}
