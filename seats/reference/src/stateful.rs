//! Nodes that read or move on a sequence's state.

use crate::node::{Context, Outcome};
use crate::ops::embed::{NgramHash, ngram_rows};
use crate::ops::{attention, recurrent, selection};
use crate::state::{States, Stored};
use crate::table::{Table, Value};
use bloomery_program::op::{Attention, Function, GatedDelta, PoolWeights, Source};
use bloomery_program::{Op, PartRole, StateId, StateKind};

/// Tokens that a row of a store stands for, and the widths and roles of its parts.
fn layout(states: &States, id: StateId) -> Outcome<(usize, Vec<(usize, PartRole)>)> {
    match states.declared.get(id.0 as usize).map(|s| &s.kind) {
        Some(StateKind::Rows { parts, every, .. }) => {
            Ok((*every as usize, parts.iter().map(|p| (p.width as usize, p.role)).collect()))
        }
        _ => Err(format!("state {} keeps no rows", id.0)),
    }
}

fn stored(states: &States, sequence: u64, id: StateId) -> Outcome<&Stored> {
    let sequence = states.get(sequence).map_err(|e| e.to_string())?;
    sequence.states.get(id.0 as usize).map(|m| &m.stored).ok_or_else(|| format!("no state {}", id.0))
}

fn parts(states: &States, sequence: u64, id: StateId) -> Outcome<&[Vec<f32>]> {
    match stored(states, sequence, id)? {
        Stored::Rows(parts) => Ok(parts),
        _ => Err(format!("state {} keeps no rows", id.0)),
    }
}

/// The f32 values of a recent or recurrent state.
fn fixed(states: &mut States, sequence: u64, id: StateId) -> Outcome<&mut Vec<f32>> {
    let sequence = states.get_mut(sequence).map_err(|e| e.to_string())?;
    match sequence.states.get_mut(id.0 as usize).map(|m| &mut m.stored) {
        Some(Stored::Recent(values) | Stored::Recurrent(values)) => Ok(values),
        _ => Err(format!("state {} is no fixed block", id.0)),
    }
}

pub(crate) fn ngram_embed(c: &Context<'_>, states: &States) -> Outcome<Vec<Value>> {
    let Op::NgramEmbed { max_ngram, heads, multipliers, moduli, offsets, fill, cut, token_map, state } =
        &c.node.op
    else {
        return Err("not an n-gram embedding".into());
    };
    let map = match token_map {
        None => None,
        Some(key) => Some(c.weights.integers(key).ok_or_else(|| format!("the model has no array {key}"))?),
    };
    let hash = NgramHash {
        max_ngram: *max_ngram as usize,
        heads: *heads as usize,
        multipliers,
        moduli,
        offsets,
        fill: *fill,
        cut,
        map: map.as_deref(),
    };
    let table = c.tensor("weight")?;
    let mut result = Table::new(c.rows, c.width(0));
    let mut scratch = Vec::new();
    for (sequence, rows) in &c.batch.sequences {
        let Stored::Tokens(before) = stored(states, *sequence, *state)? else {
            return Err(format!("state {} keeps no tokens", state.0));
        };
        let mut history = before.clone();
        for r in rows {
            history.push(c.batch.rows[*r].token);
            let newest_first: Vec<u32> = history.iter().rev().copied().collect();
            let out = &mut result.data[r * result.width..(r + 1) * result.width];
            let mut at = 0;
            for row in ngram_rows(hash, &newest_first)? {
                let values = table.row(row as usize, &mut scratch)?;
                out[at..at + values.len()].copy_from_slice(values);
                at += values.len();
            }
        }
    }
    Ok(vec![Value::Rows(result)])
}

/// Every row, or the rows that complete a group.
pub(crate) fn append(c: &Context<'_>, states: &mut States, id: StateId) -> Outcome<Vec<Value>> {
    let (every, layout) = layout(states, id)?;
    for (sequence, rows) in &c.batch.sequences {
        for (i, (_, role)) in layout.iter().enumerate() {
            let table = c.table(i)?;
            let mut new = Vec::new();
            for r in rows.iter().filter(|r| (c.batch.rows[**r].position + 1).is_multiple_of(every)) {
                new.extend(table.row(*r).iter().map(|v| states.round(*role, *v)));
            }
            let sequence = states.get_mut(*sequence).map_err(|e| e.to_string())?;
            if let Stored::Rows(parts) = &mut sequence.states[id.0 as usize].stored {
                parts[i].extend(new);
            }
        }
    }
    Ok(vec![])
}

