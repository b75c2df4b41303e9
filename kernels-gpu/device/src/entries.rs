//! The entries: PTX kernels on the card, rows of a table on this processor.

use crate::attention::{Shape, attend, merge};
use crate::gemv::{BF16, Block32, F16, F32, Floats, Groups, Q4K, Q6K, Q80, embed::embed, gemv};
use crate::heads::{Part, Place, heads};
use crate::route::route;
use crate::rows::{combine, pointwise, rows};
use bloomery_formats::{block_formats, group_formats};

/// What an argument's eight bytes mean.
#[cfg(not(target_arch = "nvptx64"))]
trait Word {
    fn of(word: u64) -> Self;
}
#[cfg(not(target_arch = "nvptx64"))]
mod words {
    use super::Word;
    impl<T> Word for *const T {
        fn of(word: u64) -> Self {
            word as usize as *const T
        }
    }
    impl<T> Word for *mut T {
        fn of(word: u64) -> Self {
            word as usize as *mut T
        }
    }
    impl Word for u32 {
        fn of(word: u64) -> Self {
            word as u32
        }
    }
    impl Word for u64 {
        fn of(word: u64) -> Self {
            word
        }
    }
    impl Word for f32 {
        fn of(word: u64) -> Self {
            f32::from_bits(word as u32)
        }
    }
}

macro_rules! entries {
    ($(fn $name:ident($($argument:ident: $ty:ty),* $(,)?) { $body:expr })*) => {
        $(
            #[cfg(target_arch = "nvptx64")]
            #[unsafe(no_mangle)]
            pub unsafe extern "ptx-kernel" fn $name($($argument: $ty),*) {
                $body
            }
        )*

        /// There is an entry of this name.
        #[cfg(not(target_arch = "nvptx64"))]
        #[must_use]
        pub fn entry_exists(name: &str) -> bool {
            [$(stringify!($name)),*].contains(&name)
        }

        /// Runs an entry over a grid, one eight-byte word an argument; false when there is none of this name.
        ///
        /// # Safety
        /// The words are what the entry takes, and lead to memory of this process.
        #[cfg(not(target_arch = "nvptx64"))]
        pub unsafe fn run_entry(name: &str, grid: [u32; 3], threads: u32, shared: u32, words: &[u64]) -> bool {
            $(
                if name == stringify!($name) {
                    let mut words = words.iter().copied();
                    $(let $argument = <$ty as Word>::of(words.next().expect("an argument for every parameter"));)*
                    assert!(words.next().is_none(), "{name}: more arguments than parameters");
                    crate::dev::launch(grid, threads, shared, move || unsafe { $body });
                    return true;
                }
            )*
            false
        }
    };
}

