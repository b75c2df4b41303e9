//! A small imitation of the hub on a local port: the listing, the redirect with its headers, and a storage host with
//! ranges, which can be told to misbehave.

use std::collections::HashMap;
use std::io::{BufRead, BufReader, Write};
use std::net::{TcpListener, TcpStream};
use std::sync::{Arc, Mutex};

use bloomery_hub::HubOptions;
use sha2::Digest;

pub const COMMIT: &str = "0123456789abcdef0123456789abcdef01234567";
pub const REPO: &str = "user/model-GGUF";

/// What the server does, changed by tests while it runs.
#[derive(Default)]
pub struct Behaviour {
    pub commit: String,
    /// Name and content.
    pub files: Vec<(String, Vec<u8>)>,
    /// Replaces the listing altogether.
    pub listing: Option<String>,
    /// Listing as for files kept in git itself, with git's ids.
    pub in_git: bool,
    /// Close the connection after that many bytes of each of the next storage answers.
    pub cuts: Vec<usize>,
    /// Answer the next requests to storage with these statuses.
    pub statuses: Vec<u16>,
    /// Send other bytes than were listed.
    pub corrupt: bool,
    /// Send whole files only.
    pub no_ranges: bool,
    /// Say that a piece starts one byte later than asked.
    pub shift_range: bool,
    /// Send more than was listed.
    pub too_long: bool,
    /// Refuse requests without this token.
    pub token: Option<String>,
}

/// One request as the server saw it.
#[derive(Debug, Clone)]
pub struct Request {
    pub path: String,
    pub headers: HashMap<String, String>,
}

pub struct Server {
    pub behaviour: Arc<Mutex<Behaviour>>,
    pub requests: Arc<Mutex<Vec<Request>>>,
    pub port: u16,
    pub folder: tempfile::TempDir,
}

impl Server {
    pub fn start(files: &[(&str, Vec<u8>)]) -> Server {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let port = listener.local_addr().unwrap().port();
        let files = files.iter().map(|(name, content)| ((*name).to_owned(), content.clone())).collect();
        let behaviour =
            Arc::new(Mutex::new(Behaviour { commit: COMMIT.into(), files, ..Behaviour::default() }));
        let requests = Arc::new(Mutex::new(Vec::new()));
        let (shared, seen) = (behaviour.clone(), requests.clone());
        std::thread::spawn(move || {
            for stream in listener.incoming().flatten() {
                let (shared, seen) = (shared.clone(), seen.clone());
                std::thread::spawn(move || serve(stream, port, &shared, &seen));
            }
        });
        Server { behaviour, requests, port, folder: tempfile::tempdir().unwrap() }
    }

    pub fn options(&self) -> HubOptions {
        let (cache, endpoint) =
            (self.folder.path().to_str().unwrap(), format!("http://127.0.0.1:{}", self.port));
        let variable = |name: &str| match name {
            "HF_HUB_CACHE" => Some(cache.to_owned()),
            "HF_ENDPOINT" => Some(endpoint.clone()),
            _ => None,
        };
        let options = HubOptions::from_variables(variable).unwrap();
        HubOptions { pause: std::time::Duration::ZERO, ..options }
    }

    pub fn set(&self, change: impl FnOnce(&mut Behaviour)) {
        change(&mut self.behaviour.lock().unwrap());
    }

    /// Requests to the storage host since the last call.
    pub fn storage_requests(&self) -> Vec<Request> {
        let mut requests = self.requests.lock().unwrap();
        requests.drain(..).filter(|request| request.path.starts_with("/storage/")).collect()
    }

    pub fn request_count(&self) -> usize {
        self.requests.lock().unwrap().len()
    }
}

pub fn sha256(content: &[u8]) -> String {
    sha2::Sha256::digest(content).iter().map(|byte| format!("{byte:02x}")).collect()
}

/// Bytes that differ everywhere, so that a shifted or doubled piece is noticed.
pub fn content(length: usize, seed: u32) -> Vec<u8> {
    let mut state = seed.wrapping_mul(2_654_435_761) | 1;
    std::iter::repeat_with(|| {
        state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
        (state >> 24) as u8
    })
    .take(length)
    .collect()
}

fn serve(mut stream: TcpStream, port: u16, shared: &Mutex<Behaviour>, seen: &Mutex<Vec<Request>>) {
    let mut lines = BufReader::new(stream.try_clone().unwrap()).lines();
    while let Some(Ok(first)) = lines.next() {
        let path = first.split(' ').nth(1).unwrap_or_default().to_owned();
        let mut headers = HashMap::new();
        for line in lines.by_ref().map_while(Result::ok).take_while(|line| !line.is_empty()) {
            if let Some((name, value)) = line.split_once(':') {
                headers.insert(name.trim().to_ascii_lowercase(), value.trim().to_owned());
            }
        }
        let request = Request { path, headers };
        seen.lock().unwrap().push(request.clone());
        let go_on = answer(&mut stream, port, &mut shared.lock().unwrap(), &request);
        if go_on != Some(true) {
            return;
        }
    }
}

