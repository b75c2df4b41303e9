//! What the flags come to: everything that routes look up, checked once at start.

use std::{collections::BTreeSet, path::PathBuf, time::Duration};

use bloomery_sampler::{SamplerKind, SamplingParams};
use serde_json::{Map, Value};

use crate::{
    flags::{ConfidenceFlag, Flags, SamplingFlags, SpecTypeFlag, WhenFlag},
    http::{Cors, Keys},
    wire::decide::Confidence,
};

/// A flag whose value cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum SettingsError {
    /// The value does not do.
    #[error("{flag}: {problem}")]
    Value {
        /// The flag.
        flag: &'static str,
        /// What is wrong.
        problem: String,
    },
    /// A file that a flag names cannot be read.
    #[error("{flag}: cannot read {}: {source}", path.display())]
    File {
        /// The flag.
        flag: &'static str,
        /// The file.
        path: PathBuf,
        /// Why.
        source: std::io::Error,
    },
}

/// The server's settings.
#[derive(Debug, Clone)]
#[expect(clippy::struct_excessive_bools, reason = "switches of the command line")]
pub struct ServerSettings {
    /// The model's id on the wire.
    pub name: String,
    /// All its names.
    pub aliases: Vec<String>,
    /// Its tags.
    pub tags: Vec<String>,
    /// Defaults of the sampler.
    pub sampling: SamplingParams,
    /// Default limit of generated tokens.
    pub n_predict: Option<usize>,
    /// Default stop strings.
    pub stop: Vec<String>,
    /// Go on past the end token unless a request says otherwise.
    pub ignore_eos: bool,
    /// Show control tokens.
    pub special: bool,
    /// Where drafts come from.
    pub spec_types: String,
    /// Reuse states unless a request says otherwise.
    pub cache_prompt: bool,
    /// Go on with a last message of the assistant's.
    pub prefill_assistant: bool,
    /// Ask templates for thoughts.
    pub enable_thinking: bool,
    /// Variables of the template.
    pub template_variables: Map<String, Value>,
    /// The template that flags name: its text.
    pub template: Option<String>,
    /// What the confidence of a decision is.
    pub confidence: Confidence,
    /// `__verbose` in every answer.
    pub verbose: bool,
    /// Silence after which a stream gets a comment.
    pub ping: Option<Duration>,
    /// Time that a request's body may take.
    pub timeout: Duration,
    /// Most bytes of a body.
    pub max_request_size: usize,
    /// `/metrics` is served.
    pub metrics: bool,
    /// POST /props is accepted.
    pub props: bool,
    /// `/slots` is served.
    pub slots: bool,
    /// Folder of saved slots.
    pub slot_save_path: Option<PathBuf>,
    /// In front of every route.
    pub prefix: String,
    /// Keys.
    pub keys: Keys,
    /// Cross-origin rules.
    pub cors: Cors,
}

fn spec_types(flags: &Flags) -> String {
    // What auto comes to is known once the model is read: `ServerSettings::spec_types`.
    let named = flags.draft.spec_type.iter().filter(|kind| **kind != SpecTypeFlag::Auto);
    let names = named.filter_map(clap::ValueEnum::to_possible_value);
    let names: Vec<String> = names.map(|name| name.get_name().to_owned()).collect();
    if names.is_empty() { "none".to_owned() } else { names.join(",") }
}

impl ServerSettings {
    /// Where drafts come from, `auto` resolved: `model_drafts` says that the model's own block does.
    #[must_use]
    pub fn spec_types(&self, model_drafts: bool) -> String {
        const BLOCK: &str = "draft-mtp";
        match (model_drafts, self.spec_types.as_str()) {
            (true, "none") => BLOCK.to_owned(),
            (true, named) if !named.split(',').any(|name| name == BLOCK) => format!("{BLOCK},{named}"),
            (_, named) => named.to_owned(),
        }
    }

