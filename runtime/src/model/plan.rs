//! What a model will take before any of it is taken: slots, context, and every term of its memory.

use std::fmt;

use bloomery_program::{PartRole, Program, State, StateKind};

use super::{OpenOptions, options::Backend};

/// llama.cpp's granule of contexts, tokens.
const CONTEXT_STEP: usize = 256;
/// An automatic context is not made shorter than this to fit.
const SHORTEST_AUTOMATIC: usize = 4096;
/// Memory left to everything that is not counted.
const MARGIN: u64 = 512 << 20;

/// Slots, context and memory of an opened model.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Plan {
    /// Where it all lies: `host memory`, or a card.
    pub place: String,
    /// Slots.
    pub n_slots: usize,
    /// Tokens of context of all slots together.
    pub n_ctx: usize,
    /// Tokens that one slot may hold.
    pub n_ctx_slot: usize,
    /// Every part of the memory.
    pub terms: Vec<Term>,
    /// Memory that may be used, where the system says.
    pub limit: Option<u64>,
}

/// A part of the memory.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Term {
    /// What it is.
    pub name: &'static str,
    /// Bytes.
    pub bytes: u64,
    /// How it comes about, and what changes it.
    pub why: String,
}

/// What a plan is made from.
#[derive(Debug, Clone, Copy)]
pub(super) struct Model<'a> {
    pub program: &'a Program,
    pub weight_bytes: u64,
    pub n_vocab: usize,
    /// Tokens that it was trained on; 0 where the file does not say.
    pub n_ctx_train: usize,
}

/// What the backend says that it takes of a card.
#[derive(Debug, Clone, Copy)]
pub(super) struct CardMemory<'a> {
    pub place: &'a str,
    /// Free bytes, wishes counted.
    pub free: u64,
    pub weights: u64,
    /// Bytes of the store for one token.
    pub store_per_token: f64,
    /// Bytes that grow with the context beside the store, for one token.
    pub tables_per_token: f64,
    pub scratch: u64,
    pub graphs: u64,
}

fn card_terms(options: &OpenOptions, card: &CardMemory<'_>, n_ctx: usize) -> Vec<Term> {
    let term = |name, bytes, why: String| Term { name, bytes, why };
    let tokens = |per_token: f64| (per_token * n_ctx as f64) as u64;
    vec![
        term("weights", card.weights, "the tensors that the program reads".into()),
        term(
            "kv",
            tokens(card.store_per_token),
            format!(
                "{n_ctx} tokens of {:.0} bytes; --ctx-size, --cache-type-k and --cache-type-v change it",
                card.store_per_token
            ),
        ),
        term("state", 0, "this program keeps no other state".into()),
        term(
            "scratch",
            card.scratch + tokens(card.tables_per_token),
            format!(
                "{} rows at once, and tables for each token; --ubatch-size and --ctx-size change it",
                options.n_ubatch
            ),
        ),
        term("graph", card.graphs, "recorded steps".into()),
        term("margin", options.card.margin, "left free; --fit-target changes it".into()),
    ]
}

impl Plan {
    /// Bytes of all terms.
    #[must_use]
    pub fn total(&self) -> u64 {
        self.terms.iter().fold(0, |sum, term| sum.saturating_add(term.bytes))
    }

    /// It fits the memory, as far as the system says how much that is.
    #[must_use]
    pub fn fits(&self) -> bool {
        self.limit.is_none_or(|limit| self.total() <= limit)
    }

    /// Tokens that the store must hold.
    pub(super) fn store_tokens(&self) -> usize {
        self.n_ctx
    }

    /// A plan for host memory; whether it fits is for the caller to ask.
    pub(super) fn make(model: &Model<'_>, options: &OpenOptions, limit: Option<u64>) -> Self {
        let n_slots = options.n_slots.unwrap_or(4).max(1);
        let at = |n_ctx: usize| {
            Self::with_context(model, options, limit, n_slots, n_ctx, &|n_ctx| {
                terms(model, options, n_slots, n_ctx)
            })
        };
        if options.n_ctx > 0 {
            return at(options.n_ctx);
        }
        // Automatic: all of the trained context, or as much of it as leaves half of the free memory free.
        let trained = if model.n_ctx_train == 0 { SHORTEST_AUTOMATIC } else { model.n_ctx_train };
        let whole = at(trained);
        let Some(limit) = limit else { return whole };
        let store = whole.terms.iter().find(|term| term.name == "kv").map_or(0, |term| term.bytes);
        let rest = whole.total() - store;
        let room = limit.saturating_sub(rest) / 2;
        if store <= room {
            return whole;
        }
        let fitting = (trained as u128 * u128::from(room) / u128::from(store.max(1))) as usize;
        let fitting = fitting / CONTEXT_STEP * CONTEXT_STEP;
        at(fitting.max(SHORTEST_AUTOMATIC.min(trained)))
    }

