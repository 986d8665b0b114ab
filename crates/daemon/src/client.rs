//! A client of the owner's control socket.

use std::io::{self, BufRead, BufReader, Write};
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::time::Duration;

use crate::protocol::{Request, Response};
use crate::service::Service;

/// Time limit for an answer of the owner.
const PATIENCE: Duration = Duration::from_secs(30);

/// A connection to an owner. Policies that were attached over it are detached when it is dropped.
#[derive(Debug)]
pub struct Client {
    stream: BufReader<UnixStream>,
}

impl Client {
    /// Connects to the owner of a folder; `None`: the folder has no owner.
    ///
    /// # Errors
    ///
    /// There is an owner, and the connection fails.
    pub fn connect(dir: &Path) -> io::Result<Option<Self>> {
        let stream = match UnixStream::connect(Service::socket_in(dir)) {
            Ok(stream) => stream,
            Err(e) => {
                let absent = [io::ErrorKind::NotFound, io::ErrorKind::ConnectionRefused];
                return if absent.contains(&e.kind()) { Ok(None) } else { Err(e) };
            }
        };
        stream.set_read_timeout(Some(PATIENCE))?;
        stream.set_write_timeout(Some(PATIENCE))?;
        Ok(Some(Self { stream: BufReader::new(stream) }))
    }

    /// Sends a request and returns the answer.
    ///
    /// # Errors
    ///
    /// The owner has ended, or does not answer.
    pub fn ask(&mut self, request: &Request) -> io::Result<Response> {
        let mut text = serde_json::to_vec(request)?;
        text.push(b'\n');
        let sent = self.stream.get_mut().write_all(&text);
        let mut line = String::new();
        // An owner with too many clients says so without reading the request, and closes.
        if self.stream.read_line(&mut line)? == 0 {
            return Err(sent.err().unwrap_or_else(|| io::ErrorKind::UnexpectedEof.into()));
        }
        Ok(serde_json::from_str(&line)?)
    }
}
