//! Errors: no guest, or no answer from it.

use std::io;
use std::path::{Path, PathBuf};
use std::process::ExitStatus;
use std::time::Duration;

use vcoop_vmm::qmp::QmpError;

/// Why there is no guest, or no answer from it.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum StockError {
    /// This host lacks something. A test then skips itself.
    #[error("{what}\n  remedy: {remedy}")]
    Missing {
        /// What is missing.
        what: String,
        /// How to get it.
        remedy: String,
    },
    /// A file or a program of this host failed.
    #[error("{what}: {source}")]
    Io {
        /// The operation or the file.
        what: String,
        /// The system's error.
        source: io::Error,
    },
    /// QEMU ended.
    #[error("QEMU ended ({status}); its last output:\n{said}")]
    Ended {
        /// Its exit status.
        status: ExitStatus,
        /// The end of the output of QEMU and of the guest's console.
        said: String,
    },
    /// The guest was not up in time.
    #[error("the guest did not come up in {limit:?}; its last output:\n{said}")]
    NotUp {
        /// The time limit.
        limit: Duration,
        /// The end of the output of QEMU and of the guest's console.
        said: String,
    },
    /// A kernel failed, or the machine has reset itself.
    #[error(
        "the kernel failed or the machine reset itself; what QEMU and the console said:\n{said}"
    )]
    Oops {
        /// The output of QEMU and of the console.
        said: String,
    },
    /// The guest gave no answer.
    #[error("{}: no answer from the guest: {source}", .socket.display())]
    NoAnswer {
        /// The socket of the guest's second serial port.
        socket: PathBuf,
        /// The error of the connection.
        source: io::Error,
    },
    /// The guest's answer is malformed.
    #[error("{}: this is not an answer of a stock guest: {line}", .socket.display())]
    BadAnswer {
        /// The socket.
        socket: PathBuf,
        /// The beginning of the answer.
        line: String,
    },
    /// A command that cannot be sent over the serial line.
    #[error("a command has at most {most} bytes, in one line")]
    BadCommand {
        /// Maximum bytes of a command.
        most: usize,
    },
    /// QEMU gave no answer about its vCPUs.
    #[error("QEMU's vCPUs are not known: {0}")]
    Qmp(#[from] QmpError),
    /// The vCPUs' threads were not found in time.
    #[error("the threads of the vCPUs were not found in {limit:?}")]
    NoVcpus {
        /// The time limit.
        limit: Duration,
    },
    /// A thread cannot be placed.
    #[error(transparent)]
    Thread(#[from] vcoop_threads::Error),
}

impl StockError {
    pub(crate) fn missing(what: impl Into<String>, remedy: impl Into<String>) -> Self {
        Self::Missing { what: what.into(), remedy: remedy.into() }
    }

    pub(crate) fn io(what: impl Into<String>) -> impl FnOnce(io::Error) -> Self {
        let what = what.into();
        move |source| Self::Io { what, source }
    }

    pub(crate) fn file(path: &Path) -> impl FnOnce(io::Error) -> Self {
        Self::io(path.display().to_string())
    }

    /// The same if it says that something is missing, or else that `what` is, because of it.
    pub(crate) fn or_missing(self, what: &str, remedy: impl Into<String>) -> Self {
        match self {
            Self::Missing { .. } => self,
            other => Self::missing(format!("{what}: {other}"), remedy),
        }
    }

    /// Whether this host lacks something, so that no guest is possible here.
    pub fn is_missing(&self) -> bool {
        matches!(self, Self::Missing { .. })
    }
}

/// Whether a console shows that the kernel failed. A stall counts, too: an emulated CPU for which QEMU has lost an
/// interrupt never takes another one.
pub(crate) fn is_oops(console: &str) -> bool {
    [
        "Oops",
        "BUG: ",
        "Kernel panic",
        "general protection fault",
        "detected stall",
        "expedited stall",
    ]
    .iter()
    .any(|sign| console.contains(sign))
}
