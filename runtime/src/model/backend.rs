//! Who computes: the wish, the machine and the model decide together, and the log says how.

use std::sync::Arc;

use bloomery_gguf::GgufFile;
use bloomery_kernels_gpu::{Card, CardOptions, Machine};

use super::{
    OpenError, OpenOptions,
    options::{Backend, CardLayers},
    plan::{CardMemory, Model, Plan},
};
use crate::cuda::{CudaOptions, Prepared};

/// A backend that will run the model, with its plan.
pub(super) enum Chosen {
    Card(Box<ChosenCard>),
    Cpu(Plan),
    Reference(Plan),
}

/// A card with a program lowered for it.
pub(super) struct ChosenCard {
    pub plan: Plan,
    pub card: Card,
    pub prepared: Prepared,
    pub options: CudaOptions,
}

impl Chosen {
    pub fn plan(&self) -> &Plan {
        match self {
            Chosen::Card(card) => &card.plan,
            Chosen::Cpu(plan) | Chosen::Reference(plan) => plan,
        }
    }

    /// Chooses. A plan that does not fit is no error here.
    pub fn new(
        model: &Model<'_>,
        file: &Arc<GgufFile>,
        n_layers: usize,
        options: &OpenOptions,
        host_limit: Option<u64>,
    ) -> Result<Chosen, OpenError> {
        let host = || Plan::make(model, options, host_limit);
        let wish = wish(options, n_layers)?;
        if options.backend == Backend::Reference {
            return Ok(Chosen::Reference(host()));
        }
        let Some(must) = wish else { return Ok(Chosen::Cpu(host())) };
        let card = match Self::card(model, file, options) {
            Ok(card) => card,
            Err(OpenError::Cuda(error)) if !must => {
                tracing::info!("the cpu backend computes: {error}");
                return Ok(Chosen::Cpu(host()));
            }
            Err(error) => return Err(error),
        };
        if !must && !card.plan.fits() {
            tracing::info!("the cpu backend computes, the model does not fit the card\n{}", card.plan);
            return Ok(Chosen::Cpu(host()));
        }
        Ok(Chosen::Card(Box::new(card)))
    }

    fn card(model: &Model<'_>, file: &Arc<GgufFile>, options: &OpenOptions) -> Result<ChosenCard, OpenError> {
        let wishes = &options.card;
        let card_options = CardOptions { card: wishes.device.clone(), memory_limit: wishes.memory_limit };
        let cuda = |error: bloomery_kernels_gpu::GpuError| OpenError::Cuda(error.into());
        let n_slots = options.n_slots.unwrap_or(4).max(1);
        let mut cuda_options = CudaOptions {
            max_rows: options.n_ubatch,
            max_sequences: n_slots + 1,
            cache_key: super::cpu_cache(options.cache_type_k),
            cache_value: super::cpu_cache(options.cache_type_v),
            ..CudaOptions::default()
        };
        // The card is asked first: without one nothing need be lowered.
        let card = Card::open(&card_options).map_err(cuda)?;
        let prepared = Prepared::new(model.program, &**file, &cuda_options).map_err(OpenError::Cuda)?;
        let needs = prepared.needs();
        let place = card.info().to_string();
        let memory = CardMemory {
            place: &place,
            free: card.free_bytes().map_err(cuda)?,
            weights: needs.weights,
            store_per_token: needs.store_per_token,
            tables_per_token: needs.tables_per_token,
            scratch: needs.scratch,
            graphs: needs.graphs,
        };
        let plan = Plan::on_card(model, options, &memory);
        cuda_options.max_tokens = plan.n_ctx_slot;
        cuda_options.store_tokens = plan.n_ctx;
        Ok(ChosenCard { plan, card, prepared, options: cuda_options })
    }
}

/// Whether a card is wished for: not at all, if possible (`false`), or without fail (`true`).
fn wish(options: &OpenOptions, n_layers: usize) -> Result<Option<bool>, OpenError> {
    let wishes = &options.card;
    let none = wishes.device.as_deref() == Some("none") || wishes.layers == CardLayers::Count(0);
    let refuse = |option, why: String| Err(OpenError::Option { option, why });
    match options.backend {
        Backend::Cpu | Backend::Reference => Ok(None),
        Backend::Cuda if none => {
            refuse("--backend cuda", "--device none and --gpu-layers 0 leave the card nothing".into())
        }
        Backend::Auto if none => Ok(None),
        Backend::Auto | Backend::Cuda => match wishes.layers {
            CardLayers::Count(n) if n < n_layers => refuse(
                "--gpu-layers",
                format!(
                    "{n} of {n_layers} layers: a model lies on the card as a whole yet; 99, all or auto, or 0 for the cpu"
                ),
            ),
            CardLayers::Count(_) | CardLayers::All => {
                // llama-server goes on without a card too, and says so.
                let there = options.backend == Backend::Cuda
                    || crate::cuda::cards().is_ok_and(|cards| !cards.is_empty());
                if !there {
                    tracing::warn!("no usable card: --gpu-layers is ignored");
                }
                Ok(Some(there))
            }
            CardLayers::Auto => Ok(Some(options.backend == Backend::Cuda)),
        },
    }
}
