//! The plain tier and the end of the low-rank mix against their definitions, bit for bit on every machine.

mod support;

use bloomery_kernels_cpu::plain::{
    NoChunk, Reduction, gather, l2_norm, mat_mul, reduce, softmax, top_k, transpose,
};
use bloomery_kernels_cpu::streams::low_rank_mixed;
use bloomery_program::op;
use bloomery_reference::ops::{norm, plain, streams};
use support::{on_all, values};

/// Rows and groups in a row; the last shape is shared among threads.
const SHAPES: [(usize, usize, usize); 4] = [(1, 1, 7), (3, 4, 33), (2, 1, 64), (300, 3, 48)];

fn close(found: &[f32], expected: &[f32], what: &str) {
    assert_eq!(found.len(), expected.len());
    for (i, (a, b)) in found.iter().zip(expected).enumerate() {
        assert!((a - b).abs() <= 2e-6 * b.abs().max(1.0), "{what}, {i}: {a} for {b}");
    }
}

#[test]
fn norms_softmax_and_reductions() {
    for (rows, groups, group) in SHAPES {
        let width = groups * group;
        let x = values(9, rows * width, 4.0);
        let what = format!("{rows} rows of {groups} groups of {group}");
        let found = on_all(x.len(), &what, |cpu, out| l2_norm(cpu, 1e-6, group, rows, width, &x, out));
        let mut expected = vec![0.0; x.len()];
        norm::l2_norm(&x, group, 1e-6, &mut expected);
        close(&found, &expected, &what);

        let found = on_all(x.len(), &what, |cpu, out| softmax(cpu, group, rows, width, &x, out));
        let mut expected = x.clone();
        expected.chunks_exact_mut(group).for_each(plain::softmax);
        close(&found, &expected, &what);

        for (by, definition) in [
            (Reduction::Sum, op::Reduction::Sum),
            (Reduction::Mean, op::Reduction::Mean),
            (Reduction::Max, op::Reduction::Max),
        ] {
            let found = on_all(rows * groups, &what, |cpu, out| {
                reduce(&cpu.pool, by, group, rows, width, &x, out);
            });
            let mut expected = vec![0.0; rows * groups];
            plain::reduce(&x, definition, group, &mut expected);
            close(&found, &expected, &what);
        }
    }
}

#[test]
fn products_and_transposition() {
    for (rows, m, n, k) in [(1, 2, 3, 5), (4, 3, 1, 33), (200, 8, 16, 16)] {
        let (a, b) = (values(1, rows * m * k, 1.0), values(2, rows * n * k, 1.0));
        let what = format!("{rows} rows, {m} by {n} over {k}");
        let found = on_all(rows * m * n, &what, |cpu, out| mat_mul(cpu, k, rows, m, n, &a, &b, out));
        let mut expected = vec![0.0; rows * m * n];
        for (row, out) in expected.chunks_exact_mut(m * n).enumerate() {
            plain::mat_mul(&a[row * m * k..][..m * k], &b[row * n * k..][..n * k], k, out);
        }
        close(&found, &expected, &what);

        let found = on_all(a.len(), &what, |cpu, out| transpose(&cpu.pool, rows, m, k, &a, out));
        let mut expected = vec![0.0; a.len()];
        for (x, out) in a.chunks_exact(m * k).zip(expected.chunks_exact_mut(m * k)) {
            plain::transpose(x, k, out);
        }
        assert_eq!(found, expected, "{what}");
    }
}

#[test]
fn choices_and_chunks() {
    let x = [1.0, 3.0, -0.0, 3.0, 0.0, 2.0, /**/ -1.0, -1.0, -1.0, -1.0, -1.0, 5.0];
    let (mut best, mut places) = ([0.0; 6], [0; 6]);
    top_k(3, 2, 6, &x, &mut best, &mut places);
    assert_eq!((best, places), ([3.0, 3.0, 2.0, 5.0, -1.0, -1.0], [1, 3, 5, 5, 0, 1]));
    top_k(6, 1, 6, &x, &mut best, &mut places);
    assert_eq!(places, [1, 3, 5, 0, 2, 4], "either zero is as large as the other");

    let mut out = [0.0; 8];
    gather(2, 2, 6, 2, &x, &[2, 0, 1, 2], &mut out).unwrap();
    assert_eq!(out, [0.0, 2.0, 1.0, 3.0, -1.0, -1.0, -1.0, 5.0]);
    let error = gather(2, 2, 6, 2, &x, &[2, 0, 1, 3], &mut out).unwrap_err();
    assert_eq!(error, NoChunk { number: 3, chunks: 3 });
}

#[test]
fn low_rank_mixes_end_as_defined() {
    for (rows, n, width) in [(1, 4, 17), (3, 2, 64), (90, 4, 96)] {
        let (x, up) = (values(1, rows * n * width, 2.0), values(2, rows * n * width, 6.0));
        let what = format!("{rows} rows of {n} streams of {width}");
        let found = on_all(rows * width, &what, |cpu, out| {
            low_rank_mixed(cpu, n, rows, width, &x, &up, out);
        });
        let mut expected = vec![0.0; rows * width];
        for (row, out) in expected.chunks_exact_mut(width).enumerate() {
            let span = row * n * width..(row + 1) * n * width;
            streams::low_rank_mixed(&x[span.clone()], &up[span], out);
        }
        close(&found, &expected, &what);
    }
}
