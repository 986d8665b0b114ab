//! stdout carries the result and nothing else; everything else goes to stderr.

use std::io::{self, ErrorKind, IsTerminal, Write};

use vcoop_report::Style;

use crate::failure::Failure;

/// Writes a result to stdout. A closed pipe (`vcoop ... | head`) is no error.
pub(crate) fn print(text: &str) -> Result<(), Failure> {
    let mut out = io::stdout().lock();
    let written = out.write_all(text.as_bytes()).and_then(|()| out.flush());
    written.map_err(|e| match e.kind() {
        ErrorKind::BrokenPipe => Failure::ClosedPipe,
        _ => Failure::Run(format!("cannot write to stdout: {e}")),
    })
}

/// Writes a line to stderr, if anybody listens.
pub(crate) fn note(text: &str) {
    let _ = writeln!(io::stderr().lock(), "{text}");
}

/// Colour only on a terminal whose user has not refused it (<https://no-color.org>).
pub(crate) fn style() -> Style {
    let refused = std::env::var_os("NO_COLOR").is_some_and(|value| !value.is_empty());
    let dumb = std::env::var_os("TERM").is_some_and(|term| term == "dumb");
    Style { colour: io::stdout().is_terminal() && !refused && !dumb }
}
