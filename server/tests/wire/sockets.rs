//! Over real sockets: a client that leaves, an end in good order, several addresses, slow clients.

use crate::support;
use std::{
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    time::Duration,
};

use crate::support::toy::Speed;
use bloomery_serve::http::{Address, App, bind, router, serve};
use serde_json::{Value, json};
use tokio::{
    io::{AsyncRead, AsyncReadExt as _, AsyncWrite, AsyncWriteExt as _},
    net::{TcpStream, UnixStream},
    sync::oneshot,
    task::JoinHandle,
};

struct Server {
    app: Arc<App>,
    addresses: Vec<Address>,
    stop: oneshot::Sender<()>,
    task: JoinHandle<()>,
    cancelled: Arc<AtomicBool>,
}

impl Server {
    async fn start(words: &[&str], hosts: &[&str], speed: Speed, grace: Duration) -> Self {
        let app = support::app_with(words, speed);
        let hosts: Vec<String> = hosts.iter().map(|host| (*host).to_owned()).collect();
        let bound = bind(&hosts, 0, false).await.unwrap();
        let addresses = bound.iter().map(|(address, _)| address.clone()).collect();
        let (stop, stopped) = oneshot::channel();
        let cancelled = Arc::new(AtomicBool::new(false));
        let (flag, engine) = (cancelled.clone(), app.ready().unwrap().served.engine.clone());
        let cancel = move || {
            flag.store(true, Ordering::SeqCst);
            engine.shutdown();
        };
        let listeners = bound.into_iter().map(|(_, listener)| listener).collect();
        let routes = router(app.clone());
        let task = tokio::spawn(async move {
            let stop = async {
                _ = stopped.await;
            };
            serve(listeners, routes, Duration::from_secs(60), stop, grace, cancel).await;
        });
        Self { app, addresses, stop, task, cancelled }
    }

    async fn connect(&self) -> TcpStream {
        let Address::Tcp(address) = self.addresses[0] else { panic!("no TCP address") };
        TcpStream::connect(address).await.unwrap()
    }

    fn is_busy(&self) -> bool {
        self.app.ready().unwrap().served.engine.board().n_processing > 0
    }

