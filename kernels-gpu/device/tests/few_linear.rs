//! Projections, routers and experts of few rows on the simulated grid: bit for bit what the launches of the operators give, whose
//! order the processor's kernels share.

use bloomery_kernels_device::run_entry;

struct Random(u64);
impl Random {
    fn word(&mut self) -> u32 {
        self.0 = self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (self.0 >> 32) as u32
    }
    fn next(&mut self) -> f32 {
        (self.word() >> 8) as f32 / (1u32 << 23) as f32 - 1.0
    }
    fn row(&mut self, n: usize) -> Vec<f32> {
        (0..n).map(|_| self.next()).collect()
    }
}

#[derive(Clone, Copy, Debug, PartialEq)]
struct Type {
    name: &'static str,
    letter: char,
    number: u32,
    block: usize,
    bytes: usize,
    /// High bytes of the scales.
    scales: &'static [usize],
}

const TYPES: [Type; 7] = [
    Type { name: "q4_k", letter: 'k', number: 0, block: 256, bytes: 144, scales: &[1, 3] },
    Type { name: "q5_k", letter: 'k', number: 1, block: 256, bytes: 176, scales: &[1, 3] },
    Type { name: "q6_k", letter: 'k', number: 2, block: 256, bytes: 210, scales: &[209] },
    Type { name: "q8_0", letter: 'b', number: 0, block: 32, bytes: 34, scales: &[1] },
    Type { name: "f32", letter: 'f', number: 0, block: 1, bytes: 4, scales: &[3] },
    Type { name: "f16", letter: 'f', number: 1, block: 1, bytes: 2, scales: &[1] },
    Type { name: "bf16", letter: 'f', number: 2, block: 1, bytes: 2, scales: &[1] },
];

/// A matrix with small scales, 16 bytes of room behind it.
struct Matrix {
    ty: Type,
    row_bytes: usize,
    n: usize,
    words: Vec<u128>,
}

impl Matrix {
    fn new(ty: Type, n: usize, cols: usize, random: &mut Random) -> Matrix {
        let row_bytes = cols / ty.block * ty.bytes;
        let mut bytes: Vec<u8> = (0..n * row_bytes).map(|_| random.word() as u8).collect();
        for block in bytes.chunks_exact_mut(ty.bytes) {
            for at in ty.scales {
                block[*at] =
                    if ty.letter == 'f' { 0x3c | block[*at] & 0x81 } else { 0x1c | block[*at] & 0x80 };
            }
        }
        let mut words = vec![0u128; bytes.len() / 16 + 2];
        // SAFETY: the vector is longer than the bytes.
        unsafe { std::ptr::copy_nonoverlapping(bytes.as_ptr(), words.as_mut_ptr().cast(), bytes.len()) };
        Matrix { ty, row_bytes, n, words }
    }
    fn at(&self) -> u64 {
        self.words.as_ptr() as u64
    }
}

fn call(name: &str, grid: [u32; 3], threads: u32, shared: usize, words: &[u64]) {
    // SAFETY: the callers pass addresses of memory of the right size.
    assert!(unsafe { run_entry(name, grid, threads, shared as u32, words) }, "{name}");
}

fn f(v: f32) -> u64 {
    u64::from(v.to_bits())
}

/// Every form of rows, in memory that 16-byte loads may read.
struct Forms {
    rows: usize,
    cols: usize,
    normed: Vec<f32>,
    plain: Vec<u128>,
    qs: Vec<u128>,
    scales: Vec<f32>,
    sums: Vec<u128>,
    qs32: Vec<u128>,
    scales32: Vec<f32>,
    sums32: Vec<u128>,
    fault: Vec<u32>,
}

impl Forms {
    fn new(rows: usize, cols: usize) -> Forms {
        let groups = cols.div_ceil(256);
        Forms {
            rows,
            cols,
            normed: vec![0.0; rows * cols],
            plain: vec![0; (rows * cols).div_ceil(4)],
            qs: vec![0; rows * groups * 16],
            scales: vec![0.0; rows * groups],
            sums: vec![0; rows * groups * 2],
            qs32: vec![0; rows * groups * 16],
            scales32: vec![0.0; rows * groups * 8],
            sums32: vec![0; rows * groups * 2],
            fault: vec![0; 4],
        }
    }