pub(crate) fn attend(c: &Context<'_>, states: &States, a: &Attention) -> Outcome<Vec<Value>> {
    let q = c.table(0)?;
    let sinks = c.optional_vector("sinks")?;
    let mut result = Table::new(c.rows, c.width(0));
    for (sequence, rows) in &c.batch.sequences {
        let first = c.batch.rows[rows[0]].position;
        let end = first + rows.len();
        for r in rows {
            // Positions that the query may see: from its window's start to itself, or to the end of its block.
            let position = c.batch.rows[*r].position;
            let end = if a.block_bidirectional { end } else { position + 1 };
            let window_end = if a.block_bidirectional { first } else { end };
            let mut seen = Vec::new();
            let mut next_selection = 1;
            for source in &a.sources {
                let start = source.window.map_or(0, |w| window_end.saturating_sub(w as usize));
                let chosen = match source.selected {
                    true => Some(c.selection(next_selection)?[*r].as_slice()),
                    false => None,
                };
                next_selection += usize::from(source.selected);
                see(&mut seen, states, *sequence, source, a, start..end, chosen)?;
            }
            let out = &mut result.data[r * result.width..(r + 1) * result.width];
            attention::attention(a, q.row(*r), &seen, sinks.as_deref(), out);
        }
    }
    Ok(vec![Value::Rows(result)])
}

/// Adds the rows of a store whose last token lies in `tokens`, all of them or the chosen ones.
fn see<'s>(
    seen: &mut Vec<attention::Seen<'s>>,
    states: &'s States,
    sequence: u64,
    source: &Source,
    a: &Attention,
    tokens: std::ops::Range<usize>,
    chosen: Option<&[usize]>,
) -> Outcome<()> {
    let (every, layout) = layout(states, source.state)?;
    let parts = parts(states, sequence, source.state)?;
    // Row g stands for tokens up to (g + 1) * every - 1.
    let visible = tokens.start / every..tokens.end / every;
    let mut add = |g: usize| -> Outcome<()> {
        let row = |part: usize| {
            let width = layout[part].0;
            parts[part].get(g * width..(g + 1) * width).ok_or_else(|| format!("row {g} is not in the store"))
        };
        let latent = layout.len() == 1;
        let value_stride = if latent { a.key } else { a.value } as usize;
        seen.push(attention::Seen { key: row(0)?, value: row(usize::from(!latent))?, value_stride });
        Ok(())
    };
    match chosen {
        None => visible.into_iter().try_for_each(&mut add),
        Some(rows) => rows.iter().filter(|g| visible.contains(g)).try_for_each(|g| add(*g)),
    }
}

/// The last rows before the step and the step's own rows of a sequence; then the state keeps the newest.
fn with_history(
    states: &mut States,
    sequence: u64,
    id: StateId,
    width: usize,
    new: &[Vec<f32>],
) -> Outcome<Vec<Vec<f32>>> {
    let kept = fixed(states, sequence, id)?;
    let mut rows: Vec<Vec<f32>> = kept.chunks_exact(width).map(<[f32]>::to_vec).collect();
    let count = rows.len();
    rows.extend_from_slice(new);
    *kept = rows[rows.len() - count..].concat();
    Ok(rows)
}

pub(crate) fn causal_conv(
    c: &Context<'_>,
    states: &mut States,
    dilation: usize,
    function: Option<Function>,
    id: StateId,
) -> Outcome<Vec<Value>> {
    let x = c.table(0)?;
    let (weight, bias) = (c.vector("weight")?, c.optional_vector("bias")?);
    let taps = weight.len() / x.width;
    let mut result = Table::new(c.rows, x.width);
    for (sequence, rows) in &c.batch.sequences {
        let new: Vec<Vec<f32>> = rows.iter().map(|r| x.row(*r).to_vec()).collect();
        let all = with_history(states, *sequence, id, x.width, &new)?;
        let before = all.len() - new.len();
        for (i, r) in rows.iter().enumerate() {
            let met: Vec<&[f32]> =
                (0..taps).map(|k| all[before + i - (taps - 1 - k) * dilation].as_slice()).collect();
            let out = &mut result.data[r * x.width..(r + 1) * x.width];
            recurrent::causal_conv(&met, &weight, bias.as_deref(), function, out);
        }
    }
    Ok(vec![Value::Rows(result)])
}

