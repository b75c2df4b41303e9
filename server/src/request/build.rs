//! Completion and chat requests: from bodies to generations and the form of their answers.

use std::time::Duration;

use bloomery_runtime::request::Generate;
use bloomery_tokenizer::Tokenizer;
use serde_json::{Map, Value};

use super::{chat, fields::Fields, known, prompt, sampling};
use crate::{
    engine::Facts,
    error::ApiError,
    settings::ServerSettings,
    template::ChatTemplate,
    wire::{
        answer::{Answering, Follower, Shape},
        completion_id,
        settings::Settings,
    },
};

/// Most answers to one prompt; they share its state, so the limit is only against mistakes.
const MAX_ANSWERS: i64 = 128;
/// Most prompts of a request.
const MAX_PROMPTS: usize = 1024;
/// Most alternatives for a token.
const MAX_PROBS: i64 = 1 << 16;

/// A request that is ready to run.
#[derive(Debug)]
pub struct Job {
    /// The generations, each with what follows it.
    pub parts: Vec<(Generate, Follower)>,
    /// The form of the answer.
    pub answering: Answering,
    /// Silence after which a stream gets a comment.
    pub ping: Option<Duration>,
}

/// Everything that turns bodies into jobs.
#[derive(Debug, Clone, Copy)]
pub struct Builder<'a> {
    /// The server's settings.
    pub settings: &'a ServerSettings,
    /// The model's facts.
    pub facts: &'a Facts,
    /// The model's tokenizer.
    pub tokenizer: &'a Tokenizer,
    /// The chat template.
    pub template: &'a ChatTemplate,
}

/// A prompt before it is tokens, with what a chat adds.
#[derive(Debug, Default)]
struct Opening {
    prompts: Vec<Vec<u32>>,
    generation_prompt: String,
    prefill: String,
    n_probs: usize,
}

