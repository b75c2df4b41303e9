/// The facts that a tokenizer is built from, as a GGUF file states them.
///
/// `None` means that the file does not have the key; the default of its kind of tokenizer is then used. The key of each
/// field stands beside it (all start with `tokenizer.ggml.`).
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Vocabulary {
    /// `model`: `gpt2`, `gemma4`, `llama` or `t5`.
    pub model: String,
    /// `pre`: the pre-tokenizer's name; only byte-level BPE has one.
    pub pre: Option<String>,
    /// `tokens`: the text of every token, by id. Byte-level BPE stores bytes as letters, SentencePiece stores a space as U+2581.
    pub tokens: Vec<Vec<u8>>,
    /// `scores`: one a token; SentencePiece merges the pair with the best score first, unigram adds them up.
    pub scores: Option<Vec<f32>>,
    /// `token_type`: 1 normal, 2 unknown, 3 control, 4 user-defined, 5 unused, 6 byte.
    pub token_types: Option<Vec<i32>>,
    /// `merges`: pairs "left right", the best first.
    pub merges: Option<Vec<Vec<u8>>>,
    /// `precompiled_charsmap`: the normalizer's table of SentencePiece unigram models.
    pub precompiled_charsmap: Option<Vec<u8>>,
    /// The ids of tokens with a role.
    pub special: SpecialIds,
    /// `add_bos_token`
    pub add_bos: Option<bool>,
    /// `add_eos_token`
    pub add_eos: Option<bool>,
    /// `add_space_prefix`: a space goes in front of text at the start and after a special token.
    pub add_space_prefix: Option<bool>,
    /// `remove_extra_whitespaces`: unigram folds runs of spaces.
    pub remove_extra_whitespaces: Option<bool>,
    /// Take a whole word that is itself a token without merging. No file has a key for this: the pre-tokenizer's row decides
    /// where it is `None`.
    pub ignore_merges: Option<bool>,
    /// `suppress_tokens`: ids that must never be sampled.
    pub suppress_tokens: Vec<u32>,
}

/// Ids of tokens with a role; the metadata key of `bos` is `tokenizer.ggml.bos_token_id`, and so on.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct SpecialIds {
    /// `bos_token_id`: begin of sequence.
    pub bos: Option<u32>,
    /// `eos_token_id`: end of sequence.
    pub eos: Option<u32>,
    /// `eot_token_id`: end of turn.
    pub eot: Option<u32>,
    /// `eom_token_id`: end of message, more to come.
    pub eom: Option<u32>,
    /// `unknown_token_id`
    pub unk: Option<u32>,
    /// `seperator_token_id` (the key is spelled so)
    pub sep: Option<u32>,
    /// `padding_token_id`
    pub pad: Option<u32>,
    /// `mask_token_id`
    pub mask: Option<u32>,
    /// `fim_pre_token_id`: before the prefix of a text to fill in.
    pub fim_pre: Option<u32>,
    /// `fim_suf_token_id`: before the suffix.
    pub fim_suf: Option<u32>,
    /// `fim_mid_token_id`: where the middle starts.
    pub fim_mid: Option<u32>,
    /// `fim_pad_token_id`
    pub fim_pad: Option<u32>,
    /// `fim_rep_token_id`: before a repository's name.
    pub fim_rep: Option<u32>,
    /// `fim_sep_token_id`: between files.
    pub fim_sep: Option<u32>,
}

impl SpecialIds {
    /// Every role with its metadata key.
    pub(crate) fn with_keys(&mut self) -> [(&'static str, &mut Option<u32>); 14] {
        [
            ("tokenizer.ggml.bos_token_id", &mut self.bos),
            ("tokenizer.ggml.eos_token_id", &mut self.eos),
            ("tokenizer.ggml.eot_token_id", &mut self.eot),
            ("tokenizer.ggml.eom_token_id", &mut self.eom),
            ("tokenizer.ggml.unknown_token_id", &mut self.unk),
            ("tokenizer.ggml.seperator_token_id", &mut self.sep),
            ("tokenizer.ggml.padding_token_id", &mut self.pad),
            ("tokenizer.ggml.mask_token_id", &mut self.mask),
            ("tokenizer.ggml.fim_pre_token_id", &mut self.fim_pre),
            ("tokenizer.ggml.fim_suf_token_id", &mut self.fim_suf),
            ("tokenizer.ggml.fim_mid_token_id", &mut self.fim_mid),
            ("tokenizer.ggml.fim_pad_token_id", &mut self.fim_pad),
            ("tokenizer.ggml.fim_rep_token_id", &mut self.fim_rep),
            ("tokenizer.ggml.fim_sep_token_id", &mut self.fim_sep),
        ]
    }
}
