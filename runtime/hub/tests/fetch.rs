//! Fetching from a local imitation of the hub: what arrives, what is refused, and what happens when the network does
//! not play along.

mod support;

use std::path::Path;

use bloomery_hub::{Event, Fetched, Hub, HubError, HubOptions, ModelReference};
use support::{COMMIT, REPO, Server, content, sha256};

fn fetch_with(
    options: HubOptions,
    text: &str,
    exact: Option<&str>,
) -> (Result<Fetched, HubError>, Vec<Event>) {
    let mut events = Vec::new();
    let reference = ModelReference::parse(text).unwrap();
    let result = Hub::new(options).unwrap().fetch(&reference, exact, &mut |event| events.push(event));
    (result, events)
}

fn fetch(server: &Server) -> (Result<Fetched, HubError>, Vec<Event>) {
    fetch_with(server.options(), REPO, None)
}

fn one_file(length: usize) -> (Server, Vec<u8>) {
    let bytes = content(length, 1);
    (Server::start(&[("m-Q4_K_M.gguf", bytes.clone())]), bytes)
}

/// Every file below the cache whose name ends so.
fn leftovers(folder: &Path, end: &str) -> usize {
    std::fs::read_dir(folder)
        .unwrap()
        .map(|entry| entry.unwrap())
        .map(|entry| match entry.file_type().unwrap().is_dir() {
            true => leftovers(&entry.path(), end),
            false => usize::from(entry.file_name().to_str().unwrap().ends_with(end)),
        })
        .sum()
}

#[test]
fn a_model_arrives_in_the_shared_layout_and_stays() {
    let files = [
        ("m-Q8_0.gguf", content(900, 1)),
        ("m-Q4_K_M.gguf", content(300_000, 2)),
        ("mmproj-Q4_K_M.gguf", content(9, 3)),
    ];
    let server = Server::start(&files);
    let (result, events) = fetch(&server);
    let fetched = result.unwrap();
    assert_eq!(std::fs::read(&fetched.path).unwrap(), files[1].1);
    assert_eq!((fetched.transferred, &*fetched.commit, fetched.parts.len()), (300_000, COMMIT, 1));

    let folder = server.folder.path().join("models--user--model-GGUF");
    assert_eq!(fetched.path, folder.join("snapshots").join(COMMIT).join("m-Q4_K_M.gguf"));
    assert_eq!(std::fs::read_to_string(folder.join("refs/main")).unwrap(), COMMIT);
    assert_eq!(std::fs::read(folder.join("blobs").join(sha256(&files[1].1))).unwrap(), files[1].1);
    assert_eq!(leftovers(&folder, "-part"), 0);

    let name = "m-Q4_K_M.gguf".to_owned();
    assert_eq!(events[0], Event::Planned { files: vec![name.clone()], bytes: 300_000, missing: 300_000 });
    assert_eq!(events[1], Event::Started { file: name.clone(), size: 300_000, have: 0 });
    assert_eq!(events[events.len() - 2], Event::Advanced { have: 300_000 });
    assert_eq!(events.last(), Some(&Event::Finished { file: name.clone() }));

    server.storage_requests();
    let (again, events) = fetch(&server);
    assert_eq!(again.unwrap(), Fetched { transferred: 0, ..fetched });
    assert_eq!(events, [Event::Planned { files: vec![name], bytes: 300_000, missing: 0 }]);
    assert!(server.storage_requests().is_empty());
}

