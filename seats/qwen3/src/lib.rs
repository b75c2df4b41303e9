//! Seat for qwen3moe and qwen3.
