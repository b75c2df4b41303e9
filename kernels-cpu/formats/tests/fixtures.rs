//! Every weight type against values that the `gguf` Python package computed from the same random blocks, bit for bit.
//!
//! A file holds two little-endian u32 (values, bytes), the bytes of one row, and the f32 values.

use bloomery_formats::{
    ActivationKind, ActivationRow, WeightType, dequantize_row, dot, quantize_block, quantize_group,
};

fn fixture(ty: WeightType) -> (Vec<u8>, Vec<f32>) {
    let path = format!("{}/tests/data/{}.bin", env!("CARGO_MANIFEST_DIR"), ty.name());
    let file = std::fs::read(path).unwrap();
    let word = |at: usize| u32::from_le_bytes(file[at..at + 4].try_into().unwrap()) as usize;
    let (values, bytes) = (word(0), word(4));
    let row = file[8..8 + bytes].to_vec();
    let expected: Vec<f32> =
        file[8 + bytes..].chunks_exact(4).map(|b| f32::from_le_bytes(b.try_into().unwrap())).collect();
    assert_eq!(expected.len(), values);
    (row, expected)
}

fn weight_types() -> impl Iterator<Item = WeightType> {
    WeightType::ALL.iter().copied().filter(|ty| ty.activation_kind().is_some())
}

#[test]
fn dequantised_values_equal_the_reference_bit_for_bit() {
    for ty in weight_types() {
        let (row, expected) = fixture(ty);
        let mut values = vec![f32::NAN; expected.len()];
        dequantize_row(ty, &row, &mut values).unwrap();
        for (index, (value, expected)) in values.iter().zip(&expected).enumerate() {
            // The reference writes some zeros with the other sign.
            let equal = value.to_bits() == expected.to_bits() || (*value == 0.0 && *expected == 0.0);
            assert!(equal, "{ty} value {index}: {value:e} is not {expected:e}");
        }
    }
}

/// A reproducible activation row in [-2, 2].
fn activations(len: usize) -> Vec<f32> {
    let mut state = 0x9e37_79b9_7f4a_7c15u64;
    (0..len)
        .map(|_| {
            state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            ((state >> 40) as f32 / (1u64 << 24) as f32) * 4.0 - 2.0
        })
        .collect()
}

#[test]
fn dot_products_agree_with_f64_over_the_quantised_activations() {
    for ty in weight_types() {
        let (row, weights) = fixture(ty);
        let x = activations(weights.len());
        let (mut qs, mut scales, mut sums) = (vec![0i8; x.len()], Vec::new(), vec![0i16; x.len() / 16]);
        let mut seen = x.clone();
        let activation = match ty.activation_kind().unwrap() {
            ActivationKind::F32 => ActivationRow::F32(&x),
            ActivationKind::Q8K => {
                for g in 0..x.len() / 256 {
                    let quants: &mut [i8; 256] = (&mut qs[256 * g..][..256]).try_into().unwrap();
                    let sums: &mut [i16; 16] = (&mut sums[16 * g..][..16]).try_into().unwrap();
                    scales.push(quantize_group(x[256 * g..][..256].try_into().unwrap(), quants, sums));
                }
                seen.iter_mut().enumerate().for_each(|(i, v)| *v = scales[i / 256] * qs[i] as f32);
                ActivationRow::Q8K { qs: &qs, scales: &scales, sums: &sums }
            }
            ActivationKind::Q8Block32 => {
                for b in 0..x.len() / 32 {
                    let quants: &mut [i8; 32] = (&mut qs[32 * b..][..32]).try_into().unwrap();
                    let sums: &mut [i16; 2] = (&mut sums[2 * b..][..2]).try_into().unwrap();
                    scales.push(quantize_block(x[32 * b..][..32].try_into().unwrap(), quants, sums));
                }
                seen.iter_mut().enumerate().for_each(|(i, v)| *v = scales[i / 32] * qs[i] as f32);
                ActivationRow::Q8Block32 { qs: &qs, scales: &scales, sums: &sums }
            }
        };
        // Half a step, and the rounding of the scale to f16.
        for (value, seen) in x.iter().zip(&seen) {
            assert!((value - seen).abs() <= 2.0 / 127.0 * 0.57, "{ty}: {value} was quantised to {seen}");
        }
        let exact: f64 = weights.iter().zip(&seen).map(|(w, a)| *w as f64 * *a as f64).sum();
        let size: f64 = weights.iter().zip(&seen).map(|(w, a)| (*w as f64 * *a as f64).abs()).sum();
        let value = dot(ty, &row, activation).unwrap() as f64;
        assert!((value - exact).abs() <= 3e-7 * size, "{ty}: {value} is not {exact} (terms sum to {size})");
    }
}

#[test]
fn lengths_that_do_not_fit_are_refused() {
    for ty in WeightType::ALL.iter().copied() {
        let mut out = vec![0.0; ty.block_len() * 2];
        let bytes = vec![0u8; ty.block_bytes() * 2];
        assert!(dequantize_row(ty, &bytes, &mut out).is_ok());
        assert!(dequantize_row(ty, &bytes[1..], &mut out).is_err());
        if ty.block_len() > 1 {
            assert!(dequantize_row(ty, &bytes, &mut out[1..]).is_err());
            assert_eq!(ty.row_bytes(ty.block_len() + 1), None);
        }
        assert_eq!(
            ty.row_bytes(usize::MAX - usize::MAX % ty.block_len()).is_some(),
            ty.block_bytes() <= ty.block_len()
        );
        assert_eq!(WeightType::from_id(ty.id()), Some(ty));
        assert_eq!(WeightType::from_name(ty.name()), Some(ty));
    }
    assert_eq!(WeightType::from_id(4), None);
    assert_eq!(WeightType::from_id(u32::MAX), None);
}
