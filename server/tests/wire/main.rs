//! The wire, tested in process: one program, because linking takes longer than testing.

mod bad_requests;
mod flags;
mod recorded;
mod sockets;
mod streams;
mod support;
mod templates;
