//! What a user writes after `-hf`: `USER/MODEL` or `USER/MODEL:QUANT`.

use crate::error::HubError;

/// A repository and, maybe, a quantisation in it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ModelReference {
    repo: String,
    tag: Option<String>,
}

impl ModelReference {
    /// Takes a reference apart. The rules for names are the hub's own: letters, digits and `_`, joined by single `-`,
    /// `.` or the one `/`; so a reference can never name a path.
    ///
    /// # Errors
    /// [`HubError::BadReference`].
    pub fn parse(text: &str) -> Result<Self, HubError> {
        let wrong = || HubError::BadReference { text: text.to_owned() };
        let (repo, tag) = match text.split_once(':') {
            None => (text, None),
            Some((_, "")) => return Err(wrong()),
            Some((repo, tag)) => (repo, Some(tag)),
        };
        let tag_is_plain =
            |tag: &str| tag.chars().all(|c| c.is_ascii_alphanumeric() || matches!(c, '_' | '-' | '.'));
        if !is_repository(repo) || !tag.is_none_or(tag_is_plain) {
            return Err(wrong());
        }
        Ok(ModelReference { repo: repo.to_owned(), tag: tag.map(str::to_owned) })
    }

    /// `USER/MODEL`.
    pub fn repo(&self) -> &str {
        &self.repo
    }

    /// The quantisation asked for, as written.
    pub fn tag(&self) -> Option<&str> {
        self.tag.as_deref()
    }
}

impl std::str::FromStr for ModelReference {
    type Err = HubError;

    fn from_str(text: &str) -> Result<Self, HubError> {
        Self::parse(text)
    }
}

impl std::fmt::Display for ModelReference {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match &self.tag {
            Some(tag) => write!(f, "{}:{tag}", self.repo),
            None => f.write_str(&self.repo),
        }
    }
}

fn is_repository(repo: &str) -> bool {
    let word = |part: &str| !part.is_empty() && part.chars().all(|c| c.is_ascii_alphanumeric() || c == '_');
    let name = |part: &str| part.split(['-', '.']).all(word);
    repo.len() <= 256 && repo.split_once('/').is_some_and(|(user, model)| name(user) && name(model))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn repository_and_quantisation() {
        let plain = ModelReference::parse("user-1/My_Model.v2-GGUF").unwrap();
        assert_eq!((plain.repo(), plain.tag()), ("user-1/My_Model.v2-GGUF", None));
        let tagged = ModelReference::parse("a/b:UD-Q4_K_XL").unwrap();
        assert_eq!(
            (tagged.repo(), tagged.tag(), tagged.to_string()),
            ("a/b", Some("UD-Q4_K_XL"), "a/b:UD-Q4_K_XL".into())
        );
    }

    #[test]
    fn nothing_that_could_be_a_path_or_an_address() {
        for text in [
            "",
            "model",
            "a/b/c",
            "/b",
            "a/",
            "a/../b",
            "../a",
            "a//b",
            "a/b:",
            "a/b:x/y",
            "a/b:c:d",
            "a b/c",
            "a/.b",
            "http://a/b",
            "a/b--c",
        ] {
            assert!(ModelReference::parse(text).is_err(), "{text:?} was accepted");
        }
    }
}
