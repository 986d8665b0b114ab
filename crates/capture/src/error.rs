//! Errors about an input as a whole.
//!
//! A single line that cannot be parsed is not an error: it is counted in [`Losses`](crate::Losses).

use std::io;

/// Why an input gave no capture. The message of the variant is shown to the user.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum CaptureError {
    /// The file could not be opened.
    #[error("cannot open: {}", vcoop_model::file::error_text(.0))]
    Open(#[source] io::Error),
    /// Reading or decompressing failed in the middle.
    #[error("cannot read beyond {lines} lines: {source}")]
    Read {
        /// Number of lines read before.
        lines: u64,
        /// Error of the system or the decompressor.
        source: io::Error,
    },
    /// A compression that this program does not read.
    #[error("{kind} is not read here; recompress it: `{remedy}`")]
    Compression {
        /// Name of the format.
        kind: &'static str,
        /// Command that converts it.
        remedy: &'static str,
    },
    /// A binary trace file.
    #[error("this is a binary {kind}, and captures are read as text; convert it: `{remedy}`")]
    BinaryTrace {
        /// Name of the format.
        kind: &'static str,
        /// Command that converts it.
        remedy: &'static str,
    },
    /// Not text at all.
    #[error(
        "this is not text; a capture is the output of `perf script`, `trace-cmd report` or the \
         tracefs file `trace`, plain or compressed with gzip or zstd"
    )]
    NotText,
    /// No line was a `sched_switch`.
    #[error("no sched_switch event in {lines} lines{}", first_problem(.first))]
    NoSwitches {
        /// Lines read.
        lines: u64,
        /// Why the first line that could not be parsed could not, if there was one.
        first: Option<String>,
    },
    /// The input is larger than bounded memory allows.
    #[error("more than {limit} {what} (limit `{name}`)\n  remedy: {remedy}")]
    Limit {
        /// What exceeds the limit.
        what: &'static str,
        /// Field of [`Limits`](crate::Limits) that was reached.
        name: &'static str,
        /// Its value.
        limit: u64,
        /// Advice.
        remedy: &'static str,
    },
    /// A small compressed file with much larger text.
    #[error(
        "its text is more than {times} times as large as the file, and no trace shrinks so far\n  \
         remedy: decompress it into a file, and name that"
    )]
    Bomb {
        /// Limit: bytes of text per byte of the file.
        times: u64,
    },
    /// No built-in capture has that name.
    #[error("no built-in capture is named `{name}`; there is {known}")]
    UnknownBuiltin {
        /// Name asked for.
        name: String,
        /// Names of the built-in captures.
        known: String,
    },
}

impl CaptureError {
    pub(crate) fn too_much_text(limit: u64) -> Self {
        let remedy = "record fewer seconds or fewer events";
        Self::Limit { what: "bytes of text", name: "max_text_bytes", limit, remedy }
    }

    /// More than the limit `name` of what grows with the length of the capture.
    pub(crate) fn too_long(what: &'static str, name: &'static str, limit: usize) -> Self {
        Self::Limit { what, name, limit: limit as u64, remedy: "record fewer seconds" }
    }
}

fn first_problem(first: &Option<String>) -> String {
    first.as_ref().map_or_else(String::new, |f| format!("; {f}"))
}
