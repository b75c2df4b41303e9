//! From a file to a model that an engine can run: header, seat, program, tokenizer, plan, weights, executor.

mod backend;
mod describe;
mod facts;
mod load;
mod memory;
mod options;
mod plan;

use std::sync::Arc;

use bloomery_gguf::{GgufError, GgufFile, TensorInfo, optional};
use bloomery_program::{Op, Program};
use bloomery_seat_host::{Checked, SeatError};
use bloomery_tokenizer::{Tokenizer, Vocabulary as TokenizerVocabularyKeys};

use crate::{
    cpu::{self, CpuError, CpuExecutor, CpuOptions},
    cuda::{CudaError, CudaExecutor},
    engine::{Engine, EngineSettings, TokenizerVocabulary},
    executor::Executor,
    reference::{self, ReferenceExecutor, ReferenceSettings},
};

use backend::{Chosen, ChosenCard};

pub use describe::ModelFacts;
pub use facts::model_facts;
pub use load::LoadProgress;
pub use options::{Backend, CacheType, CardLayers, CardWishes, OpenOptions};
pub use plan::{Plan, Term};

/// A model that is ready to run.
pub struct Model {
    facts: ModelFacts,
    tokenizer: Arc<Tokenizer>,
    program: Program,
    plan: Plan,
    on_card: bool,
    executor: Box<dyn Executor>,
    settings: EngineSettings,
}

