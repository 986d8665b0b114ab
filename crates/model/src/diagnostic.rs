//! Errors in input files, with place and advice.

use std::cell::RefCell;
use std::fmt::{self, Write as _};
use std::ops::Range;

use crate::distinct;

/// Columns a rendered diagnostic may use.
const WIDTH: usize = 100;

/// An error in a scenario, a profile or a `--set`.
///
/// `Display` renders it as compilers do: place and message, the offending line with a caret under the offending text,
/// what is allowed. No line is wider than 100 columns unless a word of the message is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Diagnostic {
    /// File as the user named it, or the option (`--set`) the text came from.
    pub file: String,
    /// Line, from 1.
    pub line: u32,
    /// Column in characters, from 1.
    pub column: u32,
    /// The whole offending line, with tabs as single spaces; empty if there is no text (an unreadable file, for
    /// example).
    pub snippet: String,
    /// Characters to underline, at least 1.
    pub length: u32,
    /// What is wrong.
    pub message: String,
    /// What is allowed, and the nearest valid spelling.
    pub help: Option<String>,
}

impl Diagnostic {
    /// A diagnostic about a whole input, without a place in it.
    pub fn whole(file: &str, message: String, help: Option<String>) -> Self {
        let file = file.to_owned();
        Self { file, line: 1, column: 1, snippet: String::new(), length: 1, message, help }
    }
}

impl fmt::Display for Diagnostic {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut head = String::new();
        if self.snippet.is_empty() {
            write!(head, "{}: {}", self.file, self.message)?;
        } else {
            write!(head, "{}:{}:{}: {}", self.file, self.line, self.column, self.message)?;
        }
        let width = f.width().unwrap_or(WIDTH);
        f.write_str(&wrap(&head, "", "    ", width))?;
        let gutter = self.line.to_string().len();
        if !self.snippet.is_empty() {
            let (text, column, length) = self.window(width.saturating_sub(gutter + 4));
            write!(f, "\n {} | {text}", self.line)?;
            write!(f, "\n {:gutter$} | {:column$}{}", "", "", "^".repeat(length))?;
        }
        if let Some(help) = &self.help {
            let lead = format!(" {:gutter$} = ", "");
            let rest = " ".repeat(lead.len());
            write!(f, "\n{}", wrap(help, &lead, &rest, width))?;
        }
        Ok(())
    }
}

impl Diagnostic {
    /// The part of the line that fits into `room` characters and has the caret; offset (from 0) and length of the caret
    /// in it.
    fn window(&self, room: usize) -> (String, usize, usize) {
        let chars: Vec<char> = self.snippet.chars().collect();
        let column = (self.column.max(1) - 1) as usize;
        let start = if chars.len() <= room { 0 } else { column.saturating_sub(room / 3) };
        let text: String = chars.iter().skip(start).take(room).collect();
        let offset = column - start;
        let length = (self.length.max(1) as usize).min(room.saturating_sub(offset).max(1));
        (text, offset, length)
    }
}

/// Breaks a text at white space so that each line fits.
fn wrap(text: &str, lead: &str, rest: &str, width: usize) -> String {
    vcoop_text::wrap(text.split_whitespace(), lead, rest, width)
}

/// All errors in an input; never empty when returned as an error.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Diagnostics(pub Vec<Diagnostic>);

impl fmt::Display for Diagnostics {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (i, diagnostic) in self.0.iter().enumerate() {
            if i > 0 {
                f.write_str("\n\n")?;
            }
            diagnostic.fmt(f)?;
        }
        Ok(())
    }
}

impl std::error::Error for Diagnostics {}

impl From<Diagnostic> for Diagnostics {
    fn from(one: Diagnostic) -> Self {
        Self(vec![one])
    }
}

/// Byte range in one of the [`Sources`].
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Span {
    /// Index into the sources.
    pub(crate) source: usize,
    /// First byte.
    pub(crate) start: usize,
    /// One past the last byte.
    pub(crate) end: usize,
}

