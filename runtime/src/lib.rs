//! Open a model, plan it, run an engine over it.
