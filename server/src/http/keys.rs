//! API keys. A comparison takes the same time whatever the keys have in common.

use axum::http::{HeaderMap, header};
use subtle::ConstantTimeEq as _;

/// The accepted keys; none at all means that nobody is asked for one.
#[derive(Clone, Default)]
pub struct Keys(Vec<String>);

impl std::fmt::Debug for Keys {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(formatter, "Keys({})", self.0.len())
    }
}

impl Keys {
    /// Accepts these.
    #[must_use]
    pub const fn new(keys: Vec<String>) -> Self {
        Self(keys)
    }

    /// Whether a request with these headers may pass: `Authorization: Bearer KEY`, or `X-Api-Key: KEY` where the first is absent.
    #[must_use]
    pub fn allow(&self, headers: &HeaderMap) -> bool {
        if self.0.is_empty() {
            return true;
        }
        let header = headers
            .get(header::AUTHORIZATION)
            .filter(|value| !value.is_empty())
            .or_else(|| headers.get("x-api-key"))
            .map_or(&[][..], |value| value.as_bytes());
        let given = header.strip_prefix(b"Bearer ").unwrap_or(header);
        // Every key is compared, so that the time does not say which one was close.
        self.0.iter().fold(false, |found, key| found | bool::from(key.as_bytes().ct_eq(given)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn allow(keys: &[&str], name: &'static str, value: &str) -> bool {
        let mut headers = HeaderMap::new();
        headers.insert(name, value.parse().unwrap());
        Keys::new(keys.iter().map(|key| (*key).to_owned()).collect()).allow(&headers)
    }

    #[test]
    fn both_headers_and_any_key() {
        assert!(allow(&["a", "b"], "authorization", "Bearer b"));
        assert!(allow(&["a", "b"], "x-api-key", "a"));
        assert!(allow(&["a"], "authorization", "a"));
        assert!(!allow(&["a", "b"], "authorization", "Bearer c"));
        assert!(!allow(&["a"], "authorization", ""));
        assert!(!allow(&["secret"], "x-api-key", "secre"));
        assert!(Keys::default().allow(&HeaderMap::new()));
        assert!(!Keys::new(vec!["a".into()]).allow(&HeaderMap::new()));
    }
}
