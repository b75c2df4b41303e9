//! Rules of hashed n-gram tables.

use super::operands::rows;
use super::{Context, Result};
use crate::{Shape, StateId, StateKind};

pub(super) fn ngram_embed(
    c: &Context<'_>,
    max_ngram: u32,
    heads: u32,
    [multipliers, moduli, offsets]: [&[u64]; 3],
    state: StateId,
) -> Result<Vec<Shape>> {
    c.operands(1)?;
    c.tokens(0)?;
    let dims = c.matrix("weight")?;
    let n = u64::from(max_ngram.saturating_sub(1)) * u64::from(heads);
    if max_ngram < 2 || heads == 0 || multipliers.len() != max_ngram as usize {
        return Err(format!(
            "max_ngram {max_ngram} with {} multipliers and {heads} heads",
            multipliers.len()
        ));
    }
    if moduli.len() as u64 != n || offsets.len() as u64 != n || moduli.contains(&0) {
        return Err(format!(
            "{n} non-zero moduli and offsets are needed, found {} and {}",
            moduli.len(),
            offsets.len()
        ));
    }
    for (modulus, offset) in moduli.iter().zip(offsets) {
        if offset.checked_add(*modulus).is_none_or(|end| end > dims[1]) {
            return Err(format!("rows {offset}..+{modulus} lie outside the table of {} rows", dims[1]));
        }
    }
    match c.state(state)? {
        StateKind::Tokens { count } if *count >= max_ngram - 1 => {}
        other => {
            return Err(format!("needs a tokens state of {} ids, found {other:?}", max_ngram - 1));
        }
    }
    rows(dims[0].saturating_mul(n))
}