#[test]
fn quantisation_file_name_and_parts() {
    let files: Vec<(String, Vec<u8>)> = (1..=3)
        .map(|part| (format!("BF16/m-BF16-{part:05}-of-00003.gguf"), content(1000 + part as usize, part)))
        .chain([("name with space.gguf".to_owned(), content(50, 9))])
        .collect();
    let borrowed: Vec<(&str, Vec<u8>)> = files.iter().map(|(name, bytes)| (&**name, bytes.clone())).collect();
    let server = Server::start(&borrowed);
    let fetched = fetch_with(server.options(), &format!("{REPO}:bf16"), None).0.unwrap();
    assert_eq!((fetched.parts.len(), fetched.transferred), (3, 3006));
    assert_eq!(fetched.path, fetched.parts[0]);
    for (path, (name, bytes)) in fetched.parts.iter().zip(&files) {
        assert!(path.ends_with(name));
        assert_eq!(std::fs::read(path).unwrap(), *bytes);
    }
    let fetched = fetch_with(server.options(), REPO, Some("name with space.gguf")).0.unwrap();
    assert_eq!(std::fs::read(&fetched.path).unwrap(), files[3].1);
    let error = fetch_with(server.options(), &format!("{REPO}:Q6_K"), None).0.unwrap_err();
    assert!(error.to_string().contains("BF16/m-BF16-00001-of-00003.gguf"), "{error}");
}

#[test]
fn a_cut_transfer_goes_on_by_itself() {
    let (server, bytes) = one_file(500_000);
    server.set(|behaviour| behaviour.cuts = vec![200_000, 0, 100_000]);
    let (result, events) = fetch(&server);
    assert_eq!(std::fs::read(result.unwrap().path).unwrap(), bytes);
    assert_eq!(events.iter().filter(|event| matches!(event, Event::Retrying { .. })).count(), 3);
    let requests = server.storage_requests();
    assert!(requests.iter().all(|request| request.headers["accept-encoding"] == "identity"));
    let ranges: Vec<String> = requests.iter().map(|request| request.headers["range"].clone()).collect();
    assert_eq!(
        ranges,
        ["bytes=0-499999", "bytes=200000-499999", "bytes=200000-499999", "bytes=300000-499999"]
    );
}

#[test]
fn attempts_count_only_while_nothing_arrives() {
    let (server, bytes) = one_file(100_000);
    server.set(|behaviour| behaviour.cuts = vec![5_000; 15]);
    let (result, events) = fetch_with(HubOptions { attempts: 2, ..server.options() }, REPO, None);
    assert_eq!(std::fs::read(result.unwrap().path).unwrap(), bytes);
    let attempts: Vec<u32> = events
        .iter()
        .filter_map(|event| if let Event::Retrying { attempt, .. } = event { Some(*attempt) } else { None })
        .collect();
    assert_eq!(attempts, [1; 15]);
}

#[test]
fn a_piece_from_another_place_is_refused() {
    let (server, _) = one_file(10_000);
    server.set(|behaviour| behaviour.shift_range = true);
    let error = fetch(&server).0.unwrap_err();
    assert!(matches!(&error, HubError::BadAnswer { problem, .. } if problem.contains("bytes 1-")), "{error}");
}

#[test]
fn a_renamed_repository_is_followed_with_the_token() {
    let (server, bytes) = one_file(2_000);
    server.set(|behaviour| behaviour.token = Some("hf_secret".into()));
    let with_token = HubOptions { token: Some("hf_secret".into()), ..server.options() };
    let fetched = fetch_with(with_token, "user/old-GGUF", None).0.unwrap();
    assert_eq!(std::fs::read(fetched.path).unwrap(), bytes);
}

#[test]
fn a_transfer_that_was_given_up_goes_on_in_the_next_run() {
    let (server, bytes) = one_file(500_000);
    server.set(|behaviour| behaviour.cuts = vec![123_456]);
    let once = HubOptions { attempts: 1, ..server.options() };
    let error = fetch_with(once, REPO, None).0.unwrap_err();
    assert!(matches!(error, HubError::BrokenOff { received: 123_456, size: 500_000, .. }), "{error}");
    assert!(error.to_string().contains("run the same command again"), "{error}");
    // Nothing incomplete is visible as a model.
    assert_eq!(leftovers(server.folder.path(), ".gguf"), 0);

    server.storage_requests();
    let (result, events) = fetch(&server);
    assert_eq!(std::fs::read(result.unwrap().path).unwrap(), bytes);
    assert_eq!(events[1], Event::Checking { file: "m-Q4_K_M.gguf".into(), have: 123_456 });
    assert_eq!(events[2], Event::Started { file: "m-Q4_K_M.gguf".into(), size: 500_000, have: 123_456 });
    assert_eq!(server.storage_requests()[0].headers["range"], "bytes=123456-499999");
}

