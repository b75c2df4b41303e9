//! The declared program: types, checker, text and graph dump.
