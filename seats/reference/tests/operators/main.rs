//! Every operator against small examples computed by hand from its definition in docs/operators.md.

mod attention;
mod experts;
mod recurrent;
mod rows;
mod selection;
mod sketch;
mod streams;
