//! From flags to a served model: fetch it where it is named by a repository, open it, start its engine, compile its template.

use std::{path::PathBuf, sync::Arc};

use bloomery_hub::{Hub, HubError, HubOptions, ModelReference};
use bloomery_runtime::{
    Backend, CacheType, CardLayers, CardWishes, DraftSettings, Engine, Model, ModelFacts, OpenError,
    OpenOptions,
};
use bloomery_tokenizer::Tokenizer;

use crate::{
    engine::{Facts, Served},
    flags::{BackendFlag, CacheTypeFlag, DraftFlags, EngineFlags, Flags, LayersFlag, SpecTypeFlag},
    http::Ready,
    progress::Progress,
    seats,
    settings::ServerSettings,
    template::{CHATML, ChatTemplate, Clock, DecisionTemplate, TemplateError},
};

/// Why there is no model to serve.
#[derive(Debug, thiserror::Error)]
pub enum LoadError {
    /// No flag names one.
    #[error("no model is named: use -m FILE or -hf USER/MODEL[:QUANT]")]
    NoModel,
    /// A flag cannot be honoured.
    #[error("{flag}: {problem}")]
    Flag {
        /// The flag.
        flag: &'static str,
        /// What is wrong.
        problem: String,
    },
    /// It could not be fetched.
    #[error(transparent)]
    Hub(#[from] HubError),
    /// It could not be opened.
    #[error(transparent)]
    Open(Box<OpenError>),
    /// The system gives no thread.
    #[error("the engine's thread could not be started: {0}")]
    Thread(std::io::Error),
    /// The template that a flag names.
    #[error(transparent)]
    Template(#[from] TemplateError),
}

impl From<OpenError> for LoadError {
    fn from(error: OpenError) -> Self {
        Self::Open(Box::new(error))
    }
}

/// The file to open, fetched if need be.
///
/// # Errors
/// See [`LoadError`].
pub fn model_file(flags: &Flags, progress: &Progress) -> Result<PathBuf, LoadError> {
    let model = &flags.model;
    match (&model.model, &model.hf_repo) {
        (Some(path), None) => Ok(path.clone()),
        (None, None) => Err(LoadError::NoModel),
        (Some(_), Some(_)) => Err(LoadError::Flag {
            flag: "--model",
            problem: "names one model and --hf-repo another; give one of them".to_owned(),
        }),
        (None, Some(repo)) => {
            let mut options = HubOptions::from_environment()?;
            options.offline |= model.offline;
            if model.hf_token.is_some() {
                options.token.clone_from(&model.hf_token);
            }
            let reference = ModelReference::parse(repo)?;
            let fetched =
                Hub::new(options)?.fetch(&reference, model.hf_file.as_deref(), &mut progress.fetching())?;
            Ok(fetched.path)
        }
    }
}

/// What the runtime is asked for.
///
/// # Errors
/// A number that means nothing.
pub fn open_options(flags: &Flags, model: PathBuf) -> Result<OpenOptions, LoadError> {
    let engine = &flags.engine;
    let threads = |flag: &'static str, n: i32| match usize::try_from(n) {
        Ok(0) => Err(LoadError::Flag { flag, problem: "0 threads cannot compute; -1 chooses".to_owned() }),
        Ok(n) => Ok(Some(n)),
        Err(_) => Ok(None),
    };
    let cache_type = |flag: CacheTypeFlag| match flag {
        CacheTypeFlag::F32 => CacheType::F32,
        CacheTypeFlag::F16 => CacheType::F16,
        CacheTypeFlag::Q80 => CacheType::Q8_0,
    };
    let n_slots = match usize::try_from(engine.parallel) {
        Ok(0) => {
            return Err(LoadError::Flag {
                flag: "--parallel",
                problem: "0 requests cannot run; -1 chooses".to_owned(),
            });
        }
        Ok(n) => Some(n),
        Err(_) => None,
    };
    let named = [("--batch-size", engine.batch_size), ("--ubatch-size", engine.ubatch_size)];
    if let Some((flag, _)) = named.into_iter().find(|(_, n)| *n == 0) {
        return Err(LoadError::Flag { flag, problem: "must be above 0".to_owned() });
    }
    Ok(OpenOptions {
        seat: flags.seats.seat.clone(),
        seat_options: seats::options(&flags.seats),
        n_ctx: engine.ctx_size,
        n_slots,
        kv_unified: engine.kv_unified,
        n_batch: engine.batch_size,
        n_ubatch: engine.ubatch_size.min(engine.batch_size),
        threads: threads("--threads", engine.threads)?,
        threads_batch: engine.threads_batch.map_or(Ok(None), |n| threads("--threads-batch", n))?,
        backend: match engine.backend {
            BackendFlag::Auto => Backend::Auto,
            BackendFlag::Cuda => Backend::Cuda,
            BackendFlag::Cpu => Backend::Cpu,
            BackendFlag::Reference => Backend::Reference,
        },
        card: card_wishes(engine)?,
        cache_type_k: cache_type(engine.cache_type_k),
        cache_type_v: cache_type(engine.cache_type_v),
        cache_ram_mib: engine.cache_ram,
        slot_prompt_similarity: engine.slot_prompt_similarity,
        draft: drafts(&flags.draft),
        ..OpenOptions::new(model)
    })
}

/// Where drafts come from.
fn drafts(flags: &DraftFlags) -> DraftSettings {
    let lookup = flags.spec_type.contains(&SpecTypeFlag::NgramSimple);
    let model = match flags.spec_type.as_slice() {
        [SpecTypeFlag::Auto] => None,
        types => Some(types.contains(&SpecTypeFlag::DraftMtp)),
    };
    // llama-server's default.
    let n_model = flags.spec_draft_n_max.unwrap_or(3);
    DraftSettings {
        lookup: lookup.then_some(flags.spec_ngram_simple_size_n.into()),
        n_max: flags.spec_draft_n_max.unwrap_or(usize::MAX).min(flags.spec_ngram_simple_size_m),
        n_min: flags.spec_draft_n_min,
        model,
        n_model,
        p_min: flags.spec_draft_p_min,
        ..DraftSettings::default()
    }
}

/// What is wished of a card.
fn card_wishes(engine: &EngineFlags) -> Result<CardWishes, LoadError> {
    let device = match (&engine.device, engine.main_gpu) {
        (Some(name), _) if name.contains(',') => {
            return Err(LoadError::Flag {
                flag: "--device",
                problem: format!("{name} names several cards; a model runs on one of them yet"),
            });
        }
        (Some(name), Some(index)) => {
            return Err(LoadError::Flag {
                flag: "--main-gpu",
                problem: format!("{index} beside --device {name}: both name the card; give one of them"),
            });
        }
        (Some(name), None) => Some(name.clone()),
        (None, Some(index)) => Some(index.to_string()),
        (None, None) => None,
    };
    let layers = match engine.gpu_layers {
        LayersFlag::Auto => CardLayers::Auto,
        LayersFlag::All => CardLayers::All,
        LayersFlag::Count(n) => CardLayers::Count(n),
    };
    Ok(CardWishes {
        device,
        layers,
        memory_limit: engine.device_memory_limit,
        fit: engine.fit,
        fit_ctx: engine.fit_ctx,
        margin: engine.fit_target.saturating_mul(1 << 20),
        profile: engine.profile,
    })
}

/// Opens the model and starts its engine.
///
/// # Errors
/// See [`LoadError`].
pub fn load(flags: &Flags, settings: &ServerSettings, progress: &Progress) -> Result<Ready, LoadError> {
    let path = model_file(flags, progress)?;
    let model = Model::open(&open_options(flags, path)?, &mut progress.reading())?;
    progress.done();
    let mut facts = facts(model.facts());
    facts.drafts = model.drafts();
    let tokenizer = Arc::clone(model.tokenizer());
    let template = template(settings, &facts, &tokenizer)?;
    let decision = decision_template(&facts)?;
    let engine = Engine::start(model).map_err(LoadError::Thread)?;
    let served = Served { engine: Arc::new(engine), tokenizer, facts: Arc::new(facts) };
    Ok(Ready { served, template, decision })
}

/// The template of a flag, else the file's, else ChatML. One of the file's that does not parse is no reason not to serve: every
/// route but chat works.
fn template(
    settings: &ServerSettings,
    facts: &Facts,
    tokenizer: &Tokenizer,
) -> Result<ChatTemplate, TemplateError> {
    let strip = (tokenizer.add_bos(), tokenizer.add_eos());
    let compile =
        |source: &str| ChatTemplate::new(source, &facts.bos_text, &facts.eos_text, strip, Clock::SYSTEM);
    if let Some(source) = &settings.template {
        return compile(source);
    }
    match &facts.chat_template {
        Some(source) => compile(source).or_else(|error| {
            tracing::warn!("{error}; chats are rendered as ChatML, which this model may not know");
            compile(CHATML)
        }),
        None => {
            tracing::warn!(
                "the file has no chat template; chats are rendered as ChatML, which this model may not know"
            );
            compile(CHATML)
        }
    }
}

/// The file's template of decision requests, where the model takes any.
fn decision_template(facts: &Facts) -> Result<Option<DecisionTemplate>, TemplateError> {
    let source = facts.decision_template.as_ref().filter(|_| facts.decides);
    if facts.decides && source.is_none() {
        tracing::warn!("the file has no template of decision requests (tokenizer.chat_template.systemone)");
    }
    source.map(|source| DecisionTemplate::new(source, Clock::SYSTEM)).transpose()
}

fn facts(model: &ModelFacts) -> Facts {
    Facts {
        path: model.path.to_string_lossy().into_owned(),
        file_type: model.file_type.clone(),
        vocab_type: match model.tokenizer_model.as_str() {
            "llama" => 1,
            "gpt2" | "gemma4" => 2,
            "bert" => 3,
            "t5" => 4,
            _ => 0,
        },
        n_vocab: model.n_vocab,
        drafts: false,
        n_ctx_slot: model.n_ctx_slot,
        n_ctx_train: model.n_ctx_train,
        n_embd: model.n_embd,
        n_params: model.n_params,
        size_bytes: model.size_bytes,
        n_slots: model.n_slots,
        chat_template: model.chat_template.clone(),
        decision_template: model.decision_template.clone(),
        decides: model.decides,
        bos_text: model.bos_text.clone(),
        eos_text: model.eos_text.clone(),
    }
}
