//! The proof that the boundary is right: a seat that the host was not built with, dropped into a folder, makes a model
//! run that failed before.

use bloomery_tests::server::{Server, binaries, server_binary};
use bloomery_tests::{RealModel, demo_model, golden_kit, read_json, real_model};
use serde_json::json;
use std::path::{Path, PathBuf};
use std::process::Command;

/// A seats folder with just these libraries, out of the ones that `cargo xtask test` has built.
fn folder_with(name: &str, seats: &[&str]) -> Option<PathBuf> {
    let folder = binaries().join(format!("test-seats-{name}"));
    let _ = std::fs::remove_dir_all(&folder);
    std::fs::create_dir_all(&folder).unwrap();
    for seat in seats {
        let file = format!("libseat_{seat}.so");
        let built = binaries().join("seats").join(&file);
        if !built.exists() {
            println!("skipped: {} is not built (cargo xtask test builds it)", built.display());
            return None;
        }
        std::fs::copy(built, folder.join(file)).unwrap();
    }
    Some(folder)
}

/// What a server without a seats folder beside it says of a model.
fn refuses(model: &Path, seats: &Path) -> String {
    let alone = binaries().join(format!("test-alone-{}", std::process::id()));
    std::fs::create_dir_all(&alone).unwrap();
    let binary = alone.join("bloomery-serve");
    if !binary.exists() {
        std::fs::hard_link(server_binary().unwrap(), &binary).unwrap();
    }
    let output = Command::new(binary)
        .arg("-m")
        .arg(model)
        .args(["--port", "0", "--seats-dir"])
        .arg(seats)
        .output()
        .unwrap();
    assert!(!output.status.success(), "the server started without a seat for the model");
    String::from_utf8_lossy(&output.stderr).into_owned() + &String::from_utf8_lossy(&output.stdout)
}

fn continues_as_golden(model: RealModel, arch: &str, golden: &str) {
    let (Some(path), Some(_)) = (real_model(model), server_binary()) else { return };
    let Some(empty) = folder_with(&format!("no-{arch}"), &["qwen3"]) else { return };
    let told = refuses(&path, &empty);
    assert!(told.contains(&format!("`{arch}`")), "the refusal does not name the architecture: {told}");

    let Some(seats) = folder_with(arch, &["qwen3", arch]) else { return };
    let seats = seats.to_string_lossy().into_owned();
    let Some(server) = Server::start(&path, &["-c", "1024", "--seats-dir", &seats]) else { return };
    let Some(kit) = golden_kit() else { return };
    let golden = read_json(&kit.join("real").join(golden).join("golden.json")).unwrap();
    let mut agreed = 0;
    for prompt in golden["prompts"].as_array().unwrap() {
        let n = 16;
        let body = json!({"prompt": prompt["tokens"], "n_predict": n, "temperature": 0, "return_tokens": true, "ignore_eos": true});
        let (status, answer) = server.post("/completion", &body);
        assert_eq!(status, 200, "{answer}");
        // Both references round differently, so the text is compared up to the first step that was a near-tie there.
        let gaps = prompt["greedy_gap"].as_array().unwrap();
        let sure = gaps.iter().take(n).take_while(|gap| gap.as_f64().unwrap() > 1.6).count();
        let tokens = answer["tokens"].as_array().unwrap();
        assert_eq!(tokens.len(), n);
        assert_eq!(tokens[..sure], prompt["greedy"].as_array().unwrap()[..sure], "{}", prompt["text"]);
        agreed += tokens.iter().zip(prompt["greedy"].as_array().unwrap()).take_while(|(a, b)| a == b).count();
    }
    println!("{arch}: {agreed} of 80 greedy tokens equal llama.cpp's before the first difference");
    assert!(agreed >= 20, "only {agreed} greedy tokens agree");
}

#[test]
fn llama_dropped_in_serves_smollm2() {
    continues_as_golden(RealModel::SmolLm2, "llama", "SmolLM2-135M-Instruct");
}

#[test]
fn gemma3_dropped_in_serves_gemma() {
    continues_as_golden(RealModel::Gemma3, "gemma3", "gemma-3-270m");
}

#[test]
fn seats_are_listed_with_their_architectures() {
    let Some(binary) = server_binary() else { return };
    let Some(seats) = folder_with("list", &["qwen3", "llama", "gemma3"]) else { return };
    std::fs::write(seats.join("libbroken.so"), "not a library").unwrap();
    let output = Command::new(binary).args(["--list-seats", "--seats-dir"]).arg(&seats).output().unwrap();
    let text = String::from_utf8_lossy(&output.stdout);
    assert!(output.status.success(), "{text}");
    for word in ["qwen3moe", "llama", "gemma3", "libbroken.so", "ELF"] {
        assert!(text.contains(word), "`{word}` is not in:\n{text}");
    }
}

#[test]
fn the_program_can_be_read() {
    let (Some(binary), Some(seats)) = (server_binary(), folder_with("dump", &["qwen3"])) else { return };
    let dump = Command::new(binary)
        .args(["--dump-program", "--seats-dir"])
        .arg(seats)
        .arg("-m")
        .arg(demo_model())
        .output()
        .unwrap();
    let text = String::from_utf8_lossy(&dump.stdout);
    assert!(dump.status.success(), "{}", String::from_utf8_lossy(&dump.stderr));
    for word in ["program qwen3", "embed(", "experts(", "attention(", "output logits"] {
        assert!(text.contains(word), "`{word}` is not in the dump");
    }
}
