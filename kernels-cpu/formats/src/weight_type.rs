//! The tensor types of a GGUF file: ids, names and block geometry.

/// Which form the activations take when they meet weights of a type.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum ActivationKind {
    /// Groups of 256 values: int8 with one f32 scale and sixteen sums of 16 (K-, I- and ternary types).
    Q8K,
    /// Blocks of 32 values: int8 with one scale that was rounded through f16 (the 32-block types and NVFP4).
    Q8Block32,
    /// Plain f32 (F32, F16 and BF16 weights).
    F32,
}

macro_rules! weight_types {
    ($($variant:ident = $id:literal, $name:literal, $block:literal, $bytes:literal;)*) => {
        /// Every tensor type of ggml that may appear in a file. The discriminant is ggml's id.
        #[allow(non_camel_case_types, missing_docs)]
        #[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
        #[repr(u32)]
        pub enum WeightType { $($variant = $id,)* }

        impl WeightType {
            /// All types, by ascending id.
            pub const ALL: &'static [WeightType] = &[$(WeightType::$variant,)*];

            /// The type that a file's numeric id names; `None` for ids that ggml removed or never had.
            pub const fn from_id(id: u32) -> Option<WeightType> {
                match id { $($id => Some(WeightType::$variant),)* _ => None }
            }

            /// The name that llama.cpp prints, such as `Q4_K`.
            pub const fn name(self) -> &'static str {
                match self { $(WeightType::$variant => $name,)* }
            }

            /// Values in a block.
            pub const fn block_len(self) -> usize {
                match self { $(WeightType::$variant => $block,)* }
            }

            /// Bytes of a block.
            pub const fn block_bytes(self) -> usize {
                match self { $(WeightType::$variant => $bytes,)* }
            }
        }
    };
}

weight_types! {
    F32 = 0, "F32", 1, 4;
    F16 = 1, "F16", 1, 2;
    Q4_0 = 2, "Q4_0", 32, 18;
    Q4_1 = 3, "Q4_1", 32, 20;
    Q5_0 = 6, "Q5_0", 32, 22;
    Q5_1 = 7, "Q5_1", 32, 24;
    Q8_0 = 8, "Q8_0", 32, 34;
    Q2_K = 10, "Q2_K", 256, 84;
    Q3_K = 11, "Q3_K", 256, 110;
    Q4_K = 12, "Q4_K", 256, 144;
    Q5_K = 13, "Q5_K", 256, 176;
    Q6_K = 14, "Q6_K", 256, 210;
    IQ2_XXS = 16, "IQ2_XXS", 256, 66;
    IQ2_XS = 17, "IQ2_XS", 256, 74;
    IQ3_XXS = 18, "IQ3_XXS", 256, 98;
    IQ1_S = 19, "IQ1_S", 256, 50;
    IQ4_NL = 20, "IQ4_NL", 32, 18;
    IQ3_S = 21, "IQ3_S", 256, 110;
    IQ2_S = 22, "IQ2_S", 256, 82;
    IQ4_XS = 23, "IQ4_XS", 256, 136;
    I8 = 24, "I8", 1, 1;
    I16 = 25, "I16", 1, 2;
    I32 = 26, "I32", 1, 4;
    I64 = 27, "I64", 1, 8;
    F64 = 28, "F64", 1, 8;
    IQ1_M = 29, "IQ1_M", 256, 56;
    BF16 = 30, "BF16", 1, 2;
    TQ1_0 = 34, "TQ1_0", 256, 54;
    TQ2_0 = 35, "TQ2_0", 256, 66;
    MXFP4 = 39, "MXFP4", 32, 17;
    NVFP4 = 40, "NVFP4", 64, 36;
}

impl WeightType {
    /// ggml's numeric id.
    pub const fn id(self) -> u32 {
        self as u32
    }

    /// The type of that printed name, if there is one.
    pub fn from_name(name: &str) -> Option<WeightType> {
        WeightType::ALL.iter().copied().find(|ty| ty.name() == name)
    }

    /// Bytes of a row of `k` values; `None` when `k` is no whole number of blocks or the size overflows.
    pub const fn row_bytes(self, k: usize) -> Option<usize> {
        if !k.is_multiple_of(self.block_len()) {
            return None;
        }
        (k / self.block_len()).checked_mul(self.block_bytes())
    }

    /// The activations that a matrix of this type multiplies; `None` for integer and f64 data, which are never weights.
    pub const fn activation_kind(self) -> Option<ActivationKind> {
        use WeightType::*;
        match self {
            F32 | F16 | BF16 => Some(ActivationKind::F32),
            Q4_0 | Q4_1 | Q5_0 | Q5_1 | Q8_0 | IQ4_NL | MXFP4 | NVFP4 => Some(ActivationKind::Q8Block32),
            Q2_K | Q3_K | Q4_K | Q5_K | Q6_K | IQ1_S | IQ1_M | IQ2_XXS | IQ2_XS | IQ2_S | IQ3_XXS | IQ3_S
            | IQ4_XS | TQ1_0 | TQ2_0 => Some(ActivationKind::Q8K),
            I8 | I16 | I32 | I64 | F64 => None,
        }
    }
}

impl core::fmt::Display for WeightType {
    fn fmt(&self, formatter: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        formatter.pad(self.name())
    }
}
