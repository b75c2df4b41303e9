//! Tensor-core products on the simulated grid: the bits of the row-by-row kernels, dense and sorted by expert.

use bloomery_kernels_device::{
    GEMM_THREADS, SORT_SHARED, SORT_THREADS, TILE_COLUMNS, TILE_ROWS, gemm_shared, run_entry,
};

struct Random(u64);
impl Random {
    fn word(&mut self) -> u32 {
        self.0 = self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (self.0 >> 32) as u32
    }
    fn unit(&mut self) -> f32 {
        (self.word() >> 8) as f32 / (1u32 << 24) as f32
    }
}

/// Name, bytes of a block, bytes from row to row in shared memory, high bytes of the scales.
type Type = (&'static str, usize, u32, &'static [usize]);
const TYPES: [Type; 3] =
    [("q4_k", 144, 144, &[1, 3]), ("q5_k", 176, 176, &[1, 3]), ("q6_k", 210, 212, &[209])];

/// Bytes at an address that 16-byte loads take, with room behind them.
fn aligned(bytes: &[u8]) -> Vec<u128> {
    let mut words = vec![0u128; bytes.len() / 16 + 2];
    // SAFETY: the vector is longer than the bytes.
    unsafe { std::ptr::copy_nonoverlapping(bytes.as_ptr(), words.as_mut_ptr().cast(), bytes.len()) };
    words
}

fn matrix(ty: Type, rows: usize, cols: usize, random: &mut Random) -> Vec<u128> {
    let mut bytes: Vec<u8> = (0..rows * cols / 256 * ty.1).map(|_| random.word() as u8).collect();
    for block in bytes.chunks_exact_mut(ty.1) {
        for at in ty.3 {
            block[*at] = 0x1c | block[*at] & 0x80;
        }
    }
    aligned(&bytes)
}

/// Quants, scales and sums of `rows` rows.
fn activations(rows: usize, cols: usize, random: &mut Random) -> (Vec<u128>, Vec<f32>, Vec<u128>) {
    let qs: Vec<i8> = (0..rows * cols).map(|_| ((random.word() % 255) as i32 - 127) as i8).collect();
    let sums: Vec<u8> = qs
        .chunks_exact(16)
        .flat_map(|part| part.iter().map(|q| i16::from(*q)).sum::<i16>().to_le_bytes())
        .collect();
    let scales = (0..rows * cols / 256).map(|_| random.unit() * 0.1).collect();
    (aligned(&qs.iter().map(|q| *q as u8).collect::<Vec<_>>()), scales, aligned(&sums))
}

fn call(name: &str, grid: [u32; 3], threads: u32, shared: u32, words: &[u64]) {
    // SAFETY: the callers pass addresses of memory of the right size.
    assert!(unsafe { run_entry(name, grid, threads, shared, words) }, "{name}");
}

fn same(a: &[f32], b: &[f32], what: &str) {
    for (i, (a, b)) in a.iter().zip(b).enumerate() {
        assert_eq!(a.to_bits(), b.to_bits(), "{what}: value {i} is {a}, expected {b}");
    }
}

#[test]
fn dense_products_have_the_bits_of_single_rows() {
    let mut random = Random(7);
    for ty in TYPES {
        for (rows, n, cols) in [(1, 5, 256), (33, 70, 512), (16, 64, 768)] {
            let w = matrix(ty, n, cols, &mut random);
            let (qs, scales, sums) = activations(rows, cols, &mut random);
            let bias: Vec<f32> = (0..n).map(|_| random.unit()).collect();
            let residual: Vec<f32> = (0..rows * n).map(|_| random.unit()).collect();
            let (mut one, mut many) = (vec![f32::NAN; rows * n], vec![f32::NAN; rows * n]);
            let row_bytes = (cols / 256 * ty.1) as u64;
            let x = [qs.as_ptr() as u64, scales.as_ptr() as u64, sums.as_ptr() as u64];
            let more = [bias.as_ptr() as u64, residual.as_ptr() as u64];
            let mut words = vec![w.as_ptr() as u64, row_bytes, n as u64, cols as u64];
            words.extend(x);
            let mut single = words.clone();
            single.extend([0, 0, 1]);
            single.extend(more);
            single.push(one.as_mut_ptr() as u64);
            single.extend([0; 8]);
            let scratch = 4 * (32 * 384 + 64);
            call(&format!("gemv_{}", ty.0), [n.div_ceil(4) as u32, rows as u32, 1], 128, scratch, &single);
            words.extend([0, 0, 1, rows as u64]);
            words.extend(more);
            words.push(many.as_mut_ptr() as u64);
            let grid = [(n as u32).div_ceil(TILE_COLUMNS), (rows as u32).div_ceil(TILE_ROWS), 1];
            call(&format!("gemm_{}", ty.0), grid, GEMM_THREADS, gemm_shared(ty.2), &words);
            same(&many, &one, &format!("{} {rows} x {n} x {cols}", ty.0));
        }
    }
}

