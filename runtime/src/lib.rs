//! Opens a model, plans it and runs an engine over it: the part of bloomery that other programs can use as a library.
//!
//! The crate knows programs, tokens and machines. It refuses to know architectures (seats do), the wire (the server does)
//! and where text comes from.

#![forbid(unsafe_code)]

pub mod board;
pub mod cpu;
pub mod cuda;
pub mod engine;
pub mod executor;
pub mod model;
mod next_token;
pub mod reference;
pub mod request;
pub mod slot_file;

pub use board::Board;
pub use engine::{DecideReply, DraftSettings, Engine, EngineSettings, SlotFileReport, SlotReply, Ticket};
pub use model::{
    Backend, CacheType, CardLayers, CardWishes, LoadProgress, Model, ModelFacts, OpenError, OpenOptions,
};
pub use request::{Decide, Decided, Event, Generate, RequestError};
