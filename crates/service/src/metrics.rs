//! A page of metrics for a monitoring system: OpenMetrics text over HTTP.
//!
//! Every request is answered with the same page, whatever was asked, one connection at a time, and
//! nobody is waited for for long.

use std::io::{self, Read, Write};
use std::net::{SocketAddr, TcpListener};
use std::os::fd::AsFd;
use std::os::unix::fs::PermissionsExt;
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};
use std::thread;
use std::time::Duration;

use prometheus_client::collector::Collector;
use prometheus_client::registry::Registry;
use rustix::net::sockopt::{Timeout, set_socket_timeout};

use crate::accepted;

/// So long a client may take to ask, and to take the answer.
const PATIENCE: Duration = Duration::from_secs(2);
/// Longest request.
const MOST_REQUEST: u64 = 8 << 10;
/// What the page is.
const TYPE: &str = "application/openmetrics-text; version=1.0.0; charset=utf-8";

/// Where metrics are served.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Listen {
    /// A Unix socket.
    Unix(PathBuf),
    /// An address of this host's own.
    Tcp(SocketAddr),
}

/// The text of a page.
pub fn text(page: impl Collector) -> String {
    let mut registry = Registry::default();
    registry.register_collector(Box::new(page));
    let mut text = String::new();
    // Writing to a string does not fail.
    let _ = prometheus_client::encoding::text::encode(&mut text, &registry);
    text
}

/// Serves a page until the process ends. `page` makes its [`text`] for each request; where it
/// cannot, the connection is closed.
///
/// # Errors
///
/// Nobody can listen there.
pub fn serve(
    listen: &Listen,
    page: impl Fn() -> io::Result<String> + Send + 'static,
) -> io::Result<()> {
    let named = thread::Builder::new().name("metrics".to_owned());
    match listen {
        Listen::Tcp(address) => {
            let listener = TcpListener::bind(address)?;
            named.spawn(move || {
                listener.incoming().filter_map(accepted).for_each(|s| greet(&s, &page))
            })?;
        }
        Listen::Unix(path) => {
            let listener = bind(path)?;
            named.spawn(move || {
                listener.incoming().filter_map(accepted).for_each(|s| greet(&s, &page))
            })?;
        }
    }
    Ok(())
}

/// Answers a client that does not keep others waiting.
fn greet<S: AsFd>(stream: &S, page: &impl Fn() -> io::Result<String>)
where
    for<'a> &'a S: Read + Write,
{
    for side in [Timeout::Recv, Timeout::Send] {
        let _ = set_socket_timeout(stream, side, Some(PATIENCE));
    }
    // A client that has gone wants no answer.
    let _ = answer(stream, stream, page);
}

fn bind(path: &Path) -> io::Result<UnixListener> {
    // One that an earlier process has left; anything else stays, and is an error.
    if UnixStream::connect(path).is_err_and(|e| e.kind() == io::ErrorKind::ConnectionRefused) {
        let _ = std::fs::remove_file(path);
    }
    let listener = UnixListener::bind(path)?;
    std::fs::set_permissions(path, std::fs::Permissions::from_mode(0o600))?;
    Ok(listener)
}

fn answer(
    stream: impl Read,
    mut out: impl Write,
    page: &impl Fn() -> io::Result<String>,
) -> io::Result<()> {
    let mut request = Vec::new();
    let mut byte = [0];
    let mut stream = stream.take(MOST_REQUEST);
    while !request.ends_with(b"\r\n\r\n") && !request.ends_with(b"\n\n") {
        if stream.read(&mut byte)? == 0 {
            return Ok(());
        }
        request.extend_from_slice(&byte);
    }
    let text = page()?;
    let length = text.len();
    write!(
        out,
        "HTTP/1.0 200 OK\r\nContent-Type: {TYPE}\r\nContent-Length: {length}\r\n\r\n{text}"
    )?;
    out.flush()
}
