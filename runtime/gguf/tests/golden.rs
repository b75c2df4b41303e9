//! The files of the golden kit open, and hold the tensor types and sizes that the kit's own record states.

use std::collections::BTreeMap;
use std::path::Path;

use bloomery_gguf::GgufFile;

fn kit() -> Option<std::path::PathBuf> {
    let kit = std::env::var_os("BLOOMERY_GOLDEN").map(Into::into);
    if kit.is_none() {
        println!("skipped: no golden kit");
    }
    kit
}

fn tensor_types(file: &GgufFile) -> BTreeMap<String, u64> {
    let mut types = BTreeMap::new();
    for tensor in file.tensors() {
        *types.entry(tensor.weight_type().name().to_owned()).or_default() += 1;
        assert_eq!(file.data(tensor).len() as u64, tensor.byte_length());
    }
    types
}

#[test]
fn files_hold_the_types_that_the_kit_states() {
    let Some(kit) = kit() else { return };
    let mut compared = 0;
    for folder in std::fs::read_dir(&kit).unwrap() {
        let folder = folder.unwrap().path();
        let Ok(record) = std::fs::read(folder.join("golden.json")) else { continue };
        let record: serde_json::Value = serde_json::from_slice(&record).unwrap();
        let Some(quants) = record["quants"].as_object() else { continue };
        for quant in quants.values() {
            let Some(name) = quant["file"].as_str() else { continue };
            let Ok(file) = GgufFile::open(&folder.join(name)) else {
                assert!(!folder.join(name).exists(), "{name} is there and does not open");
                continue;
            };
            assert_eq!(Some(file.file_size()), quant["bytes"].as_u64(), "{name}");
            let stated: BTreeMap<String, u64> =
                serde_json::from_value(quant["tensor_types"].clone()).unwrap();
            assert_eq!(tensor_types(&file), stated, "{name}");
            compared += 1;
        }
    }
    assert!(compared >= 14, "only {compared} files were found");
}

#[test]
fn every_file_opens_and_names_its_architecture() {
    let Some(kit) = kit() else { return };
    let mut opened = 0;
    let mut visit = |path: &Path| {
        let file = GgufFile::open(path).unwrap_or_else(|error| panic!("{error}"));
        assert!(!file.metadata().str("general.architecture").unwrap().is_empty());
        assert!(file.parameter_count() > 0 && file.weight_bytes() < file.file_size());
        opened += 1;
        file.file_type_name().unwrap()
    };
    let mut names = BTreeMap::new();
    for folder in std::fs::read_dir(&kit).unwrap() {
        let folder = folder.unwrap().path();
        let Ok(files) = std::fs::read_dir(&folder) else { continue };
        for path in files.map(|file| file.unwrap().path()) {
            if path.extension().is_some_and(|extension| extension == "gguf") {
                names.insert(path.file_name().unwrap().to_string_lossy().into_owned(), visit(&path));
            }
        }
    }
    assert!(opened >= 20, "only {opened} files were found");
    assert_eq!(names["tiny-qwen3moe-Q4_K_M.gguf"], "Q4_K - Medium");
    assert_eq!(names["tiny-qwen3moe-MXFP4_MOE.gguf"], "MXFP4 MoE");
    assert_eq!(names["q3moe.gguf"], "(guessed) all F32");
}
