//! Prompts: a text, token ids, both mixed, or a list of such.

use bloomery_tokenizer::Tokenizer;
use serde_json::Value;

use super::fields::whole;
use crate::error::ApiError;

/// Every prompt of a `prompt` field. Texts get the tokens that open a text and may name special tokens.
///
/// # Errors
/// A form that is not a prompt, an id outside the vocabulary, or no prompt at all.
pub fn prompts(value: &Value, tokenizer: &Tokenizer) -> Result<Vec<Vec<u32>>, ApiError> {
    let all = match value {
        // Numbers in it make the list one prompt.
        Value::Array(list) if !list.iter().any(Value::is_number) => {
            list.iter().map(|item| one(item, tokenizer)).collect::<Result<Vec<_>, _>>()?
        }
        _ => vec![one(value, tokenizer)?],
    };
    if all.is_empty() {
        return Err(ApiError::Invalid("\"prompt\" must not be empty".to_owned()));
    }
    Ok(all)
}

fn one(value: &Value, tokenizer: &Tokenizer) -> Result<Vec<u32>, ApiError> {
    match value {
        Value::String(_) => mixed(value, tokenizer, true, true),
        Value::Array(list) if list.iter().all(|item| item.is_string() || item.is_number()) && !list.is_empty() => {
            mixed(value, tokenizer, true, true)
        }
        Value::Object(map) if map.contains_key("prompt_string") => {
            if map.contains_key("multimodal_data") {
                return Err(ApiError::Invalid(
                    "multimodal data was given, but the model takes text only".to_owned(),
                ));
            }
            mixed(&map["prompt_string"], tokenizer, true, true)
        }
        _ => Err(ApiError::Invalid(
            "\"prompt\" elements must be a string, a list of tokens, a JSON object with a \"prompt_string\", or a mixed list of strings and tokens"
                .to_owned(),
        )),
    }
}

/// Tokens of a text, or of a list of texts and ids. Only a text at the very beginning gets the opening tokens.
///
/// # Errors
/// Another type, or an id outside the vocabulary.
pub fn mixed(
    value: &Value,
    tokenizer: &Tokenizer,
    add_special: bool,
    parse_special: bool,
) -> Result<Vec<u32>, ApiError> {
    match value {
        Value::String(text) => Ok(tokenizer.encode(text, add_special, parse_special)),
        Value::Array(list) => {
            let mut out = Vec::new();
            for (i, item) in list.iter().enumerate() {
                match item {
                    Value::String(text) => {
                        out.extend(tokenizer.encode(text, add_special && i == 0, parse_special))
                    }
                    _ => out.push(token(item, tokenizer)?),
                }
            }
            Ok(out)
        }
        _ => Err(ApiError::Invalid("expected a string, or a list of strings and tokens".to_owned())),
    }
}

/// A token id of the vocabulary.
///
/// # Errors
/// No whole number, or outside the vocabulary.
pub fn token(value: &Value, tokenizer: &Tokenizer) -> Result<u32, ApiError> {
    let id = whole(value).ok_or_else(|| ApiError::Invalid("a token must be a whole number".to_owned()))?;
    u32::try_from(id).ok().filter(|id| (*id as usize) < tokenizer.len()).ok_or_else(|| {
        ApiError::Invalid(format!("token {id} is outside the vocabulary of {}", tokenizer.len()))
    })
}
