//! Every instruction set gives the bits of the scalar definition, for every weight type, for odd sizes, alone and in a batch.

use bloomery_formats::{ActivationKind, WeightType, dequantize_row, dot, f32_to_f16};
use bloomery_kernels_cpu::activations::Activations;
use bloomery_kernels_cpu::level::Level;
use bloomery_kernels_cpu::matmul::{Rows, Scratch, matmul};
use bloomery_kernels_cpu::matrix::{MatmulError, Matrix};
use bloomery_kernels_cpu::output::OutTile;

struct Random(u64);

impl Random {
    fn bits(&mut self) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0
    }
    fn byte(&mut self) -> u8 {
        (self.bits() >> 24) as u8
    }
    /// Nearly normal, of standard deviation one.
    fn normal(&mut self) -> f32 {
        (0..12).map(|_| (self.bits() >> 40) as f32 / (1u64 << 24) as f32).sum::<f32>() - 6.0
    }
}

fn weight_types() -> impl Iterator<Item = WeightType> {
    WeightType::ALL.iter().copied().filter(|ty| ty.activation_kind().is_some())
}

/// Where a block keeps its f16 scales.
fn scale_offsets(ty: WeightType) -> &'static [usize] {
    use WeightType::*;
    match ty {
        Q4_0 | Q5_0 | Q8_0 | IQ4_NL | IQ2_XXS | IQ2_XS | IQ2_S | IQ3_XXS | IQ3_S | IQ1_S | IQ4_XS => &[0],
        Q4_1 | Q5_1 | Q4_K | Q5_K => &[0, 2],
        Q2_K => &[80, 82],
        Q3_K => &[108],
        Q6_K => &[208],
        TQ1_0 => &[52],
        TQ2_0 => &[64],
        F16 => &[0],
        _ => &[],
    }
}

/// Random blocks with scales of sensible size.
fn weights(random: &mut Random, ty: WeightType, rows: usize, cols: usize) -> Vec<u8> {
    let mut bytes: Vec<u8> = (0..ty.row_bytes(cols).unwrap() * rows).map(|_| random.byte()).collect();
    for block in bytes.chunks_exact_mut(ty.block_bytes()) {
        for &offset in scale_offsets(ty) {
            let half = f32_to_f16(random.normal() * 0.02);
            block[offset..offset + 2].copy_from_slice(&half.to_le_bytes());
        }
        match ty {
            WeightType::F32 => block.copy_from_slice(&random.normal().to_le_bytes()),
            WeightType::BF16 => block.copy_from_slice(&random.normal().to_le_bytes()[2..]),
            // Mostly ordinary scales, sometimes the subnormal ones.
            WeightType::MXFP4 => {
                block[0] = if random.byte() < 20 { random.byte() % 3 } else { 110 + random.byte() % 20 }
            }
            WeightType::IQ1_M => {
                let half = f32_to_f16(random.normal().abs() * 0.02);
                for k in 0..4 {
                    block[49 + 2 * k] = (block[49 + 2 * k] & 15) | ((half >> (4 * k)) as u8 & 15) << 4;
                }
            }
            _ => {}
        }
    }
    bytes
}

fn same(a: f32, b: f32) -> bool {
    a.to_bits() == b.to_bits() || (a.is_nan() && b.is_nan())
}

fn product(level: Level, matrix: &Matrix<'_>, activations: &Activations, rows: Rows<'_>) -> Vec<f32> {
    let mut out = vec![f32::NAN; rows.len() * matrix.rows()];
    let mut tile = OutTile::new(&mut out, rows.len(), matrix.rows(), matrix.rows()).unwrap();
    matmul(level, matrix, 0..matrix.rows(), activations, rows, &mut tile, &mut Scratch::default()).unwrap();
    out
}

/// Widths that a type can have: whole groups, and parts of one where blocks are smaller.
fn widths(ty: WeightType) -> &'static [usize] {
    match ty.block_len() {
        1 => &[1, 7, 8, 100, 256, 300, 520],
        32 => &[32, 96, 256, 576, 640],
        64 => &[64, 256, 576, 640],
        _ => &[256, 768],
    }
}

