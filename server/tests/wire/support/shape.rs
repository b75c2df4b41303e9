//! The shape of JSON: keys in order and types, without values.

use serde_json::Value;

/// The shape as text. A list has the shape of its items, each kind once.
pub fn shape(value: &Value) -> String {
    match value {
        Value::Null => "null".to_owned(),
        Value::Bool(_) => "bool".to_owned(),
        Value::Number(number) if number.is_f64() => "float".to_owned(),
        Value::Number(_) => "int".to_owned(),
        Value::String(_) => "text".to_owned(),
        Value::Array(list) => {
            let mut shapes: Vec<String> = Vec::new();
            for shape in list.iter().map(shape) {
                if !shapes.contains(&shape) {
                    shapes.push(shape);
                }
            }
            format!("[{}]", shapes.join("|"))
        }
        Value::Object(map) => {
            let entries: Vec<String> =
                map.iter().map(|(key, value)| format!("{key}:{}", shape(value))).collect();
            format!("{{{}}}", entries.join(","))
        }
    }
}

/// The shapes of a stream, repetitions in a row once.
pub fn stream_shape(events: &[Value]) -> Vec<String> {
    let mut shapes: Vec<String> = events
        .iter()
        .map(|event| if event == "[DONE]" { "[DONE]".to_owned() } else { shape(event) })
        .collect();
    shapes.dedup();
    shapes
}
