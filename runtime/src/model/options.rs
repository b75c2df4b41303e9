//! What a user may wish when a model is opened, in llama-server's words.

use std::{path::PathBuf, time::Duration};

use bloomery_seat_host::{SeatOptions, Seats};

use crate::engine::DraftSettings;

/// How to open a model. The defaults are llama-server's.
#[derive(Debug, Clone)]
pub struct OpenOptions {
    /// The GGUF file, or any part of a split one (`-m`).
    pub model: PathBuf,
    /// Seat to use, by name; needed only where two claim the architecture (`--seat`).
    pub seat: Option<String>,
    /// Where seats are looked for.
    pub seat_options: SeatOptions,
    /// Tokens of context for all slots together; 0 takes what the model was trained on, as far as memory allows (`-c`).
    pub n_ctx: usize,
    /// Slots; `None` takes four that share the whole context (`-np`).
    pub n_slots: Option<usize>,
    /// Slots share one store, and each may use all of it; `None` does so when the number of slots is automatic (`-kvu`).
    pub kv_unified: Option<bool>,
    /// Most prompt tokens of a step (`-b`).
    pub n_batch: usize,
    /// Most rows that the executor computes at once (`-ub`).
    pub n_ubatch: usize,
    /// Threads; `None` takes the physical cores that this process may use (`-t`).
    pub threads: Option<usize>,
    /// Threads for prompts; only the same number as `threads` can be had (`-tb`).
    pub threads_batch: Option<usize>,
    /// Who computes (`--backend`).
    pub backend: Backend,
    /// What goes on a card, and on which.
    pub card: CardWishes,
    /// Storage of keys (`-ctk`).
    pub cache_type_k: CacheType,
    /// Storage of values (`-ctv`).
    pub cache_type_v: CacheType,
    /// Host memory for evicted prompts, MiB; negative is unlimited, 0 none (`--cache-ram`).
    pub cache_ram_mib: i64,
    /// Share of a prompt that a slot must hold to be chosen for it; 0 is off (`-sps`).
    pub slot_prompt_similarity: f32,
    /// Where drafts come from (`--spec-type`).
    pub draft: DraftSettings,
    /// Time to which a step's prompt rows are held while others generate.
    pub decode_gap: Duration,
    /// Read all weights into memory before serving; `false` leaves that to the first requests.
    pub read_ahead: bool,
}

impl OpenOptions {
    /// The defaults for a file.
    #[must_use]
    pub fn new(model: impl Into<PathBuf>) -> Self {
        Self {
            model: model.into(),
            seat: None,
            seat_options: SeatOptions::from_environment(),
            n_ctx: 0,
            n_slots: None,
            kv_unified: None,
            n_batch: 2048,
            n_ubatch: 512,
            threads: None,
            threads_batch: None,
            backend: Backend::Auto,
            card: CardWishes::default(),
            cache_type_k: CacheType::F16,
            cache_type_v: CacheType::F16,
            cache_ram_mib: 8192,
            slot_prompt_similarity: 0.1,
            draft: DraftSettings::default(),
            decode_gap: Duration::from_millis(250),
            read_ahead: true,
        }
    }

    /// The seats that these options find, a file named by `seat` included.
    #[must_use]
    pub fn seats(&self) -> Seats {
        Seats::discover(&self.seat_options.clone().wanting(self.seat.as_deref()))
    }

    pub(super) fn is_unified(&self) -> bool {
        self.kv_unified.unwrap_or(self.n_slots.is_none())
    }
}

/// Wishes about cards, in llama-server's words.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct CardWishes {
    /// Which one: index, `CUDA<index>` or UUID; without it the one with most memory (`-dev`, `-mg`).
    pub device: Option<String>,
    /// How much of the model goes there (`-ngl`).
    pub layers: CardLayers,
    /// Most bytes to take of its memory (`--device-memory-limit`).
    pub memory_limit: Option<u64>,
    /// An automatic context is made shorter until it fits (`--fit`).
    pub fit: bool,
    /// An automatic context is not made shorter than this (`-fitc`).
    pub fit_ctx: usize,
    /// Bytes of the card to leave free (`-fitt`).
    pub margin: u64,
    /// Measure every operator once the model is loaded, and print the table (`--profile`).
    pub profile: bool,
}

impl Default for CardWishes {
    fn default() -> Self {
        Self {
            device: None,
            layers: CardLayers::Auto,
            memory_limit: None,
            fit: true,
            fit_ctx: 4096,
            margin: 1024 << 20,
            profile: false,
        }
    }
}

/// How many layers go on the card.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum CardLayers {
    /// All, where they fit.
    #[default]
    Auto,
    /// All, or the model is refused.
    All,
    /// So many.
    Count(usize),
}

/// Who computes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Backend {
    /// A card, where one is there and the model fits; else the processor. The log says which and why.
    #[default]
    Auto,
    /// An NVIDIA card.
    Cuda,
    /// The fast kernels of this machine.
    Cpu,
    /// The definitions as they read: slow, for comparison.
    Reference,
}

/// How keys and values are stored.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum CacheType {
    /// As computed.
    F32,
    /// Half precision.
    #[default]
    F16,
    /// 8 bits with a scale for 32 values.
    Q8_0,
}

impl CacheType {
    /// Bytes of `values` values.
    pub(super) fn bytes(self, values: f64) -> f64 {
        match self {
            Self::F32 => 4.0 * values,
            Self::F16 => 2.0 * values,
            Self::Q8_0 => values * 34.0 / 32.0,
        }
    }
}
