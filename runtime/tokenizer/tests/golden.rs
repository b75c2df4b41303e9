//! Ids of 67 difficult strings, as the reference implementation gives them.

mod support;

use bloomery_tokenizer::{PRE_TOKENIZERS, Tokenizer, Vocabulary};
use serde_json::Value;
use std::path::Path;
use support::{data, fetched, fetched_folder, kit, kit_vocabulary, read_json, vocabulary_of_file};

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
fn strings_of_the_kit() {
    let differences = differences("kit", &kit());
    assert!(differences.is_empty(), "{}", differences.join("\n"));
}

/// Every row of the table of pre-tokenizers, with the kit's vocabulary.
#[test]
fn every_pre_tokenizer() {
    let golden = read_json(&data().join("pre_tokenizers.json"));
    let strings = golden["strings"].as_array().unwrap();
    for row in PRE_TOKENIZERS {
        let name = row.names[0];
        let Some(expected) = golden["ids"].get(name) else {
            // Newer than the build of the reference implementation that made the file.
            assert!(["spark2_5", "ufakzeka"].contains(&name), "no ids for {name}");
            continue;
        };
        let vocabulary = Vocabulary { pre: Some(name.to_owned()), add_bos: Some(false), ..kit_vocabulary() };
        let tokenizer = Tokenizer::new(vocabulary).unwrap();
        for (text, expected) in strings.iter().zip(expected.as_array().unwrap()) {
            let text = text.as_str().unwrap();
            assert_eq!(tokenizer.encode(text, false, false), ids(expected), "{name} {text:?}");
        }
    }
}

/// Two small vocabularies that SentencePiece made: unigram with a table of replacements, and merges by score with all bytes.
#[test]
fn small_sentencepiece_vocabularies() {
    let golden = read_json(&data().join("small.json"));
    for name in ["unigram", "sentencepiece"] {
        let tokenizer = Tokenizer::new(vocabulary_of_file(&data().join(format!("{name}.gguf")))).unwrap();
        let strings = golden["strings"].as_array().unwrap();
        for (text, expected) in strings.iter().zip(golden[name].as_array().unwrap()) {
            let text = text.as_str().unwrap();
            assert_eq!(tokenizer.encode(text, true, true), ids(expected), "{name} {text:?}");
        }
    }
}

/// Every file of the large kit that has a vocabulary has this one; only the pre-tokenizer differs.
#[test]
fn files_of_the_golden_kit() {
    let Some(folder) = std::env::var_os("BLOOMERY_GOLDEN") else {
        println!("skipped: no golden kit");
        return;
    };
    let golden = read_json(&data().join("golden.json"));
    let mut found = 0;
    for model in ["qwen3moe", "qwen35moe", "qwen4exp", "glm5-next", "deepseek4", "clef", "ember"] {
        let Ok(files) = std::fs::read_dir(Path::new(&folder).join(model)) else { continue };
        for path in files.map(|file| file.unwrap().path()) {
            if path.extension().is_none_or(|extension| extension != "gguf") {
                continue;
            }
            let vocabulary = vocabulary_of_file(&path);
            let tokenizer = Tokenizer::new(vocabulary.clone()).unwrap();
            // The other pre-tokenizers of the kit part from this one on marks and on digits.
            let same_words = |text: &[u8]| {
                vocabulary.pre.as_deref() == Some("qwen2")
                    || text.iter().all(|byte| byte.is_ascii() && !byte.is_ascii_digit())
            };
            let strings = golden["strings_hex"].as_array().unwrap();
            for (hex, expected) in strings.iter().zip(golden["vocabs"]["kit"]["special"].as_array().unwrap())
            {
                let text = bytes(hex.as_str().unwrap());
                if same_words(&text) {
                    let shown = String::from_utf8_lossy(&text);
                    assert_eq!(
                        tokenizer.encode_bytes(&text, false, true),
                        ids(expected),
                        "{} {shown:?}",
                        path.display()
                    );
                }
            }
            found += 1;
        }
    }
    println!("{found} files");
    assert!(found > 0, "the golden kit holds no model");
}

#[test]
fn fetched_vocabularies() {
    if fetched_folder().is_none() {
        return;
    }
    let mut all = Vec::new();
    for name in
        ["smollm2", "gemma3", "llama-bpe", "qwen2", "qwen35", "gemma-4", "deepseek-llm", "deepseek-coder"]
    {
        let Some(vocabulary) = fetched(name) else { continue };
        let found = differences(name, &Tokenizer::new(vocabulary).unwrap());
        println!("{name}: {} of 134 differ", found.len());
        all.extend(found);
    }
    assert!(all.is_empty(), "{}", all.join("\n"));
}

/// The reference implementation's own test strings, which come with its vocabularies: `NAME.gguf.inp` and `.out`.
#[test]
fn strings_of_the_reference_implementation() {
    let Some(folder) = fetched_folder() else { return };
    let mut all = Vec::new();
    for name in [
        "command-r",
        "deepseek-coder",
        "deepseek-llm",
        "falcon",
        "gemma-4",
        "gpt-2",
        "llama-bpe",
        "llama-spm",
        "mpt",
        "phi-3",
        "qwen2",
        "qwen35",
        "refact",
        "starcoder",
    ] {
        let Some(vocabulary) = fetched(name) else { continue };
        let tokenizer = Tokenizer::new(vocabulary).unwrap();
        let read = |kind: &str| std::fs::read_to_string(folder.join(format!("{name}.gguf.{kind}"))).unwrap();
        let (input, output) = (read("inp"), read("out"));
        let texts: Vec<&str> = input.split("\n__ggml_vocab_test__\n").collect();
        let lines: Vec<&str> = output.lines().collect();
        assert!(texts.len() >= lines.len() && lines.len() > 40, "{name}: {} {}", texts.len(), lines.len());
        let mut differ = 0;
        for (text, line) in texts.iter().zip(&lines) {
            let expected: Vec<u32> = line.split_whitespace().map(|id| id.parse().unwrap()).collect();
            let found = tokenizer.encode(text, false, false);
            if found != expected {
                differ += 1;
                all.push(format!("{name} {text:?}\n  expected {expected:?}\n  found    {found:?}"));
            }
        }
        println!("{name}: {differ} of {} differ", lines.len());
    }
    assert!(all.is_empty(), "{}", all.join("\n"));
}
