//! A real server process for end-to-end tests.

use serde_json::Value;
use std::io::{BufRead, BufReader, Read};
use std::net::TcpListener;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::time::{Duration, Instant};

/// Longest wait for a model to be ready; a bound on a hang, not a measure of speed.
const READY: Duration = Duration::from_secs(300);

/// The folder of the profile that the running test was built with: the binaries lie in it.
pub fn binaries() -> PathBuf {
    let test = std::env::current_exe().unwrap_or_default();
    test.parent().and_then(Path::parent).map(Path::to_path_buf).unwrap_or_default()
}

/// The server's binary, or `None` after printing how to build it.
pub fn server_binary() -> Option<PathBuf> {
    let binary = binaries().join("bloomery-serve");
    if binary.exists() {
        return Some(binary);
    }
    println!("skipped: {} is not built (cargo xtask test builds it)", binary.display());
    None
}

/// A server on a port of its own; killed when dropped.
pub struct Server {
    child: Child,
    /// `http://127.0.0.1:PORT`.
    pub url: String,
}

impl Server {
    /// Starts the server on a model and waits until it is ready.
    ///
    /// # Panics
    /// When it ends or does not become ready; its log is printed.
    pub fn start(model: &Path, flags: &[&str]) -> Option<Server> {
        let binary = server_binary()?;
        let port = TcpListener::bind("127.0.0.1:0").and_then(|l| l.local_addr()).map_or(0, |a| a.port());
        let log = binaries().join(format!("test-server-{port}.log"));
        let out = std::fs::File::create(&log).ok()?;
        let err = out.try_clone().ok()?;
        let mut child = Command::new(binary)
            .arg("-m")
            .arg(model)
            .args(["--host", "127.0.0.1", "--port", &port.to_string()])
            .args(flags)
            .stdin(Stdio::null())
            .stdout(out)
            .stderr(err)
            .spawn()
            .unwrap_or_else(|why| panic!("bloomery-serve: {why}"));
        let url = format!("http://127.0.0.1:{port}");
        let start = Instant::now();
        loop {
            let ended = child.try_wait().ok().flatten();
            let told = || std::fs::read_to_string(&log).unwrap_or_default();
            assert!(ended.is_none(), "the server ended with {ended:?}:\n{}", told());
            assert!(start.elapsed() < READY, "the server is not ready:\n{}", told());
            if agent().get(format!("{url}/health")).call().is_ok_and(|a| a.status() == 200) {
                return Some(Server { child, url });
            }
            std::thread::sleep(Duration::from_millis(20));
        }
    }

    /// Status and body of a GET.
    pub fn get(&self, path: &str) -> (u16, Value) {
        answer(agent().get(format!("{}{path}", self.url)).call())
    }

    /// Status and body of a POST.
    pub fn post(&self, path: &str, body: &Value) -> (u16, Value) {
        answer(agent().post(format!("{}{path}", self.url)).send_json(body))
    }

    /// Status and body of a POST of bytes that may be no JSON.
    pub fn post_raw(&self, path: &str, body: &[u8]) -> (u16, Value) {
        let request = agent().post(format!("{}{path}", self.url)).header("Content-Type", "application/json");
        answer(request.send(body))
    }

    /// Sends a POST and hands every `data:` payload of the event stream to `each`, until it says stop or the stream
    /// ends. Leaving early closes the connection.
    ///
    /// # Panics
    /// When the request itself fails.
    pub fn stream(&self, path: &str, body: &Value, mut each: impl FnMut(&str) -> bool) {
        let response = agent().post(format!("{}{path}", self.url)).send_json(body);
        let response = response.unwrap_or_else(|why| panic!("{path}: {why}"));
        assert_eq!(response.status(), 200, "{path}");
        let lines = BufReader::new(response.into_body().into_reader()).lines();
        for line in lines.map_while(Result::ok) {
            if let Some(data) = line.strip_prefix("data: ")
                && !each(data)
            {
                return;
            }
        }
    }

    /// A value of `/proc/PID/status` in bytes, `VmHWM` or `VmRSS` for example.
    pub fn memory(&self, key: &str) -> Option<u64> {
        let status = std::fs::read_to_string(format!("/proc/{}/status", self.child.id())).ok()?;
        let line = status.lines().find(|l| l.starts_with(key))?;
        Some(line.split_whitespace().nth(1)?.parse::<u64>().ok()? * 1024)
    }

    /// Number of the process.
    pub fn pid(&self) -> u32 {
        self.child.id()
    }

    /// Sends a signal by name and waits for the end.
    pub fn stop(&mut self, signal: &str) -> Option<ExitStatus> {
        let _ = Command::new("kill").args([signal, &self.child.id().to_string()]).status();
        self.child.wait().ok()
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

fn agent() -> ureq::Agent {
    ureq::Agent::config_builder().http_status_as_error(false).build().into()
}

fn answer(result: Result<ureq::http::Response<ureq::Body>, ureq::Error>) -> (u16, Value) {
    match result {
        Ok(mut response) => {
            let status = response.status().as_u16();
            let mut text = String::new();
            let _ = response.body_mut().as_reader().read_to_string(&mut text);
            (status, serde_json::from_str(&text).unwrap_or(Value::String(text)))
        }
        Err(why) => (0, Value::String(why.to_string())),
    }
}
