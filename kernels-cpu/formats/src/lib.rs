//! Block layouts of ggml's weight types and their exact integer arithmetic.
