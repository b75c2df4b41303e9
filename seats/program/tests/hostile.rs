//! The checker and the dumps never panic, whatever a program or a file says. Arithmetic overflow panics in this profile.

mod zoo;

use bloomery_program::{ModelFacts, Program, check, dot, text};
use proptest::prelude::*;
use serde_json::{Value, json};

/// Every place in a JSON document.
fn places(value: &Value, at: &str, found: &mut Vec<String>) {
    found.push(at.to_string());
    match value {
        Value::Array(items) => {
            items.iter().enumerate().for_each(|(i, v)| places(v, &format!("{at}/{i}"), found));
        }
        Value::Object(fields) => {
            fields.iter().for_each(|(k, v)| places(v, &format!("{at}/{}", k.replace('/', "~1")), found));
        }
        _ => {}
    }
}

fn extreme() -> impl Strategy<Value = Value> {
    prop_oneof![
        3 => prop::sample::select(vec![
            json!(0), json!(1), json!(2), json!(3), json!(u32::MAX), json!(u32::MAX - 1), json!(1u32 << 30),
            json!((1u32 << 30) + 1), json!(1u32 << 31), json!(u64::MAX), json!(1u64 << 63), json!(1u64 << 33),
            json!(-1), json!(1e38), json!(1e-45), json!(0.5), json!(-0.0), json!(""), json!(null), json!([]),
            json!({}), json!(true), json!([0, 0]), json!([u64::MAX, u64::MAX]),
        ]),
        1 => any::<u32>().prop_map(|v| json!(v)),
        1 => (1u32..20).prop_map(|v| json!(v)),
    ]
}

/// Changes, removes or doubles values at random places.
fn mutate(document: &mut Value, changes: &[(prop::sample::Index, u8, Value)]) {
    for (place, how, with) in changes {
        let mut all = Vec::new();
        places(document, "", &mut all);
        let place = &all[place.index(all.len())];
        let Some((parent, key)) = place.rsplit_once('/') else { continue };
        match (how % 4, document.pointer_mut(parent)) {
            (0, Some(Value::Object(fields))) => drop(fields.remove(key)),
            (0, Some(Value::Array(items))) => drop(items.remove(key.parse().unwrap())),
            (1, Some(Value::Array(items))) => {
                let copy = items[key.parse::<usize>().unwrap()].clone();
                items.push(copy);
            }
            (_, Some(_)) => {
                if let Some(value) = document.pointer_mut(place) {
                    *value = with.clone();
                }
            }
            _ => {}
        }
    }
}

fn changes() -> impl Strategy<Value = Vec<(prop::sample::Index, u8, Value)>> {
    prop::collection::vec((any::<prop::sample::Index>(), any::<u8>(), extreme()), 1..6)
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 400, ..ProptestConfig::default() })]

    #[test]
    fn check_never_panics(in_program in changes(), in_facts in changes()) {
        let (program, facts) = zoo::zoo();
        let mut json = serde_json::to_value(&program).unwrap();
        mutate(&mut json, &in_program);
        let program = serde_json::from_value::<Program>(json).unwrap_or(program);
        let mut json = serde_json::to_value(&facts).unwrap();
        mutate(&mut json, &in_facts);
        let facts = serde_json::from_value::<ModelFacts>(json).unwrap_or(facts);
        let _ = check(&program, &facts);
        let _ = text::text(&program);
        let _ = dot::dot(&program);
        let _ = program.required_language();
    }

    #[test]
    fn check_never_panics_on_extreme_constants(
        place in any::<prop::sample::Index>(),
        with in extreme(),
        dims in prop::collection::vec(prop::sample::select(vec![0, 1, 8, 1 << 30, 1 << 32, u64::MAX]), 0..5),
        tensor in any::<prop::sample::Index>(),
    ) {
        // Only constants of operators, states and shapes: nearly all of these documents still parse.
        let (program, mut facts) = zoo::zoo();
        let mut json = serde_json::to_value(&program).unwrap();
        let mut all = Vec::new();
        places(&json, "", &mut all);
        let numbers: Vec<&String> =
            all.iter().filter(|p| json.pointer(p).is_some_and(Value::is_number)).collect();
        let place = numbers[place.index(numbers.len())].clone();
        if let Some(value) = json.pointer_mut(&place) {
            *value = with;
        }
        let names: Vec<String> = facts.tensors.keys().cloned().collect();
        facts.tensors.get_mut(&names[tensor.index(names.len())]).unwrap().dims = dims;
        if let Ok(program) = serde_json::from_value::<Program>(json) {
            let _ = check(&program, &facts);
        }
    }
}