    /// A plan for a card with this much free memory; whether it fits is for the caller to ask.
    pub(super) fn on_card(model: &Model<'_>, options: &OpenOptions, card: &CardMemory<'_>) -> Self {
        let n_slots = options.n_slots.unwrap_or(4).max(1);
        let at = |n_ctx: usize| {
            let of = |n_ctx| card_terms(options, card, n_ctx);
            let plan = Self::with_context(model, options, Some(card.free), n_slots, n_ctx, &of);
            Self { place: card.place.to_string(), ..plan }
        };
        if options.n_ctx > 0 {
            return at(options.n_ctx);
        }
        // Automatic: all of the trained context, or as much of it as fits.
        let trained = if model.n_ctx_train == 0 { SHORTEST_AUTOMATIC } else { model.n_ctx_train };
        let whole = at(trained);
        if whole.fits() || !options.card.fit {
            return whole;
        }
        let shortest = options.card.fit_ctx.clamp(1, trained);
        let fixed = at(0).total();
        let per_token = (whole.total() - fixed) as f64 / trained as f64;
        let fitting =
            (card.free.saturating_sub(fixed) as f64 / per_token) as usize / CONTEXT_STEP * CONTEXT_STEP;
        at(fitting.clamp(shortest, trained))
    }

    fn with_context(
        model: &Model<'_>,
        options: &OpenOptions,
        limit: Option<u64>,
        n_slots: usize,
        n_ctx: usize,
        terms: &dyn Fn(usize) -> Vec<Term>,
    ) -> Self {
        let n_ctx = granules(n_ctx);
        let (n_ctx, mut n_ctx_slot) = if options.is_unified() {
            (n_ctx, n_ctx)
        } else {
            let share = granules((n_ctx / n_slots).max(1));
            (share.saturating_mul(n_slots), share)
        };
        if model.n_ctx_train > 0 {
            n_ctx_slot = n_ctx_slot.min(model.n_ctx_train);
        }
        let terms = terms(n_ctx);
        Self { place: "host memory".into(), n_slots, n_ctx, n_ctx_slot, terms, limit }
    }
}

/// Rounded up to whole granules; absurd wishes stay absurd, and the plan refuses them.
fn granules(n_ctx: usize) -> usize {
    n_ctx.checked_next_multiple_of(CONTEXT_STEP).unwrap_or(usize::MAX)
}

fn terms(model: &Model<'_>, options: &OpenOptions, n_slots: usize, n_ctx: usize) -> Vec<Term> {
    // Which stores are rings there; the reference backend keeps every row.
    let rings = match (options.backend, model.program.target()) {
        (Backend::Reference, _) | (_, None) => vec![false; model.program.states.len()],
        (_, Some(graph)) => crate::cpu::fixed::rings(model.program, graph),
    };
    let values = |role| -> f64 {
        let states = model.program.states.iter().zip(&rings).map(|(state, ring)| match &state.kind {
            StateKind::Rows { parts, every, .. } if !ring => {
                let width: u64 =
                    parts.iter().filter(|part| part.role == role).map(|part| u64::from(part.width)).sum();
                width as f64 / f64::from((*every).max(1))
            }
            _ => 0.0,
        });
        states.sum()
    };
    let (key, value, exact) = (values(PartRole::Key), values(PartRole::Value), values(PartRole::Exact));
    let per_token = match options.backend {
        Backend::Auto | Backend::Cuda | Backend::Cpu => {
            options.cache_type_k.bytes(key) + options.cache_type_v.bytes(value) + 4.0 * exact
        }
        Backend::Reference => 4.0 * (key + value + exact),
    };
    let fixed = |(state, ring): (&State, &bool)| match &state.kind {
        StateKind::Rows { parts, window: Some(window), .. } if *ring => {
            parts.iter().map(|part| 4 * u64::from(part.width) * u64::from(*window)).sum()
        }
        kind => kind.fixed_bytes(),
    };
    let fixed: u64 = model.program.states.iter().zip(&rings).map(fixed).sum();
    let rows = options.n_ubatch as u64;
    let widest = widest_row(model.program, model.n_vocab as u64);
    let logits = 4 * model.n_vocab as u64 * n_slots.max(1) as u64;
    // Buffers are shared between steps that do not overlap; eight of the widest cover what a layer keeps at once.
    let scratch = (8 * 4 * widest).saturating_mul(rows).saturating_add(logits);
    vec![
        Term { name: "weights", bytes: model.weight_bytes, why: "the file's tensors, mapped".into() },
        Term {
            name: "kv",
            bytes: (per_token * n_ctx as f64) as u64,
            why: format!(
                "{n_ctx} tokens of {per_token:.0} bytes; --ctx-size, --cache-type-k and --cache-type-v change it"
            ),
        },
        Term {
            name: "state",
            bytes: fixed.saturating_mul(n_slots as u64),
            why: format!("{fixed} bytes for each of {n_slots} slots; --parallel changes it"),
        },
        Term {
            name: "scratch",
            bytes: scratch,
            why: format!("{rows} rows of at most {widest} values, and logits; --ubatch-size changes it"),
        },
        Term { name: "margin", bytes: MARGIN, why: "left to the rest of the process".into() },
    ]
}

