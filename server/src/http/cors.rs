//! What browsers on other sites may do.

use axum::http::{HeaderMap, HeaderValue, header};

/// Cross-origin rules.
#[derive(Debug, Clone)]
pub struct Cors {
    origins: Origins,
    methods: HeaderValue,
    headers: HeaderValue,
    credentials: bool,
}

#[derive(Debug, Clone)]
enum Origins {
    /// The caller's own origin comes back, so that credentials work.
    Echo,
    /// Any port of this machine.
    Local,
    /// A fixed value.
    Fixed(HeaderValue),
    /// One of a list.
    List(Vec<HeaderValue>),
}

impl Cors {
    /// From the words of the flags.
    ///
    /// # Errors
    /// A word that cannot stand in a header.
    pub fn new(origins: &str, methods: &str, headers: &str, credentials: bool) -> Result<Self, String> {
        let value = |text: &str| {
            HeaderValue::from_str(text).map_err(|_| format!("{text:?} cannot stand in a header"))
        };
        let origins = match origins.trim() {
            "*" if credentials => Origins::Echo,
            "localhost" => Origins::Local,
            list if list.contains(',') => {
                Origins::List(list.split(',').map(|origin| value(origin.trim())).collect::<Result<_, _>>()?)
            }
            one => Origins::Fixed(value(one)?),
        };
        Ok(Self { origins, methods: value(methods)?, headers: value(headers)?, credentials })
    }

    /// The `Access-Control-Allow-Origin` of an answer.
    #[must_use]
    pub fn origin(&self, request: &HeaderMap) -> Option<HeaderValue> {
        let origin = request.get(header::ORIGIN);
        match &self.origins {
            // Empty where there is no origin, as llama-server has it.
            Origins::Echo => Some(origin.cloned().unwrap_or(HeaderValue::from_static(""))),
            Origins::Local => origin.filter(|origin| is_local(origin)).cloned(),
            Origins::Fixed(value) => Some(value.clone()),
            Origins::List(list) => origin.filter(|origin| list.contains(origin)).cloned(),
        }
    }

    /// The headers of an answer to a browser's question beforehand.
    #[must_use]
    pub fn preflight(&self) -> [(header::HeaderName, HeaderValue); 3] {
        let credentials = HeaderValue::from_static(if self.credentials { "true" } else { "false" });
        [
            (header::ACCESS_CONTROL_ALLOW_CREDENTIALS, credentials),
            (header::ACCESS_CONTROL_ALLOW_METHODS, self.methods.clone()),
            (header::ACCESS_CONTROL_ALLOW_HEADERS, self.headers.clone()),
        ]
    }
}

fn is_local(origin: &HeaderValue) -> bool {
    let Some(rest) = origin.to_str().ok().and_then(|origin| origin.split_once("://")).map(|(_, rest)| rest)
    else {
        return false;
    };
    ["localhost", "127.0.0.1", "[::1]"].iter().any(|host| {
        rest.strip_prefix(host).is_some_and(|tail| {
            tail.is_empty() || tail.strip_prefix(':').is_some_and(|port| port.parse::<u16>().is_ok())
        })
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn origin(rule: &str, origin: &str) -> Option<String> {
        let cors = Cors::new(rule, "GET", "*", true).unwrap();
        let mut headers = HeaderMap::new();
        headers.insert(header::ORIGIN, origin.parse().unwrap());
        cors.origin(&headers).map(|value| value.to_str().unwrap().to_owned())
    }

    #[test]
    fn rules() {
        assert_eq!(origin("*", "http://a.b"), Some("http://a.b".into()));
        assert_eq!(origin("localhost", "http://localhost:8080"), Some("http://localhost:8080".into()));
        assert_eq!(origin("localhost", "http://[::1]"), Some("http://[::1]".into()));
        assert_eq!(origin("localhost", "http://localhost.evil.com"), None);
        assert_eq!(origin("localhost", "http://notlocalhost"), None);
        assert_eq!(origin("http://a, http://b", "http://b"), Some("http://b".into()));
        assert_eq!(origin("http://a, http://b", "http://c"), None);
        assert_eq!(origin("http://a", "http://c"), Some("http://a".into()));
    }
}
