//! From a reference to files on disk: ask the hub what there is, choose, bring over what is missing, publish.

use std::path::PathBuf;

use hf_hub::api::sync::{Api, ApiBuilder};
use hf_hub::{Cache, Repo, RepoType};

use crate::cache::RepoCache;
use crate::choose::choose;
use crate::error::HubError;
use crate::event::Event;
use crate::listing::{Listing, RemoteFile};
use crate::options::HubOptions;
use crate::reference::ModelReference;
use crate::transfer::Transfer;

/// A hub and the cache before it.
#[derive(Debug)]
pub struct Hub {
    options: HubOptions,
    api: Api,
    agent: ureq::Agent,
}

/// A model on disk.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Fetched {
    /// The file to open: the model, or its first part.
    pub path: PathBuf,
    /// All files of it, in order.
    pub parts: Vec<PathBuf>,
    /// The repository's commit that they belong to.
    pub commit: String,
    /// Bytes that were transferred for this call; 0 if all was in the cache.
    pub transferred: u64,
}

impl Hub {
    /// Prepares for requests; makes none.
    ///
    /// # Errors
    /// The endpoint is no address.
    pub fn new(options: HubOptions) -> Result<Self, HubError> {
        let api = ApiBuilder::from_cache(Cache::new(options.cache.clone()))
            .with_endpoint(options.endpoint.clone())
            .with_token(options.token.clone())
            .with_user_agent("bloomery", env!("CARGO_PKG_VERSION"))
            .with_progress(false)
            .build()
            .map_err(|error| HubError::BadAnswer {
                repo: String::new(),
                endpoint: options.endpoint.clone(),
                problem: error.to_string(),
            })?;
        // A file's address leads to another host; the token is for the hub alone.
        let agent = ureq::Agent::config_builder()
            .redirect_auth_headers(ureq::config::RedirectAuthHeaders::SameHost)
            .timeout_connect(Some(std::time::Duration::from_secs(15)))
            .timeout_recv_response(Some(std::time::Duration::from_secs(60)))
            .user_agent(concat!("bloomery/", env!("CARGO_PKG_VERSION")))
            .build()
            .into();
        Ok(Hub { options, api, agent })
    }

    /// Gives the model's files, from the cache as far as they are there. `exact` names a file of the repository
    /// (`--hf-file`). Blocks until all is on disk; `report` is called often.
    ///
    /// When the hub cannot be asked (no network, no such repository any more, no access) and the cache has the model, it
    /// is used as it is, and [`Event::UsingCache`] says why.
    ///
    /// # Errors
    /// The model does not exist, cannot be reached, or arrived damaged.
    pub fn fetch(
        &self,
        reference: &ModelReference,
        exact: Option<&str>,
        report: &mut dyn FnMut(Event),
    ) -> Result<Fetched, HubError> {
        let repo = reference.repo();
        let cache = RepoCache::new(&self.options.cache, repo);
        if self.options.offline {
            return self.cached(&cache, reference, exact);
        }
        match Listing::fetch(&self.api, &self.options.endpoint, repo) {
            Ok(listing) => self.bring(&cache, &listing, reference, exact, report),
            Err(error) => match self.cached(&cache, reference, exact) {
                Ok(fetched) => {
                    report(Event::UsingCache { reason: error.to_string() });
                    Ok(fetched)
                }
                Err(_) => Err(error),
            },
        }
    }

    /// The model from the cache alone: the newest snapshot that has it completely.
    fn cached(
        &self,
        cache: &RepoCache,
        reference: &ModelReference,
        exact: Option<&str>,
    ) -> Result<Fetched, HubError> {
        let mut closest = None;
        for commit in cache.commits() {
            let models = cache.models(&commit);
            match choose(reference.repo(), &models, reference.tag(), exact) {
                Ok(names) => return Ok(fetched(cache, &commit, &names, 0)),
                // Of several reasons the one about the most recent snapshot that has models at all is told.
                Err(error) if closest.is_none() && !models.is_empty() => closest = Some(error),
                Err(_) => {}
            }
        }
        let nothing =
            || HubError::NotCached { repo: reference.repo().to_owned(), cache: self.options.cache.clone() };
        Err(closest.unwrap_or_else(nothing))
    }

    fn bring(
        &self,
        cache: &RepoCache,
        listing: &Listing,
        reference: &ModelReference,
        exact: Option<&str>,
        report: &mut dyn FnMut(Event),
    ) -> Result<Fetched, HubError> {
        let all: Vec<String> = listing.files.iter().map(|file| file.name.clone()).collect();
        let names = choose(reference.repo(), &all, reference.tag(), exact)?;
        let wanted: Vec<&RemoteFile> =
            names.iter().filter_map(|name| listing.files.iter().find(|file| file.name == *name)).collect();
        let missing: Vec<&RemoteFile> =
            wanted.iter().copied().filter(|file| !cache.holds(&listing.commit, file)).collect();

        let size =
            |files: &[&RemoteFile]| files.iter().fold(0_u64, |sum, file| sum.saturating_add(file.size));
        let (bytes, transferred) = (size(&wanted), size(&missing));
        report(Event::Planned { files: names.clone(), bytes, missing: transferred });
        for file in missing {
            self.transfer(cache, &listing.commit, reference.repo(), file, report)?;
        }
        for file in wanted {
            cache.link(&listing.commit, file)?;
        }
        cache.set_main(&listing.commit)?;
        Ok(fetched(cache, &listing.commit, &names, transferred))
    }

    fn transfer(
        &self,
        cache: &RepoCache,
        commit: &str,
        repo: &str,
        file: &RemoteFile,
        report: &mut dyn FnMut(Event),
    ) -> Result<(), HubError> {
        let (blob, part) = (cache.blob(&file.digest), cache.part(&file.digest));
        let folder = blob.parent().unwrap_or(&blob);
        std::fs::create_dir_all(folder).map_err(HubError::io(folder))?;
        // Bound to the commit: what arrives is what was listed, even if `main` moves on meanwhile.
        let at_commit = Repo::with_revision(repo.to_owned(), RepoType::Model, commit.to_owned());
        let transfer = Transfer {
            agent: &self.agent,
            repo,
            endpoint: &self.options.endpoint,
            url: self.api.repo(at_commit).url(&percent_encode(&file.name)),
            token: self.options.token.as_deref(),
            file,
            part: part.clone(),
            attempts: self.options.attempts,
            pause: self.options.pause,
        };
        transfer.run(report)?;
        std::fs::rename(&part, &blob).map_err(HubError::io(&blob))?;
        report(Event::Finished { file: file.name.clone() });
        Ok(())
    }
}

fn fetched(cache: &RepoCache, commit: &str, names: &[String], transferred: u64) -> Fetched {
    let parts: Vec<PathBuf> = names.iter().map(|name| cache.file(commit, name)).collect();
    Fetched {
        path: parts.first().cloned().unwrap_or_default(),
        parts,
        commit: commit.to_owned(),
        transferred,
    }
}

/// Escapes what has a meaning in an address; slashes stay.
fn percent_encode(name: &str) -> String {
    let mut encoded = String::with_capacity(name.len());
    for byte in name.bytes() {
        match byte {
            b'a'..=b'z' | b'A'..=b'Z' | b'0'..=b'9' | b'-' | b'_' | b'.' | b'~' | b'/' => {
                encoded.push(byte.into())
            }
            other => encoded.push_str(&format!("%{other:02X}")),
        }
    }
    encoded
}
