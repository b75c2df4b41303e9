//! Table rows of hashed n-grams.

/// Constants of [`ngram_rows`], see `bloomery_program::Op::NgramEmbed`.
#[derive(Debug, Clone, Copy)]
pub struct NgramHash<'a> {
    /// Longest n-gram.
    pub max_ngram: usize,
    /// Hash heads of each order.
    pub heads: usize,
    /// `[max_ngram]` multipliers.
    pub multipliers: &'a [u64],
    /// `[orders, heads]` moduli.
    pub moduli: &'a [u64],
    /// `[orders, heads]` first table rows.
    pub offsets: &'a [u64],
    /// Hash id of a missing predecessor.
    pub fill: u64,
    /// Token ids that cut the history.
    pub cut: &'a [u32],
    /// Token id to hash id; the id itself without a map.
    pub map: Option<&'a [u64]>,
}

/// Table rows for one token, orders 2..=max_ngram, heads inside an order. `history` is the token and its predecessors,
/// newest first; it ends where the sequence starts.
///
/// # Errors
/// A token has no entry in the map.
pub fn ngram_rows(hash: NgramHash<'_>, history: &[u32]) -> Result<Vec<u64>, String> {
    // 1. Hash ids of the token and its predecessors; a missing or cutting predecessor hides everything older too.
    let mut ids = Vec::with_capacity(hash.max_ngram);
    let mut hidden = false;
    for back in 0..hash.max_ngram {
        let token = history.get(back).copied();
        hidden |= back > 0 && token.is_none_or(|t| hash.cut.contains(&t));
        ids.push(match token {
            Some(t) if !hidden => match hash.map {
                None => u64::from(t),
                Some(map) => *map.get(t as usize).ok_or_else(|| format!("token {t} has no hash id"))?,
            },
            _ => hash.fill,
        });
    }
    // 2. One running XOR of products; each order takes it as it stands, 64 bits wrapping.
    let mut rows = Vec::with_capacity((hash.max_ngram - 1) * hash.heads);
    let mut mixed = ids[0].wrapping_mul(hash.multipliers[0]);
    for (order, (id, multiplier)) in ids.iter().zip(hash.multipliers).skip(1).enumerate() {
        mixed ^= id.wrapping_mul(*multiplier);
        for i in order * hash.heads..(order + 1) * hash.heads {
            rows.push(mixed % hash.moduli[i] + hash.offsets[i]);
        }
    }
    Ok(rows)
}
