//! 64 weights or quants at a time, on AVX-512 or as two halves on AVX2.

use std::arch::x86_64::*;

/// Byte orders that take the scales of a group's weights from a 128-bit lane of eight.
pub(crate) type SpreadOrders = [__m256i; 8];

/// The orders for [`Wide::spread`] if the weights are `signed`, else (four of them) for [`Wide::spread_sums`]; with one scale for 32 weights
/// or for sixteen. Made once per product, and so that the compiler does not know the values: it would take each shuffle apart into two.
///
/// # Safety
/// The machine has AVX2.
#[inline(always)]
pub(crate) unsafe fn spread_orders(signed: bool, per_32: bool) -> SpreadOrders {
    let mut orders = [[0i16; 16]; 8];
    for (part, order) in orders.iter_mut().enumerate() {
        for (lane, order) in order.iter_mut().enumerate() {
            // Which 32 weights of the group, and which half of them.
            let (block, half) =
                if signed { (part, lane / 8) } else { (2 * (part % 4) + lane / 4 % 2, lane / 8) };
            let scale = if per_32 { block } else { (2 * block + half) % 8 } as i16;
            *order = (2 * scale) | ((2 * scale + 1) << 8);
        }
    }
    let orders = std::hint::black_box(orders);
    // SAFETY: 32 bytes are readable in each.
    orders.map(|order| unsafe { _mm256_loadu_si256(order.as_ptr().cast()) })
}

/// A vector of 64 bytes.
///
/// # Safety
/// Of every function: the machine has the implementing type's instruction set.
pub(crate) trait Wide {
    type V: Copy;
    /// Two halves as one.
    unsafe fn join(low: __m256i, high: __m256i) -> Self::V;
    /// 64 quants.
    unsafe fn load(quants: &[i8; 64]) -> Self::V;
    /// The weights' magnitudes, and the quants with the weights' signs put on them.
    unsafe fn move_signs(weights: Self::V, quants: Self::V) -> (Self::V, Self::V);
    /// `acc` plus the products times their scales, eight to a lane, in the lanes' order that [`Wide::spread_sums`] gives the scales; weights 0
    /// to 63, quants at least -127.
    unsafe fn accumulate_sums(acc: __m256i, weights: Self::V, quants: Self::V, scales: __m256i) -> __m256i;
    /// The scales for [`Wide::accumulate_sums`], 64 weights each.
    unsafe fn spread_sums(scales: __m256i, per_32: bool, orders: &SpreadOrders) -> [__m256i; 4];
    /// `acc` plus the products times their scales, four to a lane; weights 0 to 128, quants at least -127.
    unsafe fn accumulate(acc: Self::V, weights: Self::V, quants: Self::V, scales: Self::V) -> Self::V;
    /// The four registers of scales for a group's 64 weights each, one scale for each pair of weights: from sixteen i16, or from the low
    /// eight if `per_32`, in the order that [`spread_orders`] made.
    unsafe fn spread(scales: __m256i, per_32: bool, orders: &SpreadOrders) -> [Self::V; 4];
    /// The two halves' lanes added.
    unsafe fn halve(acc: Self::V) -> __m256i;
    /// All zero.
    unsafe fn zero() -> Self::V;
}

/// AVX2, and with `VNNI` AVX-512 VL and VNNI. (512-bit registers were measured too: what joins the halves costs more than is won.)
pub(crate) struct Halves<const VNNI: bool>;