pub(crate) fn pool(
    c: &Context<'_>,
    states: &mut States,
    ratio: usize,
    weights: PoolWeights,
    id: StateId,
) -> Outcome<Vec<Value>> {
    let x = c.table(0)?;
    let gate = if c.operands() > 1 { Some(c.table(1)?) } else { None };
    let bias = c.optional_vector("position_bias")?;
    let (width, joined) = (x.width, x.width * c.operands());
    let mut result = Table::new(c.rows, c.width(0));
    let out_width = result.width;
    for (sequence, rows) in &c.batch.sequences {
        // x and gate of a token lie side by side in the state.
        let new: Vec<Vec<f32>> =
            rows.iter().map(|r| [x.row(*r), gate.map_or(&[][..], |g| g.row(*r))].concat()).collect();
        let all = with_history(states, *sequence, id, joined, &new)?;
        let before = all.len() - new.len();
        for (i, r) in rows.iter().enumerate() {
            let position = c.batch.rows[*r].position;
            if !(position + 1).is_multiple_of(ratio) {
                continue;
            }
            let out = &mut result.data[r * out_width..(r + 1) * out_width];
            let last = before + i;
            let own = &all[last + 1 - ratio..=last];
            let PoolWeights::Softmax { overlap } = weights else {
                let members: Vec<&[f32]> = own.iter().map(Vec::as_slice).collect();
                selection::pool_mean(&members, out);
                continue;
            };
            // Member m of a group, with its channels from `first` on.
            let member = |m: usize, row: usize, first: usize| selection::Member {
                value: &all[row][first..first + out_width],
                gate: &all[row][width + first..width + first + out_width],
                bias: bias.as_ref().map(|b| &b[m * width + first..m * width + first + out_width]),
            };
            let mut members = Vec::new();
            if overlap && position + 1 >= 2 * ratio {
                members.extend((0..ratio).map(|m| member(m, last + 1 - 2 * ratio + m, 0)));
            }
            let first = if overlap { out_width } else { 0 };
            members.extend((0..ratio).map(|m| member(m, last + 1 - ratio + m, first)));
            selection::pool_softmax(&members, out);
        }
    }
    Ok(vec![Value::Rows(result)])
}

pub(crate) fn index_score(c: &Context<'_>, states: &States, id: StateId) -> Outcome<Vec<Value>> {
    let q = c.table(0)?;
    let weights = if c.operands() > 1 { Some(c.table(1)?) } else { None };
    let (every, layout) = layout(states, id)?;
    let width = layout[0].0;
    let mut scores = vec![Vec::new(); c.batch.rows.len()];
    for (sequence, rows) in &c.batch.sequences {
        let keys = &parts(states, *sequence, id)?[0];
        for r in rows {
            // Rows whose last token is this one or before it.
            let visible = (c.batch.rows[*r].position + 1) / every;
            scores[*r] = keys
                .chunks_exact(width)
                .take(visible)
                .map(|key| selection::index_score(q.row(*r), weights.map(|w| w.row(*r)), key))
                .collect();
        }
    }
    Ok(vec![Value::Scores { state: id, rows: scores }])
}

pub(crate) fn top_rows(
    c: &Context<'_>,
    states: &States,
    top_k: usize,
    expand: bool,
    tail: bool,
) -> Outcome<Vec<Value>> {
    let (store, scores) = c.scores(0)?;
    let (every, _) = layout(states, store)?;
    let within = if c.operands() > 1 { Some(c.selection(1)?) } else { None };
    let mut chosen = vec![Vec::new(); scores.len()];
    for r in c.rows.rows() {
        let rows = selection::top_rows(&scores[*r], within.map(|w| w[*r].as_slice()), top_k);
        chosen[*r] = match expand {
            false => rows,
            true => selection::expand(&rows, every, tail, c.batch.rows[*r].position + 1),
        };
    }
    Ok(vec![Value::Selection(chosen)])
}

pub(crate) fn candidate_blocks(c: &Context<'_>, block: usize, keep: usize) -> Outcome<Vec<Value>> {
    let (_, scores) = c.scores(0)?;
    let mut chosen = vec![Vec::new(); scores.len()];
    for r in c.rows.rows() {
        chosen[*r] = selection::candidate_blocks(&scores[*r], block, keep);
    }
    Ok(vec![Value::Selection(chosen)])
}

pub(crate) fn gated_delta(c: &Context<'_>, states: &mut States, d: &GatedDelta) -> Outcome<Vec<Value>> {
    let [q, k, v, decay, beta] = [c.table(0)?, c.table(1)?, c.table(2)?, c.table(3)?, c.table(4)?];
    let (a, dt) = (c.vector("a")?, c.vector("dt")?);
    let mut result = Table::new(c.rows, c.width(0));
    for (sequence, rows) in &c.batch.sequences {
        let state = fixed(states, *sequence, d.state)?;
        for r in rows {
            let row = recurrent::DeltaRow {
                q: q.row(*r),
                k: k.row(*r),
                v: v.row(*r),
                decay: decay.row(*r),
                beta: beta.row(*r),
                a: &a,
                dt: &dt,
            };
            let out = &mut result.data[r * result.width..(r + 1) * result.width];
            recurrent::gated_delta(d, row, state, out);
        }
    }
    Ok(vec![Value::Rows(result)])
}
