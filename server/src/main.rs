//! The program; everything is in the library, so that tests can drive it.
#![forbid(unsafe_code)]

use std::process::ExitCode;

fn main() -> ExitCode {
    bloomery_serve::run::run(std::env::args().skip(1).collect())
}
