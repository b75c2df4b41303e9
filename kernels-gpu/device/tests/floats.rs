//! f32 weights times many rows on the simulated grid: the bits of the row-by-row kernel.

use bloomery_kernels_device::{FLOATS_SHARED, FLOATS_THREADS, FLOATS_TILE, run_entry};

struct Random(u64);
impl Random {
    fn next(&mut self) -> f32 {
        self.0 = self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (self.0 >> 40) as f32 / (1u64 << 23) as f32 - 1.0
    }
    /// At an address that 16-byte copies take.
    fn rows(&mut self, count: usize) -> Vec<[f32; 4]> {
        let mut values = vec![[0.0; 4]; count / 4 + 1];
        values.as_flattened_mut().iter_mut().for_each(|v| *v = self.next());
        let misalignment = values.as_ptr() as usize % 16;
        assert_eq!(misalignment, 0, "the allocator gives 16");
        values
    }
}

fn check(rows: usize, n: usize, cols: usize, extras: bool) {
    let mut random = Random(3 + (rows * n + cols) as u64);
    let (w, x) = (random.rows(n * cols), random.rows(rows * cols));
    let (bias, residual) = (random.rows(n), random.rows(rows * n));
    let extra = |values: &[[f32; 4]]| if extras { values.as_ptr() as u64 } else { 0 };
    let (mut expected, mut found) = (vec![f32::NAN; rows * n], vec![f32::NAN; rows * n]);
    let words = [
        w.as_ptr() as u64,
        4 * cols as u64,
        n as u64,
        cols as u64,
        x.as_ptr() as u64,
        0,
        0,
        0,
        0,
        1,
        extra(&bias),
        extra(&residual),
        expected.as_mut_ptr() as u64,
    ];
    let words: Vec<u64> = words.into_iter().chain([0; 8]).collect();
    // SAFETY: every address is of memory of this function of the right size.
    assert!(unsafe { run_entry("gemv_f32", [n.div_ceil(2) as u32, rows as u32, 1], 64, 0, &words) });
    let words = [
        w.as_ptr() as u64,
        n as u64,
        cols as u64,
        x.as_ptr() as u64,
        rows as u64,
        extra(&bias),
        extra(&residual),
        found.as_mut_ptr() as u64,
    ];
    let tiles = |count: usize| (count as u32).div_ceil(FLOATS_TILE);
    // SAFETY: as above.
    let there =
        unsafe { run_entry("gemm_f32", [tiles(n), tiles(rows), 1], FLOATS_THREADS, FLOATS_SHARED, &words) };
    assert!(there);
    let bits = |values: &[f32]| values.iter().map(|v| v.to_bits()).collect::<Vec<_>>();
    assert_eq!(bits(&expected), bits(&found), "{rows} rows, {n} of {cols}");
}

#[test]
fn bits_of_the_row_by_row_kernel() {
    check(33, 40, 512, false);
    check(64, 128, 320, true);
    check(5, 3, 64, true);
    check(40, 33, 2048, false);
}
