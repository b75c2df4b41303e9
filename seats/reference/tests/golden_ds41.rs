//! The ds41 seat against logits of other programs.

mod support;

use seat_ds41::bloomery_seat_table as seat;
use support::{check_golden, check_quantised};

#[test]
fn ds41_oracle() {
    // The oracle leaves the order of equal index scores open, and with two index heads exact zeros are common: its
    // inputs of the layers before the first choice are compared, and the logits of the script beside the fixture.
    let (taps, dims) = support::npz(&support::data("oracle/ds41.npz"), "taps");
    let (ids, _) = support::oracle("ds41");
    let model = support::open(&support::data("oracle/ds41.gguf"), seat());
    let (_, named) = model.run(&ids, 16);
    for layer in 1..3 {
        let tap = |row: usize| -> Vec<f32> {
            let at = (row * dims[1] + layer) * dims[2];
            taps[at..at + dims[2]].iter().map(|v| *v as f32).collect()
        };
        let expected: Vec<Vec<f32>> = (0..dims[0]).map(tap).collect();
        // A layer's input: the streams after its memory, if it has one, or after the layer before; their mean is the tap.
        let streams = named.get(&format!("l{layer}.engram_out"));
        let streams = streams.unwrap_or_else(|| &named[&format!("l{}.l_last", layer - 1)]);
        let mean = |row: &Vec<f32>| -> Vec<f32> {
            let width = dims[2];
            (0..width)
                .map(|i| row[i..].iter().step_by(width).sum::<f32>() / (row.len() / width) as f32)
                .collect()
        };
        let found: Vec<Vec<f32>> = streams.iter().map(mean).collect();
        let most = support::difference(&found, &expected);
        assert!(most < 1e-3, "input of layer {layer}: {most}");
    }
    let fixture =
        std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/fixtures/ds41_ties.logits.bin");
    let expected = support::rows_of_file(&fixture, 256);
    support::check_logits("ds41", &ids, &expected, seat());
}

#[test]
fn deepseek4_golden() {
    let layers = [
        ("hc_attn_post", "l{}.hc_attn_out"),
        ("l_last", "l{}.l_last"),
        ("attn_out", "l{}.attn_out"),
        ("ffn_moe_topk", "l{}.ffn_moe_topk"),
        ("ffn_out", "l{}.ffn_out"),
        ("hc_head", "hc_head"),
        ("result_norm", "result_norm"),
    ];
    check_golden("deepseek4", &layers, seat());
}

#[test]
fn deepseek4_quantised() {
    check_quantised("deepseek4", "Q4_K_M", seat());
}