/// The texts that spans point into: the file first, then each `--set`.
#[derive(Clone, Debug, Default)]
pub(crate) struct Sources(Vec<(String, String)>);

impl Sources {
    /// Adds a text under the name that diagnostics show; returns its index.
    pub(crate) fn add(&mut self, name: &str, text: &str) -> usize {
        self.0.push((name.to_owned(), text.to_owned()));
        self.0.len() - 1
    }

    /// The diagnostic for a span.
    pub(crate) fn diagnose(&self, span: Span, message: String, help: Option<String>) -> Diagnostic {
        let Some((file, text)) = self.0.get(span.source) else {
            return Diagnostic::whole("scenario", message, help);
        };
        Diagnostic::at(file, text, span.start..span.end, message, help)
    }
}

impl Diagnostic {
    /// The diagnostic for a range of bytes of a file's text.
    pub fn at(
        file: &str,
        text: &str,
        range: Range<usize>,
        message: String,
        help: Option<String>,
    ) -> Self {
        let start = floor_boundary(text, range.start);
        let end = floor_boundary(text, range.end.max(start));
        let line_start = text[..start].rfind('\n').map_or(0, |i| i + 1);
        let line_end = text[start..].find('\n').map_or(text.len(), |i| start + i);
        let snippet = text[line_start..line_end].trim_end_matches('\r').replace('\t', " ");
        let count = |s: &str| u32::try_from(s.chars().count()).unwrap_or(u32::MAX);
        Self {
            file: file.to_owned(),
            line: count_newlines(&text[..line_start]) + 1,
            column: count(&text[line_start..start]) + 1,
            // An empty line still has a place: one space keeps the caret visible.
            snippet: if snippet.is_empty() { " ".to_owned() } else { snippet },
            length: count(&text[start..end.min(line_end)]).max(1),
            message,
            help,
        }
    }
}

fn count_newlines(text: &str) -> u32 {
    u32::try_from(text.bytes().filter(|b| *b == b'\n').count()).unwrap_or(u32::MAX)
}

/// The character boundary at or before `at`. Spans are from a parser of the same text, but an error at the end of input
/// may lie past the end.
fn floor_boundary(text: &str, mut at: usize) -> usize {
    at = at.min(text.len());
    while !text.is_char_boundary(at) {
        at -= 1;
    }
    at
}

/// Collects diagnostics while an input is read, so that several are reported at once.
#[derive(Debug)]
pub(crate) struct Collector<'s> {
    sources: &'s Sources,
    found: RefCell<Vec<Diagnostic>>,
}

impl<'s> Collector<'s> {
    /// A collector without errors.
    pub(crate) fn new(sources: &'s Sources) -> Self {
        Self { sources, found: RefCell::default() }
    }

    /// Adds an error without advice.
    pub(crate) fn error(&self, span: Span, message: impl Into<String>) {
        self.foreign(self.sources.diagnose(span, message.into(), None));
    }

    /// Adds an error with advice.
    pub(crate) fn error_help(
        &self,
        span: Span,
        message: impl Into<String>,
        help: impl Into<String>,
    ) {
        self.foreign(self.sources.diagnose(span, message.into(), Some(help.into())));
    }

    /// Adds an error for each name given twice.
    pub(crate) fn distinct<'n>(&self, names: impl Iterator<Item = (&'n str, Span)>) {
        let mut seen: Vec<&str> = Vec::new();
        for (name, span) in names {
            if seen.contains(&name) {
                let help = "give each a name of its own";
                self.error_help(span, format!("the name `{name}` is used twice"), help);
            }
            seen.push(name);
        }
    }

    /// Adds an error found in another file.
    pub(crate) fn foreign(&self, diagnostic: Diagnostic) {
        self.found.borrow_mut().push(diagnostic);
    }

    /// `Ok` with the value if there was no error; else all errors, without repetitions.
    pub(crate) fn finish<T>(self, value: Option<T>) -> Result<T, Diagnostics> {
        let found = distinct(self.found.into_inner());
        match value {
            Some(value) if found.is_empty() => Ok(value),
            _ => Err(Diagnostics(found)),
        }
    }
}