#[test]
fn what_an_earlier_attempt_left_is_not_trusted() {
    let (server, bytes) = one_file(50_000);
    let blobs = server.folder.path().join("models--user--model-GGUF/blobs");
    let part = blobs.join(format!("{}.bloomery-part", sha256(&bytes)));
    std::fs::create_dir_all(&blobs).unwrap();
    // Too long for this file: starts over.
    std::fs::write(&part, vec![1; 50_001]).unwrap();
    let fetched = fetch(&server).0.unwrap();
    assert_eq!(std::fs::read(&fetched.path).unwrap(), bytes);
    // Wrong bytes: found out at the end, deleted, right in the next run.
    std::fs::remove_file(std::fs::canonicalize(&fetched.path).unwrap()).unwrap();
    std::fs::write(&part, vec![1; 20_000]).unwrap();
    assert!(matches!(fetch(&server).0.unwrap_err(), HubError::WrongChecksum { .. }));
    assert_eq!(std::fs::read(fetch(&server).0.unwrap().path).unwrap(), bytes);
}

#[test]
fn a_wrong_checksum_is_refused_and_leaves_nothing() {
    let (server, bytes) = one_file(70_000);
    server.set(|behaviour| behaviour.corrupt = true);
    let error = fetch(&server).0.unwrap_err();
    assert!(
        matches!(&error, HubError::WrongChecksum { expected, .. } if *expected == sha256(&bytes)),
        "{error}"
    );
    assert_eq!(leftovers(server.folder.path(), ".gguf") + leftovers(server.folder.path(), "-part"), 0);
    assert_eq!(leftovers(server.folder.path(), &sha256(&bytes)), 0);
    server.set(|behaviour| behaviour.corrupt = false);
    assert_eq!(std::fs::read(fetch(&server).0.unwrap().path).unwrap(), bytes);
}

#[test]
fn files_that_git_keeps_are_checked_by_git_s_own_id() {
    let (server, bytes) = one_file(5_000);
    server.set(|behaviour| behaviour.in_git = true);
    assert_eq!(std::fs::read(fetch(&server).0.unwrap().path).unwrap(), bytes);
    let (server, _) = one_file(5_000);
    server.set(|behaviour| (behaviour.in_git, behaviour.corrupt) = (true, true));
    assert!(matches!(fetch(&server).0.unwrap_err(), HubError::WrongChecksum { .. }));
}

#[test]
fn a_server_without_ranges_starts_over() {
    let (server, bytes) = one_file(300_000);
    server.set(|behaviour| {
        behaviour.no_ranges = true;
        behaviour.cuts = vec![200_000];
    });
    let (result, events) = fetch(&server);
    assert_eq!(std::fs::read(result.unwrap().path).unwrap(), bytes);
    assert!(events.iter().any(|event| matches!(event, Event::Retrying { .. })));
}

#[test]
fn more_bytes_than_announced_are_refused() {
    let (server, _) = one_file(1_000);
    server.set(|behaviour| behaviour.too_long = true);
    let error = fetch(&server).0.unwrap_err();
    assert!(matches!(error, HubError::BadAnswer { .. }), "{error}");
    assert_eq!(leftovers(server.folder.path(), ".gguf") + leftovers(server.folder.path(), "-part"), 0);
}