    /// By the operators' own launch.
    fn of(x: &[f32], rows: usize, norm: Option<&[f32]>) -> Forms {
        let cols = x.len() / rows;
        let mut forms = Forms::new(rows, cols);
        let wide = cols.is_multiple_of(256);
        let words = [
            x.as_ptr() as u64,
            0,
            0,
            f(f32::INFINITY),
            f(f32::INFINITY),
            u64::from(norm.is_some()),
            norm.map_or(0, |w| w.as_ptr() as u64),
            cols as u64,
            cols as u64,
            f(1e-6),
            cols as u64,
            forms.normed.as_mut_ptr() as u64,
            if wide { forms.qs.as_mut_ptr() as u64 } else { 0 },
            forms.scales.as_mut_ptr() as u64,
            forms.sums.as_mut_ptr() as u64,
            forms.qs32.as_mut_ptr() as u64,
            forms.scales32.as_mut_ptr() as u64,
            forms.sums32.as_mut_ptr() as u64,
            forms.plain.as_mut_ptr() as u64,
            forms.fault.as_mut_ptr() as u64,
            0,
        ];
        call("row_quantize", [rows as u32, 1, 1], 256, 4 * (cols + 64), &words);
        forms
    }

    fn arrays(&self, letter: char) -> [u64; 3] {
        match letter {
            'k' => [self.qs.as_ptr() as u64, self.scales.as_ptr() as u64, self.sums.as_ptr() as u64],
            'b' => [self.qs32.as_ptr() as u64, self.scales32.as_ptr() as u64, self.sums32.as_ptr() as u64],
            _ => [self.plain.as_ptr() as u64, 0, 0],
        }
    }

    fn bits(&self) -> Vec<u32> {
        let floats = self.normed.iter().chain(&self.scales).chain(&self.scales32).map(|v| v.to_bits());
        let words = [&self.plain, &self.qs, &self.sums, &self.qs32, &self.sums32];
        floats
            .chain(
                words
                    .into_iter()
                    .flatten()
                    .map(|w| *w as u32 ^ (*w >> 32) as u32 ^ (*w >> 64) as u32 ^ (*w >> 96) as u32),
            )
            .collect()
    }
}

/// By the operators' own launch: one matrix, one row after another; experts by `ids`.
fn gemv(
    m: &Matrix,
    x: &Forms,
    n: usize,
    ids: Option<(&[u32], usize, usize)>,
    bias: Option<&[f32]>,
    residual: Option<&[f32]>,
) -> Vec<f32> {
    let rows = ids.map_or(x.rows, |(ids, ..)| ids.len());
    let mut out = vec![f32::NAN; rows * n];
    let [qs, scales, sums] = x.arrays(m.ty.letter);
    let mut words = vec![m.at(), m.row_bytes as u64, n as u64, x.cols as u64, qs, scales, sums];
    words.extend([
        ids.map_or(0, |(ids, ..)| ids.as_ptr() as u64),
        ids.map_or(0, |(_, experts, _)| experts as u64),
        ids.map_or(1, |(_, _, used)| used as u64),
        bias.map_or(0, |b| b.as_ptr() as u64),
        residual.map_or(0, |r| r.as_ptr() as u64),
        out.as_mut_ptr() as u64,
    ]);
    words.extend([0; 8]);
    call(
        &format!("gemv_{}", m.ty.name),
        [n.div_ceil(2) as u32, rows as u32, 1],
        64,
        2 * (32 * 384 + 64),
        &words,
    );
    out
}

fn row_step(letter: char, cols: usize) -> usize {
    let groups = cols.div_ceil(256);
    match letter {
        'k' => (292 * groups).next_multiple_of(16),
        'b' => 320 * groups,
        _ => (4 * cols).next_multiple_of(16),
    }
}

fn bits(v: &[f32]) -> Vec<u32> {
    v.iter().map(|v| v.to_bits()).collect()
}

