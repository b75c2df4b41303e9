//! The HTTP side: routes, keys, cross-origin rules, streams, and the loop that listens.

mod app;
mod cors;
mod generate;
mod keys;
mod router;
mod routes;
mod serve;
mod slots;
mod stream;

pub use app::{App, Ready};
pub use cors::Cors;
pub use keys::Keys;
pub use router::router;
pub use serve::{Address, ListenError, Listener, bind, serve};