/// Up to this many candidates are all listed;
const MOST_LISTED: usize = 60;
/// of more, this many are.
const MOST_ALIKE: usize = 12;

/// `did you mean X? ` for the nearest candidate, if any; then all candidates, or those most like `word` if there are
/// too many.
pub fn nearest<'c>(
    word: &str,
    what: &str,
    candidates: impl IntoIterator<Item = &'c (impl AsRef<str> + ?Sized + 'c)>,
) -> String {
    let mut candidates: Vec<&str> = candidates.into_iter().map(AsRef::as_ref).collect();
    let mut help = String::new();
    if let Some(best) = closest(word, &candidates) {
        let _ = write!(help, "did you mean `{best}`? ");
    }
    let n = candidates.len();
    if candidates.is_empty() {
        let _ = write!(help, "{what}: none");
    } else if n > MOST_LISTED {
        candidates.sort_by_key(|candidate| distance(word, candidate));
        let alike = candidates[..MOST_ALIKE].join(", ");
        let _ = write!(help, "{what}, the {MOST_ALIKE} most alike of {n}: {alike}");
    } else {
        let _ = write!(help, "{what}: {}", candidates.join(", "));
    }
    help
}

/// The candidate most like `word`, if `word` may be a misspelling of it.
pub fn closest<'c>(word: &str, candidates: &[&'c str]) -> Option<&'c str> {
    candidates
        .iter()
        .map(|c| (distance(word, c), *c))
        .filter(|(distance, c)| *distance <= 1 + c.len().max(word.len()) / 3)
        .min_by_key(|(distance, _)| *distance)
        .map(|(_, c)| c)
}

/// Number of typing errors between two words.
fn distance(one: &str, other: &str) -> usize {
    strsim::damerau_levenshtein(&one.to_lowercase(), &other.to_lowercase())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn of_many_candidates_the_most_alike_are_listed() {
        let mut many: Vec<String> = (10..80).map(|n| format!("key_{n}")).collect();
        many.push("steal_high".to_owned());
        let help = nearest("steal_hihg", "keys", &many);
        let start = "did you mean `steal_high`? keys, the 12 most alike of 71: steal_high, ";
        assert!(help.starts_with(start) && help.matches("key_").count() == 11, "{help}");
    }

    fn sample(line: &str, at: usize, len: usize) -> String {
        let mut sources = Sources::default();
        let source = sources.add("x.toml", line);
        let span = Span { source, start: at, end: at + len };
        sources.diagnose(span, "it is wrong".to_owned(), Some("do it right".to_owned())).to_string()
    }

    #[test]
    fn renders_place_text_caret_and_help() {
        let text = sample("a = 1\nbcd = 2\n", 6, 3);
        assert_eq!(text, "x.toml:2:1: it is wrong\n 2 | bcd = 2\n   | ^^^\n   = do it right");
    }

    #[test]
    fn long_lines_are_windowed_around_the_caret() {
        let line = format!("{}bad{}", "x".repeat(300), "y".repeat(300));
        let text = sample(&line, 300, 3);
        assert!(text.lines().all(|l| l.chars().count() <= WIDTH), "{text}");
        let rows: Vec<&str> = text.lines().collect();
        let caret = rows[2].find("^^^").unwrap();
        assert_eq!(&rows[1][caret..caret + 3], "bad");
    }

    #[test]
    fn columns_count_characters_not_bytes() {
        let mut sources = Sources::default();
        let source = sources.add("x", "é = ü");
        let d = sources.diagnose(Span { source, start: 5, end: 7 }, String::new(), None);
        assert_eq!((d.line, d.column, d.length), (1, 5, 1));
    }

    #[test]
    fn nearest_needs_likeness() {
        assert!(nearest("intervl", "keys", &["interval", "name"]).starts_with("did you mean `int"));
        assert!(!nearest("zebra", "keys", &["interval", "name"]).contains("did you"));
    }
}
