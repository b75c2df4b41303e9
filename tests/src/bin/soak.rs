//! Clients that stream and hang up at random, for as long as asked; prints memory and ends with an error on any growth
//! after the first minute, stuck slot or foreign text. usage: soak MINUTES [MODEL]

#![forbid(unsafe_code)]

use bloomery_tests::{demo_model, server::Server};
use serde_json::{Value, json};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

const CLIENTS: u64 = 4;
/// Resident memory may move by this much once everything has been touched.
const SLACK: u64 = 8 << 20;

fn main() {
    let minutes: f64 = std::env::args().nth(1).and_then(|m| m.parse().ok()).unwrap_or(10.0);
    let model = std::env::args().nth(2).map_or_else(demo_model, Into::into);
    let server = Server::start(&model, &["-c", "8192", "-np", "4", "--slots", "--metrics"])
        .expect("the server is built");
    let (over, finished, cancelled) = (AtomicBool::new(false), AtomicU64::new(0), AtomicU64::new(0));
    let expected: Vec<String> = (0..CLIENTS).map(|c| answer_alone(&server, c)).collect();
    let start = Instant::now();
    let mut settled = 0;
    std::thread::scope(|scope| {
        for client in 0..CLIENTS {
            let (server, over, finished, cancelled) = (&server, &over, &finished, &cancelled);
            let expected = &expected[client as usize];
            scope.spawn(move || {
                let mut random = Random(client + 1);
                while !over.load(Ordering::Relaxed) {
                    let leave_after = if random.below(2) == 0 { random.below(40) } else { u64::MAX };
                    let (text, whole) = stream(server, client, leave_after);
                    assert!(expected.starts_with(&text), "client {client} heard foreign text: {text:?}");
                    if whole {
                        assert_eq!(*expected, text, "client {client}");
                        finished.fetch_add(1, Ordering::Relaxed);
                    } else {
                        cancelled.fetch_add(1, Ordering::Relaxed);
                    }
                }
            });
        }
        let minute = Duration::from_secs_f64((minutes * 6.0).min(60.0));
        while start.elapsed().as_secs_f64() < minutes * 60.0 {
            std::thread::sleep(minute / 2);
            let now = server.memory("VmRSS").unwrap_or(0);
            if settled == 0 && start.elapsed() >= minute {
                settled = now;
            }
            println!(
                "{:6.1} s  VmRSS {:7.1} MB  {} finished, {} cancelled",
                start.elapsed().as_secs_f64(),
                now as f64 / 1e6,
                finished.load(Ordering::Relaxed),
                cancelled.load(Ordering::Relaxed)
            );
            let grown = settled > 0 && now > settled + SLACK;
            if grown {
                over.store(true, Ordering::Relaxed);
            }
            assert!(!grown, "memory grew from {settled} to {now} bytes");
        }
        over.store(true, Ordering::Relaxed);
    });
    std::thread::sleep(Duration::from_secs(1));
    let (_, slots) = server.get("/slots");
    let stuck =
        slots.as_array().map_or(1, |s| s.iter().filter(|s| s["is_processing"] != json!(false)).count());
    assert_eq!(stuck, 0, "stuck slots: {slots}");
    println!(
        "clean: {} finished, {} cancelled, no stuck slot",
        finished.into_inner(),
        cancelled.into_inner()
    );
}

fn request(client: u64) -> Value {
    let words = ["Emma", "Darcy", "Hamlet", "Rust"][client as usize % 4];
    json!({"prompt": format!("The story of {words} begins in the year {client}, when"), "n_predict": 60, "temperature": 0})
}

fn answer_alone(server: &Server, client: u64) -> String {
    let (status, answer) = server.post("/completion", &request(client));
    assert_eq!(status, 200, "{answer}");
    answer["content"].as_str().unwrap_or_default().to_string()
}

/// The text heard, and whether the stream came to its end.
fn stream(server: &Server, client: u64, leave_after: u64) -> (String, bool) {
    let mut body = request(client);
    body["stream"] = json!(true);
    let (mut text, mut events, mut whole) = (String::new(), 0, false);
    server.stream("/completion", &body, |data| {
        let event: Value = serde_json::from_str(data).unwrap_or_default();
        text += event["content"].as_str().unwrap_or_default();
        whole = event["stop"] == json!(true);
        events += 1;
        events < leave_after
    });
    (text, whole)
}

struct Random(u64);

impl Random {
    fn below(&mut self, n: u64) -> u64 {
        self.0 = self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (self.0 >> 33) % n
    }
}
