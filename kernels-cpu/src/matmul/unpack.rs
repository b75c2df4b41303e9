//! Groups of the types whose unpacking is a table's or a chain's, in the common form of the formats crate.
//!
//! The type is a value here and not a parameter: the products behind it are large, and compiled once for all of these types.

use bloomery_formats::WeightType;
use bloomery_formats::group_formats::{self as formats, Group, GroupFormat};

/// Unpacks one block of `ty`, whose bytes `block` starts with.
///
/// # Panics
/// When the type is not among those that [`dispatch`](super::dispatch) sends here.
#[target_feature(enable = "avx2,fma,f16c")]
#[inline(never)]
pub(crate) fn unpack(ty: WeightType, block: &[u8], out: &mut Group) {
    macro_rules! one_of {
        ($($name:ident)*) => {
            match ty {
                $(WeightType::$name => {
                    const { assert!(!formats::$name::HAS_MIN, "kernels take no minima from here") };
                    formats::$name::unpack(block, out)
                })*
                _ => unreachable!("{ty} is unpacked in registers"),
            }
        };
    }
    one_of!(IQ1_S IQ1_M IQ2_XXS IQ2_XS IQ2_S IQ3_XXS IQ3_S TQ1_0 TQ2_0)
}
