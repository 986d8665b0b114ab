//! A page of metrics for a monitoring system: OpenMetrics text over HTTP.
//!
//! Every request is answered with the same page, whatever was asked, and within a time limit.

use std::fmt;
use std::fs;
use std::io::{self, Read, Write};
use std::net::{SocketAddr, TcpListener};
use std::os::fd::{AsFd, OwnedFd};
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use prometheus_client::collector::Collector;
use prometheus_client::registry::Registry;
use rustix::net::sockopt::{Timeout, set_socket_timeout};

use crate::{accepted, bind};

/// Time limit for a client to send its request and read the answer, together.
const PATIENCE: Duration = Duration::from_secs(2);
/// So many clients are answered beside each other.
const MOST_BESIDE: usize = 16;
/// Longest request.
const MOST_REQUEST: u64 = 8 << 10;
/// Content type of the page.
const TYPE: &str = "application/openmetrics-text; version=1.0.0; charset=utf-8";

/// Where metrics are served.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Listen {
    /// A Unix socket.
    Unix(PathBuf),
    /// An address of this host.
    Tcp(SocketAddr),
}

impl fmt::Display for Listen {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Unix(path) => write!(f, "unix:{}", path.display()),
            Self::Tcp(address) => address.fmt(f),
        }
    }
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

/// A page that is served until this is dropped. The file of its Unix socket goes with it.
#[derive(Debug)]
#[must_use = "it is served until this is dropped"]
pub struct MetricsServer {
    listener: OwnedFd,
    file: Option<PathBuf>,
    stop: Arc<AtomicBool>,
}

impl Drop for MetricsServer {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Release);
        // Ends the wait for clients. Nobody waits for those that are being answered.
        let _ = rustix::net::shutdown(&self.listener, rustix::net::Shutdown::Both);
        self.file.iter().for_each(|file| drop(fs::remove_file(file)));
    }
}

/// Serves a page. `page` makes its [`text`] for each request; if that fails, the connection is closed.
///
/// # Errors
///
/// The listening socket cannot be made.
pub fn serve(
    listen: &Listen,
    page: impl Fn() -> io::Result<String> + Send + Sync + 'static,
) -> io::Result<MetricsServer> {
    let named = thread::Builder::new().name("metrics".to_owned());
    let stop = Arc::new(AtomicBool::new(false));
    let stopped = stop.clone();
    let stopped = move || stopped.load(Ordering::Acquire);
    match listen {
        Listen::Tcp(address) => {
            let socket = TcpListener::bind(address)?;
            let listener = socket.try_clone()?.into();
            named.spawn(move || greet_all(socket.incoming(), &stopped, &page))?;
            Ok(MetricsServer { listener, file: None, stop })
        }
        Listen::Unix(path) => {
            let socket = bind(path)?;
            let listener = socket.try_clone()?.into();
            named.spawn(move || greet_all(socket.incoming(), &stopped, &page))?;
            Ok(MetricsServer { listener, file: Some(path.clone()), stop })
        }
    }
}

/// Answers clients beside each other: one that asks for nothing does not keep others waiting.
fn greet_all<S: AsFd + Send>(
    clients: impl Iterator<Item = io::Result<S>>,
    stopped: &impl Fn() -> bool,
    page: &(impl Fn() -> io::Result<String> + Sync),
) where
    for<'a> &'a S: Read + Write,
{
    let busy = &AtomicUsize::new(0);
    thread::scope(|scope| {
        for client in clients.take_while(|_| !stopped()).filter_map(accepted) {
            let beside = busy.fetch_add(1, Ordering::AcqRel) < MOST_BESIDE;
            let greet = move || {
                greet(&client, page);
                busy.fetch_sub(1, Ordering::AcqRel);
            };
            if !beside {
                greet();
            } else if thread::Builder::new().spawn_scoped(scope, greet).is_err() {
                busy.fetch_sub(1, Ordering::AcqRel);
            }
        }
    });
}

