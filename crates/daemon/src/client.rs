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
        let sent = self.stream.get_mut().write_all(&text).map_err(too_long);
        let mut line = String::new();
        // An owner with too many clients says so without reading the request, and closes.
        if self.stream.read_line(&mut line).map_err(too_long)? == 0 {
            return Err(sent.err().unwrap_or_else(|| io::ErrorKind::UnexpectedEof.into()));
        }
        Ok(serde_json::from_str(&line)?)
    }
}

/// The error in words if the time limit has passed: the kernel's says to try again.
fn too_long(error: io::Error) -> io::Error {
    match error.kind() {
        io::ErrorKind::WouldBlock => {
            let why = format!("it took more than {} s", PATIENCE.as_secs());
            io::Error::new(io::ErrorKind::TimedOut, why)
        }
        _ => error,
    }
}

#[cfg(test)]
mod tests {
    use std::io::BufReader;
    use std::os::unix::net::UnixStream;
    use std::time::Duration;

    use super::Client;
    use crate::protocol::Request;

    #[test]
    fn an_owner_that_takes_too_long_is_said_to() {
        let (stream, _silent) = UnixStream::pair().unwrap();
        stream.set_read_timeout(Some(Duration::from_millis(1))).unwrap();
        let mut client = Client { stream: BufReader::new(stream) };
        let why = client.ask(&Request::Status { vm: None }).unwrap_err();
        assert_eq!(why.to_string(), "it took more than 30 s");
    }
}
