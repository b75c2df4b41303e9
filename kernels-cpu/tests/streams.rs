//! Residual streams against their definitions, and bit for bit between levels and threads.

mod support;

use bloomery_kernels_cpu::streams::{
    HyperSpec, MemoryGateSpec, collapse, combine, hyper_head, hyper_mix, memory_gate, scale, spread,
};
use bloomery_reference::ops::streams as definition;
use support::{on_all, values};

/// Streams, width, rows.
const SHAPES: [(usize, usize, usize); 5] = [(4, 64, 3), (2, 17, 40), (4, 1, 1), (3, 129, 70), (4, 5000, 2)];

fn close(found: &[f32], expected: &[f32], what: &str) {
    assert_eq!(found.len(), expected.len(), "{what}");
    for (i, (a, b)) in found.iter().zip(expected).enumerate() {
        assert!((a - b).abs() <= 2e-6 * b.abs().max(1.0), "{what}, {i}: {a} for {b}");
    }
}

#[test]
fn streams_are_spread_and_collapsed() {
    for (n, width, rows) in SHAPES {
        let what = format!("{rows} rows of {n} streams of {width}");
        let x = values(1, rows * width, 2.0);
        let h = on_all(rows * n * width, &what, |cpu, out| spread(&cpu.pool, n, rows, width, &x, out));
        for (row, h) in h.chunks_exact(n * width).enumerate() {
            assert!(h.chunks_exact(width).all(|s| s == &x[row * width..(row + 1) * width]), "{what}");
        }
        let (h, pre) = (values(2, rows * n * width, 2.0), values(3, rows * n, 1.0));
        for pre in [Some(&pre[..]), None] {
            let found = on_all(rows * width, &what, |cpu, out| collapse(cpu, n, rows, width, &h, pre, out));
            let mut expected = vec![0.0; rows * width];
            for (row, out) in expected.chunks_exact_mut(width).enumerate() {
                let pre = pre.map(|p| &p[row * n..(row + 1) * n]);
                definition::collapse(&h[row * n * width..(row + 1) * n * width], pre, width, out);
            }
            close(&found, &expected, &what);
        }
    }
}

#[test]
fn streams_are_combined_and_scaled() {
    for (n, width, rows) in SHAPES {
        let what = format!("{rows} rows of {n} streams of {width}");
        let (h, y) = (values(1, rows * n * width, 2.0), values(2, rows * width, 2.0));
        let (post, comb) = (values(3, rows * n, 2.0), values(4, rows * n * n, 1.0));
        for comb in [Some(&comb[..]), None] {
            let found = on_all(rows * n * width, &what, |cpu, out| {
                combine(cpu, n, rows, width, &h, &y, &post, comb, out);
            });
            let mut expected = vec![0.0; rows * n * width];
            for (row, out) in expected.chunks_exact_mut(n * width).enumerate() {
                definition::combine(
                    &h[row * n * width..(row + 1) * n * width],
                    &y[row * width..(row + 1) * width],
                    &post[row * n..(row + 1) * n],
                    comb.map(|c| &c[row * n * n..(row + 1) * n * n]),
                    out,
                );
            }
            close(&found, &expected, &what);
        }
        let found = on_all(rows * n * width, &what, |cpu, out| {
            scale(&cpu.pool, n, rows, width, &y, &post, out);
        });
        let mut expected = vec![0.0; rows * n * width];
        for (row, out) in expected.chunks_exact_mut(n * width).enumerate() {
            definition::scale(&y[row * width..(row + 1) * width], &post[row * n..(row + 1) * n], out);
        }
        close(&found, &expected, &what);
    }
}

#[test]
fn coefficients_of_hyper_connections() {
    for (n, rows, iterations) in [(4, 1, 20), (4, 30, 20), (3, 5, 1), (2, 17, 4)] {
        let what = format!("{rows} rows of {n} streams, {iterations} rounds");
        let coefficients = (2 + n) * n;
        let (m, base) = (values(5, rows * coefficients, 4.0), values(6, coefficients, 1.0));
        let factors = [0.7, 1.3, 0.9];
        let spec = HyperSpec { streams: n, scale: &factors, base: &base, iterations, eps: 1e-6 };
        let all = 2 * rows * n + rows * n * n;
        let found = on_all(all, &what, |cpu, out| {
            let (pre, rest) = out.split_at_mut(rows * n);
            let (post, comb) = rest.split_at_mut(rows * n);
            hyper_mix(cpu, &spec, rows, &m, pre, post, comb);
        });
        let mut expected = vec![0.0; all];
        let (pre, rest) = expected.split_at_mut(rows * n);
        let (post, comb) = rest.split_at_mut(rows * n);
        for row in 0..rows {
            definition::hyper_mix(
                &m[row * coefficients..(row + 1) * coefficients],
                &factors,
                &base,
                iterations,
                1e-6,
                &mut pre[row * n..(row + 1) * n],
                &mut post[row * n..(row + 1) * n],
                &mut comb[row * n * n..(row + 1) * n * n],
            );
        }
        close(&found, &expected, &what);
        let m = &m[..rows * n];
        let found = on_all(rows * n, &what, |cpu, out| hyper_head(cpu, 1.7, &base[..n], 1e-6, rows, m, out));
        let mut expected = vec![0.0; rows * n];
        for (m, pre) in m.chunks_exact(n).zip(expected.chunks_exact_mut(n)) {
            definition::hyper_head(m, 1.7, &base[..n], 1e-6, pre);
        }
        close(&found, &expected, &what);
    }
}

#[test]
fn gates_of_a_memory() {
    for (n, width, rows) in SHAPES {
        let what = format!("{rows} rows of {n} streams of {width}");
        let all = n * width;
        let (mut h, key) = (values(1, rows * all, 2.0), values(2, rows * all, 0.5));
        // A product of zero still has a gate.
        h[..width].fill(0.0);
        let (query_norm, key_norm) = (values(3, all, 1.5), values(4, all, 1.5));
        let spec =
            MemoryGateSpec { streams: n, width, query_norm: &query_norm, key_norm: &key_norm, eps: 1e-6 };
        let found = on_all(rows * n, &what, |cpu, out| memory_gate(cpu, &spec, rows, &h, &key, out));
        let mut expected = vec![0.0; rows * n];
        for (row, gate) in expected.chunks_exact_mut(n).enumerate() {
            let at = row * all..(row + 1) * all;
            definition::memory_gate(&h[at.clone()], &key[at], &query_norm, &key_norm, width, 1e-6, gate);
        }
        for (i, (a, b)) in found.iter().zip(&expected).enumerate() {
            // The square root makes much of a small product's rounding.
            assert!((a - b).abs() < 2e-4, "{what}, {i}: {a} for {b}");
        }
    }
}