#[test]
fn passing_faults_are_retried_and_lasting_ones_are_not() {
    let (server, bytes) = one_file(1_000);
    server.set(|behaviour| behaviour.statuses = vec![503, 429, 500]);
    assert_eq!(std::fs::read(fetch(&server).0.unwrap().path).unwrap(), bytes);

    let (server, _) = one_file(1_000);
    server.set(|behaviour| behaviour.statuses = vec![404]);
    assert!(matches!(fetch(&server).0.unwrap_err(), HubError::BadAnswer { .. }));
    assert_eq!(server.storage_requests().len(), 1);
    server.set(|behaviour| behaviour.statuses = vec![503; 9]);
    assert!(matches!(fetch(&server).0.unwrap_err(), HubError::BrokenOff { received: 0, .. }));
    assert_eq!(server.storage_requests().len(), 5);
}

#[test]
fn offline_uses_the_cache_and_asks_nobody() {
    let (server, bytes) = one_file(4_000);
    let offline = || HubOptions { offline: true, ..server.options() };
    let error = fetch_with(offline(), REPO, None).0.unwrap_err();
    assert!(matches!(error, HubError::NotCached { .. }), "{error}");
    fetch(&server).0.unwrap();
    let before = server.request_count();
    let (result, events) = fetch_with(offline(), &format!("{REPO}:Q4_K_M"), None);
    assert_eq!(std::fs::read(result.unwrap().path).unwrap(), bytes);
    assert_eq!((server.request_count(), events), (before, vec![]));
    let error = fetch_with(offline(), &format!("{REPO}:Q8_0"), None).0.unwrap_err();
    assert!(matches!(error, HubError::NoSuchQuant { .. }), "{error}");
}

#[test]
fn without_a_network_the_cache_is_used_and_the_reason_told() {
    let (server, bytes) = one_file(4_000);
    // A port that nobody listens on any more.
    let closed = std::net::TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
    let unreachable = || HubOptions { endpoint: format!("http://{closed}"), ..server.options() };
    let error = fetch_with(unreachable(), REPO, None).0.unwrap_err();
    assert!(matches!(error, HubError::Unreachable { .. }), "{error}");
    fetch(&server).0.unwrap();
    let (result, events) = fetch_with(unreachable(), REPO, None);
    assert_eq!(std::fs::read(result.unwrap().path).unwrap(), bytes);
    let [Event::UsingCache { reason }] = &events[..] else { panic!("{events:?}") };
    assert!(reason.contains("cannot reach"), "{reason}");
}

#[test]
fn a_snapshot_without_all_parts_is_not_used_offline() {
    let server = Server::start(&[
        ("m-00001-of-00002.gguf", content(100, 1)),
        ("m-00002-of-00002.gguf", content(100, 2)),
    ]);
    let fetched = fetch(&server).0.unwrap();
    std::fs::remove_file(std::fs::canonicalize(&fetched.parts[1]).unwrap()).unwrap();
    let error = fetch_with(HubOptions { offline: true, ..server.options() }, REPO, None).0.unwrap_err();
    assert!(matches!(error, HubError::MissingPart { expected: 2, found: 1, .. }), "{error}");
    // Online, only the missing part is brought again.
    assert_eq!(fetch(&server).0.unwrap().transferred, 100);
}

#[test]
fn the_token_reaches_the_hub_and_nobody_else() {
    let (server, bytes) = one_file(2_000);
    server.set(|behaviour| behaviour.token = Some("hf_secret".into()));
    let error = fetch(&server).0.unwrap_err();
    assert!(matches!(error, HubError::Denied { status: 401, .. }), "{error}");
    assert!(error.to_string().contains("HF_TOKEN"), "{error}");
    server.storage_requests();
    let with_token = HubOptions { token: Some("hf_secret".into()), ..server.options() };
    assert_eq!(std::fs::read(fetch_with(with_token, REPO, None).0.unwrap().path).unwrap(), bytes);
    let storage = server.storage_requests();
    assert!(!storage.is_empty());
    assert!(storage.iter().all(|request| !request.headers.contains_key("authorization")), "{storage:?}");
}