/// Answers a client within the time limit.
fn greet<S: AsFd>(stream: &S, page: &impl Fn() -> io::Result<String>)
where
    for<'a> &'a S: Read + Write,
{
    let until = Instant::now() + PATIENCE;
    // A client that has gone wants no answer.
    let _ = answer(DeadlineStream(stream, until), DeadlineStream(stream, until), page);
}

/// A stream with a deadline for all reads and writes. A socket timeout holds for each read alone, so a client that
/// sends a byte a second would keep others waiting for hours.
struct DeadlineStream<'s, S>(&'s S, Instant);

impl<S: AsFd> DeadlineStream<'_, S> {
    fn hurry(&self, side: Timeout) -> io::Result<()> {
        let left = self.1.saturating_duration_since(Instant::now());
        if left.is_zero() {
            return Err(io::ErrorKind::TimedOut.into());
        }
        Ok(set_socket_timeout(self.0, side, Some(left))?)
    }
}

impl<'s, S: AsFd> Read for DeadlineStream<'s, S>
where
    &'s S: Read,
{
    fn read(&mut self, into: &mut [u8]) -> io::Result<usize> {
        self.hurry(Timeout::Recv)?;
        self.0.read(into)
    }
}

impl<'s, S: AsFd> Write for DeadlineStream<'s, S>
where
    &'s S: Write,
{
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.hurry(Timeout::Send)?;
        self.0.write(bytes)
    }

    fn flush(&mut self) -> io::Result<()> {
        self.0.flush()
    }
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

#[cfg(test)]
mod tests {
    use std::io::{self, Read, Write};
    use std::os::unix::net::UnixStream;
    use std::sync::atomic::{AtomicBool, Ordering};
    use std::sync::mpsc;
    use std::thread;

    use super::{Listen, MOST_BESIDE, PATIENCE, serve};

    #[test]
    fn who_asks_for_nothing_does_not_keep_others_waiting() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("metrics.sock");
        let _page = serve(&Listen::Unix(path.clone()), || Ok("# EOF\n".to_owned())).unwrap();
        let connect = || UnixStream::connect(&path).unwrap();
        let _silent: Vec<UnixStream> = (0..MOST_BESIDE).map(|_| connect()).collect();
        let mut other = connect();
        other.set_read_timeout(Some(3 * PATIENCE)).unwrap();
        other.write_all(b"GET / HTTP/1.0\r\n\r\n").unwrap();
        let mut text = String::new();
        other.read_to_string(&mut text).expect("it is answered");
        assert!(text.ends_with("# EOF\n"), "{text}");
    }

    #[test]
    fn a_page_that_is_dropped_is_served_no_longer() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("metrics.sock");
        let (held, ended) = mpsc::channel();
        let text = move || held.send(()).map(|()| "# EOF\n".to_owned()).map_err(io::Error::other);
        let page = serve(&Listen::Unix(path.clone()), text).unwrap();
        assert!(UnixStream::connect(&path).is_ok());
        drop(page);
        assert!(!path.exists());
        assert_eq!(ended.recv_timeout(30 * PATIENCE), Err(mpsc::RecvTimeoutError::Disconnected));
    }

    #[test]
    fn who_asks_a_byte_at_a_time_does_not_keep_others_waiting() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("metrics.sock");
        let _page = serve(&Listen::Unix(path.clone()), || Ok("# EOF\n".to_owned())).unwrap();
        let mut slow = UnixStream::connect(&path).unwrap();
        slow.write_all(b"G").unwrap();
        let answered = AtomicBool::new(false);
        thread::scope(|scope| {
            scope.spawn(|| {
                while !answered.load(Ordering::Relaxed) {
                    // In the end its bytes are not read any more.
                    let _ = slow.write_all(b"E");
                    thread::sleep(PATIENCE / 8);
                }
            });
            let mut other = UnixStream::connect(&path).unwrap();
            other.set_read_timeout(Some(3 * PATIENCE)).unwrap();
            other.write_all(b"GET / HTTP/1.0\r\n\r\n").unwrap();
            let mut text = String::new();
            let read = other.read_to_string(&mut text);
            answered.store(true, Ordering::Relaxed);
            read.expect("it is answered");
            assert!(text.ends_with("# EOF\n"), "{text}");
        });
    }
}