    /// From flags.
    ///
    /// # Errors
    /// The first flag whose value cannot be used.
    pub fn of(flags: &Flags) -> Result<Self, SettingsError> {
        let names: BTreeSet<String> = flags
            .model
            .alias
            .iter()
            .map(|name| name.trim().to_owned())
            .filter(|name| !name.is_empty())
            .collect();
        let mut aliases: Vec<String> = names.into_iter().collect();
        if aliases.is_empty() {
            let own = flags
                .model
                .hf_repo
                .clone()
                .or_else(|| flags.model.model.as_ref().map(|path| path.to_string_lossy().into_owned()));
            aliases.push(own.unwrap_or_default());
        }
        let tags: BTreeSet<String> =
            flags.model.tags.iter().map(|tag| tag.trim().to_owned()).filter(|tag| !tag.is_empty()).collect();
        let sampling = sampling(&flags.sampling)?;
        Ok(Self {
            name: aliases[0].clone(),
            aliases,
            tags: tags.into_iter().collect(),
            n_predict: usize::try_from(flags.sampling.n_predict).ok(),
            stop: flags.sampling.reverse_prompt.clone(),
            ignore_eos: flags.sampling.ignore_eos,
            special: flags.sampling.special,
            sampling,
            spec_types: spec_types(flags),
            cache_prompt: flags.engine.cache_prompt,
            prefill_assistant: flags.chat.prefill_assistant,
            enable_thinking: flags.chat.reasoning != WhenFlag::Off,
            template_variables: template_variables(flags)?,
            template: template(flags)?,
            confidence: match flags.chat.decision_confidence {
                ConfidenceFlag::Margin => Confidence::Margin,
                ConfidenceFlag::Top => Confidence::Top,
            },
            verbose: flags.log.verbose,
            ping: u64::try_from(flags.http.sse_ping_interval)
                .ok()
                .filter(|s| *s > 0)
                .map(Duration::from_secs),
            timeout: Duration::from_secs(flags.http.timeout),
            max_request_size: flags.http.max_request_size,
            metrics: flags.http.metrics,
            props: flags.http.props,
            slots: flags.http.slots,
            slot_save_path: flags.http.slot_save_path.clone(),
            prefix: prefix(&flags.http.api_prefix)?,
            keys: keys(flags)?,
            cors: Cors::new(
                &flags.http.cors_origins,
                &flags.http.cors_methods,
                &flags.http.cors_headers,
                flags.http.cors_credentials,
            )
            .map_err(|problem| SettingsError::Value { flag: "--cors-*", problem })?,
        })
    }
}

fn bad<T>(flag: &'static str, problem: impl ToString) -> Result<T, SettingsError> {
    Err(SettingsError::Value { flag, problem: problem.to_string() })
}

fn read(flag: &'static str, path: &std::path::Path) -> Result<String, SettingsError> {
    std::fs::read_to_string(path).map_err(|source| SettingsError::File {
        flag,
        path: path.to_owned(),
        source,
    })
}

fn keys(flags: &Flags) -> Result<Keys, SettingsError> {
    let mut keys: Vec<String> = flags.http.api_key.iter().filter(|key| !key.is_empty()).cloned().collect();
    if let Some(path) = &flags.http.api_key_file {
        let text = read("--api-key-file", path)?;
        keys.extend(
            text.lines()
                .map(str::trim)
                .filter(|line| !line.is_empty() && !line.starts_with('#'))
                .map(str::to_owned),
        );
        if keys.is_empty() {
            // Serving everybody because a file was empty would be the worst reading of it.
            return bad("--api-key-file", "holds no key");
        }
    }
    Ok(Keys::new(keys))
}

fn prefix(prefix: &str) -> Result<String, SettingsError> {
    if prefix.is_empty() {
        return Ok(String::new());
    }
    let plain = |c: char| c.is_ascii_alphanumeric() || "/-_.~".contains(c);
    if !prefix.starts_with('/') || prefix.ends_with('/') || !prefix.chars().all(plain) {
        return bad(
            "--api-prefix",
            "must begin with '/', not end with it, and hold letters, digits and -_.~ only",
        );
    }
    Ok(prefix.to_owned())
}

