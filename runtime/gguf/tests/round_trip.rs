//! What the writer wrote is what the reader reads, for every type of value.

mod support;

use bloomery_gguf::{Gguf, GgufError, GgufWriter, OwnedValue, ValueType, WeightType, WriteError, optional};
use proptest::prelude::*;
use support::sample;

fn scalar(value_type: ValueType) -> BoxedStrategy<OwnedValue> {
    match value_type {
        ValueType::U8 => any::<u8>().prop_map(OwnedValue::U8).boxed(),
        ValueType::I8 => any::<i8>().prop_map(OwnedValue::I8).boxed(),
        ValueType::U16 => any::<u16>().prop_map(OwnedValue::U16).boxed(),
        ValueType::I16 => any::<i16>().prop_map(OwnedValue::I16).boxed(),
        ValueType::U32 => any::<u32>().prop_map(OwnedValue::U32).boxed(),
        ValueType::I32 => any::<i32>().prop_map(OwnedValue::I32).boxed(),
        // Not NaN, which is unequal to itself; its bits survive like any others.
        ValueType::F32 => prop::num::f32::NORMAL.prop_map(OwnedValue::F32).boxed(),
        ValueType::F64 => prop::num::f64::NORMAL.prop_map(OwnedValue::F64).boxed(),
        ValueType::Bool => any::<bool>().prop_map(OwnedValue::Bool).boxed(),
        ValueType::String | ValueType::Array => any::<String>().prop_map(OwnedValue::String).boxed(),
        ValueType::U64 => any::<u64>().prop_map(OwnedValue::U64).boxed(),
        ValueType::I64 => any::<i64>().prop_map(OwnedValue::I64).boxed(),
    }
}

/// Values of every type, arrays nested up to `depth`.
fn value(depth: u32) -> BoxedStrategy<OwnedValue> {
    prop::sample::select(&ValueType::ALL[..])
        .prop_flat_map(move |value_type| match value_type {
            ValueType::Array if depth > 0 => array(depth).boxed(),
            other => scalar(other),
        })
        .boxed()
}

fn array(depth: u32) -> BoxedStrategy<OwnedValue> {
    prop::sample::select(&ValueType::ALL[..])
        .prop_flat_map(move |element_type| match element_type {
            ValueType::Array if depth > 1 => prop::collection::vec(array(depth - 1), 0..4)
                .prop_map(|elements| OwnedValue::Array(ValueType::Array, elements))
                .boxed(),
            ValueType::Array => Just(OwnedValue::Array(ValueType::Array, Vec::new())).boxed(),
            other => prop::collection::vec(scalar(other), 0..6)
                .prop_map(move |elements| OwnedValue::Array(other, elements))
                .boxed(),
        })
        .boxed()
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 500, ..ProptestConfig::default() })]

    #[test]
    fn metadata_survives(
        entries in prop::collection::btree_map("[a-z]{1,8}(\\.[a-z]{1,8}){0,2}", value(4), 0..12),
        version in 2_u8..=3,
    ) {
        let mut writer = GgufWriter::new();
        for (key, value) in &entries {
            writer.metadata(key, value.clone());
        }
        let mut bytes = writer.to_bytes().unwrap();
        bytes[4] = version;
        let file = Gguf::parse(&bytes).unwrap();
        prop_assert_eq!(file.version(), u32::from(version));
        let read: Vec<(String, OwnedValue)> =
            file.metadata().iter().map(|(key, value)| (key.to_owned(), value.into())).collect();
        prop_assert_eq!(read, entries.into_iter().collect::<Vec<_>>());
    }

    #[test]
    fn tensors_survive(
        shapes in prop::collection::vec((prop::collection::vec(0_u64..5, 0..4), any::<u8>(), any::<bool>()), 0..8),
        alignment in 0_u32..10,
    ) {
        let mut writer = GgufWriter::new();
        writer.metadata("general.alignment", 1_u32 << alignment);
        for (index, (dims, fill, quantised)) in shapes.iter().enumerate() {
            let rows: u64 = dims.iter().product();
            let name = format!("t.{index}");
            if *quantised {
                let dims: Vec<u64> = [64].iter().chain(dims).copied().collect();
                writer.tensor(&name, &dims, WeightType::Q8_0, vec![*fill; rows as usize * 68]);
            } else {
                writer.tensor(&name, dims, WeightType::F16, vec![*fill; rows as usize * 2]);
            }
        }
        let bytes = writer.to_bytes().unwrap();
        let file = Gguf::parse(&bytes).unwrap();
        prop_assert_eq!(file.tensors().len(), shapes.len());
        for (tensor, (dims, fill, quantised)) in file.tensors().iter().zip(&shapes) {
            prop_assert_eq!(tensor.offset() % (1 << alignment), 0);
            prop_assert_eq!(tensor.dims().ends_with(dims), true);
            prop_assert_eq!(tensor.weight_type(), if *quantised { WeightType::Q8_0 } else { WeightType::F16 });
            let data = file.data(tensor).unwrap();
            prop_assert_eq!(data.len() as u64, tensor.byte_length());
            prop_assert!(data.iter().all(|byte| byte == fill));
        }
    }
}