impl Builder<'_> {
    /// A request for `/completion` or `/v1/completions`.
    ///
    /// # Errors
    /// What cannot be honoured, by name.
    pub fn completion(&self, body: &Map<String, Value>, shape: Shape) -> Result<Job, ApiError> {
        let fields = Fields(body);
        known::check(body)?;
        let Some(value) = fields.get("prompt") else {
            return Err(ApiError::Invalid("\"prompt\" is required".to_owned()));
        };
        let prompts = prompt::prompts(value, self.tokenizer)?;
        // OpenAI's chat field is a yes or no and may come along; here it is a count.
        let n_probs = match fields.any(&["n_probs", "logprobs"]) {
            Some(("logprobs", Value::Bool(_))) | None => 0,
            Some((name, _)) => fields.integer(&[name], 0, MAX_PROBS)?.unwrap_or(0),
        };
        let opening =
            Opening { prompts, n_probs: usize::try_from(n_probs).unwrap_or(0), ..Opening::default() };
        self.job(fields, shape, opening)
    }

    /// A request for `/v1/chat/completions`.
    ///
    /// # Errors
    /// What cannot be honoured, by name.
    pub fn chat(&self, body: &Map<String, Value>) -> Result<Job, ApiError> {
        let fields = Fields(body);
        known::check(body)?;
        let top = fields.integer(&["top_logprobs"], 0, MAX_PROBS)?;
        // The yes or no of OpenAI; a count of llama-server's own form passes as well.
        let wanted = match fields.get("logprobs") {
            Some(Value::Number(_)) => fields.integer(&["logprobs"], 0, MAX_PROBS)?.unwrap_or(0) > 0,
            _ => fields.flag("logprobs")?.unwrap_or(false),
        };
        let n_probs = if wanted {
            top.unwrap_or(20)
        } else if top.is_some() {
            return Err(ApiError::Invalid("top_logprobs requires logprobs to be set to true".to_owned()));
        } else {
            fields.integer(&["n_probs"], 0, MAX_PROBS)?.unwrap_or(0)
        };
        let rendered = chat::render(body, self.settings, self.template)?;
        let opening = Opening {
            prompts: vec![self.tokenizer.encode(&rendered.prompt, true, true)],
            generation_prompt: rendered.generation_prompt,
            prefill: rendered.prefill,
            n_probs: usize::try_from(n_probs).unwrap_or(0),
        };
        self.job(fields, Shape::Chat, opening)
    }

    fn job(&self, fields: Fields<'_>, shape: Shape, opening: Opening) -> Result<Job, ApiError> {
        let settings = self.settings;
        let mut sampling = sampling::sampling(fields, &settings.sampling, self.tokenizer)?;
        let ignore_eos = fields.flag("ignore_eos")?.unwrap_or(settings.ignore_eos);
        if ignore_eos {
            sampling::forbid_end(&mut sampling, self.tokenizer);
        }
        let limit =
            fields.integer(&["n_predict", "max_completion_tokens", "max_tokens"], -1, i64::from(i32::MAX))?;
        let n_predict = limit.map_or(settings.n_predict, |limit| usize::try_from(limit).ok());
        let n = usize::try_from(fields.integer(&["n_cmpl", "n"], 1, MAX_ANSWERS)?.unwrap_or(1)).unwrap_or(1);
        if opening.prompts.len() > MAX_PROMPTS {
            return Err(ApiError::Invalid(format!("a request may have {MAX_PROMPTS} prompts at most")));
        }
        let slot = self.slot(fields)?;
        let stream = fields.flag("stream")?.unwrap_or(false);
        let stop = self.stop(fields)?;
        let include_usage = match fields.object("stream_options")? {
            Some(options) => Fields(options).flag("include_usage")?.unwrap_or(false),
            None => false,
        };
        let post_sampling_probs = fields.flag("post_sampling_probs")?.unwrap_or(false);
        let return_progress = fields.flag("return_progress")?.unwrap_or(false) && stream;
        let timings_per_token = fields.flag("timings_per_token")?.unwrap_or(false);
        let cache_prompt = fields.flag("cache_prompt")?.unwrap_or(settings.cache_prompt);
        let budget = fields.integer(&["t_max_predict_ms"], -1, i64::MAX)?;
        let ping = match fields.integer(&["sse_ping_interval"], -1, i64::from(i32::MAX))? {
            None => settings.ping,
            Some(seconds) => u64::try_from(seconds).ok().filter(|s| *s > 0).map(Duration::from_secs),
        };
        let answering = Answering {
            shape,
            id: completion_id(),
            model: settings.name.clone(),
            settings: Settings {
                sampling: sampling.clone(),
                stop: stop.clone(),
                n_predict: n_predict.map_or(-1, |limit| limit as i64),
                ignore_eos,
                stream,
                n_probs: opening.n_probs,
                chat_format: if shape == Shape::Chat { "peg-native" } else { "Content-only" },
                reasoning_format: "none",
                generation_prompt: opening.generation_prompt,
                timings_per_token,
                post_sampling_probs,
                spec_types: settings.spec_types(self.facts.drafts),
            },
            verbose: fields.flag("verbose")?.unwrap_or(settings.verbose),
            return_tokens: fields.flag("return_tokens")?.unwrap_or(false),
            return_progress,
            include_usage,
            response_fields: fields.texts("response_fields")?.unwrap_or_default(),
        };
        let mut parts = Vec::with_capacity(opening.prompts.len() * n);
        for prompt in opening.prompts {
            if prompt.is_empty() {
                return Err(ApiError::Invalid("the prompt has no tokens".to_owned()));
            }
            if prompt.len() >= self.facts.n_ctx_slot {
                return Err(ApiError::ContextExceeded {
                    n_prompt: prompt.len(),
                    n_ctx: self.facts.n_ctx_slot,
                });
            }
            let text = String::from_utf8_lossy(&self.tokenizer.decode_text(&prompt, true)).into_owned();
            for answer in 0..n {
                let mut sampling = sampling.clone();
                sampling.seed = sampling::seed_of(sampling.seed, answer);
                let follower =
                    Follower::new(parts.len(), text.clone(), prompt.len(), opening.prefill.clone());
                let generate = Generate {
                    prompt: prompt.clone(),
                    sampling,
                    n_predict,
                    stop: stop.clone(),
                    ignore_eos,
                    cache_prompt,
                    slot: if answer == 0 { slot } else { None },
                    n_probs: opening.n_probs,
                    post_sampling_probs,
                    // Times in chunks need to know what came from a cache.
                    return_progress: return_progress || (timings_per_token && stream),
                    render_special: settings.special,
                    t_max_predict_ms: budget.and_then(|ms| u64::try_from(ms).ok()).filter(|ms| *ms > 0),
                };
                parts.push((generate, follower));
            }
        }
        Ok(Job { parts, answering, ping })
    }

    fn slot(&self, fields: Fields<'_>) -> Result<Option<usize>, ApiError> {
        let Some(id) = fields.integer(&["id_slot"], i64::MIN, i64::MAX)? else { return Ok(None) };
        match usize::try_from(id) {
            Ok(id) if id < self.facts.n_slots => Ok(Some(id)),
            Ok(_) => Err(ApiError::field("id_slot", format_args!("there are {} slots", self.facts.n_slots))),
            Err(_) => Ok(None),
        }
    }

    fn stop(&self, fields: Fields<'_>) -> Result<Vec<String>, ApiError> {
        let stop = match fields.get("stop") {
            None => Vec::new(),
            Some(Value::String(text)) => vec![text.clone()],
            Some(_) => fields
                .texts("stop")
                .map_err(|_| ApiError::field("stop", "must be a string or an array of strings"))?
                .unwrap_or_default(),
        };
        let stop: Vec<String> = stop.into_iter().filter(|text| !text.is_empty()).collect();
        Ok(if stop.is_empty() { self.settings.stop.clone() } else { stop })
    }
}
