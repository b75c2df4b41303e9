//! The name of a file's quantisation as llama.cpp prints it ("Q4_K - Medium"), from `general.file_type`, or guessed
//! from the most frequent tensor type as llama.cpp does when the key is absent.

use bloomery_formats::WeightType;

use crate::tensor::TensorInfo;

/// Numbers of `general.file_type` and their names. 4 to 6 and 33 to 35 were withdrawn.
const NAMES: [(u32, &str); 36] = [
    (0, "all F32"),
    (1, "F16"),
    (2, "Q4_0"),
    (3, "Q4_1"),
    (7, "Q8_0"),
    (8, "Q5_0"),
    (9, "Q5_1"),
    (10, "Q2_K - Medium"),
    (11, "Q3_K - Small"),
    (12, "Q3_K - Medium"),
    (13, "Q3_K - Large"),
    (14, "Q4_K - Small"),
    (15, "Q4_K - Medium"),
    (16, "Q5_K - Small"),
    (17, "Q5_K - Medium"),
    (18, "Q6_K"),
    (19, "IQ2_XXS - 2.0625 bpw"),
    (20, "IQ2_XS - 2.3125 bpw"),
    (21, "Q2_K - Small"),
    (22, "IQ3_XS - 3.3 bpw"),
    (23, "IQ3_XXS - 3.0625 bpw"),
    (24, "IQ1_S - 1.5625 bpw"),
    (25, "IQ4_NL - 4.5 bpw"),
    (26, "IQ3_S - 3.4375 bpw"),
    (27, "IQ3_S mix - 3.66 bpw"),
    (28, "IQ2_S - 2.5 bpw"),
    (29, "IQ2_M - 2.7 bpw"),
    (30, "IQ4_XS - 4.25 bpw"),
    (31, "IQ1_M - 1.75 bpw"),
    (32, "BF16"),
    (36, "TQ1_0 - 1.69 bpw ternary"),
    (37, "TQ2_0 - 2.06 bpw ternary"),
    (38, "MXFP4 MoE"),
    (39, "NVFP4"),
    (40, "Q1_0"),
    (41, "Q2_0"),
];

/// llama.cpp sets this bit when it guessed.
const GUESSED: u32 = 1024;

/// The name of a `general.file_type` number.
pub fn file_type_name(number: u32) -> Option<&'static str> {
    NAMES.iter().find(|(known, _)| *known == number).map(|(_, name)| *name)
}

pub(crate) fn describe(stated: Option<u32>, tensors: &[TensorInfo]) -> String {
    const UNKNOWN: &str = "unknown, may not work";
    match stated {
        Some(number) if number & GUESSED != 0 => {
            format!("(guessed) {}", file_type_name(number & !GUESSED).unwrap_or(UNKNOWN))
        }
        Some(number) => file_type_name(number).unwrap_or(UNKNOWN).to_owned(),
        None => format!("(guessed) {}", guess(tensors)),
    }
}

/// The commonest tensor type's file type. llama.cpp keeps the type that reached the highest count first, walking names
/// in order; so do we.
fn guess(tensors: &[TensorInfo]) -> &'static str {
    let mut by_name: Vec<&TensorInfo> = tensors.iter().collect();
    by_name.sort_by_key(|tensor| tensor.name());
    let mut counts: Vec<(WeightType, usize)> = Vec::new();
    let mut best: Option<(WeightType, usize)> = None;
    for tensor in by_name {
        let weight_type = tensor.weight_type();
        let count = match counts.iter_mut().find(|(known, _)| *known == weight_type) {
            Some((_, count)) => {
                *count += 1;
                *count
            }
            None => {
                counts.push((weight_type, 1));
                1
            }
        };
        if best.is_none_or(|(_, most)| count > most) {
            best = Some((weight_type, count));
        }
    }
    let name = best.map_or("F32", |(weight_type, _)| weight_type.name());
    match name {
        "F16" => "F16",
        "Q2_K" => "Q2_K - Medium",
        "Q3_K" => "Q3_K - Medium",
        "Q4_K" => "Q4_K - Medium",
        "Q5_K" => "Q5_K - Medium",
        // llama.cpp's guess knows every type but this one.
        "MXFP4" => "all F32",
        other => NAMES
            .iter()
            .map(|(_, known)| *known)
            .find(|known| known.split(' ').next() == Some(other))
            .unwrap_or("all F32"),
    }
}