/// Why a model could not be opened.
#[derive(Debug, thiserror::Error)]
pub enum OpenError {
    /// The file.
    #[error(transparent)]
    Gguf(#[from] GgufError),
    /// No seat, or it did not give a program.
    #[error("{}", .0.with_hint())]
    Seat(#[from] SeatError),
    /// A tokenizer key has the wrong type.
    #[error(transparent)]
    TokenizerKey(#[from] bloomery_tokenizer::MetadataError),
    /// The vocabulary.
    #[error("tokenizer: {0}")]
    Tokenizer(#[from] bloomery_tokenizer::Error),
    /// It does not fit.
    #[error("the model does not fit into memory\n{plan}\n{advice}")]
    DoesNotFit {
        /// Every term.
        plan: Box<Plan>,
        /// What would do.
        advice: &'static str,
    },
    /// The cpu backend.
    #[error(transparent)]
    Cpu(#[from] CpuError),
    /// The cuda backend.
    #[error(transparent)]
    Cuda(#[from] CudaError),
    /// The reference backend.
    #[error(transparent)]
    Reference(#[from] bloomery_reference::ReferenceError),
    /// Options that cannot be honoured.
    #[error("{option}: {why}")]
    Option {
        /// The flag.
        option: &'static str,
        /// What is wrong with it.
        why: String,
    },
}

impl Model {
    /// Opens a model: asks a seat for its program, checks and plans it, reads its weights ahead (`progress` hears how far
    /// that is) and builds the executor. Nothing is allocated before the plan fits.
    ///
    /// # Errors
    /// See [`OpenError`].
    pub fn open(options: &OpenOptions, progress: &mut dyn FnMut(LoadProgress)) -> Result<Self, OpenError> {
        let opened = Opened::new(options)?;
        let seats = options.seats();
        let seat = seats.choose(&opened.facts.arch, options.seat.as_deref())?;
        let checked = seat.declare(&opened.facts)?;
        opened.build(options, &seat.info.name, checked, progress)
    }

    /// As [`open`](Self::open), with a program that the caller has already got and checked.
    ///
    /// # Errors
    /// See [`OpenError`].
    pub fn open_declared(
        options: &OpenOptions,
        checked: Checked,
        progress: &mut dyn FnMut(LoadProgress),
    ) -> Result<Self, OpenError> {
        let seat = checked.program.seat.clone();
        Opened::new(options)?.build(options, &seat, checked, progress)
    }

    /// What [`open`](Self::open) would take, without loading anything.
    ///
    /// # Errors
    /// See [`OpenError`]; a plan that does not fit is no error here.
    pub fn plan_of(options: &OpenOptions) -> Result<Plan, OpenError> {
        let opened = Opened::new(options)?;
        let seats = options.seats();
        let checked = seats.choose(&opened.facts.arch, options.seat.as_deref())?.declare(&opened.facts)?;
        Ok(opened.choose(options, &checked.program)?.plan().clone())
    }

    /// What is worth telling of it.
    #[must_use]
    pub fn facts(&self) -> &ModelFacts {
        &self.facts
    }

    /// Its tokenizer.
    #[must_use]
    pub fn tokenizer(&self) -> &Arc<Tokenizer> {
        &self.tokenizer
    }

    /// Its program.
    #[must_use]
    pub fn program(&self) -> &Program {
        &self.program
    }

    /// Its memory, term by term.
    #[must_use]
    pub fn plan(&self) -> &Plan {
        &self.plan
    }

    /// A card computes, not the processor.
    #[must_use]
    pub fn is_on_card(&self) -> bool {
        self.on_card
    }

    /// Its own next-token block drafts.
    #[must_use]
    pub fn drafts(&self) -> bool {
        self.executor.drafts() && self.settings.draft.model != Some(false)
    }

    /// The bare executor, for measurements without an engine.
    #[must_use]
    pub fn into_executor(self) -> Box<dyn Executor> {
        self.executor
    }
}

impl std::fmt::Debug for Model {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Model").field("facts", &self.facts).field("plan", &self.plan).finish_non_exhaustive()
    }
}

impl Engine {
    /// Starts an engine over a model.
    ///
    /// # Errors
    /// The system gives no thread.
    pub fn start(model: Model) -> std::io::Result<Self> {
        let hints = &model.program.chat.stop_tokens;
        let vocabulary = TokenizerVocabulary::new(model.tokenizer, hints);
        Self::start_with(model.executor, Arc::new(vocabulary), model.settings)
    }
}

/// A file whose header has been read.
struct Opened {
    file: Arc<GgufFile>,
    facts: bloomery_program::ModelFacts,
    tokenizer: Arc<Tokenizer>,
}

impl Opened {
    fn new(options: &OpenOptions) -> Result<Self, OpenError> {
        check(options)?;
        let file = Arc::new(GgufFile::open(&options.model)?);
        let facts = model_facts(&file)?;
        let keys = TokenizerVocabularyKeys::from_metadata(&facts::TokenizerKeys(file.metadata()))?;
        let tokenizer = Arc::new(Tokenizer::new(keys)?);
        Ok(Self { file, facts, tokenizer })
    }

    /// A number under the architecture's own prefix.
    fn number(&self, key: &str) -> Result<usize, GgufError> {
        let key = format!("{}.{key}", self.facts.arch);
        Ok(optional(self.file.metadata().u64(&key))?
            .and_then(|value| usize::try_from(value).ok())
            .unwrap_or(0))
    }

    fn choose(&self, options: &OpenOptions, program: &Program) -> Result<Chosen, OpenError> {
        let model = plan::Model {
            program,
            weight_bytes: self.file.weight_bytes(),
            n_vocab: self.tokenizer.len(),
            n_ctx_train: self.number("context_length").unwrap_or(0),
        };
        let n_layers = self.number("block_count").unwrap_or(0);
        Chosen::new(&model, &self.file, n_layers, options, memory::limit())
    }

    fn build(
        self,
        options: &OpenOptions,
        seat: &str,
        checked: Checked,
        progress: &mut dyn FnMut(LoadProgress),
    ) -> Result<Model, OpenError> {
        let chosen = self.choose(options, &checked.program)?;
        let plan = chosen.plan().clone();
        let advice = match &chosen {
            Chosen::Card(_) => {
                "--backend cpu runs it in host memory; a shorter --ctx-size or a smaller quantisation may fit"
            }
            _ => "a shorter --ctx-size or a smaller quantisation may fit",
        };
        if !plan.fits() {
            return Err(OpenError::DoesNotFit { plan: Box::new(plan), advice });
        }
        tracing::info!(seat, "{plan}");
        checked.program.notes.iter().for_each(|note| tracing::info!(seat, "{note}"));
        if !checked.summary.unread.is_empty() {
            tracing::info!(n = checked.summary.unread.len(), first = ?checked.summary.unread.first(), "tensors that nothing reads");
        }
        if checked
            .program
            .graphs
            .iter()
            .flat_map(|graph| &graph.nodes)
            .any(|node| matches!(node.op, Op::Custom { .. }))
        {
            tracing::info!("the program brings operators of its own");
        }
        let on_card = matches!(chosen, Chosen::Card(_));
        // Missing kernels are named before a byte is read.
        let executor = self.executor(options, &checked.program, chosen, progress)?;
        if options.draft.model == Some(true) && !executor.drafts() {
            let why = "the model has no next-token block that this backend runs".into();
            return Err(OpenError::Option { option: "--spec-type draft-mtp", why });
        }
        if options.read_ahead && !on_card {
            let wanted =
                |tensor: &&TensorInfo| !checked.summary.unread.iter().any(|unread| unread == tensor.name());
            let tensors: Vec<&TensorInfo> = self.file.tensors().iter().filter(wanted).collect();
            load::read_ahead(&self.file, &tensors, progress);
        }
        let settings = EngineSettings {
            n_slots: plan.n_slots,
            n_ctx_slot: plan.n_ctx_slot,
            n_batch: options.n_batch,
            decode_gap: options.decode_gap,
            cache_ram: usize::try_from(options.cache_ram_mib).ok().map(|mib| mib.saturating_mul(1 << 20)),
            slot_prompt_similarity: options.slot_prompt_similarity,
            draft: options.draft.clone(),
            model_fingerprint: describe::fingerprint(&self.file),
            ..EngineSettings::default()
        };
        let facts = self.describe(options, seat, &checked.program, &plan)?;
        Ok(Model {
            facts,
            tokenizer: self.tokenizer,
            program: checked.program,
            plan,
            on_card,
            executor,
            settings,
        })
    }

    fn executor(
        &self,
        options: &OpenOptions,
        program: &Program,
        chosen: Chosen,
        progress: &mut dyn FnMut(LoadProgress),
    ) -> Result<Box<dyn Executor>, OpenError> {
        let max_rows = options.n_ubatch;
        match chosen {
            Chosen::Card(chosen) => {
                let ChosenCard { card, prepared, options: cuda, .. } = *chosen;
                let mut executor =
                    CudaExecutor::new(prepared, self.file.clone(), Box::new(card), &cuda, progress)?;
                if options.card.profile {
                    tracing::info!("\n{}", executor.profile()?);
                }
                Ok(Box::new(executor))
            }
            Chosen::Cpu(plan) => {
                let options = CpuOptions {
                    threads: options.threads,
                    max_rows,
                    max_tokens: plan.n_ctx_slot,
                    store_tokens: plan.store_tokens(),
                    cache_key: cpu_cache(options.cache_type_k),
                    cache_value: cpu_cache(options.cache_type_v),
                    // Only by name: where steps are short it was measured to lose.
                    draft: options.draft.model == Some(true),
                    ..CpuOptions::default()
                };
                Ok(Box::new(CpuExecutor::new(program, self.file.clone(), &options)?))
            }
            Chosen::Reference(plan) => {
                let cache = match options.cache_type_k {
                    CacheType::F32 => reference::CacheType::F32,
                    CacheType::F16 => reference::CacheType::F16,
                    CacheType::Q8_0 => {
                        let why = "--backend reference stores f32 or f16".into();
                        return Err(OpenError::Option { option: "--cache-type-k", why });
                    }
                };
                if options.cache_type_v != options.cache_type_k {
                    let why = "--backend reference stores keys and values alike".into();
                    return Err(OpenError::Option { option: "--cache-type-v", why });
                }
                let settings = ReferenceSettings {
                    max_rows,
                    max_tokens: plan.n_ctx_slot,
                    total_tokens: plan.store_tokens(),
                    cache,
                    draft: options.draft.model != Some(false),
                };
                Ok(Box::new(ReferenceExecutor::new(
                    self.file.clone(),
                    &self.facts,
                    program.clone(),
                    settings,
                )?))
            }
        }
    }
}

/// The kernels' word for a storage type.
fn cpu_cache(cache_type: CacheType) -> cpu::CacheType {
    match cache_type {
        CacheType::F32 => cpu::CacheType::F32,
        CacheType::F16 => cpu::CacheType::F16,
        CacheType::Q8_0 => cpu::CacheType::Q8_0,
    }
}

/// llama.cpp's limit, so that a number that works there works here.
const MOST_SLOTS: usize = 256;

fn check(options: &OpenOptions) -> Result<(), OpenError> {
    let refuse = |option, why: &str| Err(OpenError::Option { option, why: why.to_owned() });
    if options.n_slots.is_some_and(|n_slots| !(1..=MOST_SLOTS).contains(&n_slots)) {
        return refuse("--parallel", "there can be 1 to 256 slots");
    }
    if options.n_batch == 0 || options.n_ubatch == 0 {
        return refuse("--ubatch-size", "batches must have at least one row");
    }
    if options.threads_batch.is_some() && options.threads_batch != options.threads {
        return refuse("--threads-batch", "prompts and generation share one set of threads; set --threads");
    }
    if !(0.0..=1.0).contains(&options.slot_prompt_similarity) {
        return refuse("--slot-prompt-similarity", "it must be within 0 and 1");
    }
    Ok(())
}