fn answer(stream: &mut TcpStream, port: u16, behaviour: &mut Behaviour, request: &Request) -> Option<bool> {
    let path = request.path.split('?').next().unwrap_or_default();
    if let Some(rest) = path.strip_prefix("/storage/") {
        return storage(stream, behaviour, request, rest);
    }
    // The repository's former name, on the same host.
    if path.contains("/user/old-GGUF/") {
        let location = request.path.replace("/user/old-GGUF/", &format!("/{REPO}/"));
        return send(stream, 307, &[("Location", location)], b"");
    }
    let expected = behaviour.token.as_ref().map(|token| format!("Bearer {token}"));
    if expected.is_some() && expected.as_ref() != request.headers.get("authorization") {
        return send(stream, 401, &[], b"{\"error\":\"who are you\"}");
    }
    let repository = format!("/api/models/{REPO}/revision/main");
    if path == repository {
        assert!(request.path.ends_with("?blobs=true"), "sizes and checksums were not asked for");
        let listing = behaviour.listing.clone().unwrap_or_else(|| listing(behaviour));
        return send(stream, 200, &[("Content-Type", "application/json".into())], listing.as_bytes());
    }
    let prefix = format!("/{REPO}/resolve/{}/", behaviour.commit);
    let name = path.strip_prefix(&prefix).map(|name| name.replace("%20", " "));
    let index = name.and_then(|name| behaviour.files.iter().position(|(known, _)| *known == name));
    let Some(index) = index else { return send(stream, 404, &[], b"") };
    let headers = [
        // Another host name, as the real hub's storage has one.
        ("Location", format!("http://localhost:{port}/storage/{index}")),
        ("X-Repo-Commit", behaviour.commit.clone()),
        ("X-Linked-Etag", format!("\"{}\"", sha256(&behaviour.files[index].1))),
    ];
    send(stream, 302, &headers, b"")
}

fn storage(
    stream: &mut TcpStream,
    behaviour: &mut Behaviour,
    request: &Request,
    index: &str,
) -> Option<bool> {
    if !behaviour.statuses.is_empty() {
        return send(stream, behaviour.statuses.remove(0), &[], b"");
    }
    let mut content = behaviour.files[index.parse::<usize>().ok()?].1.clone();
    let total = content.len();
    if behaviour.corrupt {
        content[total / 2] ^= 1;
    }
    if behaviour.too_long {
        content.extend([0; 10]);
    }
    let range = request.headers.get("range").filter(|_| !behaviour.no_ranges);
    let (status, start, end) = match range {
        Some(range) => {
            let (start, end) = range.strip_prefix("bytes=")?.split_once('-')?;
            let start: usize = start.parse().ok()?;
            let end = end.parse::<usize>().map_or(content.len(), |last| last + 1);
            (206, start, if behaviour.too_long { content.len() } else { end.min(content.len()) })
        }
        None => (200, 0, content.len()),
    };
    let body = &content[start..end];
    let stated = start + usize::from(behaviour.shift_range);
    let content_range = format!("bytes {stated}-{}/{total}", end - 1);
    let headers = [("Content-Range", content_range), ("ETag", "\"x\"".to_owned())];
    let headers = if status == 206 { &headers[..] } else { &headers[1..] };
    if behaviour.cuts.is_empty() {
        return send(stream, status, headers, body);
    }
    let cut = behaviour.cuts.remove(0).min(body.len());
    head(stream, status, headers, body.len()).and_then(|()| stream.write_all(&body[..cut])).ok()?;
    Some(false)
}

fn send(stream: &mut TcpStream, status: u16, headers: &[(&str, String)], body: &[u8]) -> Option<bool> {
    head(stream, status, headers, body.len()).and_then(|()| stream.write_all(body)).ok()?;
    Some(true)
}

fn head(
    stream: &mut TcpStream,
    status: u16,
    headers: &[(&str, String)],
    length: usize,
) -> std::io::Result<()> {
    let mut text = format!("HTTP/1.1 {status} Because\r\nContent-Length: {length}\r\n");
    for (name, value) in headers {
        text.push_str(&format!("{name}: {value}\r\n"));
    }
    stream.write_all(format!("{text}\r\n").as_bytes())
}

fn listing(behaviour: &Behaviour) -> String {
    let siblings: Vec<String> = behaviour
        .files
        .iter()
        .map(|(name, content)| {
            let size = content.len();
            if behaviour.in_git {
                let mut hasher = sha1::Sha1::new();
                hasher.update(format!("blob {size}\0"));
                hasher.update(content);
                let id: String = hasher.finalize().iter().map(|byte| format!("{byte:02x}")).collect();
                return format!(r#"{{"rfilename":"{name}","size":{size},"blobId":"{id}"}}"#);
            }
            let sha = sha256(content);
            let lfs = format!(r#"{{"sha256":"{sha}","size":{size},"pointerSize":134}}"#);
            format!(r#"{{"rfilename":"{name}","size":{size},"blobId":"{COMMIT}","lfs":{lfs}}}"#)
        })
        .collect();
    let readme = r#"{"rfilename":"README.md","size":3,"blobId":"x"}"#;
    format!(r#"{{"id":"{REPO}","sha":"{}","siblings":[{readme},{}]}}"#, behaviour.commit, siblings.join(","))
}
