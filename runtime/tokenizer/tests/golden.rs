//! Ids of 67 difficult strings, as the reference implementation gives them.

mod support;

use bloomery_tokenizer::Tokenizer;
use serde_json::Value;
use support::{data, fetched, kit, read_json};

fn ids(value: &Value) -> Vec<u32> {
    value.as_array().unwrap().iter().map(|id| id.as_u64().unwrap() as u32).collect()
}

fn bytes(hex: &str) -> Vec<u8> {
    (0..hex.len()).step_by(2).map(|at| u8::from_str_radix(&hex[at..at + 2], 16).unwrap()).collect()
}

/// Compare every string, with and without parsing of special tokens; answers what differs.
fn differences(name: &str, tokenizer: &Tokenizer) -> Vec<String> {
    let golden = read_json(&data().join("golden.json"));
    let strings = golden["strings_hex"].as_array().unwrap();
    assert_eq!(strings.len(), 67);
    let mut differences = Vec::new();
    for (index, hex) in strings.iter().enumerate() {
        let text = bytes(hex.as_str().unwrap());
        for (key, parse_special) in [("special", true), ("plain", false)] {
            let expected = ids(&golden["vocabs"][name][key][index]);
            let found = tokenizer.encode_bytes(&text, false, parse_special);
            if found != expected {
                let text = String::from_utf8_lossy(&text);
                differences.push(format!(
                    "{name} {index} {key} {text:?}\n  expected {expected:?}\n  found    {found:?}"
                ));
            }
        }
    }
    differences
}

#[test]
fn kit_vocabulary() {
    let differences = differences("kit", &kit());
    assert!(differences.is_empty(), "{}", differences.join("\n"));
}

#[test]
fn fetched_vocabularies() {
    let mut all = Vec::new();
    for name in ["smollm2", "gemma3", "llama-bpe", "qwen2", "qwen35", "gemma-4"] {
        let Some(vocabulary) = fetched(name) else { continue };
        let found = differences(name, &Tokenizer::new(vocabulary).unwrap());
        println!("{name}: {} of 134 differ", found.len());
        all.extend(found);
    }
    assert!(all.is_empty(), "{}", all.join("\n"));
}
