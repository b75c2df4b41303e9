//! One block of keys and values for a few (row, head) pairs side by side.

use crate::kv::PAGE_TOKENS;
use crate::lanes::{Lanes, WIDTH};
use bloomery_formats::math;

/// A block, and the pairs that look at it.
pub(super) struct Block<'a, const N: usize> {
    /// `[key, PAGE_TOKENS]`.
    pub keys: &'a [f32],
    /// `[PAGE_TOKENS, stride]`.
    pub values: &'a [f32],
    pub stride: usize,
    pub scale: f32,
    pub softcap: Option<f32>,
    /// Visible tokens of each pair.
    pub visible: [(usize, usize); N],
    /// `[key]` each.
    pub queries: [&'a [f32]; N],
}

impl<const N: usize> Block<'_, N> {
    /// Moves the running maxima and sums `[N]` and the accumulators `[N, stride]` on by this block.
    #[inline(always)]
    pub(super) fn add<L: Lanes>(
        &self,
        lanes: L,
        maxima: &mut [f32],
        sums: &mut [f32],
        accumulators: &mut [f32],
    ) {
        let scores = self.scores(lanes);
        let mut weights = [[0.0f32; PAGE_TOKENS]; N];
        let mut decay = [1.0f32; N];
        let mut rescale = false;
        for i in 0..N {
            let (from, to) = self.visible[i];
            let low = lanes.keep(scores[i][0], from, to, f32::NEG_INFINITY);
            let high = lanes.keep(
                scores[i][1],
                from.saturating_sub(WIDTH),
                to.saturating_sub(WIDTH),
                f32::NEG_INFINITY,
            );
            let best = lanes.largest(lanes.max(low, high));
            if best > maxima[i] {
                decay[i] = math::exp(maxima[i] - best);
                maxima[i] = best;
                rescale = true;
            }
            let shift = lanes.splat(maxima[i]);
            let low = lanes.exp(lanes.sub(low, shift));
            let high = lanes.exp(lanes.sub(high, shift));
            sums[i] = sums[i] * decay[i] + lanes.sum(lanes.add(low, high));
            let (a, b) = weights[i].split_at_mut(WIDTH);
            lanes.store_some(low, a);
            lanes.store_some(high, b);
        }
        if rescale {
            for (accumulator, decay) in accumulators.chunks_exact_mut(self.stride).zip(decay) {
                for a in accumulator.as_chunks_mut::<WIDTH>().0 {
                    lanes.store(lanes.mul(lanes.load(a), lanes.splat(decay)), a);
                }
            }
        }
        let from = self.visible.iter().map(|v| v.0).min().unwrap_or(0);
        let to = self.visible.iter().map(|v| v.1).max().unwrap_or(0);
        let mut at = 0;
        if L::MANY_REGISTERS {
            while at + 4 * WIDTH <= self.stride {
                self.weigh::<L, 4>(lanes, &weights, from, to, at, accumulators);
                at += 4 * WIDTH;
            }
        }
        while at < self.stride {
            self.weigh::<L, 1>(lanes, &weights, from, to, at, accumulators);
            at += WIDTH;
        }
    }

    /// Scaled, capped products with all keys of the block.
    #[inline(always)]
    fn scores<L: Lanes>(&self, lanes: L) -> [[L::V; 2]; N] {
        let zero = lanes.splat(0.0);
        let mut sums = [[zero; 2]; N];
        let keys = self.keys.as_chunks::<PAGE_TOKENS>().0;
        let queries: [&[f32]; N] = std::array::from_fn(|i| &self.queries[i][..keys.len()]);
        for (channel, key) in keys.iter().enumerate() {
            let (low, high) = key.split_at(WIDTH);
            let (low, high) = (lanes.load_some(low), lanes.load_some(high));
            for i in 0..N {
                let q = lanes.splat(queries[i][channel]);
                sums[i][0] = lanes.fma(q, low, sums[i][0]);
                sums[i][1] = lanes.fma(q, high, sums[i][1]);
            }
        }
        let scale = lanes.splat(self.scale);
        for sum in sums.as_flattened_mut() {
            *sum = lanes.mul(*sum, scale);
        }
        if let Some(cap) = self.softcap {
            let mut raw = [0.0; WIDTH];
            for sum in sums.as_flattened_mut() {
                lanes.store(*sum, &mut raw);
                for s in &mut raw {
                    *s = cap * math::tanh(*s / cap);
                }
                *sum = lanes.load(&raw);
            }
        }
        sums
    }

    /// Adds the weighted values `at .. at + 16*W` of tokens `from..to`, in order.
    #[inline(always)]
    #[allow(
        clippy::needless_range_loop,
        reason = "the token indexes weights of several pairs and the values"
    )]
    fn weigh<L: Lanes, const W: usize>(
        &self,
        lanes: L,
        weights: &[[f32; PAGE_TOKENS]; N],
        from: usize,
        to: usize,
        at: usize,
        accumulators: &mut [f32],
    ) {
        let mut sums = [[lanes.splat(0.0); W]; N];
        for i in 0..N {
            for w in 0..W {
                sums[i][w] = lanes.load_some(&accumulators[i * self.stride + at + w * WIDTH..][..WIDTH]);
            }
        }
        for token in from..to {
            let row = &self.values[token * self.stride + at..][..W * WIDTH];
            let row = row.as_chunks::<WIDTH>().0;
            for w in 0..W {
                let v = lanes.load(&row[w]);
                for i in 0..N {
                    sums[i][w] = lanes.fma(lanes.splat(weights[i][token]), v, sums[i][w]);
                }
            }
        }
        for i in 0..N {
            for w in 0..W {
                lanes.store_some(sums[i][w], &mut accumulators[i * self.stride + at + w * WIDTH..][..WIDTH]);
            }
        }
    }
}
