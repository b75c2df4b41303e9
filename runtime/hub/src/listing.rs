//! The hub's list of a repository's files at one commit, with what is needed to check each of them.

use std::path::Path;

use hf_hub::Repo;
use hf_hub::api::sync::Api;
use serde::Deserialize;

use crate::cache;
use crate::digest::Digest;
use crate::error::HubError;

/// A repository at one commit.
#[derive(Debug)]
pub(crate) struct Listing {
    pub commit: String,
    pub files: Vec<RemoteFile>,
}

/// One file of it.
#[derive(Debug, Clone)]
pub(crate) struct RemoteFile {
    /// Name in the repository; plain components only, so it stays below any folder that it is joined to.
    pub name: String,
    pub size: u64,
    pub digest: Digest,
}

#[derive(Deserialize)]
struct Answer {
    sha: String,
    siblings: Vec<Sibling>,
}

#[derive(Deserialize)]
struct Sibling {
    rfilename: String,
    size: Option<u64>,
    #[serde(rename = "blobId")]
    blob: Option<String>,
    lfs: Option<Lfs>,
}

#[derive(Deserialize)]
struct Lfs {
    sha256: String,
    size: u64,
}

impl Listing {
    pub(crate) fn fetch(api: &Api, endpoint: &str, repo: &str) -> Result<Listing, HubError> {
        let request = api.repo(Repo::model(repo.to_owned())).info_request().query("blobs", "true");
        let request = request
            .config()
            .timeout_connect(Some(std::time::Duration::from_secs(15)))
            .timeout_global(Some(std::time::Duration::from_secs(60)))
            .build();
        let refused = |error| refused(error, endpoint, repo);
        let mut response = request.call().map_err(refused)?;
        let answer: Answer = response.body_mut().read_json().map_err(refused)?;
        Self::check(answer).map_err(|problem| bad_answer(endpoint, repo, problem))
    }

    fn check(answer: Answer) -> Result<Listing, String> {
        if !cache::is_commit(&answer.sha) {
            return Err(format!("\"{}\" is no commit", answer.sha));
        }
        let mut files = Vec::new();
        for sibling in answer.siblings {
            let name = sibling.rfilename;
            // Only models are ever fetched; what else is in the repository does not matter.
            if !name.ends_with(".gguf") {
                continue;
            }
            if !cache::is_plain(Path::new(&name)) {
                return Err(format!("the file name \"{name}\" leads outside the repository"));
            }
            let (digest, size) = match (sibling.lfs, sibling.blob, sibling.size) {
                (Some(lfs), _, _) => (Digest::sha256(&lfs.sha256), lfs.size),
                (None, Some(blob), Some(size)) => (Digest::git(&blob), size),
                _ => return Err(format!("\"{name}\" has no checksum or no size")),
            };
            let digest = digest.ok_or_else(|| format!("\"{name}\" has a checksum that is none"))?;
            files.push(RemoteFile { name, size, digest });
        }
        Ok(Listing { commit: answer.sha, files })
    }
}

fn bad_answer(endpoint: &str, repo: &str, problem: String) -> HubError {
    HubError::BadAnswer { repo: repo.to_owned(), endpoint: endpoint.to_owned(), problem }
}

fn refused(error: ureq::Error, endpoint: &str, repo: &str) -> HubError {
    let (repo, endpoint) = (repo.to_owned(), endpoint.to_owned());
    match error {
        ureq::Error::StatusCode(status @ (401 | 403)) => HubError::Denied { repo, status },
        ureq::Error::StatusCode(404) => HubError::NoSuchRepository { repo, endpoint },
        ureq::Error::Json(error) => bad_answer(&endpoint, &repo, error.to_string()),
        error => HubError::Unreachable { repo, endpoint, error: Box::new(error) },
    }
}