/// Values of the widest row that the target graph makes, its logits apart.
fn widest_row(program: &Program, n_vocab: u64) -> u64 {
    let nodes = program.target().into_iter().flat_map(|graph| &graph.nodes);
    let widths = nodes.flat_map(|node| &node.outs).filter_map(|out| out.shape.row_len());
    widths.filter(|&width| width != n_vocab).max().unwrap_or(0)
}

impl fmt::Display for Plan {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(
            f,
            "{} slots, {} tokens of context, {} a slot, in {}",
            self.n_slots, self.n_ctx, self.n_ctx_slot, self.place
        )?;
        for term in &self.terms {
            writeln!(f, "  {:<8} {:>12}  {}", term.name, size(term.bytes), term.why)?;
        }
        write!(f, "  {:<8} {:>12}", "total", size(self.total()))?;
        match self.limit {
            Some(limit) => write!(f, "  of {}", size(limit)),
            None => Ok(()),
        }
    }
}

/// MiB with one digit.
fn size(bytes: u64) -> String {
    format!("{:.1} MiB", bytes as f64 / f64::from(1 << 20))
}

#[cfg(test)]
mod tests {
    use bloomery_program::{Part, Rollback, State, Version};

    use super::*;
    use crate::model::options::CacheType;

    /// 1024 key and 1024 value numbers a token: 4 KiB in f16.
    fn program() -> Program {
        let part = |role| Part { width: 1024, role };
        let kind = StateKind::Rows {
            parts: vec![part(PartRole::Key), part(PartRole::Value)],
            every: 1,
            window: None,
        };
        Program {
            language: Version { major: 1, minor: 0 },
            seat: "test".into(),
            states: vec![State { name: "kv".into(), kind, rollback: Rollback::Truncate }],
            graphs: vec![],
            chat: Default::default(),
            notes: vec![],
        }
    }

    fn plan(change: impl Fn(&mut OpenOptions), n_ctx_train: usize, limit: Option<u64>) -> Plan {
        let mut options = OpenOptions::new("m.gguf");
        change(&mut options);
        let program = program();
        Plan::make(
            &Model { program: &program, weight_bytes: 1 << 30, n_vocab: 1000, n_ctx_train },
            &options,
            limit,
        )
    }

    #[test]
    fn slots_share_the_context_unless_their_number_is_given() {
        let auto = plan(|options| options.n_ctx = 8192, 32768, None);
        assert_eq!((auto.n_slots, auto.n_ctx, auto.n_ctx_slot), (4, 8192, 8192));
        let two = plan(|options| (options.n_ctx, options.n_slots) = (8192, Some(2)), 32768, None);
        assert_eq!((two.n_slots, two.n_ctx, two.n_ctx_slot), (2, 8192, 4096));
        let shared = plan(
            |options| (options.n_ctx, options.n_slots, options.kv_unified) = (8192, Some(2), Some(true)),
            32768,
            None,
        );
        assert_eq!((shared.n_ctx, shared.n_ctx_slot), (8192, 8192));
        let uneven = plan(|options| (options.n_ctx, options.n_slots) = (1000, Some(3)), 32768, None);
        assert_eq!((uneven.n_ctx, uneven.n_ctx_slot), (3 * 512, 512), "granules of 256");
        let long = plan(|options| options.n_ctx = 8192, 4096, None);
        assert_eq!(
            (long.n_ctx, long.n_ctx_slot),
            (8192, 4096),
            "a slot holds at most what the model was trained on"
        );
    }

    #[test]
    fn the_automatic_context_leaves_memory() {
        assert_eq!(plan(|_| (), 32768, None).n_ctx, 32768);
        assert_eq!(plan(|_| (), 0, None).n_ctx, 4096);
        // 1 GiB of weights and half a GiB of margin; of the other 64 MiB half may be taken: 8192 tokens of 4 KiB.
        let tight =
            plan(|options| options.n_ubatch = 0, 32768, Some((1 << 30) + MARGIN + (64 << 20) + 16_000));
        assert_eq!((tight.n_ctx, tight.fits()), (8192, true));
        let absurd = plan(|options| options.n_ctx = usize::MAX, 32768, Some(1 << 40));
        assert!(!absurd.fits());
        let none = plan(|_| (), 32768, Some(1 << 30));
        assert_eq!((none.n_ctx, none.fits()), (4096, false), "never below 4096, then it is refused");
    }

    #[test]
    fn every_term_is_counted_and_printed() {
        let half = plan(|options| options.n_ctx = 1024, 4096, Some(1 << 20));
        assert_eq!(half.terms[1].bytes, 1024 * 4096);
        let eight =
            plan(|options| (options.n_ctx, options.cache_type_k) = (1024, CacheType::Q8_0), 4096, None);
        assert_eq!(eight.terms[1].bytes, 1024 * (2048 + 1088));
        let text = half.to_string();
        for word in ["weights", "kv", "state", "scratch", "margin", "total", "--ctx-size", "of 1.0 MiB"] {
            assert!(text.contains(word), "{text}");
        }
    }
}