/// Three matrices of different lengths and types in one launch, from rows that are ready and from rows that are normed on the way.
fn check(letter: char, cols: usize, rows: usize, per: usize) {
    let mut random = Random(5 + cols as u64 + rows as u64);
    let types: Vec<Type> = TYPES.into_iter().filter(|ty| ty.letter == letter).collect();
    let matrices: Vec<Matrix> = [37, 5, 18]
        .iter()
        .enumerate()
        .map(|(i, n)| Matrix::new(types[i % types.len()], *n, cols, &mut random))
        .collect();
    let x = random.row(rows * cols);
    let weight = random.row(cols);
    let bias = random.row(37);
    let residual = random.row(rows * 37);
    for norm in [None, Some(&weight[..])] {
        let ready = Forms::of(&x, rows, norm);
        let mut left = Forms::new(rows, cols);
        let mut outs: Vec<Vec<f32>> = matrices.iter().map(|m| vec![f32::NAN; rows * m.n]).collect();
        let (mode, forms) = if norm.is_some() { (2, &mut left) } else { (0, &mut Forms::of(&x, rows, norm)) };
        let mut words =
            vec![mode, rows as u64, cols as u64, x.as_ptr() as u64, weight.as_ptr() as u64, f(1e-6)];
        words.extend([
            forms.normed.as_mut_ptr() as u64,
            forms.plain.as_mut_ptr() as u64,
            if cols.is_multiple_of(256) { forms.qs.as_mut_ptr() as u64 } else { 0 },
            forms.scales.as_mut_ptr() as u64,
            forms.sums.as_mut_ptr() as u64,
            forms.qs32.as_mut_ptr() as u64,
            forms.scales32.as_mut_ptr() as u64,
            forms.sums32.as_mut_ptr() as u64,
            forms.fault.as_mut_ptr() as u64,
            7,
            residual.as_ptr() as u64,
        ]);
        let mut grid = 0;
        for (i, m) in matrices.iter().enumerate() {
            let blocks = m.n.div_ceil(per);
            grid += blocks as u32;
            words.extend([m.at(), u64::from(m.ty.number), m.row_bytes as u64, m.n as u64, blocks as u64]);
            words.extend([if i == 0 { bias.as_ptr() as u64 } else { 0 }, outs[i].as_mut_ptr() as u64]);
        }
        let n = [1, 2, 4, 8].into_iter().find(|n| rows <= *n).unwrap();
        let shared = n * row_step(letter, cols) + 8 * cols.next_multiple_of(256);
        call(&format!("linear_few_{letter}_{n}"), [grid, 1, 1], 256, shared, &words);
        for (i, (m, found)) in matrices.iter().zip(&outs).enumerate() {
            let (bias, residual) = if i == 0 { (Some(&bias[..]), Some(&residual[..])) } else { (None, None) };
            let expected = gemv(m, &ready, m.n, None, bias, residual);
            assert!(expected.iter().all(|v| v.is_finite()));
            assert_eq!(bits(&expected), bits(found), "{letter} {cols} columns, {rows} rows, matrix {i}");
        }
        if norm.is_some() {
            assert_eq!(left.bits(), ready.bits(), "forms of {rows} rows of {cols}");
        }
    }
}

#[test]
fn linear_equals_the_operators_launches() {
    for rows in [1, 2, 3, 7, 8] {
        check('k', 768, rows, 8);
        check('b', 352, rows, 1);
    }
    check('k', 2048, 1, 16);
    check('k', 1280, 2, 3);
    check('k', 256, 1, 1);
    check('b', 2080, 1, 8);
    check('b', 32, 2, 8);
    for rows in [1, 2] {
        check('f', 1312, rows, 1);
    }
    check('f', 2048, 1, 1);
    check('f', 96, 2, 8);
}

