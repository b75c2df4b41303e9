//! Finds, probes and checks seats.