entries! {
    fn gemv_q2_k(w: *const u8, row_bytes: u32, n: u32, cols: u32, qs: *const i8, scales: *const f32, sums: *const i16, ids: *const u32, experts: u32, used: u32, bias: *const f32, residual: *const f32, out: *mut f32, w1: *const u8, n1: u32, bias1: *const f32, out1: *mut f32, w2: *const u8, n2: u32, bias2: *const f32, out2: *mut f32) { gemv::<Groups<group_formats::Q2_K>>(w, row_bytes, n, cols, qs, scales, sums, ids, experts, used, bias, residual, out, w1, n1, bias1, out1, w2, n2, bias2, out2) }
    fn gemv_q3_k(w: *const u8, row_bytes: u32, n: u32, cols: u32, qs: *const i8, scales: *const f32, sums: *const i16, ids: *const u32, experts: u32, used: u32, bias: *const f32, residual: *const f32, out: *mut f32, w1: *const u8, n1: u32, bias1: *const f32, out1: *mut f32, w2: *const u8, n2: u32, bias2: *const f32, out2: *mut f32) { gemv::<Groups<group_formats::Q3_K>>(w, row_bytes, n, cols, qs, scales, sums, ids, experts, used, bias, residual, out, w1, n1, bias1, out1, w2, n2, bias2, out2) }
    fn gemv_q5_k(w: *const u8, row_bytes: u32, n: u32, cols: u32, qs: *const i8, scales: *const f32, sums: *const i16, ids: *const u32, experts: u32, used: u32, bias: *const f32, residual: *const f32, out: *mut f32, w1: *const u8, n1: u32, bias1: *const f32, out1: *mut f32, w2: *const u8, n2: u32, bias2: *const f32, out2: *mut f32) { gemv::<Groups<group_formats::Q5_K>>(w, row_bytes, n, cols, qs, scales, sums, ids, experts, used, bias, residual, out, w1, n1, bias1, out1, w2, n2, bias2, out2) }
    fn gemv_iq1_s(w: *const u8, row_bytes: u32, n: u32, cols: u32, qs: *const i8, scales: *const f32, sums: *const i16, ids: *const u32, experts: u32, used: u32, bias: *const f32, residual: *const f32, out: *mut f32, w1: *const u8, n1: u32, bias1: *const f32, out1: *mut f32, w2: *const u8, n2: u32, bias2: *const f32, out2: *mut f32) { gemv::<Groups<group_formats::IQ1_S>>(w, row_bytes, n, cols, qs, scales, sums, ids, experts, used, bias, residual, out, w1, n1, bias1, out1, w2, n2, bias2, out2) }
    fn gemv_iq1_m(w: *const u8, row_bytes: u32, n: u32, cols: u32, qs: *const i8, scales: *const f32, sums: *const i16, ids: *const u32, experts: u32, used: u32, bias: *const f32, residual: *const f32, out: *mut f32, w1: *const u8, n1: u32, bias1: *const f32, out1: *mut f32, w2: *const u8, n2: u32, bias2: *const f32, out2: *mut f32) { gemv::<Groups<group_formats::IQ1_M>>(w, row_bytes, n, cols, qs, scales, sums, ids, experts, used, bias, residual, out, w1, n1, bias1, out1, w2, n2, bias2, out2) }
    fn gemv_iq2_xxs(w: *const u8, row_bytes: u32, n: u32, cols: u32, qs: *const i8, scales: *const f32, sums: *const i16, ids: *const u32, experts: u32, used: u32, bias: *const f32, residual: *const f32, out: *mut f32, w1: *const u8, n1: u32, bias1: *const f32, out1: *mut f32, w2: *const u8, n2: u32, bias2: *const f32, out2: *mut f32) { gemv::<Groups<group_formats::IQ2_XXS>>(w, row_bytes, n, cols, qs, scales, sums, ids, experts, used, bias, residual, out, w1, n1, bias1, out1, w2, n2, bias2, out2) }
    fn gemv_iq2_xs(w: *const u8, row_bytes: u32, n: u32, cols: u32, qs: *const i8, scales: *const f32, sums: *const i16, ids: *const u32, experts: u32, used: u32, bias: *const f32, residual: *const f32, out: *mut f32, w1: *const u8, n1: u32, bias1: *const f32, out1: *mut f32, w2: *const u8, n2: u32, bias2: *const f32, out2: *mut f32) { gemv::<Groups<group_formats::IQ2_XS>>(w, row_bytes, n, cols, qs, scales, sums, ids, experts, used, bias, residual, out, w1, n1, bias1, out1, w2, n2, bias2, out2) }
    fn gemv_iq2_s(w: *const u8, row_bytes: u32, n: u32, cols: u32, qs: *const i8, scales: *const f32, sums: *const i16, ids: *const u32, experts: u32, used: u32, bias: *const f32, residual: *const f32, out: *mut f32, w1: *const u8, n1: u32, bias1: *const f32, out1: *mut f32, w2: *const u8, n2: u32, bias2: *const f32, out2: *mut f32) { gemv::<Groups<group_formats::IQ2_S>>(w, row_bytes, n, cols, qs, scales, sums, ids, experts, used, bias, residual, out, w1, n1, bias1, out1, w2, n2, bias2, out2) }
    fn gemv_iq3_xxs(w: *const u8, row_bytes: u32, n: u32, cols: u32, qs: *const i8, scales: *const f32, sums: *const i16, ids: *const u32, experts: u32, used: u32, bias: *const f32, residual: *const f32, out: *mut f32, w1: *const u8, n1: u32, bias1: *const f32, out1: *mut f32, w2: *const u8, n2: u32, bias2: *const f32, out2: *mut f32) { gemv::<Groups<group_formats::IQ3_XXS>>(w, row_bytes, n, cols, qs, scales, sums, ids, experts, used, bias, residual, out, w1, n1, bias1, out1, w2, n2, bias2, out2) }
    fn gemv_iq3_s(w: *const u8, row_bytes: u32, n: u32, cols: u32, qs: *const i8, scales: *const f32, sums: *const i16, ids: *const u32, experts: u32, used: u32, bias: *const f32, residual: *const f32, out: *mut f32, w1: *const u8, n1: u32, bias1: *const f32, out1: *mut f32, w2: *const u8, n2: u32, bias2: *const f32, out2: *mut f32) { gemv::<Groups<group_formats::IQ3_S>>(w, row_bytes, n, cols, qs, scales, sums, ids, experts, used, bias, residual, out, w1, n1, bias1, out1, w2, n2, bias2, out2) }
    fn gemv_iq4_xs(w: *const u8, row_bytes: u32, n: u32, cols: u32, qs: *const i8, scales: *const f32, sums: *const i16, ids: *const u32, experts: u32, used: u32, bias: *const f32, residual: *const f32, out: *mut f32, w1: *const u8, n1: u32, bias1: *const f32, out1: *mut f32, w2: *const u8, n2: u32, bias2: *const f32, out2: *mut f32) { gemv::<Groups<group_formats::IQ4_XS>>(w, row_bytes, n, cols, qs, scales, sums, ids, experts, used, bias, residual, out, w1, n1, bias1, out1, w2, n2, bias2, out2) }
    fn gemv_tq1_0(w: *const u8, row_bytes: u32, n: u32, cols: u32, qs: *const i8, scales: *const f32, sums: *const i16, ids: *const u32, experts: u32, used: u32, bias: *const f32, residual: *const f32, out: *mut f32, w1: *const u8, n1: u32, bias1: *const f32, out1: *mut f32, w2: *const u8, n2: u32, bias2: *const f32, out2: *mut f32) { gemv::<Groups<group_formats::TQ1_0>>(w, row_bytes, n, cols, qs, scales, sums, ids, experts, used, bias, residual, out, w1, n1, bias1, out1, w2, n2, bias2, out2) }
    fn gemv_tq2_0(w: *const u8, row_bytes: u32, n: u32, cols: u32, qs: *const i8, scales: *const f32, sums: *const i16, ids: *const u32, experts: u32, used: u32, bias: *const f32, residual: *const f32, out: *mut f32, w1: *const u8, n1: u32, bias1: *const f32, out1: *mut f32, w2: *const u8, n2: u32, bias2: *const f32, out2: *mut f32) { gemv::<Groups<group_formats::TQ2_0>>(w, row_bytes, n, cols, qs, scales, sums, ids, experts, used, bias, residual, out, w1, n1, bias1, out1, w2, n2, bias2, out2) }
    fn gemv_q4_k(w: *const u8, row_bytes: u32, n: u32, cols: u32, qs: *const i8, scales: *const f32, sums: *const i16, ids: *const u32, experts: u32, used: u32, bias: *const f32, residual: *const f32, out: *mut f32, w1: *const u8, n1: u32, bias1: *const f32, out1: *mut f32, w2: *const u8, n2: u32, bias2: *const f32, out2: *mut f32) { gemv::<Q4K>(w, row_bytes, n, cols, qs, scales, sums, ids, experts, used, bias, residual, out, w1, n1, bias1, out1, w2, n2, bias2, out2) }
    fn gemv_q6_k(w: *const u8, row_bytes: u32, n: u32, cols: u32, qs: *const i8, scales: *const f32, sums: *const i16, ids: *const u32, experts: u32, used: u32, bias: *const f32, residual: *const f32, out: *mut f32, w1: *const u8, n1: u32, bias1: *const f32, out1: *mut f32, w2: *const u8, n2: u32, bias2: *const f32, out2: *mut f32) { gemv::<Q6K>(w, row_bytes, n, cols, qs, scales, sums, ids, experts, used, bias, residual, out, w1, n1, bias1, out1, w2, n2, bias2, out2) }
    fn gemv_q8_0(w: *const u8, row_bytes: u32, n: u32, cols: u32, qs: *const i8, scales: *const f32, sums: *const i16, ids: *const u32, experts: u32, used: u32, bias: *const f32, residual: *const f32, out: *mut f32, w1: *const u8, n1: u32, bias1: *const f32, out1: *mut f32, w2: *const u8, n2: u32, bias2: *const f32, out2: *mut f32) { gemv::<Q80>(w, row_bytes, n, cols, qs, scales, sums, ids, experts, used, bias, residual, out, w1, n1, bias1, out1, w2, n2, bias2, out2) }
    fn gemv_q4_0(w: *const u8, row_bytes: u32, n: u32, cols: u32, qs: *const i8, scales: *const f32, sums: *const i16, ids: *const u32, experts: u32, used: u32, bias: *const f32, residual: *const f32, out: *mut f32, w1: *const u8, n1: u32, bias1: *const f32, out1: *mut f32, w2: *const u8, n2: u32, bias2: *const f32, out2: *mut f32) { gemv::<Block32<block_formats::Q4_0>>(w, row_bytes, n, cols, qs, scales, sums, ids, experts, used, bias, residual, out, w1, n1, bias1, out1, w2, n2, bias2, out2) }
    fn gemv_q4_1(w: *const u8, row_bytes: u32, n: u32, cols: u32, qs: *const i8, scales: *const f32, sums: *const i16, ids: *const u32, experts: u32, used: u32, bias: *const f32, residual: *const f32, out: *mut f32, w1: *const u8, n1: u32, bias1: *const f32, out1: *mut f32, w2: *const u8, n2: u32, bias2: *const f32, out2: *mut f32) { gemv::<Block32<block_formats::Q4_1>>(w, row_bytes, n, cols, qs, scales, sums, ids, experts, used, bias, residual, out, w1, n1, bias1, out1, w2, n2, bias2, out2) }
    fn gemv_q5_0(w: *const u8, row_bytes: u32, n: u32, cols: u32, qs: *const i8, scales: *const f32, sums: *const i16, ids: *const u32, experts: u32, used: u32, bias: *const f32, residual: *const f32, out: *mut f32, w1: *const u8, n1: u32, bias1: *const f32, out1: *mut f32, w2: *const u8, n2: u32, bias2: *const f32, out2: *mut f32) { gemv::<Block32<block_formats::Q5_0>>(w, row_bytes, n, cols, qs, scales, sums, ids, experts, used, bias, residual, out, w1, n1, bias1, out1, w2, n2, bias2, out2) }
    fn gemv_q5_1(w: *const u8, row_bytes: u32, n: u32, cols: u32, qs: *const i8, scales: *const f32, sums: *const i16, ids: *const u32, experts: u32, used: u32, bias: *const f32, residual: *const f32, out: *mut f32, w1: *const u8, n1: u32, bias1: *const f32, out1: *mut f32, w2: *const u8, n2: u32, bias2: *const f32, out2: *mut f32) { gemv::<Block32<block_formats::Q5_1>>(w, row_bytes, n, cols, qs, scales, sums, ids, experts, used, bias, residual, out, w1, n1, bias1, out1, w2, n2, bias2, out2) }
    fn gemv_iq4_nl(w: *const u8, row_bytes: u32, n: u32, cols: u32, qs: *const i8, scales: *const f32, sums: *const i16, ids: *const u32, experts: u32, used: u32, bias: *const f32, residual: *const f32, out: *mut f32, w1: *const u8, n1: u32, bias1: *const f32, out1: *mut f32, w2: *const u8, n2: u32, bias2: *const f32, out2: *mut f32) { gemv::<Block32<block_formats::IQ4_NL>>(w, row_bytes, n, cols, qs, scales, sums, ids, experts, used, bias, residual, out, w1, n1, bias1, out1, w2, n2, bias2, out2) }
    fn gemv_mxfp4(w: *const u8, row_bytes: u32, n: u32, cols: u32, qs: *const i8, scales: *const f32, sums: *const i16, ids: *const u32, experts: u32, used: u32, bias: *const f32, residual: *const f32, out: *mut f32, w1: *const u8, n1: u32, bias1: *const f32, out1: *mut f32, w2: *const u8, n2: u32, bias2: *const f32, out2: *mut f32) { gemv::<Block32<block_formats::MXFP4>>(w, row_bytes, n, cols, qs, scales, sums, ids, experts, used, bias, residual, out, w1, n1, bias1, out1, w2, n2, bias2, out2) }
    fn gemv_nvfp4(w: *const u8, row_bytes: u32, n: u32, cols: u32, qs: *const i8, scales: *const f32, sums: *const i16, ids: *const u32, experts: u32, used: u32, bias: *const f32, residual: *const f32, out: *mut f32, w1: *const u8, n1: u32, bias1: *const f32, out1: *mut f32, w2: *const u8, n2: u32, bias2: *const f32, out2: *mut f32) { gemv::<Block32<block_formats::NVFP4>>(w, row_bytes, n, cols, qs, scales, sums, ids, experts, used, bias, residual, out, w1, n1, bias1, out1, w2, n2, bias2, out2) }
    fn gemv_f32(w: *const u8, row_bytes: u32, n: u32, cols: u32, qs: *const i8, scales: *const f32, sums: *const i16, ids: *const u32, experts: u32, used: u32, bias: *const f32, residual: *const f32, out: *mut f32, w1: *const u8, n1: u32, bias1: *const f32, out1: *mut f32, w2: *const u8, n2: u32, bias2: *const f32, out2: *mut f32) { gemv::<Floats<F32>>(w, row_bytes, n, cols, qs, scales, sums, ids, experts, used, bias, residual, out, w1, n1, bias1, out1, w2, n2, bias2, out2) }
    fn gemv_f16(w: *const u8, row_bytes: u32, n: u32, cols: u32, qs: *const i8, scales: *const f32, sums: *const i16, ids: *const u32, experts: u32, used: u32, bias: *const f32, residual: *const f32, out: *mut f32, w1: *const u8, n1: u32, bias1: *const f32, out1: *mut f32, w2: *const u8, n2: u32, bias2: *const f32, out2: *mut f32) { gemv::<Floats<F16>>(w, row_bytes, n, cols, qs, scales, sums, ids, experts, used, bias, residual, out, w1, n1, bias1, out1, w2, n2, bias2, out2) }
    fn gemv_bf16(w: *const u8, row_bytes: u32, n: u32, cols: u32, qs: *const i8, scales: *const f32, sums: *const i16, ids: *const u32, experts: u32, used: u32, bias: *const f32, residual: *const f32, out: *mut f32, w1: *const u8, n1: u32, bias1: *const f32, out1: *mut f32, w2: *const u8, n2: u32, bias2: *const f32, out2: *mut f32) { gemv::<Floats<BF16>>(w, row_bytes, n, cols, qs, scales, sums, ids, experts, used, bias, residual, out, w1, n1, bias1, out1, w2, n2, bias2, out2) }
    fn embed_q2_k(table: *const u8, row_bytes: u32, there: u32, cols: u32, by: f32, tokens: *const u32, out: *mut f32) { embed::<Groups<group_formats::Q2_K>>(table, row_bytes, there, cols, by, tokens, out) }
    fn embed_q3_k(table: *const u8, row_bytes: u32, there: u32, cols: u32, by: f32, tokens: *const u32, out: *mut f32) { embed::<Groups<group_formats::Q3_K>>(table, row_bytes, there, cols, by, tokens, out) }
    fn embed_q5_k(table: *const u8, row_bytes: u32, there: u32, cols: u32, by: f32, tokens: *const u32, out: *mut f32) { embed::<Groups<group_formats::Q5_K>>(table, row_bytes, there, cols, by, tokens, out) }
    fn embed_iq1_s(table: *const u8, row_bytes: u32, there: u32, cols: u32, by: f32, tokens: *const u32, out: *mut f32) { embed::<Groups<group_formats::IQ1_S>>(table, row_bytes, there, cols, by, tokens, out) }
    fn embed_iq1_m(table: *const u8, row_bytes: u32, there: u32, cols: u32, by: f32, tokens: *const u32, out: *mut f32) { embed::<Groups<group_formats::IQ1_M>>(table, row_bytes, there, cols, by, tokens, out) }
    fn embed_iq2_xxs(table: *const u8, row_bytes: u32, there: u32, cols: u32, by: f32, tokens: *const u32, out: *mut f32) { embed::<Groups<group_formats::IQ2_XXS>>(table, row_bytes, there, cols, by, tokens, out) }
    fn embed_iq2_xs(table: *const u8, row_bytes: u32, there: u32, cols: u32, by: f32, tokens: *const u32, out: *mut f32) { embed::<Groups<group_formats::IQ2_XS>>(table, row_bytes, there, cols, by, tokens, out) }
    fn embed_iq2_s(table: *const u8, row_bytes: u32, there: u32, cols: u32, by: f32, tokens: *const u32, out: *mut f32) { embed::<Groups<group_formats::IQ2_S>>(table, row_bytes, there, cols, by, tokens, out) }
    fn embed_iq3_xxs(table: *const u8, row_bytes: u32, there: u32, cols: u32, by: f32, tokens: *const u32, out: *mut f32) { embed::<Groups<group_formats::IQ3_XXS>>(table, row_bytes, there, cols, by, tokens, out) }
    fn embed_iq3_s(table: *const u8, row_bytes: u32, there: u32, cols: u32, by: f32, tokens: *const u32, out: *mut f32) { embed::<Groups<group_formats::IQ3_S>>(table, row_bytes, there, cols, by, tokens, out) }
    fn embed_iq4_xs(table: *const u8, row_bytes: u32, there: u32, cols: u32, by: f32, tokens: *const u32, out: *mut f32) { embed::<Groups<group_formats::IQ4_XS>>(table, row_bytes, there, cols, by, tokens, out) }
    fn embed_tq1_0(table: *const u8, row_bytes: u32, there: u32, cols: u32, by: f32, tokens: *const u32, out: *mut f32) { embed::<Groups<group_formats::TQ1_0>>(table, row_bytes, there, cols, by, tokens, out) }
    fn embed_tq2_0(table: *const u8, row_bytes: u32, there: u32, cols: u32, by: f32, tokens: *const u32, out: *mut f32) { embed::<Groups<group_formats::TQ2_0>>(table, row_bytes, there, cols, by, tokens, out) }
    fn embed_q4_k(table: *const u8, row_bytes: u32, there: u32, cols: u32, by: f32, tokens: *const u32, out: *mut f32) { embed::<Groups<group_formats::Q4_K>>(table, row_bytes, there, cols, by, tokens, out) }
    fn embed_q6_k(table: *const u8, row_bytes: u32, there: u32, cols: u32, by: f32, tokens: *const u32, out: *mut f32) { embed::<Groups<group_formats::Q6_K>>(table, row_bytes, there, cols, by, tokens, out) }
    fn embed_q4_0(table: *const u8, row_bytes: u32, there: u32, cols: u32, by: f32, tokens: *const u32, out: *mut f32) { embed::<Block32<block_formats::Q4_0>>(table, row_bytes, there, cols, by, tokens, out) }
    fn embed_q4_1(table: *const u8, row_bytes: u32, there: u32, cols: u32, by: f32, tokens: *const u32, out: *mut f32) { embed::<Block32<block_formats::Q4_1>>(table, row_bytes, there, cols, by, tokens, out) }
    fn embed_q5_0(table: *const u8, row_bytes: u32, there: u32, cols: u32, by: f32, tokens: *const u32, out: *mut f32) { embed::<Block32<block_formats::Q5_0>>(table, row_bytes, there, cols, by, tokens, out) }
    fn embed_q5_1(table: *const u8, row_bytes: u32, there: u32, cols: u32, by: f32, tokens: *const u32, out: *mut f32) { embed::<Block32<block_formats::Q5_1>>(table, row_bytes, there, cols, by, tokens, out) }
    fn embed_iq4_nl(table: *const u8, row_bytes: u32, there: u32, cols: u32, by: f32, tokens: *const u32, out: *mut f32) { embed::<Block32<block_formats::IQ4_NL>>(table, row_bytes, there, cols, by, tokens, out) }
    fn embed_mxfp4(table: *const u8, row_bytes: u32, there: u32, cols: u32, by: f32, tokens: *const u32, out: *mut f32) { embed::<Block32<block_formats::MXFP4>>(table, row_bytes, there, cols, by, tokens, out) }
    fn embed_nvfp4(table: *const u8, row_bytes: u32, there: u32, cols: u32, by: f32, tokens: *const u32, out: *mut f32) { embed::<Block32<block_formats::NVFP4>>(table, row_bytes, there, cols, by, tokens, out) }
    fn embed_q8_0(table: *const u8, row_bytes: u32, there: u32, cols: u32, by: f32, tokens: *const u32, out: *mut f32) { embed::<Block32<block_formats::Q8_0>>(table, row_bytes, there, cols, by, tokens, out) }
    fn embed_f32(table: *const u8, row_bytes: u32, there: u32, cols: u32, by: f32, tokens: *const u32, out: *mut f32) { embed::<Floats<F32>>(table, row_bytes, there, cols, by, tokens, out) }
    fn embed_f16(table: *const u8, row_bytes: u32, there: u32, cols: u32, by: f32, tokens: *const u32, out: *mut f32) { embed::<Floats<F16>>(table, row_bytes, there, cols, by, tokens, out) }
    fn embed_bf16(table: *const u8, row_bytes: u32, there: u32, cols: u32, by: f32, tokens: *const u32, out: *mut f32) { embed::<Floats<BF16>>(table, row_bytes, there, cols, by, tokens, out) }
    fn heads_prepare(positions: *const u32, table_of_row: *const u32, tables: *const u32, table_pages: u32, store: *mut u8, page_bytes: u64, q_x: *mut f32, q_width: u32, q_head: u32, q_norm: u32, q_weight: *const f32, q_weight_len: u32, q_eps: f32, q_rope: *const f32, q_dims: u32, q_offset: u32, q_halves: u32, q_at: u32, q_cache: u32, k_x: *mut f32, k_width: u32, k_head: u32, k_norm: u32, k_weight: *const f32, k_weight_len: u32, k_eps: f32, k_rope: *const f32, k_dims: u32, k_offset: u32, k_halves: u32, k_at: u32, k_cache: u32, v_x: *mut f32, v_width: u32, v_head: u32, v_norm: u32, v_weight: *const f32, v_weight_len: u32, v_eps: f32, v_rope: *const f32, v_dims: u32, v_offset: u32, v_halves: u32, v_at: u32, v_cache: u32) { heads(Place { positions, table_of_row, tables, table_pages, store, page_bytes }, Part { x: q_x, width: q_width, head: q_head, norm: q_norm, weight: q_weight, weight_len: q_weight_len, eps: q_eps, rope: q_rope, dims: q_dims, offset: q_offset, halves: q_halves, at: q_at, cache: q_cache }, Part { x: k_x, width: k_width, head: k_head, norm: k_norm, weight: k_weight, weight_len: k_weight_len, eps: k_eps, rope: k_rope, dims: k_dims, offset: k_offset, halves: k_halves, at: k_at, cache: k_cache }, Part { x: v_x, width: v_width, head: v_head, norm: v_norm, weight: v_weight, weight_len: v_weight_len, eps: v_eps, rope: v_rope, dims: v_dims, offset: v_offset, halves: v_halves, at: v_at, cache: v_cache }) }
    fn attend_32(positions: *const u32, table_of_row: *const u32, tables: *const u32, table_pages: u32, store: *mut u8, page_bytes: u64, heads: u32, kv_heads: u32, key: u32, value: u32, scale: f32, softcap: f32, window: u32, keys_at: u32, keys: u32, values_at: u32, values: u32, sinks: *const f32, q: *const f32, out: *mut f32, partial: *mut f32, spans: u32) { attend::<1>(Place { positions, table_of_row, tables, table_pages, store, page_bytes }, Shape { heads, kv_heads, key, value, scale, softcap, window, keys_at, keys, values_at, values }, sinks, q, out, partial, spans) }
    fn merge_32(positions: *const u32, heads: u32, kv_heads: u32, key: u32, value: u32, scale: f32, softcap: f32, window: u32, keys_at: u32, keys: u32, values_at: u32, values: u32, sinks: *const f32, out: *mut f32, partial: *const f32, spans: u32) { merge::<1>(positions, Shape { heads, kv_heads, key, value, scale, softcap, window, keys_at, keys, values_at, values }, sinks, out, partial, spans) }
    fn attend_64(positions: *const u32, table_of_row: *const u32, tables: *const u32, table_pages: u32, store: *mut u8, page_bytes: u64, heads: u32, kv_heads: u32, key: u32, value: u32, scale: f32, softcap: f32, window: u32, keys_at: u32, keys: u32, values_at: u32, values: u32, sinks: *const f32, q: *const f32, out: *mut f32, partial: *mut f32, spans: u32) { attend::<2>(Place { positions, table_of_row, tables, table_pages, store, page_bytes }, Shape { heads, kv_heads, key, value, scale, softcap, window, keys_at, keys, values_at, values }, sinks, q, out, partial, spans) }
    fn merge_64(positions: *const u32, heads: u32, kv_heads: u32, key: u32, value: u32, scale: f32, softcap: f32, window: u32, keys_at: u32, keys: u32, values_at: u32, values: u32, sinks: *const f32, out: *mut f32, partial: *const f32, spans: u32) { merge::<2>(positions, Shape { heads, kv_heads, key, value, scale, softcap, window, keys_at, keys, values_at, values }, sinks, out, partial, spans) }
    fn attend_96(positions: *const u32, table_of_row: *const u32, tables: *const u32, table_pages: u32, store: *mut u8, page_bytes: u64, heads: u32, kv_heads: u32, key: u32, value: u32, scale: f32, softcap: f32, window: u32, keys_at: u32, keys: u32, values_at: u32, values: u32, sinks: *const f32, q: *const f32, out: *mut f32, partial: *mut f32, spans: u32) { attend::<3>(Place { positions, table_of_row, tables, table_pages, store, page_bytes }, Shape { heads, kv_heads, key, value, scale, softcap, window, keys_at, keys, values_at, values }, sinks, q, out, partial, spans) }
    fn merge_96(positions: *const u32, heads: u32, kv_heads: u32, key: u32, value: u32, scale: f32, softcap: f32, window: u32, keys_at: u32, keys: u32, values_at: u32, values: u32, sinks: *const f32, out: *mut f32, partial: *const f32, spans: u32) { merge::<3>(positions, Shape { heads, kv_heads, key, value, scale, softcap, window, keys_at, keys, values_at, values }, sinks, out, partial, spans) }
    fn attend_128(positions: *const u32, table_of_row: *const u32, tables: *const u32, table_pages: u32, store: *mut u8, page_bytes: u64, heads: u32, kv_heads: u32, key: u32, value: u32, scale: f32, softcap: f32, window: u32, keys_at: u32, keys: u32, values_at: u32, values: u32, sinks: *const f32, q: *const f32, out: *mut f32, partial: *mut f32, spans: u32) { attend::<4>(Place { positions, table_of_row, tables, table_pages, store, page_bytes }, Shape { heads, kv_heads, key, value, scale, softcap, window, keys_at, keys, values_at, values }, sinks, q, out, partial, spans) }
    fn merge_128(positions: *const u32, heads: u32, kv_heads: u32, key: u32, value: u32, scale: f32, softcap: f32, window: u32, keys_at: u32, keys: u32, values_at: u32, values: u32, sinks: *const f32, out: *mut f32, partial: *const f32, spans: u32) { merge::<4>(positions, Shape { heads, kv_heads, key, value, scale, softcap, window, keys_at, keys, values_at, values }, sinks, out, partial, spans) }
    fn attend_192(positions: *const u32, table_of_row: *const u32, tables: *const u32, table_pages: u32, store: *mut u8, page_bytes: u64, heads: u32, kv_heads: u32, key: u32, value: u32, scale: f32, softcap: f32, window: u32, keys_at: u32, keys: u32, values_at: u32, values: u32, sinks: *const f32, q: *const f32, out: *mut f32, partial: *mut f32, spans: u32) { attend::<6>(Place { positions, table_of_row, tables, table_pages, store, page_bytes }, Shape { heads, kv_heads, key, value, scale, softcap, window, keys_at, keys, values_at, values }, sinks, q, out, partial, spans) }
    fn merge_192(positions: *const u32, heads: u32, kv_heads: u32, key: u32, value: u32, scale: f32, softcap: f32, window: u32, keys_at: u32, keys: u32, values_at: u32, values: u32, sinks: *const f32, out: *mut f32, partial: *const f32, spans: u32) { merge::<6>(positions, Shape { heads, kv_heads, key, value, scale, softcap, window, keys_at, keys, values_at, values }, sinks, out, partial, spans) }
    fn attend_256(positions: *const u32, table_of_row: *const u32, tables: *const u32, table_pages: u32, store: *mut u8, page_bytes: u64, heads: u32, kv_heads: u32, key: u32, value: u32, scale: f32, softcap: f32, window: u32, keys_at: u32, keys: u32, values_at: u32, values: u32, sinks: *const f32, q: *const f32, out: *mut f32, partial: *mut f32, spans: u32) { attend::<8>(Place { positions, table_of_row, tables, table_pages, store, page_bytes }, Shape { heads, kv_heads, key, value, scale, softcap, window, keys_at, keys, values_at, values }, sinks, q, out, partial, spans) }
    fn merge_256(positions: *const u32, heads: u32, kv_heads: u32, key: u32, value: u32, scale: f32, softcap: f32, window: u32, keys_at: u32, keys: u32, values_at: u32, values: u32, sinks: *const f32, out: *mut f32, partial: *const f32, spans: u32) { merge::<8>(positions, Shape { heads, kv_heads, key, value, scale, softcap, window, keys_at, keys, values_at, values }, sinks, out, partial, spans) }
    fn attend_512(positions: *const u32, table_of_row: *const u32, tables: *const u32, table_pages: u32, store: *mut u8, page_bytes: u64, heads: u32, kv_heads: u32, key: u32, value: u32, scale: f32, softcap: f32, window: u32, keys_at: u32, keys: u32, values_at: u32, values: u32, sinks: *const f32, q: *const f32, out: *mut f32, partial: *mut f32, spans: u32) { attend::<16>(Place { positions, table_of_row, tables, table_pages, store, page_bytes }, Shape { heads, kv_heads, key, value, scale, softcap, window, keys_at, keys, values_at, values }, sinks, q, out, partial, spans) }
    fn merge_512(positions: *const u32, heads: u32, kv_heads: u32, key: u32, value: u32, scale: f32, softcap: f32, window: u32, keys_at: u32, keys: u32, values_at: u32, values: u32, sinks: *const f32, out: *mut f32, partial: *const f32, spans: u32) { merge::<16>(positions, Shape { heads, kv_heads, key, value, scale, softcap, window, keys_at, keys, values_at, values }, sinks, out, partial, spans) }
    fn row_quantize(x: *const f32, y: *const f32, act: u32, gate_max: f32, up_abs: f32, norm: u32, weight: *const f32, weight_len: u32, group: u32, eps: f32, width: u32, out: *mut f32, qs: *mut i8, scales: *mut f32, sums: *mut i16, qs32: *mut i8, scales32: *mut f32, sums32: *mut i16, plain: *mut f32, fault: *mut u32, step: u32) { rows(x, y, act, gate_max, up_abs, norm, weight, weight_len, group, eps, width, out, qs, scales, sums, qs32, scales32, sums32, plain, fault, step) }
    fn pointwise_any(mode: u32, a: *const f32, b: *const f32, c: *const f32, index: *const u32, a_width: u32, b_width: u32, c_width: u32, width: u32, out_width: u32, out_at: u32, group: u32, start: u32, take: u32, by: f32, plus: f32, act: u32, out: *mut f32) { pointwise(mode, a, b, c, index, a_width, b_width, c_width, width, out_width, out_at, group, start, take, by, plus, act, out) }
    fn combine_ranks(results: *const f32, factors: *const f32, used: u32, width: u32, residual: *const f32, out: *mut f32) { combine(results, factors, used, width, residual, out) }
    fn route_experts(logits: *const f32, bias: *const f32, experts: u32, used: u32, score: u32, normalize: u32, sum_floor: f32, scale: f32, ids: *mut u32, weights: *mut f32, fault: *mut u32, step: u32) { route(logits, bias, experts, used, score, normalize, sum_floor, scale, ids, weights, fault, step) }
}
