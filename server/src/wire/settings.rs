//! `generation_settings` and the `params` of slots and properties.

use bloomery_sampler::SamplingParams;
use serde_json::{Map, Value, json};

use super::float;

/// Everything that a settings object shows beside the sampler's own fields.
#[derive(Debug, Clone, PartialEq)]
pub struct Settings {
    /// The sampler's settings.
    pub sampling: SamplingParams,
    /// Stop strings.
    pub stop: Vec<String>,
    /// Most tokens; -1 without limit.
    pub n_predict: i64,
    /// Go on past the end token.
    pub ignore_eos: bool,
    /// The answer is streamed.
    pub stream: bool,
    /// Alternatives reported for each token.
    pub n_probs: usize,
    /// `Content-only`, or `peg-native` for a chat.
    pub chat_format: &'static str,
    /// Always `none` where nothing is taken out of the text.
    pub reasoning_format: &'static str,
    /// What the template opens the answer with.
    pub generation_prompt: String,
    /// Timings in every chunk.
    pub timings_per_token: bool,
    /// Probabilities after the chain.
    pub post_sampling_probs: bool,
    /// Where drafts come from.
    pub spec_types: String,
}

impl Settings {
    /// Those of a server that nobody has asked anything yet.
    #[must_use]
    pub fn of_defaults(sampling: SamplingParams) -> Self {
        Self {
            sampling,
            stop: Vec::new(),
            n_predict: -1,
            ignore_eos: false,
            stream: false,
            n_probs: 0,
            chat_format: "Content-only",
            reasoning_format: "none",
            generation_prompt: String::new(),
            timings_per_token: false,
            post_sampling_probs: false,
            spec_types: "none".to_owned(),
        }
    }

    /// The JSON object; the short form leaves out lists that can be long and is used by slots and properties.
    #[must_use]
    pub fn to_json(&self, short: bool) -> Value {
        let s = &self.sampling;
        let mut map = Map::new();
        let mut put = |key: &str, value: Value| {
            map.insert(key.to_owned(), value);
        };
        put("seed", json!(s.seed));
        put("temperature", float(s.temperature));
        put("dynatemp_range", float(s.dynatemp_range));
        put("dynatemp_exponent", float(s.dynatemp_exponent));
        put("top_k", json!(s.top_k));
        put("top_p", float(s.top_p));
        put("min_p", float(s.min_p));
        put("top_n_sigma", float(s.top_n_sigma));
        put("xtc_probability", float(s.xtc_probability));
        put("xtc_threshold", float(s.xtc_threshold));
        put("typical_p", float(s.typical_p));
        put("repeat_last_n", json!(s.repeat_last_n));
        put("repeat_penalty", float(s.repeat_penalty));
        put("presence_penalty", float(s.presence_penalty));
        put("frequency_penalty", float(s.frequency_penalty));
        put("dry_multiplier", float(s.dry_multiplier));
        put("dry_base", float(s.dry_base));
        put("dry_allowed_length", json!(s.dry_allowed_length));
        put("dry_penalty_last_n", json!(s.dry_penalty_last_n));
        if !short {
            put("dry_sequence_breakers", json!(s.dry_sequence_breakers));
        }
        put("mirostat", json!(s.mirostat));
        put("mirostat_tau", float(s.mirostat_tau));
        put("mirostat_eta", float(s.mirostat_eta));
        put("adaptive_target", float(s.adaptive_target));
        put("adaptive_decay", float(s.adaptive_decay));
        if !short {
            put("stop", json!(self.stop));
        }
        put("max_tokens", json!(self.n_predict));
        put("n_predict", json!(self.n_predict));
        put("n_keep", json!(0));
        put("n_discard", json!(0));
        put("ignore_eos", json!(self.ignore_eos));
        put("stream", json!(self.stream));
        if !short {
            // A bias of minus infinity becomes null.
            let bias = s.logit_bias.iter().map(|&(token, bias)| json!({"bias": float(bias), "token": token}));
            put("logit_bias", bias.collect());
        }
        put("n_probs", json!(self.n_probs));
        put("min_keep", json!(s.min_keep));
        if !short {
            put("grammar", json!(""));
            put("grammar_lazy", json!(false));
            put("grammar_triggers", json!([]));
            put("preserved_tokens", json!([]));
        }
        put("chat_format", json!(self.chat_format));
        put("reasoning_format", json!(self.reasoning_format));
        put("reasoning_in_content", json!(false));
        put("generation_prompt", json!(self.generation_prompt));
        put("samplers", s.samplers.iter().map(|sampler| sampler.name()).collect());
        put("speculative.types", json!(self.spec_types));
        put("timings_per_token", json!(self.timings_per_token));
        put("post_sampling_probs", json!(self.post_sampling_probs));
        put("backend_sampling", json!(false));
        put("lora", json!([]));
        Value::Object(map)
    }
}
