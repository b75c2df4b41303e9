//! Rows into a page, blocks of keys and values out of it.

use super::{CacheType, Order, PAGE_TOKENS, PageId, PageStore, PartIndex, quantize_q8_0};
use crate::lanes::{Lanes, WIDTH};
use bloomery_formats as formats;

impl PageStore {
    /// Writes row `row` of the page (below [`PartSpec::rows`](super::PartSpec::rows)) of a part.
    ///
    /// # Safety
    /// No other thread reads or writes this row of the page meanwhile, and the caller's job holds `&mut PageStore`.
    #[inline(always)]
    pub(crate) unsafe fn write_row<L: Lanes>(
        &self,
        lanes: L,
        id: PageId,
        part: PartIndex,
        row: usize,
        values: &[f32],
    ) {
        let (spec, offset) = self.layout().part(part);
        let rows = spec.rows();
        assert!(values.len() == spec.width && row < rows, "a row of {} into {spec:?}", values.len());
        // SAFETY: the layout places the part's `rows` rows at `offset` inside the page.
        let base = unsafe { self.memory(id).as_ptr().add(offset) };
        match (spec.order, spec.cache) {
            (Order::ByToken, CacheType::F32) => {
                // SAFETY: row `row` of `[rows, width]` f32; pages are 64-byte aligned and so are parts.
                let to = unsafe {
                    std::slice::from_raw_parts_mut(base.cast::<f32>().add(row * spec.width), spec.width)
                };
                to.copy_from_slice(values);
            }
            (Order::ByToken, CacheType::F16) => {
                // SAFETY: row `row` of `[rows, width]` u16.
                let to = unsafe {
                    std::slice::from_raw_parts_mut(base.cast::<u16>().add(row * spec.width), spec.width)
                };
                to_f16(lanes, values, to);
            }
            (Order::ByToken, CacheType::Q8_0) => {
                let bytes = spec.width / 32 * 34;
                // SAFETY: row `row` of `[rows, bytes]`.
                let to = unsafe { std::slice::from_raw_parts_mut(base.add(row * bytes), bytes) };
                for (block, values) in to.chunks_exact_mut(34).zip(values.chunks_exact(32)) {
                    let (mut scale, mut quants) = (0, [0; 32]);
                    quantize_q8_0(values, &mut scale, &mut quants);
                    block[..2].copy_from_slice(&scale.to_le_bytes());
                    block[2..].iter_mut().zip(quants).for_each(|(b, q)| *b = q as u8);
                }
            }
            (Order::ByChannel, CacheType::F32) => {
                for (channel, value) in values.iter().enumerate() {
                    // SAFETY: element (channel, row) of `[width, rows]` f32.
                    unsafe { *base.cast::<f32>().add(channel * rows + row) = *value };
                }
            }
            (Order::ByChannel, CacheType::F16) => {
                let mut halves = [0u16; WIDTH];
                for (group, values) in values.chunks(WIDTH).enumerate() {
                    lanes.store_f16(lanes.load_some(values), &mut halves);
                    for (i, half) in halves.iter().enumerate().take(values.len()) {
                        // SAFETY: element (channel, row) of `[width, rows]` u16.
                        unsafe { *base.cast::<u16>().add((group * WIDTH + i) * rows + row) = *half };
                    }
                }
            }
            (Order::ByChannel, CacheType::Q8_0) => {
                for (b, values) in values.chunks_exact(32).enumerate() {
                    let (mut scale, mut quants) = (0, [0; 32]);
                    quantize_q8_0(values, &mut scale, &mut quants);
                    // SAFETY: block b holds the scales `[rows]` u16, then `[32 channels, rows]` int8.
                    unsafe {
                        let block = base.add(b * 34 * rows);
                        *block.cast::<u16>().add(row) = scale;
                        for (channel, q) in quants.iter().enumerate() {
                            *block.add((2 + channel) * rows + row).cast::<i8>() = *q;
                        }
                    }
                }
            }
        }
    }

    /// Channels `first .. first + n` of all tokens of a by-channel part with a row for each, as `[n, PAGE_TOKENS]` f32.
    #[inline(always)]
    pub(crate) fn read_channels<L: Lanes>(
        &self,
        lanes: L,
        id: PageId,
        part: PartIndex,
        first: usize,
        to: &mut [f32],
    ) {
        let (spec, _) = self.layout().part(part);
        let bytes = self.part_bytes(id, part);
        let n = to.len() / PAGE_TOKENS;
        match spec.cache {
            CacheType::F32 => {
                let from = &floats(bytes)[first * PAGE_TOKENS..][..n * PAGE_TOKENS];
                to.copy_from_slice(from);
            }
            CacheType::F16 => {
                let from = &halves(bytes)[first * PAGE_TOKENS..][..n * PAGE_TOKENS];
                for (from, to) in from.as_chunks::<WIDTH>().0.iter().zip(to.as_chunks_mut::<WIDTH>().0) {
                    lanes.store(lanes.load_f16(from), to);
                }
            }
            CacheType::Q8_0 => {
                for (i, to) in to.as_chunks_mut::<PAGE_TOKENS>().0.iter_mut().enumerate() {
                    let channel = first + i;
                    let block = &bytes[channel / 32 * 34 * PAGE_TOKENS..][..34 * PAGE_TOKENS];
                    let (scales, quants) = block.split_at(2 * PAGE_TOKENS);
                    let quants = signed(&quants[channel % 32 * PAGE_TOKENS..][..PAGE_TOKENS]);
                    let halves = halves(scales).as_chunks::<WIDTH>().0.iter();
                    let quants = quants.as_chunks::<WIDTH>().0.iter();
                    for ((scale, q), to) in halves.zip(quants).zip(to.as_chunks_mut::<WIDTH>().0) {
                        lanes.store(lanes.mul(lanes.load_f16(scale), lanes.load_i8(q)), to);
                    }
                }
            }
        }
    }