#[test]
fn an_unknown_repository_is_named() {
    let (server, _) = one_file(1);
    let error = fetch_with(server.options(), "nobody/nothing", None).0.unwrap_err();
    assert!(matches!(&error, HubError::NoSuchRepository { repo, .. } if repo == "nobody/nothing"), "{error}");
}

#[test]
fn a_new_commit_brings_only_what_changed() {
    let files = [("a-Q4_K_M.gguf", content(1_000, 1)), ("b-Q8_0.gguf", content(2_000, 2))];
    let server = Server::start(&files);
    let q8 = format!("{REPO}:Q8_0");
    fetch(&server).0.unwrap();
    fetch_with(server.options(), &q8, None).0.unwrap();
    let newer = "f".repeat(40);
    server.set(|behaviour| {
        behaviour.commit = newer.clone();
        behaviour.files[0].1 = content(1_500, 3);
    });
    let unchanged = fetch_with(server.options(), &q8, None).0.unwrap();
    assert_eq!((unchanged.transferred, &*unchanged.commit), (0, &*newer));
    assert_eq!(std::fs::read(&unchanged.path).unwrap(), files[1].1);
    // The new commit's snapshot has no Q4_K_M yet: offline, the older one serves.
    let offline = || HubOptions { offline: true, ..server.options() };
    let older = fetch_with(offline(), REPO.to_owned().as_str(), Some("a-Q4_K_M.gguf")).0.unwrap();
    assert_eq!((&*older.commit, std::fs::read(&older.path).unwrap()), (COMMIT, files[0].1.clone()));
    assert_eq!(fetch(&server).0.unwrap().transferred, 1_500);
    // Now both snapshots have one: `main`'s is meant.
    assert_eq!(fetch_with(offline(), REPO, None).0.unwrap().commit, newer);
    std::fs::write(server.folder.path().join("models--user--model-GGUF/refs/main"), COMMIT).unwrap();
    assert_eq!(fetch_with(offline(), REPO, None).0.unwrap().commit, COMMIT);
}

#[test]
fn answers_that_would_lead_astray_are_refused() {
    let (server, _) = one_file(10);
    let sha = sha256(b"x");
    let file = |name: &str, sha: &str| {
        format!(
            r#"{{"sha":"{COMMIT}","siblings":[{{"rfilename":"{name}","lfs":{{"sha256":"{sha}","size":1}}}}]}}"#
        )
    };
    for listing in [
        file("../../evil.gguf", &sha),
        file("/etc/evil.gguf", &sha),
        file("a\\\\..\\\\evil.gguf", &sha),
        file("fine.gguf", "../../evil"),
        r#"{"sha":"../../evil","siblings":[]}"#.to_owned(),
        format!(r#"{{"sha":"{COMMIT}","siblings":[{{"rfilename":"a.gguf","size":1}}]}}"#),
        r#"{"error":"something"}"#.to_owned(),
        "<html>".to_owned(),
    ] {
        server.set(|behaviour| behaviour.listing = Some(listing.clone()));
        let error = fetch(&server).0.unwrap_err();
        assert!(matches!(error, HubError::BadAnswer { .. }), "{listing}: {error}");
    }
    assert_eq!(leftovers(server.folder.path(), ""), 0, "something was written");
}

#[test]
fn two_processes_do_not_write_one_file() {
    let (server, bytes) = one_file(1_000);
    let blobs = server.folder.path().join("models--user--model-GGUF/blobs");
    std::fs::create_dir_all(&blobs).unwrap();
    let part = std::fs::File::create(blobs.join(format!("{}.bloomery-part", sha256(&bytes)))).unwrap();
    part.lock().unwrap();
    let error = fetch(&server).0.unwrap_err();
    assert!(matches!(error, HubError::Busy { .. }), "{error}");
    drop(part);
    assert_eq!(std::fs::read(fetch(&server).0.unwrap().path).unwrap(), bytes);
}
