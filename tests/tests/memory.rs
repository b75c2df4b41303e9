//! Peak resident memory: file, key-value store and a fixed allowance.

use bloomery_tests::{demo_model, server::Server};
use serde_json::json;

#[test]
fn peak_memory_is_file_plus_cache_plus_200_mb() {
    let Some(server) = Server::start(&demo_model(), &["-c", "4096", "-np", "2"]) else { return };
    let prompt: Vec<u32> = (0..1500).map(|i| 300 + i * 7 % 3000).collect();
    let (status, answer) =
        server.post("/completion", &json!({"prompt": prompt, "n_predict": 64, "temperature": 0}));
    assert_eq!(status, 200, "{answer}");
    let file = std::fs::metadata(demo_model()).unwrap().len();
    // 8 layers, keys and values of 2 heads of 64, two bytes each (an upper bound on the model's own dimensions).
    let cache = 4096 * 8 * 2 * 4 * 64 * 2;
    let peak = server.memory("VmHWM").unwrap();
    println!("peak {} MB, file {} MB, cache {} MB", peak >> 20, file >> 20, cache >> 20);
    assert!(peak <= file + cache + 200_000_000, "peak {peak} B, file {file} B");
}