    /// Values `first .. first + n` of the first `tokens` tokens of a by-token part, as `[tokens, stride]` f32; the values
    /// between `n` and the stride become zero.
    #[inline(always)]
    #[allow(clippy::too_many_arguments, reason = "a block has two extents and a place")]
    pub(crate) fn read_tokens<L: Lanes>(
        &self,
        lanes: L,
        id: PageId,
        part: PartIndex,
        first: usize,
        n: usize,
        stride: usize,
        to: &mut [f32],
    ) {
        for (token, to) in to.chunks_exact_mut(stride).enumerate() {
            self.read_row(lanes, id, part, token, first, &mut to[..n]);
            to[n..].fill(0.0);
        }
    }

    /// Values `first ..` of row `row` of the page, as many as `to` holds, in either order.
    #[inline(always)]
    pub(crate) fn read_row<L: Lanes>(
        &self,
        lanes: L,
        id: PageId,
        part: PartIndex,
        row: usize,
        first: usize,
        to: &mut [f32],
    ) {
        let (spec, _) = self.layout().part(part);
        let bytes = self.part_bytes(id, part);
        let (rows, n) = (spec.rows(), to.len());
        match (spec.order, spec.cache) {
            (Order::ByToken, CacheType::F32) => {
                to.copy_from_slice(&floats(bytes)[row * spec.width + first..][..n]);
            }
            (Order::ByToken, CacheType::F16) => {
                let from = &halves(bytes)[row * spec.width + first..][..n];
                let (whole, rest) = from.as_chunks::<WIDTH>();
                for (from, to) in whole.iter().zip(to.as_chunks_mut::<WIDTH>().0) {
                    lanes.store(lanes.load_f16(from), to);
                }
                for (to, from) in to[whole.len() * WIDTH..].iter_mut().zip(rest) {
                    *to = formats::half::f16_to_f32(*from);
                }
            }
            (Order::ByToken, CacheType::Q8_0) => {
                let row = &bytes[row * (spec.width / 32 * 34)..][..spec.width / 32 * 34];
                if first.is_multiple_of(32) && n.is_multiple_of(32) {
                    let blocks = row[first / 32 * 34..].chunks_exact(34);
                    for (block, to) in blocks.zip(to.chunks_exact_mut(32)) {
                        let scale =
                            lanes.splat(formats::half::f16_to_f32(u16::from_le_bytes([block[0], block[1]])));
                        let quants = signed(&block[2..]).as_chunks::<WIDTH>().0.iter();
                        for (q, to) in quants.zip(to.as_chunks_mut::<WIDTH>().0) {
                            lanes.store(lanes.mul(scale, lanes.load_i8(q)), to);
                        }
                    }
                } else {
                    for (i, to) in to.iter_mut().enumerate() {
                        let block = &row[(first + i) / 32 * 34..][..34];
                        let scale = formats::half::f16_to_f32(u16::from_le_bytes([block[0], block[1]]));
                        *to = scale * f32::from(block[2 + (first + i) % 32] as i8);
                    }
                }
            }
            (Order::ByChannel, CacheType::F32) => {
                let from = floats(bytes);
                for (i, to) in to.iter_mut().enumerate() {
                    *to = from[(first + i) * rows + row];
                }
            }
            (Order::ByChannel, CacheType::F16) => {
                let from = halves(bytes);
                for (i, to) in to.iter_mut().enumerate() {
                    *to = formats::half::f16_to_f32(from[(first + i) * rows + row]);
                }
            }
            (Order::ByChannel, CacheType::Q8_0) => {
                for (i, to) in to.iter_mut().enumerate() {
                    let channel = first + i;
                    let (scales, quants) = bytes[channel / 32 * 34 * rows..][..34 * rows].split_at(2 * rows);
                    let scale = formats::half::f16_to_f32(halves(scales)[row]);
                    *to = scale * f32::from(quants[channel % 32 * rows + row] as i8);
                }
            }
        }
    }
}

#[inline(always)]
fn to_f16<L: Lanes>(lanes: L, from: &[f32], to: &mut [u16]) {
    let (whole, rest) = from.as_chunks::<WIDTH>();
    let (to_whole, to_rest) = to.as_chunks_mut::<WIDTH>();
    for (from, to) in whole.iter().zip(to_whole) {
        lanes.store_f16(lanes.load(from), to);
    }
    for (from, to) in rest.iter().zip(to_rest) {
        *to = formats::half::f32_to_f16(*from);
    }
}

/// The bytes as f32; parts of a page are 64-byte aligned, so nothing is cut off.
fn floats(bytes: &[u8]) -> &[f32] {
    // SAFETY: every bit pattern is an f32.
    unsafe { bytes.align_to::<f32>() }.1
}

/// The bytes as u16; see [`floats`].
fn halves(bytes: &[u8]) -> &[u16] {
    // SAFETY: every bit pattern is a u16.
    unsafe { bytes.align_to::<u16>() }.1
}

fn signed(bytes: &[u8]) -> &[i8] {
    // SAFETY: i8 and u8 have the same layout and no invalid values.
    unsafe { bytes.align_to::<i8>() }.1
}
