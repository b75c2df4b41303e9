//! Where the hub and the cache are. The variables are those of llama.cpp and of the hub's own tools, in llama.cpp's order.

use std::path::PathBuf;
use std::time::Duration;

use crate::error::HubError;

const DEFAULT_ENDPOINT: &str = "https://huggingface.co";

/// How to reach the hub.
#[derive(Clone, PartialEq, Eq)]
pub struct HubOptions {
    /// Folder of the cache: holds `models--USER--MODEL` folders.
    pub cache: PathBuf,
    /// Address of the hub, without a slash at the end.
    pub endpoint: String,
    /// Access token.
    pub token: Option<String>,
    /// Use the cache only.
    pub offline: bool,
    /// Attempts in a row that may bring no new byte before a transfer is given up.
    pub attempts: u32,
    /// Pause before the second of these attempts; doubles with each further one.
    pub pause: Duration,
}

impl HubOptions {
    /// Reads the process's environment: `LLAMA_CACHE`, `HF_HUB_CACHE`, `HUGGINGFACE_HUB_CACHE`, `HF_HOME`,
    /// `XDG_CACHE_HOME`, `HOME` for the cache (the first that is set); `MODEL_ENDPOINT`, `HF_ENDPOINT`; `HF_TOKEN`, else
    /// the token that the hub's tools stored (`HF_TOKEN_PATH`, or `token` in the folder that `HF_HOME` and so on name); `HF_HUB_OFFLINE`, `LLAMA_ARG_OFFLINE`.
    ///
    /// # Errors
    /// No variable names a folder.
    pub fn from_environment() -> Result<Self, HubError> {
        Self::from_variables(|name| std::env::var(name).ok())
    }

    /// [`HubOptions::from_environment`] over any source of variables. An empty variable counts as unset.
    ///
    /// # Errors
    /// No variable names a folder.
    pub fn from_variables(variable: impl Fn(&str) -> Option<String>) -> Result<Self, HubError> {
        let set = |name: &str| variable(name).filter(|value| !value.trim().is_empty());
        let folder = |name: &str, below: &str| set(name).map(|value| PathBuf::from(value).join(below));
        let exactly = |name: &str| set(name).map(PathBuf::from);
        let cache = exactly("LLAMA_CACHE")
            .or_else(|| exactly("HF_HUB_CACHE"))
            .or_else(|| exactly("HUGGINGFACE_HUB_CACHE"))
            .or_else(|| folder("HF_HOME", "hub"))
            .or_else(|| folder("XDG_CACHE_HOME", "huggingface/hub"))
            .or_else(|| folder("HOME", ".cache/huggingface/hub"))
            .or_else(|| folder("USERPROFILE", ".cache/huggingface/hub"))
            .ok_or(HubError::NoCacheFolder)?;
        let endpoint =
            set("MODEL_ENDPOINT").or_else(|| set("HF_ENDPOINT")).unwrap_or_else(|| DEFAULT_ENDPOINT.into());
        // Not beside the cache, as hf-hub looks for it: a cache folder of one's own says nothing about what lies next to it.
        let token_file = exactly("HF_TOKEN_PATH")
            .or_else(|| folder("HF_HOME", "token"))
            .or_else(|| folder("XDG_CACHE_HOME", "huggingface/token"))
            .or_else(|| folder("HOME", ".cache/huggingface/token"))
            .or_else(|| folder("USERPROFILE", ".cache/huggingface/token"));
        let token = set("HF_TOKEN")
            .or_else(|| std::fs::read_to_string(token_file?).ok())
            .map(|token| token.trim().to_owned())
            .filter(|token| !token.is_empty());
        let truthy =
            |value: String| matches!(&*value.to_ascii_lowercase(), "1" | "on" | "yes" | "true" | "enabled");
        let offline = ["HF_HUB_OFFLINE", "LLAMA_ARG_OFFLINE"].into_iter().filter_map(set).any(truthy);
        let endpoint = endpoint.trim_end_matches('/').to_owned();
        Ok(HubOptions { cache, endpoint, token, offline, attempts: 5, pause: Duration::from_secs(1) })
    }
}

/// Leaves the token out: options end up in logs.
impl std::fmt::Debug for HubOptions {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let token = if self.token.is_some() { "set" } else { "none" };
        f.debug_struct("HubOptions")
            .field("cache", &self.cache)
            .field("endpoint", &self.endpoint)
            .field("token", &token)
            .field("offline", &self.offline)
            .finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn options(variables: &[(&str, &str)]) -> HubOptions {
        let find = |name: &str| {
            variables.iter().find(|(known, _)| *known == name).map(|(_, value)| (*value).to_owned())
        };
        HubOptions::from_variables(find).unwrap()
    }

    #[test]
    fn the_first_variable_that_is_set_names_the_cache() {
        let all = [
            ("LLAMA_CACHE", "/l", "/l"),
            ("HF_HUB_CACHE", "/h", "/h"),
            ("HUGGINGFACE_HUB_CACHE", "/g", "/g"),
            ("HF_HOME", "/hf", "/hf/hub"),
            ("XDG_CACHE_HOME", "/x", "/x/huggingface/hub"),
            ("HOME", "/home", "/home/.cache/huggingface/hub"),
        ];
        for first in 0..all.len() {
            let mut variables: Vec<(&str, &str)> = all[first..].iter().map(|(n, v, _)| (*n, *v)).collect();
            variables.push(("LLAMA_CACHE", " "));
            assert_eq!(options(&variables).cache, PathBuf::from(all[first].2));
        }
        assert!(matches!(HubOptions::from_variables(|_| None), Err(HubError::NoCacheFolder)));
    }

    #[test]
    fn a_stored_token_is_read_from_its_own_place_only() {
        let home = tempfile::tempdir().unwrap();
        let path = |name: &str| home.path().join(name).to_str().unwrap().to_owned();
        std::fs::write(path("token"), "hf_stored\n").unwrap();
        let (root, models) = (path(""), path("models"));
        assert_eq!(options(&[("HF_HOME", &root)]).token.as_deref(), Some("hf_stored"));
        assert_eq!(
            options(&[("HF_HOME", &root), ("HF_TOKEN", "hf_given")]).token.as_deref(),
            Some("hf_given")
        );
        assert_eq!(
            options(&[("HF_TOKEN_PATH", &path("token")), ("HOME", "/nowhere")]).token.as_deref(),
            Some("hf_stored")
        );
        assert_eq!(options(&[("LLAMA_CACHE", &models), ("HOME", "/nowhere")]).token, None);
    }

    #[test]
    fn endpoint_token_and_offline() {
        let plain = options(&[("HOME", "/nowhere")]);
        assert_eq!((&*plain.endpoint, plain.token, plain.offline), (DEFAULT_ENDPOINT, None, false));
        let set = options(&[
            ("HOME", "/nowhere"),
            ("HF_ENDPOINT", "http://mirror:1/"),
            ("HF_TOKEN", "hf_secret\n"),
            ("HF_HUB_OFFLINE", "1"),
        ]);
        assert_eq!(
            (&*set.endpoint, set.token.as_deref(), set.offline),
            ("http://mirror:1", Some("hf_secret"), true)
        );
        assert!(!format!("{set:?}").contains("secret"), "the token is in the log");
        assert!(!options(&[("HOME", "/nowhere"), ("HF_HUB_OFFLINE", "0")]).offline);
    }
}