fn template(flags: &Flags) -> Result<Option<String>, SettingsError> {
    if let Some(path) = &flags.chat.chat_template_file {
        return read("--chat-template-file", path).map(Some);
    }
    let Some(word) = &flags.chat.chat_template else { return Ok(None) };
    if word.is_empty() {
        return Ok(None);
    }
    match crate::template::named_or_text(word) {
        Ok(text) if !flags.chat.jinja && text == *word => {
            bad("--chat-template", "with --no-jinja only the name of a built-in template is accepted")
        }
        Ok(text) => Ok(Some(text)),
        Err(error) => bad("--chat-template", error),
    }
}

fn template_variables(flags: &Flags) -> Result<Map<String, Value>, SettingsError> {
    let mut variables = match &flags.chat.chat_template_kwargs {
        None => Map::new(),
        Some(text) => match serde_json::from_str(text) {
            Ok(Value::Object(map)) => map,
            _ => return bad("--chat-template-kwargs", "must be a JSON object"),
        },
    };
    if flags.chat.reasoning_effort != "default" {
        variables.insert("reasoning_effort".to_owned(), Value::String(flags.chat.reasoning_effort.clone()));
    }
    Ok(variables)
}

/// The sampler's defaults: llama-server's, then the flags'.
fn sampling(flags: &SamplingFlags) -> Result<SamplingParams, SettingsError> {
    let mut p = SamplingParams { seed: flags.seed as u32, ..SamplingParams::default() };
    macro_rules! take {
        ($($field:ident: $flag:ident),* $(,)?) => {
            $(if let Some(value) = flags.$flag { p.$field = value; })*
        };
    }
    take!(
        temperature: temp, top_k: top_k, top_p: top_p, min_p: min_p, top_n_sigma: top_n_sigma,
        xtc_probability: xtc_probability, xtc_threshold: xtc_threshold, typical_p: typical_p,
        repeat_last_n: repeat_last_n, repeat_penalty: repeat_penalty, presence_penalty: presence_penalty,
        frequency_penalty: frequency_penalty, dry_multiplier: dry_multiplier, dry_base: dry_base,
        dry_allowed_length: dry_allowed_length, dry_penalty_last_n: dry_penalty_last_n,
        adaptive_target: adaptive_target, adaptive_decay: adaptive_decay, dynatemp_range: dynatemp_range,
        dynatemp_exponent: dynatemp_exp, mirostat: mirostat, mirostat_eta: mirostat_lr, mirostat_tau: mirostat_ent,
    );
    if !flags.dry_sequence_breaker.is_empty() {
        p.dry_sequence_breakers =
            flags.dry_sequence_breaker.iter().filter(|text| *text != "none").cloned().collect();
    }
    if let Some(names) = &flags.samplers {
        p.samplers = names
            .split(';')
            .filter(|name| !name.is_empty())
            .map(str::parse)
            .collect::<Result<Vec<SamplerKind>, _>>()
            .or_else(|error| bad("--samplers", error))?;
    }
    if let Some(letters) = &flags.sampler_seq {
        p.samplers = SamplerKind::parse_sequence(letters).or_else(|error| bad("--sampler-seq", error))?;
    }
    for word in &flags.logit_bias {
        let cut = word.rfind(['+', '-']).filter(|cut| *cut > 0);
        let parsed =
            cut.and_then(|cut| Some((word[..cut].parse::<u32>().ok()?, word[cut..].parse::<f32>().ok()?)));
        match parsed {
            Some(pair) => p.logit_bias.push(pair),
            None => return bad("--logit-bias", format!("{word:?} is not of the form 15043+1 or 15043-1")),
        }
    }
    p.validate(usize::MAX).or_else(|error| bad("sampling flags", error))?;
    Ok(p)
}
