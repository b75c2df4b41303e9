//! JSON in the layout of Python's `json.dumps`, which templates were written against.

use serde_json::Value;

/// The layout.
#[derive(Debug, Clone)]
pub struct Style {
    /// Spaces a level, on lines of their own; none for one line.
    pub indent: Option<usize>,
    /// Between items.
    pub item: String,
    /// Between key and value.
    pub key: String,
    /// Escape everything beyond ASCII.
    pub ascii: bool,
    /// Keys in alphabetical order.
    pub sorted: bool,
}

impl Default for Style {
    fn default() -> Self {
        Self { indent: None, item: ", ".to_owned(), key: ": ".to_owned(), ascii: false, sorted: false }
    }
}

/// The text of a value.
#[must_use]
pub fn text(value: &Value, style: &Style) -> String {
    let mut out = String::new();
    write(&mut out, value, style, 0);
    out
}

fn write(out: &mut String, value: &Value, style: &Style, level: usize) {
    match value {
        Value::Array(list) => {
            group(out, ('[', ']'), list, style, level, |out, item| write(out, item, style, level + 1))
        }
        Value::Object(map) => {
            let mut entries: Vec<(&String, &Value)> = map.iter().collect();
            if style.sorted {
                entries.sort_by_key(|(key, _)| *key);
            }
            group(out, ('{', '}'), &entries, style, level, |out, (key, value)| {
                string(out, key, style.ascii);
                out.push_str(&style.key);
                write(out, value, style, level + 1);
            });
        }
        Value::String(text) => string(out, text, style.ascii),
        other => out.push_str(&other.to_string()),
    }
}

fn group<T>(
    out: &mut String,
    (open, close): (char, char),
    items: &[T],
    style: &Style,
    level: usize,
    mut each: impl FnMut(&mut String, &T),
) {
    out.push(open);
    let line = |out: &mut String, level: usize| {
        if let Some(width) = style.indent {
            out.push('\n');
            out.extend(std::iter::repeat_n(' ', width * level));
        }
    };
    for (i, item) in items.iter().enumerate() {
        if i > 0 {
            out.push_str(&style.item);
        }
        line(out, level + 1);
        each(out, item);
    }
    if !items.is_empty() {
        line(out, level);
    }
    out.push(close);
}

fn string(out: &mut String, text: &str, ascii: bool) {
    let plain = Value::String(text.to_owned()).to_string();
    if !ascii {
        out.push_str(&plain);
        return;
    }
    for character in plain.chars() {
        if character.is_ascii() {
            out.push(character);
        } else {
            let mut units = [0; 2];
            for unit in character.encode_utf16(&mut units) {
                out.push_str(&format!("\\u{unit:04x}"));
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn layouts_are_pythons() {
        let value = json!({"b": [1, "é😀"], "a": {}, "c": 1.5});
        assert_eq!(text(&value, &Style::default()), r#"{"b": [1, "é😀"], "a": {}, "c": 1.5}"#);
        let style = Style { ascii: true, sorted: true, ..Style::default() };
        assert_eq!(text(&value, &style), r#"{"a": {}, "b": [1, "\u00e9\ud83d\ude00"], "c": 1.5}"#);
        let style = Style { indent: Some(2), item: ",".to_owned(), ..Style::default() };
        assert_eq!(text(&json!({"a": [1, 2]}), &style), "{\n  \"a\": [\n    1,\n    2\n  ]\n}");
    }
}
