//! Naive f32 implementation of every operator and an executor over a program.