    /// Waits for something; the bound is against a hang only.
    async fn until(&self, what: &str, condition: impl Fn(&Self) -> bool) {
        for _ in 0..6000 {
            if condition(self) {
                return;
            }
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
        panic!("waited in vain: {what}");
    }
}

async fn write(stream: &mut (impl AsyncWrite + Unpin), path: &str, body: &Value) {
    let body = body.to_string();
    let request = format!(
        "POST {path} HTTP/1.1\r\nHost: x\r\nConnection: close\r\nContent-Length: {}\r\n\r\n{body}",
        body.len()
    );
    stream.write_all(request.as_bytes()).await.unwrap();
}

async fn read(stream: &mut (impl AsyncRead + Unpin)) -> String {
    let mut text = Vec::new();
    stream.read_to_end(&mut text).await.unwrap();
    String::from_utf8(text).unwrap()
}

fn slow() -> Speed {
    Speed { decode: Duration::from_millis(4), ..Speed::default() }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_client_that_leaves_frees_its_slot_at_once() {
    for stream in [false, true] {
        let speed = slow();
        let server = Server::start(&[], &["127.0.0.1"], speed.clone(), Duration::ZERO).await;
        let mut client = server.connect().await;
        write(
            &mut client,
            "/completion",
            &json!({"prompt": "Once upon", "n_predict": 900, "stream": stream}),
        )
        .await;
        server.until("the request runs", Server::is_busy).await;
        drop(client);
        server.until("the slot is free", |server| !server.is_busy()).await;
        // It ended because the client left, long before its limit.
        assert!(speed.steps.load(Ordering::SeqCst) < 800, "stream: {stream}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_client_that_leaves_during_a_long_prompt() {
    let speed = Speed { prompt: Duration::from_millis(20), ..Speed::default() };
    let server = Server::start(&[], &["127.0.0.1"], speed.clone(), Duration::ZERO).await;
    let mut client = server.connect().await;
    let prompt: Vec<u32> = (0..1000).map(|i| 300 + i % 50).collect();
    write(&mut client, "/completion", &json!({"prompt": prompt, "n_predict": 1})).await;
    server.until("the request runs", Server::is_busy).await;
    drop(client);
    server.until("the slot is free", |server| !server.is_busy()).await;
    assert!(speed.steps.load(Ordering::SeqCst) < 1000 / 64, "the prompt was not finished");
}

#[tokio::test(flavor = "multi_thread")]
async fn what_runs_may_finish_and_nothing_new_begins() {
    let server = Server::start(&[], &["127.0.0.1"], slow(), Duration::from_secs(60)).await;
    let mut client = server.connect().await;
    write(&mut client, "/completion", &json!({"prompt": "Once upon", "n_predict": 50})).await;
    server.until("the request runs", Server::is_busy).await;
    let Address::Tcp(address) = server.addresses[0] else { panic!() };
    server.stop.send(()).unwrap();
    let answer = read(&mut client).await;
    assert!(answer.starts_with("HTTP/1.1 200"), "{answer}");
    assert!(answer.contains("\"tokens_predicted\":50"), "{answer}");
    server.task.await.unwrap();
    assert!(TcpStream::connect(address).await.is_err());
}

#[tokio::test(flavor = "multi_thread")]
async fn what_does_not_finish_in_time_is_cancelled_and_told() {
    for stream in [false, true] {
        let server = Server::start(&[], &["127.0.0.1"], slow(), Duration::from_millis(50)).await;
        let mut client = server.connect().await;
        write(
            &mut client,
            "/completion",
            &json!({"prompt": "Once upon", "n_predict": 1000, "stream": stream}),
        )
        .await;
        server.until("the request runs", Server::is_busy).await;
        server.stop.send(()).unwrap();
        let answer = read(&mut client).await;
        assert!(answer.contains("shutting down"), "{answer}");
        assert_eq!(answer.starts_with("HTTP/1.1 503"), !stream, "{answer}");
        server.task.await.unwrap();
        assert!(server.cancelled.load(Ordering::SeqCst));
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn questions_are_answered_while_a_step_runs() {
    let speed = Speed { prompt: Duration::from_millis(300), ..Speed::default() };
    let server = Server::start(&["--metrics"], &["127.0.0.1"], speed.clone(), Duration::ZERO).await;
    let mut client = server.connect().await;
    let prompt: Vec<u32> = (0..600).map(|i| 300 + i % 50).collect();
    write(&mut client, "/completion", &json!({"prompt": prompt, "n_predict": 1})).await;
    server.until("the request runs", Server::is_busy).await;
    let routes = router(server.app.clone());
    let before = speed.steps.load(Ordering::SeqCst);
    for path in ["/health", "/metrics", "/slots", "/props", "/v1/models"] {
        assert_eq!(support::get(&routes, path).await.status, 200, "{path}");
    }
    // All five came within two steps: none waited for the engine.
    assert!(speed.steps.load(Ordering::SeqCst) <= before + 1);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_socket_in_the_file_system_and_two_addresses() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("serve.sock");
    let server =
        Server::start(&[], &["127.0.0.1", path.to_str().unwrap()], Speed::default(), Duration::from_secs(5))
            .await;
    assert_eq!(server.addresses.len(), 2);
    let mut client = UnixStream::connect(&path).await.unwrap();
    write(&mut client, "/tokenize", &json!({"content": "Once upon"})).await;
    assert!(read(&mut client).await.starts_with("HTTP/1.1 200"));
    // An address that is taken is an error that names it.
    let Address::Tcp(address) = server.addresses[0] else { panic!() };
    let error = bind(&["127.0.0.1".to_owned()], address.port(), false).await.unwrap_err().to_string();
    assert!(error.contains(&address.to_string()), "{error}");
    server.stop.send(()).unwrap();
    server.task.await.unwrap();
    assert!(!path.exists(), "the file of the socket goes with the server");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_body_that_never_ends_is_given_up() {
    let server = Server::start(&["--timeout", "1"], &["127.0.0.1"], Speed::default(), Duration::ZERO).await;
    let mut client = server.connect().await;
    client.write_all(b"POST /completion HTTP/1.1\r\nHost: x\r\nContent-Length: 100\r\n\r\n{").await.unwrap();
    let mut answer = vec![0; 12];
    client.read_exact(&mut answer).await.unwrap();
    assert_eq!(String::from_utf8(answer).unwrap(), "HTTP/1.1 408");
}
