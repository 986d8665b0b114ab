//! A client of QMP, QEMU's monitor protocol: lines of JSON over a Unix socket.
//!
//! Only queries are sent, and only after a QMP greeting. The peer is not trusted: the length of lines, the size of the
//! conversation and its time are bounded.

use std::io::{self, Read, Write};
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::time::{Duration, Instant};

use rustix::net::{AddressFamily, SocketAddrUnix, SocketFlags, SocketType, sockopt};
use serde::Deserialize;
use serde::de::{DeserializeOwned, IgnoredAny};

use crate::vm::Accel;
use crate::{limits, text};

/// Usual timeout of a whole conversation.
pub const TIMEOUT: Duration = Duration::from_secs(1);

/// Why a QMP conversation failed.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum QmpError {
    /// The socket cannot be connected to.
    #[error("cannot connect: {0}")]
    Connect(#[source] io::Error),
    /// No complete answer in time. A QEMU that serves another client does not answer.
    #[error("no answer in time; QEMU serves one client of a socket at a time")]
    Timeout,
    /// Reading or writing failed, or the peer closed the connection.
    #[error("the connection broke off: {0}")]
    Broken(#[source] io::Error),
    /// The peer sent more than [`limits`] allow.
    #[error("the other end sent more than {limit} bytes in {what}")]
    TooMuch {
        /// What was too long.
        what: &'static str,
        /// The limit, in bytes.
        limit: usize,
    },
    /// The peer does not speak QMP.
    #[error("this is not QMP: {0}")]
    NotQmp(String),
    /// QEMU refused a command.
    #[error("QEMU refused `{command}`: {reason}")]
    Refused {
        /// The command.
        command: &'static str,
        /// QEMU's message, safe to print.
        reason: String,
    },
    /// The answer names a thread that is not in the VM's process: the socket belongs to another VM, or QEMU runs in
    /// another PID namespace.
    #[error("thread {tid} is not one of this VM's process; is the socket another VM's?")]
    ForeignThread {
        /// The thread id.
        tid: u32,
    },
    /// The VM's process ended meanwhile.
    #[error("the VM's process has ended")]
    Gone,
    /// The threads that the answer names could not be looked at.
    #[error("/proc: {0}")]
    Unconfirmed(#[source] io::Error),
}

/// A vCPU, as QEMU names it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[non_exhaustive]
pub struct QmpCpu {
    /// QEMU's index of it.
    #[serde(rename = "cpu-index")]
    pub index: u32,
    /// Its thread, in QEMU's PID namespace.
    #[serde(rename = "thread-id")]
    pub tid: u32,
}

/// A QMP conversation over `S`.
#[derive(Debug)]
pub struct Qmp<S> {
    stream: S,
    /// Bytes that were read and not used yet.
    buffer: Vec<u8>,
    total: usize,
}

/// A message from QEMU: a greeting, an event, an answer or an error.
#[derive(Deserialize)]
struct Message<T> {
    #[serde(rename = "QMP")]
    greeting: Option<IgnoredAny>,
    event: Option<IgnoredAny>,
    #[serde(rename = "return")]
    answer: Option<T>,
    error: Option<Refusal>,
}

#[derive(Deserialize)]
struct Refusal {
    desc: String,
}

impl Qmp<DeadlineStream> {
    /// Connects to a QMP socket and waits for the greeting. `timeout` is for the whole conversation.
    ///
    /// # Errors
    ///
    /// See [`QmpError`].
    pub fn connect(socket: &Path, timeout: Duration) -> Result<Self, QmpError> {
        let stream = DeadlineStream::connect(socket, timeout).map_err(|e| match e.kind() {
            io::ErrorKind::WouldBlock => QmpError::Timeout,
            _ => QmpError::Connect(e),
        })?;
        Self::start(stream)
    }
}

impl<S: Read + Write> Qmp<S> {
    /// Waits for the greeting on a connection, and answers it.
    ///
    /// # Errors
    ///
    /// See [`QmpError`].
    pub fn start(stream: S) -> Result<Self, QmpError> {
        let mut qmp = Self { stream, buffer: Vec::new(), total: 0 };
        let message: Message<IgnoredAny> = parse(&qmp.line()?)?;
        if message.greeting.is_none() {
            return Err(QmpError::NotQmp("it does not begin with a greeting".into()));
        }
        qmp.execute::<IgnoredAny>("qmp_capabilities")?;
        Ok(qmp)
    }

    /// The vCPUs (`query-cpus-fast`), by index. Several may share one thread.
    ///
    /// # Errors
    ///
    /// See [`QmpError`].
    pub fn cpus(&mut self) -> Result<Vec<QmpCpu>, QmpError> {
        let mut cpus: Vec<QmpCpu> = self.execute("query-cpus-fast")?;
        cpus.sort_by_key(|cpu| cpu.index);
        let twice = cpus.windows(2).any(|pair| pair[0].index == pair[1].index);
        if cpus.is_empty() || cpus.len() > limits::VCPUS || twice {
            return Err(QmpError::NotQmp("vCPUs missing, or more than there can be".into()));
        }
        Ok(cpus)
    }

    /// The VM's name (`query-name`), bounded and safe to print; `None` if it has none.
    ///
    /// # Errors
    ///
    /// See [`QmpError`].
    pub fn name(&mut self) -> Result<Option<String>, QmpError> {
        #[derive(Deserialize)]
        struct Name {
            name: Option<String>,
        }
        let name = self.execute::<Name>("query-name")?.name.filter(|name| !name.is_empty());
        Ok(name.map(|name| text::shown(name.as_bytes(), limits::SHOWN)))
    }

    /// The accelerator (`query-kvm`).
    ///
    /// # Errors
    ///
    /// See [`QmpError`].
    pub fn kvm(&mut self) -> Result<Accel, QmpError> {
        #[derive(Deserialize)]
        struct Kvm {
            enabled: bool,
        }
        let kvm = self.execute::<Kvm>("query-kvm")?;
        Ok(if kvm.enabled { Accel::Kvm } else { Accel::Tcg })
    }

    fn execute<T: DeserializeOwned>(&mut self, command: &'static str) -> Result<T, QmpError> {
        let line = format!("{{\"execute\":\"{command}\"}}\n");
        self.stream.write_all(line.as_bytes()).map_err(broken)?;
        loop {
            let message: Message<T> = parse(&self.line()?)?;
            if let Some(refusal) = message.error {
                let reason = text::shown(refusal.desc.as_bytes(), limits::SHOWN);
                return Err(QmpError::Refused { command, reason });
            }
            if let Some(answer) = message.answer {
                return Ok(answer);
            }
            if message.event.is_none() {
                return Err(QmpError::NotQmp("neither an answer nor an event".into()));
            }
        }
    }

    /// The next line, without its end.
    fn line(&mut self) -> Result<Vec<u8>, QmpError> {
        let mut looked = 0;
        loop {
            if let Some(end) = self.buffer[looked..].iter().position(|b| *b == b'\n') {
                let rest = self.buffer.split_off(looked + end + 1);
                return Ok(std::mem::replace(&mut self.buffer, rest));
            }
            looked = self.buffer.len();
            if looked > limits::QMP_LINE {
                return Err(QmpError::TooMuch { what: "one line", limit: limits::QMP_LINE });
            }
            let mut chunk = [0; 4096];
            let read = match self.stream.read(&mut chunk) {
                Ok(0) => return Err(QmpError::Broken(io::ErrorKind::UnexpectedEof.into())),
                Ok(read) => read,
                Err(e) if e.kind() == io::ErrorKind::Interrupted => continue,
                Err(e) => return Err(broken(e)),
            };
            self.total += read;
            if self.total > limits::QMP_TOTAL {
                return Err(QmpError::TooMuch { what: "all", limit: limits::QMP_TOTAL });
            }
            self.buffer.extend_from_slice(&chunk[..read]);
        }
    }
}

fn parse<T: DeserializeOwned>(line: &[u8]) -> Result<Message<T>, QmpError> {
    serde_json::from_slice(line).map_err(|e| {
        // The message quotes what could not be parsed.
        QmpError::NotQmp(text::shown(e.to_string().as_bytes(), limits::SHOWN))
    })
}

fn broken(error: io::Error) -> QmpError {
    match error.kind() {
        io::ErrorKind::WouldBlock | io::ErrorKind::TimedOut => QmpError::Timeout,
        _ => QmpError::Broken(error),
    }
}

/// A connection that ends at a deadline, however slowly the peer sends.
#[derive(Debug)]
pub struct DeadlineStream {
    stream: UnixStream,
    deadline: Instant,
}

impl DeadlineStream {
    /// Connects to a Unix socket. `timeout` covers connecting and everything after it.
    ///
    /// # Errors
    ///
    /// The system's error; [`io::ErrorKind::WouldBlock`] if the listener's queue stays full.
    pub fn connect(socket: &Path, timeout: Duration) -> io::Result<Self> {
        let deadline = Instant::now() + timeout;
        let address = SocketAddrUnix::new(socket)?;
        let (family, kind) = (AddressFamily::UNIX, SocketType::STREAM);
        let fd = rustix::net::socket_with(family, kind, SocketFlags::CLOEXEC, None)?;
        // Connecting blocks, too, while the queue of a listener that does not accept is full.
        sockopt::set_socket_timeout(&fd, sockopt::Timeout::Send, Some(timeout))?;
        rustix::net::connect(&fd, &address)?;
        Ok(Self { stream: UnixStream::from(fd), deadline })
    }

    fn left(&self) -> io::Result<Option<Duration>> {
        match self.deadline.saturating_duration_since(Instant::now()) {
            Duration::ZERO => Err(io::ErrorKind::TimedOut.into()),
            left => Ok(Some(left)),
        }
    }
}

impl Read for DeadlineStream {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        self.stream.set_read_timeout(self.left()?)?;
        self.stream.read(buffer)
    }
}

impl Write for DeadlineStream {
    fn write(&mut self, buffer: &[u8]) -> io::Result<usize> {
        self.stream.set_write_timeout(self.left()?)?;
        self.stream.write(buffer)
    }

    fn flush(&mut self) -> io::Result<()> {
        self.stream.flush()
    }
}
