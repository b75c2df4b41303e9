//! Files built byte by byte, so that tests can state what a writer never would.
#![allow(dead_code)] // each test binary uses its own part

use bloomery_gguf::{GgufWriter, WeightType};

/// A file head under construction: counts are what the test says, not what follows.
#[derive(Clone)]
pub struct Raw(pub Vec<u8>);

impl Raw {
    pub fn new(version: u32, tensors: u64, entries: u64) -> Self {
        Raw(b"GGUF".to_vec()).u32(version).u64(tensors).u64(entries)
    }

    pub fn u32(mut self, value: u32) -> Self {
        self.0.extend(value.to_le_bytes());
        self
    }

    pub fn u64(mut self, value: u64) -> Self {
        self.0.extend(value.to_le_bytes());
        self
    }

    pub fn bytes(mut self, bytes: &[u8]) -> Self {
        self.0.extend(bytes);
        self
    }

    pub fn string(self, text: &[u8]) -> Self {
        self.u64(text.len() as u64).bytes(text)
    }

    /// A key and the number of its type; the value follows by other calls.
    pub fn key(self, key: &str, type_id: u32) -> Self {
        self.string(key.as_bytes()).u32(type_id)
    }

    pub fn tensor(mut self, name: &str, dims: &[u64], type_id: u32, offset: u64) -> Self {
        self = self.string(name.as_bytes()).u32(dims.len() as u32);
        for dim in dims {
            self = self.u64(*dim);
        }
        self.u32(type_id).u64(offset)
    }

    pub fn pad(mut self, alignment: usize) -> Self {
        self.0.resize(self.0.len().next_multiple_of(alignment), 0);
        self
    }
}

/// A small well-formed file with every kind of thing in it.
pub fn sample() -> GgufWriter<'static> {
    let mut writer = GgufWriter::new();
    writer
        .metadata("general.architecture", "sample")
        .metadata("general.file_type", 15_u32)
        .metadata("sample.u8", 8_u8)
        .metadata("sample.i8", -8_i8)
        .metadata("sample.u16", 16_u16)
        .metadata("sample.i16", -16_i16)
        .metadata("sample.i32", -32_i32)
        .metadata("sample.u64", u64::MAX)
        .metadata("sample.i64", i64::MIN)
        .metadata("sample.f32", 0.5_f32)
        .metadata("sample.f64", 0.25_f64)
        .metadata("sample.bool", true)
        .metadata("sample.words", vec!["a", "", "grüße"])
        .metadata("sample.numbers", vec![1_i32, -2, 3])
        .metadata("sample.flags", vec![true, false])
        .tensor_f32("token_embd.weight", &[4, 2], &[1.0, 2.0, 3.0, 4.0, 5.0, 6.0, 7.0, 8.0])
        .tensor("blk.0.weight", &[32, 3], WeightType::Q8_0, vec![7_u8; 3 * 34])
        .tensor_f32("scalar", &[], &[9.0]);
    writer
}