/// Router and experts in two launches against logits, choice, products and sums by launches of their own.
fn check_experts(
    gate: Type,
    down: Type,
    (cols, ff): (usize, usize),
    (experts, used): (usize, usize),
    rows: usize,
    score: u32,
) {
    let mut random = Random(11 + cols as u64 * 3 + rows as u64 + u64::from(score));
    let n = cols;
    let matrix = |ty, n, cols, random: &mut Random| Matrix::new(ty, experts * n, cols, random);
    let (g, u) = (matrix(gate, ff, cols, &mut random), matrix(gate, ff, cols, &mut random));
    let d = matrix(down, n, ff, &mut random);
    let x = random.row(rows * cols);
    let forms = Forms::of(&x, rows, None);
    let mut logits = random.row(rows * experts);
    // Equal logits: the lower number goes first.
    logits[experts - 1] = logits[1];
    let route_bias = random.row(experts);
    let residual = random.row(rows * n);
    let slots = rows * used;
    let (mut ids, mut weights, mut fault) = (vec![0u32; slots], vec![0f32; slots], vec![0u32; 4]);
    let router = [logits.as_ptr() as u64, route_bias.as_ptr() as u64, experts as u64, used as u64];
    let constants = [u64::from(score), 1, f(1e-20), f(1.5)];
    let mut words = router.to_vec();
    words.extend(constants);
    words.extend([ids.as_mut_ptr() as u64, weights.as_mut_ptr() as u64, fault.as_mut_ptr() as u64, 0]);
    call("route_experts", [rows as u32, 1, 1], 32, 8 * (experts + used), &words);
    let (gates, ups) = (
        gemv(&g, &forms, ff, Some((&ids, experts, used)), None, None),
        gemv(&u, &forms, ff, Some((&ids, experts, used)), None, None),
    );
    let silu = bloomery_formats::math::silu;
    let hidden: Vec<f32> = gates.iter().zip(&ups).map(|(g, u)| silu(*g) * u).collect();
    let results = gemv(&d, &Forms::of(&hidden, slots, None), n, Some((&ids, experts, 1)), None, None);
    let mut expected = vec![0f32; rows * n];
    for (at, e) in expected.iter_mut().enumerate() {
        let (row, i) = (at / n, at % n);
        for rank in 0..used {
            *e += weights[row * used + rank] * results[(row * used + rank) * n + i];
        }
        *e += residual[at];
    }

    let mut found_ids = vec![u32::MAX; slots];
    let mut found_weights = vec![f32::NAN; slots];
    let mut found_hidden = vec![f32::NAN; slots * ff];
    let mut found = vec![f32::NAN; rows * n];
    let [qs, scales, sums] = forms.arrays(gate.letter);
    let mut words = vec![rows as u64, cols as u64, qs, scales, sums];
    words.extend(router);
    words.extend(constants);
    words.extend([
        fault.as_mut_ptr() as u64,
        0,
        found_ids.as_mut_ptr() as u64,
        found_weights.as_mut_ptr() as u64,
    ]);
    words.extend([u64::from(gate.number), g.row_bytes as u64, ff as u64, g.at(), u.at(), 0, 0, 0]);
    words.extend([f(f32::INFINITY), f(f32::INFINITY), found_hidden.as_mut_ptr() as u64]);
    let shared =
        row_step(gate.letter, cols) + 8 * experts.next_multiple_of(16) + 128 + 8 * used.next_multiple_of(4);
    call(&format!("gate_up_few_{}", gate.letter), [3, slots as u32, 1], 256, shared, &words);
    assert_eq!(ids, found_ids, "{experts} experts, score {score}");
    assert_eq!(bits(&weights), bits(&found_weights), "{experts} experts, score {score}");
    assert_eq!(bits(&hidden), bits(&found_hidden), "{} {cols}", gate.name);

    let words = [
        found_hidden.as_ptr() as u64,
        found_ids.as_ptr() as u64,
        found_weights.as_ptr() as u64,
        experts as u64,
        used as u64,
        u64::from(down.number),
        d.row_bytes as u64,
        n as u64,
        ff as u64,
        d.at(),
        0,
        residual.as_ptr() as u64,
        found.as_mut_ptr() as u64,
        fault.as_mut_ptr() as u64,
        0,
    ];
    let shared = 8 * row_step(down.letter, ff) + 36 * used;
    call(&format!("down_few_{}", down.letter), [n.div_ceil(8) as u32, rows as u32, 1], 256, shared, &words);
    assert!(expected.iter().all(|v| v.is_finite()));
    assert_eq!(bits(&expected), bits(&found), "{} {ff}", down.name);
    assert_eq!(fault, [0; 4]);
}

#[test]
fn experts_equal_the_operators_launches() {
    let [q4, q5, q6, q8, ..] = TYPES;
    check_experts(q4, q6, (512, 768), (12, 3), 1, 0);
    check_experts(q4, q4, (256, 256), (130, 8), 2, 0);
    check_experts(q5, q5, (256, 512), (6, 2), 7, 1);
    check_experts(q6, q8, (1280, 96), (8, 4), 2, 2);
    check_experts(q8, q8, (96, 64), (20, 10), 3, 3);
    check_experts(q8, q4, (64, 1280), (300, 1), 1, 1);
}