#[test]
fn all_instruction_sets_give_the_bits_of_the_definition() {
    let mut random = Random(99);
    for ty in weight_types() {
        // Few and many activation rows take different ways, with every width.
        let shapes = [(1, 1), (40, 2), (33, 3), (21, 4), (5, 5), (19, 7), (70, 21), (16, 16)];
        for (cols, (n_rows, n_activations)) in
            widths(ty).iter().flat_map(|cols| shapes.map(|shape| (*cols, shape)))
        {
            let bytes = weights(&mut random, ty, n_rows, cols);
            let matrix = Matrix::new(ty, &bytes, n_rows, cols).unwrap();
            let x: Vec<f32> = (0..n_activations * cols).map(|_| random.normal()).collect();
            let kind = ty.activation_kind().unwrap();
            let reference = Activations::quantize(Level::SCALAR, kind, cols, &x).unwrap();
            let row_bytes = ty.row_bytes(cols).unwrap();
            for level in Level::available() {
                let activations = Activations::quantize(*level, kind, cols, &x).unwrap();
                let out = product(*level, &matrix, &activations, Rows::Range(0..n_activations));
                for a in 0..n_activations {
                    for n in 0..n_rows {
                        let expected =
                            dot(ty, &bytes[n * row_bytes..][..row_bytes], reference.row(a)).unwrap();
                        let value = out[a * n_rows + n];
                        assert!(
                            same(value, expected),
                            "{ty} on {}: {cols} columns, row {n} of {n_rows}, activation {a} of {n_activations}: {value:e} is not {expected:e}",
                            level.name()
                        );
                    }
                }
            }
        }
    }
}

#[test]
fn a_row_alone_and_in_a_long_batch_has_the_same_bits() {
    let mut random = Random(7);
    for ty in [WeightType::Q4_K, WeightType::Q6_K, WeightType::Q4_1, WeightType::Q8_0, WeightType::BF16] {
        let (n_rows, cols, n_activations) = (83, 512, 301);
        let bytes = weights(&mut random, ty, n_rows, cols);
        let matrix = Matrix::new(ty, &bytes, n_rows, cols).unwrap();
        let x: Vec<f32> = (0..n_activations * cols).map(|_| random.normal()).collect();
        let level = Level::best();
        let activations = Activations::quantize(level, ty.activation_kind().unwrap(), cols, &x).unwrap();
        let batch = product(level, &matrix, &activations, Rows::Range(0..n_activations));
        for a in [0, 1, 255, 256, 300] {
            let alone = product(level, &matrix, &activations, Rows::List(&[a as u32]));
            assert_eq!(alone, batch[a * n_rows..][..n_rows], "{ty} row {a}");
        }
    }
}

#[test]
fn gathered_rows_and_parts_of_the_weight_rows_land_where_they_should() {
    let mut random = Random(3);
    let (ty, n_rows, cols) = (WeightType::Q5_0, 50, 96);
    let bytes = weights(&mut random, ty, n_rows, cols);
    let matrix = Matrix::new(ty, &bytes, n_rows, cols).unwrap();
    let x: Vec<f32> = (0..6 * cols).map(|_| random.normal()).collect();
    let level = Level::best();
    let activations = Activations::quantize(level, ActivationKind::Q8Block32, cols, &x).unwrap();
    let all = product(level, &matrix, &activations, Rows::Range(0..6));
    let list = [5u32, 0, 5];
    let mut out = vec![-1.0f32; 3 * 60];
    let (left, right) = OutTile::new(&mut out, 3, n_rows, 60).unwrap().split_at_column(21).unwrap();
    let mut scratch = Scratch::default();
    for (mut tile, range) in [(right, 21..n_rows), (left, 0..21)] {
        matmul(level, &matrix, range, &activations, Rows::List(&list), &mut tile, &mut scratch).unwrap();
    }
    for (index, &row) in list.iter().enumerate() {
        assert_eq!(out[index * 60..][..n_rows], all[row as usize * n_rows..][..n_rows]);
        assert!(out[index * 60 + n_rows..(index + 1) * 60].iter().all(|value| *value == -1.0));
    }
}

#[test]
fn products_are_close_to_f64_over_dequantised_weights() {
    let mut random = Random(21);
    for ty in weight_types() {
        let (n_rows, cols) = (16, 512);
        let bytes = weights(&mut random, ty, n_rows, cols);
        let matrix = Matrix::new(ty, &bytes, n_rows, cols).unwrap();
        let x: Vec<f32> = (0..cols).map(|_| random.normal()).collect();
        let level = Level::best();
        let activations = Activations::quantize(level, ty.activation_kind().unwrap(), cols, &x).unwrap();
        let out = product(level, &matrix, &activations, Rows::Range(0..1));
        let mut w = vec![0.0; cols];
        let (mut error, mut size) = (0.0, 0.0);
        for (row, value) in bytes.chunks_exact(ty.row_bytes(cols).unwrap()).zip(&out) {
            dequantize_row(ty, row, &mut w).unwrap();
            let exact: f64 = w.iter().zip(&x).map(|(w, x)| *w as f64 * *x as f64).sum();
            error += (exact - *value as f64).powi(2);
            size += exact * exact;
        }
        // Eight bits of activations.
        assert!(error < 1e-3 * size, "{ty}: squared error {error:e} of {size:e}");
    }
}

