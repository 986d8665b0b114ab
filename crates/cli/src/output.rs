//! stdout has only the result; everything else goes to stderr.

use std::io::{self, ErrorKind, IsTerminal, Stdout, Write};
use std::process::ExitCode;

use serde::Serialize;
use vcoop_report::{Style, WIDTH};
use vcoop_service::{Log, WholeLineWriter};

use crate::failure::Failure;

/// Attributes that a report may set on a terminal ([`Style`]): all others come from other sources.
const COLOURS: [&str; 9] = [
    "\u{1b}[0m",
    "\u{1b}[1m",
    "\u{1b}[2m",
    "\u{1b}[39m",
    "\u{1b}[22m",
    "\u{1b}[38;5;10m",
    "\u{1b}[38;5;9m",
    "\u{1b}[32m",
    "\u{1b}[31m",
];

/// Text from other sources (a title, a thread's name, a line of a file), made safe for a terminal: control characters,
/// and characters that reorder or hide their neighbours, are escaped. Line ends and tabs stay.
pub(crate) fn shown(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    for c in text.chars() {
        match c {
            '\n' | '\t' => out.push(c),
            c => vcoop_text::show(c, &mut out),
        }
    }
    out
}

/// [`shown`], but keeps the colours of our own reports, if any.
fn shown_in(style: Style, text: &str) -> String {
    if !style.colour {
        return shown(text);
    }
    let mut pieces = text.split('\u{1b}');
    let mut out = shown(pieces.next().unwrap_or_default());
    for piece in pieces {
        let escape = format!("\u{1b}{piece}");
        match COLOURS.iter().find(|colour| escape.starts_with(*colour)) {
            Some(colour) => out += &format!("{colour}{}", shown(&escape[colour.len()..])),
            None => out += &shown(&escape),
        }
    }
    out
}

/// Writes a result to stdout. A closed pipe (`vcoop ... | head`) is not an error.
pub(crate) fn print(text: &str) -> Result<(), Failure> {
    let text = shown_in(style(), text);
    let mut out = io::stdout().lock();
    printed(out.write_all(text.as_bytes()).and_then(|()| out.flush()))
}

/// [`print()`], but lines that stdout cannot take at once are lost.
pub(crate) fn print_at_once(text: &str, to: &mut WholeLineWriter<Stdout>) -> Result<(), Failure> {
    printed(to.put(shown_in(style(), text).as_bytes()))
}

fn printed(written: io::Result<()>) -> Result<(), Failure> {
    written.map_err(|e| match e.kind() {
        ErrorKind::BrokenPipe => Failure::ClosedPipe,
        _ => Failure::Run(format!("cannot write to stdout: {e}")),
    })
}

/// Writes the result of a command that ends with `end`, even if stdout is closed.
pub(crate) fn print_at_end(text: &str, end: Result<(), Failure>) -> Result<(), Failure> {
    let printed = print(text);
    end.and(printed)
}

/// A document of `--json`.
pub(crate) fn json(document: &impl Serialize) -> Result<String, Failure> {
    serde_json::to_string_pretty(document).map(|text| text + "\n").map_err(Failure::run)
}

/// Writes lines to stderr, ignoring errors; wrapped to the width of a terminal.
pub(crate) fn note(text: &str) {
    let _ = writeln!(io::stderr().lock(), "{}", noted(text));
}

/// [`note`], but lines that stderr cannot take at once are lost.
pub(crate) fn log(text: &str) {
    let _ = writeln!(Log, "{}", noted(text));
}

fn noted(text: &str) -> String {
    let text = shown(text);
    if io::stderr().is_terminal() { in_lines(&text, style_of_notes()) } else { text }
}

/// Ends a command that failed: its message on stderr, and its exit code.
pub(crate) fn fail(failure: Failure) -> ExitCode {
    let code = failure.code();
    if code != 0 {
        note(&format!("vcoop: {}", failure.text()));
    }
    ExitCode::from(code)
}

/// Wraps long lines, except lines of a file and markers below them.
fn in_lines(text: &str, style: Style) -> String {
    let line = |line: &str| {
        let quotes =
            line.trim_start_matches([' ', '0', '1', '2', '3', '4', '5', '6', '7', '8', '9']);
        if line.chars().count() <= style.width || quotes.starts_with("| ") {
            return line.to_owned();
        }
        let lead = line.len() - line.trim_start_matches(' ').len();
        style.wrap(line, lead + 2).trim_end_matches('\n').to_owned()
    };
    text.lines().map(line).collect::<Vec<_>>().join("\n")
}

/// Style for the width of stderr's terminal.
pub(crate) fn style_of_notes() -> Style {
    if io::stderr().is_terminal() {
        Style { colour: false, width: width() }
    } else {
        Style::default()
    }
}

/// Columns of the terminal, up to the maximum that text uses.
fn width() -> usize {
    let width = ratatui::crossterm::terminal::size().map_or(WIDTH, |(columns, _)| columns.into());
    // A terminal that does not know its width returns 0.
    if width == 0 { WIDTH } else { width.min(WIDTH) }
}

/// Style for the width of the terminal, with colour unless its user has refused that (<https://no-color.org>). For
/// other outputs, the style of a file.
pub(crate) fn style() -> Style {
    if !io::stdout().is_terminal() {
        return Style::default();
    }
    let refused = std::env::var_os("NO_COLOR").is_some_and(|value| !value.is_empty());
    let dumb = std::env::var_os("TERM").is_some_and(|term| term == "dumb");
    Style { colour: !refused && !dumb, width: width() }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn notes_fit_and_quotations_stay_whole() {
        let style = Style { width: 60, ..Style::default() };
        let quote = format!(" 12 | {}\n    | {}^^^", "x = 1 ".repeat(12), " ".repeat(60));
        let text =
            format!("vcoop: {}\n{quote}\n  remedy: {}", "word ".repeat(20), "do it ".repeat(14));
        let lines = in_lines(&text, style);
        assert!(lines.contains(&quote) && lines.contains(" do\n    it do"), "{lines}");
        let rest = lines.replace(&quote, "");
        assert!(rest.lines().all(|line| line.chars().count() <= 60), "{lines}");
    }

    #[test]
    fn escapes_are_shown_and_not_sent() {
        let hostile = "a\u{1b}]0;owned\u{7}b\u{9b}2J\u{202e}c\r\tö\n";
        let expected = "a\\u{1b}]0;owned\\u{7}b\\u{9b}2J\\u{202e}c\\r\tö\n";
        assert_eq!(shown(hostile), expected);
        for colour in [false, true] {
            assert_eq!(shown_in(Style { colour, ..Style::default() }, hostile), expected);
        }
        let ours = "\u{1b}[1mhead\u{1b}[0m";
        let coloured = Style { colour: true, ..Style::default() };
        assert_eq!(shown_in(coloured, ours), ours);
        assert!(!shown_in(Style::default(), ours).contains('\u{1b}'));
    }
}
