//! Requests: from JSON bodies to generations. A field that would change the output is honoured or refused by name.

pub mod build;
pub mod chat;
pub mod decide;
pub mod fields;
pub mod known;
pub mod prompt;
pub mod sampling;

use serde_json::{Map, Value};

use crate::error::ApiError;

/// Reads a body as a JSON object.
///
/// # Errors
/// Not JSON, nested too deep, or no object.
pub fn object(body: &[u8]) -> Result<Map<String, Value>, ApiError> {
    match serde_json::from_slice(body) {
        Ok(Value::Object(map)) => Ok(map),
        Ok(_) => Err(ApiError::Invalid("the request body must be a JSON object".to_owned())),
        Err(error) => Err(ApiError::Invalid(format!("the request body is not valid JSON: {error}"))),
    }
}
