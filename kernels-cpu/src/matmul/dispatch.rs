//! One compiled function per instruction set and weight type. Each set has a module of its own, so that the compiler may work on both at once.

use super::Scratch;
use super::avx2::Avx2;
use super::avx512::Avx512;
use super::drive::{self, Job};
use super::float;
use super::{block_decode, group_decode};
use super::{by_row, by_row_groups, row_group, wide};
use crate::output::OutTile;
use bloomery_formats::WeightType;

macro_rules! compiled {
    ($name:ident, $features:literal, $lanes:ty, $wide:ty, $vnni:literal) => {
        pub(crate) use $name::product as $name;
        mod $name {
            use super::*;

            /// Runs the product on one instruction set.
            ///
            /// # Safety
            /// The machine has the instruction set.
            pub(crate) unsafe fn product(job: &Job<'_>, out: &mut OutTile<'_>, scratch: &mut Scratch) {
                macro_rules! group {
                                    ($decode:ty, $one:literal) => {{
                                        #[target_feature(enable = $features)]
                                        fn go(job: &Job<'_>, out: &mut OutTile<'_>, scratch: &mut Scratch) {
                                            // SAFETY: this function is compiled for, and called on, machines that have the set.
                                            let lanes = unsafe { <$lanes>::detected() };
                                            drive::groups::<$lanes, $decode, $one>(lanes, job, out, scratch);
                                        }
                                        // SAFETY: the caller has the instruction set.
                                        unsafe { go(job, out, scratch) }
                                    }};
                                }
                macro_rules! block {
                                    ($decode:ty, $one:literal) => {{
                                        #[target_feature(enable = $features)]
                                        fn go(job: &Job<'_>, out: &mut OutTile<'_>, scratch: &mut Scratch) {
                                            // SAFETY: this function is compiled for, and called on, machines that have the set.
                                            let lanes = unsafe { <$lanes>::detected() };
                                            drive::blocks::<$lanes, $decode, $one>(lanes, job, out, scratch);
                                        }
                                        // SAFETY: the caller has the instruction set.
                                        unsafe { go(job, out, scratch) }
                                    }};
                                }
                // A few activation rows go row by row; more through tiles.
                macro_rules! by_row {
                    ($signed:ty, $decode:ty) => {{
                        #[target_feature(enable = $features)]
                        fn go(job: &Job<'_>, out: &mut OutTile<'_>) {
                            // SAFETY: the features of this function are those that the product names.
                            unsafe { by_row::product::<$signed, $vnni>(job, out) }
                        }
                        if job.activation_rows.len() <= by_row::MOST_ROWS {
                            // SAFETY: the caller has the instruction set.
                            unsafe { go(job, out) }
                        } else {
                            block!($decode, false)
                        }
                    }};
                }
                macro_rules! group_by_row {
                    ($signed:ty, $decode:ty) => {{
                        #[target_feature(enable = $features)]
                        fn go(job: &Job<'_>, out: &mut OutTile<'_>) {
                            // SAFETY: both sets include AVX2, FMA and F16C, and each goes with its width.
                            unsafe { by_row_groups::product::<$wide, $signed>(job, out) }
                        }
                        if job.activation_rows.len() <= by_row::MOST_ROWS {
                            // SAFETY: the caller has the instruction set.
                            unsafe { go(job, out) }
                        } else {
                            group!($decode, false)
                        }
                    }};
                }
                macro_rules! float {
                    ($weight:ty) => {{
                        #[target_feature(enable = $features)]
                        fn go(job: &Job<'_>, out: &mut OutTile<'_>) {
                            // SAFETY: both instruction sets include AVX2, FMA and F16C.
                            unsafe { float::product::<$weight>(job, out) }
                        }
                        // SAFETY: the caller has the instruction set.
                        unsafe { go(job, out) }
                    }};
                }
                match job.weights.ty() {
                    WeightType::Q4_K => group_by_row!(row_group::Q4K, group_decode::Q4K),
                    WeightType::Q5_K => group_by_row!(row_group::Q5K, group_decode::Q5K),
                    WeightType::Q6_K => group_by_row!(row_group::Q6K, group_decode::Q6K),
                    WeightType::Q3_K => group!(group_decode::Q3K, true),
                    WeightType::Q2_K => group!(group_decode::Q2K, true),
                    WeightType::IQ4_XS => group!(group_decode::Iq4Xs, true),
                    WeightType::IQ1_S
                    | WeightType::IQ1_M
                    | WeightType::IQ2_XXS
                    | WeightType::IQ2_XS
                    | WeightType::IQ2_S
                    | WeightType::IQ3_XXS
                    | WeightType::IQ3_S
                    | WeightType::TQ1_0
                    | WeightType::TQ2_0 => group_by_row!(row_group::Unpacked, group_decode::RowWise),
                    WeightType::Q4_0 => block!(block_decode::Q4_0, true),
                    WeightType::Q4_1 => block!(block_decode::Q4_1, true),
                    WeightType::Q5_0 => by_row!(by_row::Q5_0, block_decode::Q5_0),
                    WeightType::Q5_1 => block!(block_decode::Q5_1, true),
                    WeightType::Q8_0 => by_row!(by_row::Q8_0, block_decode::Q8_0),
                    WeightType::IQ4_NL => block!(block_decode::Iq4Nl, true),
                    WeightType::MXFP4 => block!(block_decode::Mxfp4, true),
                    WeightType::NVFP4 => block!(block_decode::Nvfp4, true),
                    WeightType::F32 => float!(float::F32),
                    WeightType::F16 => float!(float::F16),
                    WeightType::BF16 => float!(float::Bf16),
                    WeightType::I8
                    | WeightType::I16
                    | WeightType::I32
                    | WeightType::I64
                    | WeightType::F64 => {
                        unreachable!("a matrix is of a weight type")
                    }
                }
            }
        }
    };
}

compiled!(avx2, "avx2,fma,f16c", Avx2, wide::Halves<false>, false);
compiled!(
    avx512_vnni,
    "avx512f,avx512bw,avx512dq,avx512vl,avx512vnni,avx2,fma,f16c",
    Avx512,
    wide::Halves<true>,
    true
);
