//! Commands to a guest over its second serial port: a line to the guest, a line back.

use std::io::{self, BufRead, BufReader, Read, Write};
use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use base64::Engine as _;
use base64::prelude::BASE64_STANDARD;
use vcoop_vmm::qmp::DeadlineStream;

use crate::error::StockError;

/// Maximum bytes of a command. The guest's serial line has a buffer of 4096.
const COMMAND: usize = 2000;

/// Maximum bytes of a reply.
const REPLY: u64 = 16 << 20;

/// Time limit for a reply beyond the command's own. An emulated guest whose vCPU gets little of a CPU is slow.
const GRACE: Duration = Duration::from_secs(15);

/// The connection to a guest's shell. Several may exist, also in several processes: QEMU serves them one after the
/// other.
#[derive(Clone, Debug)]
pub struct Control {
    socket: PathBuf,
}

/// Result of a command in the guest.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Output {
    /// Its exit status as in a shell: 128 plus the signal's number if it was killed.
    pub status: i32,
    /// Its stdout; bytes that are not UTF-8 are replaced.
    pub stdout: String,
    /// Its stderr.
    pub stderr: String,
}

impl Control {
    /// Connects to a guest by the Unix socket of its second serial port.
    pub fn new(socket: impl Into<PathBuf>) -> Self {
        Self { socket: socket.into() }
    }

    /// The socket.
    pub fn socket(&self) -> &Path {
        &self.socket
    }

    /// Runs a line of shell in the guest. The command is killed there after `timeout`, rounded up to seconds; the reply
    /// may take a little longer.
    ///
    /// # Errors
    ///
    /// The guest gave no answer, or the command is more than one line. A failure of the command itself is not an error.
    pub fn run(&self, command: &str, timeout: Duration) -> Result<Output, StockError> {
        if command.len() > COMMAND || command.contains(['\n', '\0']) {
            return Err(StockError::BadCommand { most: COMMAND });
        }
        let seconds = timeout.as_secs() + u64::from(timeout.subsec_nanos() > 0);
        // A late reply to another command must not be taken for the answer.
        let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        let number = format!("{}.{}", std::process::id(), since.as_nanos());
        let broken = |source| StockError::NoAnswer { socket: self.socket.clone(), source };
        let mut stream = DeadlineStream::connect(&self.socket, timeout + GRACE).map_err(broken)?;
        let request = format!("{number} {} {command}\n", seconds.max(1));
        stream.write_all(request.as_bytes()).map_err(broken)?;
        let mut replies = BufReader::new(stream.take(REPLY));
        loop {
            let mut line = Vec::new();
            replies.read_until(b'\n', &mut line).map_err(broken)?;
            let Some(line) = line.strip_suffix(b"\n") else {
                return Err(broken(io::ErrorKind::UnexpectedEof.into()));
            };
            let line = String::from_utf8_lossy(line);
            if let Some(rest) = line.strip_prefix(&number) {
                let begin = || rest.chars().take(80).flat_map(char::escape_default).collect();
                return parse(rest).ok_or_else(|| StockError::BadAnswer {
                    socket: self.socket.clone(),
                    line: begin(),
                });
            }
        }
    }
}

/// Parses the part of a reply after its number.
fn parse(reply: &str) -> Option<Output> {
    let mut words = reply.split_ascii_whitespace();
    let status = words.next()?.parse().ok()?;
    let mut text = |mark| {
        let bytes = BASE64_STANDARD.decode(words.next()?.strip_prefix(mark)?).ok()?;
        Some(String::from_utf8_lossy(&bytes).into_owned())
    };
    Some(Output { status, stdout: text('o')?, stderr: text('e')? })
}

#[cfg(test)]
mod tests {
    use super::{Control, Output, parse};
    use crate::StockError;
    use std::time::Duration;

    #[test]
    fn a_reply_has_a_status_and_two_texts() {
        let output = |status, stdout: &str, stderr: &str| Output {
            status,
            stdout: stdout.to_owned(),
            stderr: stderr.to_owned(),
        };
        assert_eq!(parse(" 0 oYQo= e"), Some(output(0, "a\n", "")));
        assert_eq!(parse(" 137 o eYg=="), Some(output(137, "", "b")));
        for none in ["", " x o e", " 0 o", " 0 e o", " 0 o! e"] {
            assert_eq!(parse(none), None, "{none}");
        }
    }

    #[test]
    fn a_command_that_the_line_cannot_carry_is_refused_before_it_is_sent() {
        let control = Control::new("/nonexistent");
        for command in ["a\nb".to_owned(), "a".repeat(5000)] {
            let refused = control.run(&command, Duration::from_secs(1));
            assert!(matches!(refused, Err(StockError::BadCommand { .. })), "{refused:?}");
        }
    }
}
