//! One activation row: decoding and multiplying in one go, with nothing stored between.

use super::lanes::Lanes;
use super::micro::{BlockActivation, GroupActivation, four, two};
use super::tile::{BlockDecode, BlockSink, GroupDecode, GroupSink};
use std::marker::PhantomData;

/// The group value of every row of a tile; see [`micro::groups`](super::micro::groups) for the same with stored tiles.
pub(crate) struct DirectGroup<'a, L: Lanes, D> {
    activation: &'a GroupActivation<'a>,
    dots: [L::I; 16],
    sum: L::I,
    pairs: L::I,
    /// The group value, once everything was handed over.
    pub value: L::F,
    decode: PhantomData<D>,
}

impl<'a, L: Lanes, D: GroupDecode> DirectGroup<'a, L, D> {
    #[inline(always)]
    pub fn new(l: L, activation: &'a GroupActivation<'a>) -> Self {
        let zero = l.splat(0);
        DirectGroup {
            activation,
            dots: [zero; 16],
            sum: zero,
            pairs: zero,
            value: l.fsplat(0.0),
            decode: PhantomData,
        }
    }
}

impl<L: Lanes, D: GroupDecode> GroupSink<L> for DirectGroup<'_, L, D> {
    #[inline(always)]
    fn word(&mut self, l: L, index: usize, value: L::I) {
        let dot = &mut self.dots[index / if D::PER_32 { 8 } else { 4 }];
        let bytes = four(l, self.activation.q[index]);
        *dot = if D::WIDE { l.dot4_wide(*dot, value, bytes) } else { l.dot4(*dot, value, bytes) };
    }
    #[inline(always)]
    fn scale(&mut self, l: L, index: usize, value: L::I) {
        self.sum = l.add(self.sum, l.mul(self.dots[index], value));
    }
    #[inline(always)]
    fn pair(&mut self, l: L, index: usize, value: L::I) {
        let sums = if D::PER_32 { self.activation.sums32[index] } else { self.activation.sums[index] };
        self.pairs = l.dot2(self.pairs, value, two(l, sums));
    }
    #[inline(always)]
    fn floats(&mut self, l: L, d: L::F, dmin: L::F) {
        // The expressions of `formats::join::group_value` and `group_value_with_min`.
        let product = if D::HAS_MIN {
            l.fnma(dmin, l.to_f32(self.pairs), l.fmul(d, l.to_f32(self.sum)))
        } else {
            l.fmul(d, l.to_f32(l.add(self.sum, self.pairs)))
        };
        self.value = l.fmul(product, l.fsplat(self.activation.scale));
    }
}

/// The eight block terms of every row of a tile; see [`micro::blocks`](super::micro::blocks) for the same with stored tiles.
pub(crate) struct DirectBlocks<'a, L: Lanes, D> {
    activation: &'a BlockActivation<'a>,
    dots: [L::I; 8],
    second: [L::I; 8],
    terms: [L::F; 8],
    decode: PhantomData<D>,
}

impl<'a, L: Lanes, D: BlockDecode> DirectBlocks<'a, L, D> {
    #[inline(always)]
    pub fn new(l: L, activation: &'a BlockActivation<'a>) -> Self {
        let zero = l.splat(0);
        let terms = [l.fsplat(0.0); 8];
        DirectBlocks { activation, dots: [zero; 8], second: [zero; 8], terms, decode: PhantomData }
    }

    /// The group value.
    #[inline(always)]
    pub fn value(&self, l: L) -> L::F {
        let p = &self.terms;
        l.fadd(l.fadd(l.fadd(p[0], p[4]), l.fadd(p[2], p[6])), l.fadd(l.fadd(p[1], p[5]), l.fadd(p[3], p[7])))
    }
}

impl<L: Lanes, D: BlockDecode> BlockSink<L> for DirectBlocks<'_, L, D> {
    #[inline(always)]
    fn word(&mut self, l: L, index: usize, value: L::I) {
        let dots = if D::SPLIT && index % 8 >= 4 { &mut self.second } else { &mut self.dots };
        let dot = &mut dots[index / 8];
        let bytes = four(l, self.activation.q[index]);
        *dot = if D::OFFSET == 128 { l.dot4_wide(*dot, value, bytes) } else { l.dot4(*dot, value, bytes) };
    }
    #[inline(always)]
    fn floats(&mut self, l: L, block: usize, d: L::F, second: L::F) {
        let offset = -(D::OFFSET as i32) as u16 as u32;
        let sums = two(l, self.activation.sums[block]);
        let (mut dot, mut dot_second) = (self.dots[block], self.second[block]);
        if D::SPLIT {
            dot = l.dot2(dot, l.splat(offset), sums);
            dot_second = l.dot2(dot_second, l.splat(offset << 16), sums);
        } else if D::OFFSET > 0 {
            dot = l.dot2(dot, l.splat(offset | offset << 16), sums);
        }
        // The expressions of `formats::join::block_term`, `block_term_with_min` and `block_term_split`.
        let product = l.fmul(d, l.to_f32(dot));
        let product = if D::SPLIT { l.fma(second, l.to_f32(dot_second), product) } else { product };
        let scaled = l.fmul(product, l.fsplat(self.activation.scale[block]));
        self.terms[block] = if D::HAS_MIN {
            l.fma(second, l.fsplat(self.activation.scaled_sum[block]), scaled)
        } else {
            scaled
        };
    }
}