#[test]
fn quantisation_has_the_same_bits_everywhere_even_for_odd_values() {
    let mut random = Random(5);
    let mut x: Vec<f32> = (0..2048).map(|_| random.normal()).collect();
    x[300] = f32::NAN;
    x[600] = f32::INFINITY;
    x[768..1024].fill(0.0);
    x[1024..1280].fill(1e-39);
    x[1300] = 1e30;
    // Ties: the largest is 127, so that halves stay halves.
    for (i, value) in x[1600..1632].iter_mut().enumerate() {
        *value = i as f32 - 15.5;
    }
    x[1610] = 127.0;
    x[1540] = -3.0;
    x[1550] = 3.0;
    for kind in [ActivationKind::Q8K, ActivationKind::Q8Block32] {
        let reference = format!("{:?}", Activations::quantize(Level::SCALAR, kind, 2048, &x).unwrap().row(0));
        for level in Level::available() {
            let row = format!("{:?}", Activations::quantize(*level, kind, 2048, &x).unwrap().row(0));
            assert_eq!(row, reference, "{kind:?} on {}", level.name());
        }
    }
}

#[test]
fn what_does_not_fit_is_refused() {
    let bytes = vec![0u8; 144 * 4];
    assert!(matches!(Matrix::new(WeightType::I32, &bytes, 1, 1), Err(MatmulError::NotWeights { .. })));
    assert!(matches!(Matrix::new(WeightType::Q4_K, &bytes, 4, 255), Err(MatmulError::Width { .. })));
    assert!(matches!(Matrix::new(WeightType::Q4_K, &bytes, 3, 256), Err(MatmulError::Bytes { .. })));
    assert!(matches!(Matrix::new(WeightType::Q4_K, &bytes, usize::MAX, 512), Err(MatmulError::Bytes { .. })));
    let matrix = Matrix::new(WeightType::Q4_K, &bytes, 4, 256).unwrap();
    let level = Level::best();
    let good = Activations::quantize(level, ActivationKind::Q8K, 256, &[1.0; 512]).unwrap();
    let other = Activations::quantize(level, ActivationKind::Q8Block32, 256, &[1.0; 512]).unwrap();
    assert!(Activations::new(ActivationKind::Q8K, 255).is_err());
    assert!(Activations::quantize(level, ActivationKind::Q8Block32, 32, &[0.0; 33]).is_err());
    let mut out = vec![0.0f32; 8];
    let mut try_it = |activations: &Activations, weight_rows, rows, shape: (usize, usize)| {
        let mut tile = OutTile::new(&mut out, shape.0, shape.1, shape.1).unwrap();
        matmul(level, &matrix, weight_rows, activations, rows, &mut tile, &mut Scratch::default())
    };
    assert!(matches!(try_it(&other, 0..4, Rows::Range(0..2), (2, 4)), Err(MatmulError::Activations { .. })));
    assert!(matches!(try_it(&good, 0..5, Rows::Range(0..1), (1, 5)), Err(MatmulError::Range { .. })));
    assert!(matches!(try_it(&good, 0..4, Rows::Range(1..3), (2, 4)), Err(MatmulError::Range { .. })));
    assert!(matches!(try_it(&good, 0..4, Rows::List(&[0, 2]), (2, 4)), Err(MatmulError::Range { .. })));
    assert!(matches!(try_it(&good, 0..4, Rows::Range(0..2), (2, 3)), Err(MatmulError::Output { .. })));
    assert!(try_it(&good, 0..4, Rows::Range(0..2), (2, 4)).is_ok());
    assert!(try_it(&good, 2..2, Rows::Range(0..0), (0, 0)).is_ok());
    assert!(OutTile::new(&mut [0.0; 7], 2, 4, 4).is_err());
    assert!(OutTile::new(&mut [0.0; 8], 2, 4, 3).is_err());
    assert!(OutTile::new(&mut [0.0; 8], 2, 4, usize::MAX).is_err());
}
