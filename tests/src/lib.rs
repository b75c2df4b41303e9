//! End-to-end tests, conformance suite and fixtures.
