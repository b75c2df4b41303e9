//! Finds seats, runs them safely and takes only checked programs from them.
//!
//! A seat is somebody else's library, so the process that serves never maps it. Each file is read once into a private
//! copy, its ELF headers are compared with its length, and a short child process of the same program (`PROGRAM seat
//! probe`, see [`probe_main`]) opens the copy, asks it one question within a time limit and answers with bytes. A seat
//! that is truncated, built against another table, panics, aborts, exits, loops or prints costs one error line. What
//! comes back is parsed strictly and checked as if an enemy had written it.
//!
//! A program that uses this crate calls [`probe_main`] first thing in `main` when its arguments are `seat probe`, or names
//! another program that does in [`SeatOptions::probe_program`].
//!
//! This is no sandbox: the child has the user's rights. Install a seat as you install a program.
//!
//! The crate refuses to know any architecture, any kernel and any file format. The one thing it maps into the serving
//! process is a seat's own operator, and only where the operator of the host allowed it ([`native`]).

pub mod answer;
pub mod child;
pub mod command;
pub mod config;
pub mod discover;
pub mod elf;
pub mod error;
pub mod library;
pub mod listing;
pub mod native;
pub mod options;
pub mod probe;
pub mod seat;
pub mod table;
pub mod trust;

pub use child::probe_main;
pub use discover::{Candidate, Origin, Seats, Status};
pub use error::SeatError;
pub use options::SeatOptions;
pub use seat::{Checked, Seat};
