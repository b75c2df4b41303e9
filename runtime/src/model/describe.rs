//! What is worth telling of a model: for the wire, for people, and for telling one file from another.

use std::path::PathBuf;

use bloomery_gguf::{GgufError, GgufFile, optional};
use bloomery_program::{OutputKind, Program};
use xxhash_rust::xxh3::Xxh3;

use super::{OpenOptions, Opened, plan::Plan};

/// What is worth telling of a model.
#[derive(Debug, Clone, PartialEq)]
pub struct ModelFacts {
    /// `general.architecture`.
    pub architecture: String,
    /// Name of the seat that declared it.
    pub seat: String,
    /// The file, as it was given.
    pub path: PathBuf,
    /// `general.name`, or the file's name.
    pub name: String,
    /// Architecture, size and quantisation in one line.
    pub description: String,
    /// Name of the quantisation, such as `Q4_K - Medium`.
    pub file_type: String,
    /// Bytes of all tensors.
    pub size_bytes: u64,
    /// Parameters of all tensors.
    pub n_params: u64,
    /// Tokens of the vocabulary. Rows of logits may be wider.
    pub n_vocab: usize,
    /// Tokens that the model was trained on; 0 where the file does not say.
    pub n_ctx_train: usize,
    /// Tokens of context of all slots together.
    pub n_ctx: usize,
    /// Tokens that one slot may hold.
    pub n_ctx_slot: usize,
    /// Width of an embedding; 0 where the file does not say.
    pub n_embd: usize,
    /// Slots.
    pub n_slots: usize,
    /// `tokenizer.ggml.model`.
    pub tokenizer_model: String,
    /// The seat's chat template, or the file's.
    pub chat_template: Option<String>,
    /// The file's template of decision requests.
    pub decision_template: Option<String>,
    /// The model answers decision requests and generates no text.
    pub decides: bool,
    /// Text of the begin token, empty where there is none.
    pub bos_text: String,
    /// Text of the end token, empty where there is none.
    pub eos_text: String,
}

impl Opened {
    pub(super) fn describe(
        &self,
        options: &OpenOptions,
        seat: &str,
        program: &Program,
        plan: &Plan,
    ) -> Result<ModelFacts, GgufError> {
        let metadata = self.file.metadata();
        let stem =
            || options.model.file_stem().map(|stem| stem.to_string_lossy().into_owned()).unwrap_or_default();
        let text = |id: Option<u32>| {
            let bytes = id.and_then(|id| self.tokenizer.text_of(id)).unwrap_or_default();
            String::from_utf8_lossy(bytes).into_owned()
        };
        let file_type = self.file.file_type_name()?;
        let n_params = self.file.parameter_count();
        let own_template = optional(metadata.str("tokenizer.chat_template"))?.map(str::to_owned);
        Ok(ModelFacts {
            architecture: self.facts.arch.clone(),
            seat: seat.to_owned(),
            path: options.model.clone(),
            name: optional(metadata.str("general.name"))?.map_or_else(stem, str::to_owned),
            description: format!("{} {} {file_type}", self.facts.arch, count(n_params)),
            file_type,
            size_bytes: self.file.weight_bytes(),
            n_params,
            n_vocab: self.tokenizer.len(),
            n_ctx_train: self.number("context_length")?,
            n_ctx: plan.n_ctx,
            n_ctx_slot: plan.n_ctx_slot,
            n_embd: self.number("embedding_length")?,
            n_slots: plan.n_slots,
            tokenizer_model: optional(metadata.str("tokenizer.ggml.model"))?.unwrap_or_default().to_owned(),
            chat_template: program.chat.template.clone().or(own_template),
            decision_template: optional(metadata.str("tokenizer.chat_template.systemone"))?
                .map(str::to_owned),
            decides: decides(program),
            bos_text: text(self.tokenizer.special().bos),
            eos_text: text(self.tokenizer.special().eos),
        })
    }
}

fn decides(program: &Program) -> bool {
    let mut outputs = program.graphs.iter().flat_map(|graph| &graph.outputs);
    outputs.any(|output| output.kind == OutputKind::Decision)
}

/// A few bytes of every tensor and the whole directory: enough to tell a file from its fine-tuned sister.
pub(super) fn fingerprint(file: &GgufFile) -> u64 {
    const SAMPLE: usize = 64;
    let mut hash = Xxh3::new();
    for tensor in file.tensors() {
        hash.update(tensor.name().as_bytes());
        hash.update(tensor.weight_type().name().as_bytes());
        tensor.dims().iter().for_each(|dim| hash.update(&dim.to_le_bytes()));
        let data = file.data(tensor);
        let middle = data.len() / 2;
        for from in [0, middle, data.len().saturating_sub(SAMPLE)] {
            hash.update(data.get(from..data.len().min(from + SAMPLE)).unwrap_or_default());
        }
    }
    hash.digest()
}

/// A count of parameters as people say it: `27.8M`, `30.5B`.
fn count(n: u64) -> String {
    match n {
        0..1_000_000 => format!("{:.1}K", n as f64 / 1e3),
        1_000_000..1_000_000_000 => format!("{:.1}M", n as f64 / 1e6),
        _ => format!("{:.1}B", n as f64 / 1e9),
    }
}