impl<const VNNI: bool> Wide for Halves<VNNI> {
    type V = [__m256i; 2];
    #[inline(always)]
    unsafe fn join(low: __m256i, high: __m256i) -> [__m256i; 2] {
        [low, high]
    }
    #[inline(always)]
    unsafe fn load(quants: &[i8; 64]) -> [__m256i; 2] {
        // SAFETY: two times 32 bytes are readable.
        unsafe {
            [_mm256_loadu_si256(quants.as_ptr().cast()), _mm256_loadu_si256(quants[32..].as_ptr().cast())]
        }
    }
    #[inline(always)]
    unsafe fn move_signs(weights: [__m256i; 2], quants: [__m256i; 2]) -> ([__m256i; 2], [__m256i; 2]) {
        // SAFETY: register arithmetic of what the caller has.
        unsafe {
            (
                [_mm256_abs_epi8(weights[0]), _mm256_abs_epi8(weights[1])],
                [_mm256_sign_epi8(quants[0], weights[0]), _mm256_sign_epi8(quants[1], weights[1])],
            )
        }
    }
    #[inline(always)]
    unsafe fn accumulate_sums(
        acc: __m256i,
        weights: [__m256i; 2],
        quants: [__m256i; 2],
        scales: __m256i,
    ) -> __m256i {
        // SAFETY: register arithmetic of what the caller has; four products of at most 63 x 127 stay below 32768.
        unsafe {
            let sum = |half: usize| {
                if VNNI {
                    _mm256_dpbusd_epi32(_mm256_setzero_si256(), weights[half], quants[half])
                } else {
                    _mm256_madd_epi16(_mm256_maddubs_epi16(weights[half], quants[half]), _mm256_set1_epi16(1))
                }
            };
            let sums = _mm256_packs_epi32(sum(0), sum(1));
            if VNNI {
                _mm256_dpwssd_epi32(acc, sums, scales)
            } else {
                _mm256_add_epi32(acc, _mm256_madd_epi16(sums, scales))
            }
        }
    }
    #[inline(always)]
    unsafe fn spread_sums(scales: __m256i, per_32: bool, orders: &SpreadOrders) -> [__m256i; 4] {
        // SAFETY: register arithmetic of what the caller has.
        unsafe {
            let low = _mm256_permute2x128_si256::<0x00>(scales, scales);
            let high = if per_32 { low } else { _mm256_permute2x128_si256::<0x11>(scales, scales) };
            [
                _mm256_shuffle_epi8(low, orders[0]),
                _mm256_shuffle_epi8(low, orders[1]),
                _mm256_shuffle_epi8(high, orders[2]),
                _mm256_shuffle_epi8(high, orders[3]),
            ]
        }
    }
    #[inline(always)]
    unsafe fn accumulate(
        acc: [__m256i; 2],
        weights: [__m256i; 2],
        quants: [__m256i; 2],
        scales: [__m256i; 2],
    ) -> [__m256i; 2] {
        // SAFETY: register arithmetic of what the caller has; two products of at most 128 x 127 stay below 32768.
        unsafe {
            let sum = |half: usize| {
                let pairs = _mm256_maddubs_epi16(weights[half], quants[half]);
                if VNNI {
                    _mm256_dpwssd_epi32(acc[half], pairs, scales[half])
                } else {
                    _mm256_add_epi32(acc[half], _mm256_madd_epi16(pairs, scales[half]))
                }
            };
            [sum(0), sum(1)]
        }
    }
    #[inline(always)]
    unsafe fn spread(scales: __m256i, per_32: bool, orders: &SpreadOrders) -> [[__m256i; 2]; 4] {
        // SAFETY: register arithmetic of what the caller has.
        unsafe {
            // The half that holds the scales, in both lanes.
            let low = _mm256_permute2x128_si256::<0x00>(scales, scales);
            let high = if per_32 { low } else { _mm256_permute2x128_si256::<0x11>(scales, scales) };
            [
                [_mm256_shuffle_epi8(low, orders[0]), _mm256_shuffle_epi8(low, orders[1])],
                [_mm256_shuffle_epi8(low, orders[2]), _mm256_shuffle_epi8(low, orders[3])],
                [_mm256_shuffle_epi8(high, orders[4]), _mm256_shuffle_epi8(high, orders[5])],
                [_mm256_shuffle_epi8(high, orders[6]), _mm256_shuffle_epi8(high, orders[7])],
            ]
        }
    }
    #[inline(always)]
    unsafe fn halve(acc: [__m256i; 2]) -> __m256i {
        // SAFETY: register arithmetic of what the caller has.
        unsafe { _mm256_add_epi32(acc[0], acc[1]) }
    }
    #[inline(always)]
    unsafe fn zero() -> [__m256i; 2] {
        // SAFETY: register arithmetic of what the caller has.
        unsafe { [_mm256_setzero_si256(); 2] }
    }
}
