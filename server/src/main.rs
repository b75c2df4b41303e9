//! llama-server's wire over the bloomery engine.
fn main() {}