#[test]
fn getters_accept_any_width_that_fits_and_name_what_does_not() {
    let bytes = sample().to_bytes().unwrap();
    let file = Gguf::parse(&bytes).unwrap();
    let metadata = file.metadata();
    assert_eq!(metadata.u32("sample.u8").unwrap(), 8);
    assert_eq!(metadata.u64("sample.u64").unwrap(), u64::MAX);
    assert_eq!(metadata.i32("sample.i16").unwrap(), -16);
    assert_eq!(metadata.f32("sample.f64").unwrap(), 0.25);
    assert!(metadata.bool("sample.bool").unwrap());
    assert_eq!(metadata.str("general.architecture").unwrap(), "sample");
    assert_eq!(metadata.str_array("sample.words").unwrap(), ["a", "", "grüße"]);
    assert_eq!(metadata.i32_array("sample.numbers").unwrap(), [1, -2, 3]);
    assert_eq!(metadata.bool_array("sample.flags").unwrap(), [true, false]);
    assert_eq!(metadata.array("sample.numbers").unwrap().get(1).unwrap().as_integer(), Some(-2));
    assert_eq!(metadata.array("sample.numbers").unwrap().get(3), None);

    let message = |error: GgufError| error.to_string();
    let negative = message(metadata.u32("sample.i8").unwrap_err());
    assert_eq!(negative, "metadata key `sample.i8` is -8, which does not fit u32");
    let text = message(metadata.u32("general.architecture").unwrap_err());
    assert_eq!(text, "metadata key `general.architecture` must be u32, the file has str");
    let array = message(metadata.f32_array("sample.words").unwrap_err());
    assert_eq!(array, "metadata key `sample.words` must be an array of floats, the file has arr[str, 3]");
    assert!(metadata.u32_array("sample.numbers").is_err(), "-2 is no u32");
    assert_eq!(message(metadata.u32("none").unwrap_err()), "metadata key `none` is missing");
    assert_eq!(optional(metadata.u32("none")).unwrap(), None);
    assert!(optional(metadata.u32("sample.f32")).is_err(), "a wrong type is not an absent key");
}

#[test]
fn the_writer_refuses_contradictions() {
    let error = GgufWriter::new().metadata("k", 1_u8).metadata("k", 2_u8).to_bytes().unwrap_err();
    assert!(matches!(error, WriteError::DuplicateKey { .. }), "{error}");
    let mixed = OwnedValue::Array(ValueType::U8, vec![OwnedValue::U16(1)]);
    let error = GgufWriter::new().metadata("k", mixed).to_bytes().unwrap_err();
    assert!(matches!(error, WriteError::MixedArray { .. }), "{error}");
    let error = GgufWriter::new().metadata("general.alignment", 33_u32).to_bytes().unwrap_err();
    assert!(matches!(error, WriteError::BadAlignment), "{error}");
    let error = GgufWriter::new().tensor_f32("t", &[3], &[0.0]).to_bytes().unwrap_err();
    assert!(matches!(error, WriteError::DataLength { expected: 12, found: 4, .. }), "{error}");
    let twice = GgufWriter::new().tensor_f32("t", &[1], &[0.0]).tensor_f32("t", &[1], &[0.0]).to_bytes();
    assert!(matches!(twice.unwrap_err(), WriteError::DuplicateTensor { .. }));
    let error = GgufWriter::new().tensor("t", &[5], WeightType::Q8_0, vec![0; 34]).to_bytes().unwrap_err();
    assert!(matches!(error, WriteError::Shape(GgufError::PartialBlock { .. })), "{error}");
}
