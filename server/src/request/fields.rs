//! Typed access to the fields of a body. Null is as good as absent, so that a client can ask for the default.

use serde_json::{Map, Value};

use crate::error::ApiError;

/// The fields of a body.
#[derive(Debug, Clone, Copy)]
pub struct Fields<'a>(pub &'a Map<String, Value>);

impl<'a> Fields<'a> {
    /// The first of some names that is there.
    #[must_use]
    pub fn any(&self, names: &[&'a str]) -> Option<(&'a str, &'a Value)> {
        names.iter().find_map(|&name| self.get(name).map(|value| (name, value)))
    }

    /// A field.
    #[must_use]
    pub fn get(&self, name: &str) -> Option<&'a Value> {
        self.0.get(name).filter(|value| !value.is_null())
    }

    /// A yes or no.
    ///
    /// # Errors
    /// Another type.
    pub fn flag(&self, name: &str) -> Result<Option<bool>, ApiError> {
        self.get(name)
            .map(|value| value.as_bool().ok_or_else(|| ApiError::field(name, "must be true or false")))
            .transpose()
    }

    /// A whole number within bounds (both included), under the first of some names.
    ///
    /// # Errors
    /// Another type, a fraction, or out of bounds.
    pub fn integer(&self, names: &[&'a str], min: i64, max: i64) -> Result<Option<i64>, ApiError> {
        let Some((name, value)) = self.any(names) else { return Ok(None) };
        let number = whole(value).ok_or_else(|| ApiError::field(name, "must be a whole number"))?;
        if !(min..=max).contains(&number) {
            return Err(ApiError::field(
                name,
                format_args!("Value must be between {min} <= value <= {max}, but got {number}"),
            ));
        }
        Ok(Some(number))
    }

    /// A whole number that is brought within bounds.
    ///
    /// # Errors
    /// Another type or a fraction.
    pub fn clamped_integer(&self, name: &'a str, min: i64, max: i64) -> Result<Option<i64>, ApiError> {
        Ok(self.integer(&[name], i64::MIN, i64::MAX)?.map(|number| number.clamp(min, max)))
    }

    /// A number.
    ///
    /// # Errors
    /// Another type, or beyond 32 bits.
    pub fn number(&self, name: &str) -> Result<Option<f32>, ApiError> {
        let Some(value) = self.get(name) else { return Ok(None) };
        let number = value.as_f64().ok_or_else(|| ApiError::field(name, "must be a number"))? as f32;
        if number.is_finite() { Ok(Some(number)) } else { Err(ApiError::field(name, "is too large")) }
    }

    /// A number that is brought within bounds.
    ///
    /// # Errors
    /// Another type, or beyond 32 bits.
    pub fn clamped(&self, name: &str, min: f32, max: f32) -> Result<Option<f32>, ApiError> {
        Ok(self.number(name)?.map(|number| number.clamp(min, max)))
    }

    /// A text.
    ///
    /// # Errors
    /// Another type.
    pub fn text(&self, name: &str) -> Result<Option<&'a str>, ApiError> {
        self.get(name)
            .map(|value| value.as_str().ok_or_else(|| ApiError::field(name, "must be a string")))
            .transpose()
    }

    /// A list of texts.
    ///
    /// # Errors
    /// Another type.
    pub fn texts(&self, name: &str) -> Result<Option<Vec<String>>, ApiError> {
        let Some(value) = self.get(name) else { return Ok(None) };
        let wrong = || ApiError::field(name, "must be an array of strings");
        let list = value.as_array().ok_or_else(wrong)?;
        list.iter()
            .map(|item| item.as_str().map(str::to_owned).ok_or_else(wrong))
            .collect::<Result<_, _>>()
            .map(Some)
    }

    /// An object.
    ///
    /// # Errors
    /// Another type.
    pub fn object(&self, name: &str) -> Result<Option<&'a Map<String, Value>>, ApiError> {
        self.get(name)
            .map(|value| value.as_object().ok_or_else(|| ApiError::field(name, "must be an object")))
            .transpose()
    }
}

/// A whole number; 16.0 is one too.
#[must_use]
pub fn whole(value: &Value) -> Option<i64> {
    value.as_i64().or_else(|| {
        let number = value.as_f64()?;
        (number.fract() == 0.0 && number.abs() < 9e15).then_some(number as i64)
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn types_and_bounds_are_named() {
        let body = json!({"n": 1.5, "m": 7, "o": 16.0, "t": "x", "z": null, "big": 1e300});
        let fields = Fields(body.as_object().unwrap());
        assert_eq!(
            fields.integer(&["n"], 0, 9).unwrap_err().to_string(),
            "Field 'n': must be a whole number"
        );
        assert_eq!(
            fields.integer(&["a", "m"], 0, 5).unwrap_err().to_string(),
            "Field 'm': Value must be between 0 <= value <= 5, but got 7"
        );
        assert_eq!(fields.integer(&["o"], 0, 99), Ok(Some(16)));
        assert_eq!(fields.flag("z"), Ok(None));
        assert_eq!(fields.flag("t").unwrap_err().to_string(), "Field 't': must be true or false");
        assert_eq!(fields.number("big").unwrap_err().to_string(), "Field 'big': is too large");
        assert_eq!(fields.clamped_integer("m", 0, 5), Ok(Some(5)));
    }
}
