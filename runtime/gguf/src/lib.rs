//! GGUF reader over a memory map.
