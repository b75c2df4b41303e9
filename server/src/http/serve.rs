//! Listens, and ends in good order: first no new connections, then a time for what runs, then its cancellation.

use std::{
    future::Future,
    net::{IpAddr, SocketAddr},
    path::PathBuf,
    sync::Arc,
    time::Duration,
};

use axum::Router;
use hyper_util::{
    rt::{TokioIo, TokioTimer},
    server::graceful::GracefulShutdown,
    service::TowerToHyperService,
};
use tokio::{
    io::{AsyncRead, AsyncWrite},
    net::{TcpListener, TcpSocket, UnixListener},
    sync::watch,
};

/// Why an address cannot be listened on.
#[derive(Debug, thiserror::Error)]
#[error("cannot listen on {address}: {source}")]
pub struct ListenError {
    /// The address.
    pub address: String,
    /// Why.
    pub source: std::io::Error,
}

/// Where a listener listens.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Address {
    /// TCP.
    Tcp(SocketAddr),
    /// A Unix socket.
    Unix(PathBuf),
}

impl std::fmt::Display for Address {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Tcp(address) => write!(formatter, "http://{address}"),
            Self::Unix(path) => write!(formatter, "unix://{}", path.display()),
        }
    }
}

/// A bound socket.
#[derive(Debug)]
pub enum Listener {
    /// TCP.
    Tcp(TcpListener),
    /// A Unix socket, and its file, which goes with it.
    Unix(UnixListener, PathBuf),
}

impl Drop for Listener {
    fn drop(&mut self) {
        if let Self::Unix(_, path) = self {
            _ = std::fs::remove_file(path);
        }
    }
}

/// Binds every host; with port 0 the second host takes the port that the first one was given.
///
/// # Errors
/// The first address that cannot be bound.
pub async fn bind(
    hosts: &[String],
    port: u16,
    reuse_port: bool,
) -> Result<Vec<(Address, Listener)>, ListenError> {
    let mut out = Vec::new();
    let mut port = port;
    for host in hosts.iter().map(|host| host.trim()).filter(|host| !host.is_empty()) {
        let wrap = |source| ListenError { address: format!("{host}:{port}"), source };
        if host.ends_with(".sock") {
            let path = PathBuf::from(host);
            let listener = unix(&path).map_err(wrap)?;
            out.push((Address::Unix(path.clone()), Listener::Unix(listener, path)));
            continue;
        }
        let listener = tcp(host, port, reuse_port).await.map_err(wrap)?;
        let address = listener.local_addr().map_err(wrap)?;
        port = address.port();
        out.push((Address::Tcp(address), Listener::Tcp(listener)));
    }
    Ok(out)
}

fn unix(path: &std::path::Path) -> std::io::Result<UnixListener> {
    use std::os::unix::fs::FileTypeExt as _;
    // A socket that an earlier run left behind; anything else stays.
    if std::fs::symlink_metadata(path).is_ok_and(|found| found.file_type().is_socket()) {
        std::fs::remove_file(path)?;
    }
    UnixListener::bind(path)
}

async fn tcp(host: &str, port: u16, reuse_port: bool) -> std::io::Result<TcpListener> {
    let bare = host.trim_start_matches('[').trim_end_matches(']');
    let addresses: Vec<SocketAddr> = match bare.parse::<IpAddr>() {
        Ok(ip) => vec![SocketAddr::new(ip, port)],
        Err(_) => tokio::net::lookup_host((bare, port)).await?.collect(),
    };
    let mut last = std::io::Error::new(std::io::ErrorKind::AddrNotAvailable, "the name has no address");
    for address in addresses {
        let socket = if address.is_ipv4() { TcpSocket::new_v4()? } else { TcpSocket::new_v6()? };
        socket.set_reuseaddr(true)?;
        if reuse_port {
            socket.set_reuseport(true)?;
        }
        match socket.bind(address).and_then(|()| socket.listen(1024)) {
            Ok(listener) => return Ok(listener),
            Err(error) => last = error,
        }
    }
    Err(last)
}

/// Serves until `stop`, then gives running requests `grace`, then calls `cancel` and waits a little for what that ends.
pub async fn serve(
    listeners: Vec<Listener>,
    router: Router,
    header_timeout: Duration,
    stop: impl Future<Output = ()>,
    grace: Duration,
    cancel: impl FnOnce(),
) {
    let (stopped, watch) = watch::channel(false);
    let graceful = Arc::new(GracefulShutdown::new());
    let accepting: Vec<_> = listeners
        .into_iter()
        .map(|listener| {
            let (router, watch, graceful) = (router.clone(), watch.clone(), Arc::clone(&graceful));
            tokio::spawn(accept(listener, router, header_timeout, watch, graceful))
        })
        .collect();
    stop.await;
    _ = stopped.send(true);
    for task in accepting {
        _ = task.await;
    }
    // The accepting tasks have ended, so this is the last handle.
    let Some(graceful) = Arc::into_inner(graceful) else { return cancel() };
    let mut ending = Box::pin(graceful.shutdown());
    if tokio::time::timeout(grace, &mut ending).await.is_err() {
        tracing::warn!(target: "bloomery_serve::http", "requests still run after {} s: cancelling them", grace.as_secs());
        cancel();
        _ = tokio::time::timeout(Duration::from_secs(5), ending).await;
    } else {
        cancel();
    }
}

async fn accept(
    listener: Listener,
    router: Router,
    header_timeout: Duration,
    mut stopped: watch::Receiver<bool>,
    graceful: Arc<GracefulShutdown>,
) {
    loop {
        let accepted = tokio::select! {
            _ = stopped.changed() => return,
            accepted = next(&listener) => accepted,
        };
        match accepted {
            Ok(stream) => {
                let mut builder = hyper::server::conn::http1::Builder::new();
                // Some clients compare names of headers letter by letter with what llama-server sends.
                builder.timer(TokioTimer::new()).header_read_timeout(header_timeout).title_case_headers(true);
                let service = TowerToHyperService::new(router.clone());
                let connection = graceful.watch(builder.serve_connection(TokioIo::new(stream), service));
                tokio::spawn(async move {
                    // A client that went away is no event of ours.
                    _ = connection.await;
                });
            }
            Err(error) => {
                // Out of descriptors, say: waiting is all that helps.
                tracing::warn!(target: "bloomery_serve::http", "accept: {error}");
                tokio::time::sleep(Duration::from_millis(50)).await;
            }
        }
    }
}

/// A connection of either kind.
trait Connection: AsyncRead + AsyncWrite + Send + Unpin {}
impl<T: AsyncRead + AsyncWrite + Send + Unpin> Connection for T {}

async fn next(listener: &Listener) -> std::io::Result<Box<dyn Connection>> {
    Ok(match listener {
        Listener::Tcp(listener) => {
            let (stream, _) = listener.accept().await?;
            // Tokens are small packets that must not wait for each other.
            _ = stream.set_nodelay(true);
            Box::new(stream)
        }
        Listener::Unix(listener, _) => Box::new(listener.accept().await?.0),
    })
}
