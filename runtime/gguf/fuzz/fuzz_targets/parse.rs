//! Any bytes are read completely or refused: no panic, no overflow, no allocation beyond what the bytes hold.
#![no_main]

use bloomery_gguf::{ArrayView, Gguf, Value};
use libfuzzer_sys::fuzz_target;

fuzz_target!(|bytes: &[u8]| {
    let file = match Gguf::parse(bytes) {
        Ok(file) => file,
        Err(error) => {
            // Messages are part of the reader: they must not fail on foreign text either.
            assert!(!error.to_string().is_empty());
            return;
        }
    };
    let metadata = file.metadata();
    for (key, value) in metadata.iter() {
        assert!(metadata.get(key).is_some(), "a key that is listed is found");
        read(value);
        read_as_anything(&file, key);
    }
    for tensor in file.tensors() {
        let data = file.data(tensor).expect("tensor data lies inside the file");
        assert_eq!(data.len() as u64, tensor.byte_length());
        assert_eq!(tensor.element_count(), tensor.row_length() * tensor.row_count());
        assert!(file.tensor(tensor.name()).is_some(), "a tensor that is listed is found");
    }
});

fn read(value: Value<'_>) {
    let _ = value.describe();
    if let Value::Array(array) = value {
        read_array(array);
    }
}

fn read_array(array: ArrayView<'_>) {
    let mut count = 0;
    for value in array.iter() {
        read(value);
        count += 1;
    }
    let texts = array.strings().filter(Result::is_err).count();
    assert!(count == array.len() || texts > 0, "only text that is not UTF-8 ends an array early");
    let _ = array.get(array.len() / 2).map(read);
    let _ = array.get(array.len());
}

/// Every getter on every key: each gives a value or an error that names the key.
fn read_as_anything(file: &Gguf<'_>, key: &str) {
    let metadata = file.metadata();
    let _ = (metadata.u32(key), metadata.i32(key), metadata.u64(key), metadata.f32(key));
    let _ = (metadata.bool(key), metadata.str(key), metadata.u32_array(key), metadata.i32_array(key));
    let _ = (metadata.f32_array(key), metadata.bool_array(key), metadata.str_array(key));
}
