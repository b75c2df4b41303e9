//! llama-bench's table over the bloomery engine.
fn main() {}
