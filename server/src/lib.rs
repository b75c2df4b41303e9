//! llama-server's wire over the bloomery engine: HTTP, request fields, answers, streams, chat templates and flags.
//!
//! The crate exists so that a client of llama-server (or of OpenAI's API) finds the same routes, fields, defaults and
//! errors here. It knows formats and nothing of models: everything that computes is behind [`engine::Engine`].
//!
//! What it refuses to do:
//! * accept and ignore: a field or flag that would change the output is honoured or refused by name;
//! * wait for the engine: health, slots, metrics and properties read a published board;
//! * end a process or a neighbour's request because of one request: a panic is that request's 500.
#![forbid(unsafe_code)]

pub mod engine;
pub mod error;
pub mod flags;
pub mod http;
pub mod load;
pub mod logging;
mod progress;
mod real;
pub mod request;
pub mod run;
pub mod seats;
pub mod settings;
pub mod template;
pub mod wire;
