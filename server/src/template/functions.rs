//! The functions and filters that published templates expect beside Jinja's own.

use minijinja::{Environment, Error, ErrorKind, Value, value::Kwargs};

use super::{Clock, json_text};

/// Adds them.
pub fn add(environment: &mut Environment<'static>, clock: Clock) {
    environment.add_function("raise_exception", |message: String| -> Result<Value, Error> {
        Err(Error::new(ErrorKind::InvalidOperation, message))
    });
    environment.add_function("strftime_now", move |format: String| -> Result<String, Error> {
        clock.format(&format).map_err(|message| Error::new(ErrorKind::InvalidOperation, message))
    });
    environment.add_filter("tojson", tojson);
}

/// JSON as Python prints it: `tojson(indent=None, separators=None, ensure_ascii=False, sort_keys=False)`.
fn tojson(value: &Value, indent: Option<i64>, options: Kwargs) -> Result<Value, Error> {
    let value: serde_json::Value = serde_json::to_value(value)
        .map_err(|error| Error::new(ErrorKind::InvalidOperation, format!("tojson: {error}")))?;
    let indent = indent.or(options.get::<Option<i64>>("indent")?);
    let mut style = json_text::Style {
        indent: indent.map(|width| usize::try_from(width).unwrap_or(0).min(64)),
        ascii: options.get::<Option<bool>>("ensure_ascii")?.unwrap_or(false),
        sorted: options.get::<Option<bool>>("sort_keys")?.unwrap_or(false),
        ..json_text::Style::default()
    };
    if style.indent.is_some() {
        ",".clone_into(&mut style.item);
    }
    if let Some(separators) = options.get::<Option<Vec<String>>>("separators")? {
        let [item, key] = <[String; 2]>::try_from(separators).map_err(|_| {
            Error::new(ErrorKind::InvalidOperation, "tojson: separators must be a pair of strings".to_owned())
        })?;
        (style.item, style.key) = (item, key);
    }
    options.assert_all_used()?;
    Ok(Value::from_safe_string(json_text::text(&value, &style)))
}
