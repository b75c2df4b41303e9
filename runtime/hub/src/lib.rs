//! Finds a GGUF model on the Hugging Face hub (or a server that speaks its protocol) and brings it into the cache that
//! llama.cpp, Python and `hf` share, so that no model is fetched twice on a machine.
//!
//! Why a crate of its own: `-hf user/model:Q4_K_M` has rules (which quantisation, which parts, which cache) that belong
//! neither to the reader of files nor to the server. Addresses, authentication and the cache's layout come from the
//! `hf-hub` crate; what it lacks is here: a cut transfer goes on where it stopped, a file is published under its name
//! only after its checksum was right, and a model that is in the cache is served without a network.
//!
//! What it refuses to do: it never opens a model, never uploads, never deletes what it did not write, and takes no file
//! name from a server that would lead outside the cache. It prints nothing: what happens goes to the caller's function
//! as an [`Event`].

#![forbid(unsafe_code)]

mod cache;
mod choose;
mod digest;
mod error;
mod event;
mod hub;
mod listing;
mod options;
mod reference;
mod transfer;

pub use choose::choose;
pub use error::HubError;
pub use event::Event;
pub use hub::{Fetched, Hub};
pub use options::HubOptions;
pub use reference::ModelReference;