#[test]
fn experts_rows_are_sorted_and_multiplied_with_their_own_weights() {
    let mut random = Random(11);
    let (rows, used, experts, n, cols) = (43usize, 3usize, 5usize, 66usize, 512usize);
    let slots = rows * used;
    // One expert takes most, one none.
    let mut ids: Vec<u32> = (0..slots)
        .map(|_| match random.word() % 8 {
            0 => 0,
            1 => 4,
            2 => 1,
            _ => 3,
        })
        .collect();
    let chosen = ids.clone();
    ids.extend([0; 4]);
    let ids = aligned(&ids.iter().flat_map(|id| id.to_le_bytes()).collect::<Vec<_>>());
    let most = slots.div_ceil(TILE_ROWS as usize) + experts;
    let (mut order, mut tiles) = (vec![u32::MAX; slots], vec![u32::MAX; 3 * most]);
    let words = [
        ids.as_ptr() as u64,
        slots as u64,
        order.as_mut_ptr() as u64,
        tiles.as_mut_ptr() as u64,
        most as u64,
    ];
    call("sort_experts", [experts as u32, 1, 1], SORT_THREADS, SORT_SHARED, &words);
    // Every slot is in one tile of its expert, in order; tiles that hold nothing are zeros.
    let mut in_tiles = Vec::new();
    for tile in tiles.chunks_exact(3).filter(|tile| **tile != [0; 3]) {
        let [expert, first, end] = *tile else { unreachable!() };
        assert!(first < end && end - first <= TILE_ROWS);
        let part = &order[first as usize..end as usize];
        assert!(part.iter().all(|slot| chosen[*slot as usize] == expert));
        assert!(part.is_sorted());
        in_tiles.extend_from_slice(part);
    }
    assert_eq!(in_tiles, order);
    let mut all = order.clone();
    all.sort_unstable();
    assert!(all.iter().enumerate().all(|(i, slot)| *slot == i as u32), "every slot once");

    for ty in TYPES {
        let w = matrix(ty, experts * n, cols, &mut random);
        // Once rows that share activations, once every slot with its own.
        for share in [used, 1] {
            let (qs, scales, sums) = activations(slots / share, cols, &mut random);
            let (mut one, mut many) = (vec![f32::NAN; slots * n], vec![f32::NAN; slots * n]);
            let row_bytes = (cols / 256 * ty.1) as u64;
            let mut words = vec![w.as_ptr() as u64, row_bytes, n as u64, cols as u64];
            words.extend([qs.as_ptr() as u64, scales.as_ptr() as u64, sums.as_ptr() as u64]);
            let mut single = words.clone();
            single.extend([ids.as_ptr() as u64, experts as u64, share as u64, 0, 0]);
            single.push(one.as_mut_ptr() as u64);
            single.extend([0; 8]);
            let scratch = 4 * (32 * 384 + 64);
            call(&format!("gemv_{}", ty.0), [n.div_ceil(4) as u32, slots as u32, 1], 128, scratch, &single);
            words.extend([order.as_ptr() as u64, tiles.as_ptr() as u64, share as u64, slots as u64, 0, 0]);
            words.push(many.as_mut_ptr() as u64);
            let grid = [(n as u32).div_ceil(TILE_COLUMNS), most as u32, 1];
            call(&format!("gemm_{}", ty.0), grid, GEMM_THREADS, gemm_shared(ty.2), &words);
            same(&many, &one, &format!("{} share {share}", ty.0));
        }
    }
}
