//! docs/writing-a-seat.md shows the example's own lines: a block marked `file=` is part of a walk through the whole file, one
//! marked `from=` an excerpt.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..")
}

/// Mark and content of every fenced block with a mark.
fn blocks(page: &str) -> Vec<(String, String)> {
    let mut blocks = vec![];
    let mut open: Option<(String, String)> = None;
    for line in page.lines() {
        match (&mut open, line.strip_prefix("```")) {
            (None, Some(info)) => {
                let mark = info.split_once(' ').map_or("", |(_, mark)| mark);
                open = Some((mark.to_string(), String::new()));
            }
            (Some(_), Some(_)) => blocks.extend(open.take().filter(|(mark, _)| !mark.is_empty())),
            (Some((_, content)), None) => {
                content.push_str(line);
                content.push('\n');
            }
            (None, None) => {}
        }
    }
    blocks
}

fn lines(text: &str) -> Vec<&str> {
    text.lines().filter(|line| !line.trim().is_empty()).collect()
}

#[test]
fn the_walk_shows_every_line_of_the_example_in_order() {
    let page = fs::read_to_string(root().join("docs/writing-a-seat.md")).expect("page");
    let mut walked: BTreeMap<String, String> = BTreeMap::new();
    let mut excerpts = 0;
    for (mark, content) in blocks(&page) {
        if let Some(file) = mark.strip_prefix("file=") {
            walked.entry(file.to_string()).or_default().push_str(&content);
        } else if let Some(file) = mark.strip_prefix("from=") {
            let whole = fs::read_to_string(root().join(file)).expect(file);
            assert!(whole.contains(&content), "{file} does not contain:\n{content}");
            excerpts += 1;
        } else {
            panic!("a block is marked {mark:?}");
        }
    }
    let files: Vec<&str> = walked.keys().map(String::as_str).collect();
    assert_eq!(files, ["docs/examples/seat-llama/Cargo.toml", "docs/examples/seat-llama/src/lib.rs"]);
    for (file, shown) in &walked {
        let whole = fs::read_to_string(root().join(file)).expect(file);
        assert_eq!(lines(shown), lines(&whole), "{file}");
    }
    assert!(excerpts >= 2);
}

#[test]
fn links_lead_somewhere() {
    let page = fs::read_to_string(root().join("docs/writing-a-seat.md")).expect("page");
    let links: Vec<&str> = page.split("](").skip(1).filter_map(|rest| rest.split(')').next()).collect();
    assert!(links.len() > 5);
    for link in links.iter().filter(|link| !link.starts_with("http")) {
        assert!(root().join("docs").join(link).exists(), "{link}");
    }
}

#[test]
fn the_pages_configuration_is_understood() {
    let page = fs::read_to_string(root().join("docs/writing-a-seat.md")).expect("page");
    let start = page.find("dirs = [\"seats\"]").expect("configuration");
    let text = page[start..]
        .split("```")
        .next()
        .expect("block")
        .replace("\"...\"", &format!("\"{}\"", "0".repeat(64)));
    let config = bloomery_seat_host::config::Config::parse(&text, Path::new("/")).expect("understood");
    assert_eq!((config.dirs.len(), config.seats.len(), config.architectures.len()), (1, 2, 1));
    let shipped = fs::read_to_string(root().join("plugins.toml")).expect("shipped");
    bloomery_seat_host::config::Config::parse(&shipped, Path::new("/")).expect("understood");
    // And with every example line of it switched on.
    let on: String = shipped
        .lines()
        .map(|l| {
            format!(
                "{}\n",
                l.strip_prefix("# ").filter(|l| l.contains('=') || l.starts_with("[[")).unwrap_or(l)
            )
        })
        .collect();
    let on = on.replace("64 hexadecimal digits", &"a".repeat(64));
    let config = bloomery_seat_host::config::Config::parse(&on, Path::new("/")).expect(&on);
    assert_eq!((config.seats.len(), config.architectures.len()), (2, 1));
}
