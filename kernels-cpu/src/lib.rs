//! Operators on host memory with run-time SIMD dispatch.
