//! Width, colour and the common format of tables.

use comfy_table::{Attribute, Cell, CellAlignment, Color, Table, presets};
use vcoop_experiment::result::Document;

/// Most columns that a report uses.
pub const WIDTH: usize = 100;
/// Least width for which text is wrapped.
const NARROWEST: usize = 40;
/// Most policies side by side.
const SIDE_BY_SIDE: usize = 4;
/// Longest policy name above a column.
pub(crate) const POLICY: usize = 17;
/// Longest name that is not cut beside policies.
const NAME: usize = 26;
/// Longest name that is not cut above rows of numbers.
pub(crate) const MOST_NAME: usize = 40;

/// How to print.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Style {
    /// Use colour: only where the reader is a terminal and has not refused it (`NO_COLOR`).
    pub colour: bool,
    /// Columns for text and for tables of policies side by side. Files have [`WIDTH`].
    pub width: usize,
}

impl Default for Style {
    /// The style for files.
    fn default() -> Self {
        Self { colour: false, width: WIDTH }
    }
}

/// Meaning of a number for the reader.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Tone {
    Plain,
    Good,
    Bad,
    Faint,
}

impl Style {
    /// Breaks at spaces to fit the width. The first line keeps its leading spaces; the others start with
    /// `indent` of them.
    pub fn wrap(self, text: &str, indent: usize) -> String {
        let words = text.trim_start_matches(' ');
        let (lead, rest) = (&text[..text.len() - words.len()], " ".repeat(indent));
        let width = self.width.max(NARROWEST);
        vcoop_text::wrap(words.split(' '), lead, &rest, width) + "\n"
    }

    /// A note below a table about columns without room.
    pub(crate) fn left_out(self, names: &[&str]) -> String {
        let names = names.join(", ");
        self.wrap(&format!("  left out on a terminal as narrow as this: {names}"), 2)
    }

    pub(crate) fn heading(self, text: &str) -> String {
        if self.colour { format!("\u{1b}[1m{text}\u{1b}[0m") } else { text.to_owned() }
    }

    /// A text under a heading; nothing without a text.
    pub(crate) fn section(self, heading: &str, body: &str) -> String {
        if body.is_empty() { String::new() } else { format!("{}\n{body}", self.heading(heading)) }
    }

    /// An empty table: no lines but the one under the header, two spaces between columns.
    pub(crate) fn table<'t>(self, header: impl IntoIterator<Item = &'t str>) -> Table {
        let mut table = Table::new();
        table.load_style(presets::NOTHING);
        if self.colour {
            table.enforce_styling();
        } else {
            table.force_no_tty();
        }
        let cells = header.into_iter().map(|text| {
            let cell = Cell::new(text);
            if self.colour { cell.add_attribute(Attribute::Dim) } else { cell }
        });
        table.set_header(cells.collect::<Vec<_>>());
        table
    }

    pub(crate) fn cell(self, text: impl ToString, tone: Tone) -> Cell {
        let cell = Cell::new(text);
        match tone {
            _ if !self.colour => cell,
            Tone::Plain => cell,
            Tone::Good => cell.fg(Color::Green),
            Tone::Bad => cell.fg(Color::Red),
            Tone::Faint => cell.add_attribute(Attribute::Dim),
        }
    }
}

/// Prints a table: the first `names` columns left, numbers right, nothing after the last of them.
pub(crate) fn finish(mut table: Table, names: usize) -> String {
    for (i, column) in table.column_iter_mut().enumerate() {
        column.set_padding((if i == 0 { 2 } else { 1 }, 1));
        let left = i < names;
        column.set_cell_alignment(if left { CellAlignment::Left } else { CellAlignment::Right });
    }
    let mut text = table.trim_fmt();
    text.push('\n');
    text
}

/// A name that fits the first column.
pub(crate) fn name(text: &str) -> String {
    cut(text, NAME)
}

/// A table with names of `least` columns, or of up to `most` where the width leaves room for them.
pub(crate) fn with_names(
    style: Style,
    [least, most]: [usize; 2],
    render: impl Fn(usize) -> String,
) -> String {
    let text = render(least);
    let widest = text.lines().map(|line| visible(line).count()).max().unwrap_or(0);
    match style.width.saturating_sub(widest) {
        0 => text,
        room => render((least + room).min(most)),
    }
}

/// A name that is at most `most` wide. What it ends with stays: names of variants differ there
/// (`dom0-preempts-as-posted`, `dom0-preempts-as-meant`).
pub(crate) fn cut(text: &str, most: usize) -> String {
    let length = text.chars().count();
    if length <= most {
        return text.to_owned();
    }
    let tail = most.saturating_sub(3) / 2;
    let head: String = text.chars().take(most.saturating_sub(3 + tail)).collect();
    head + "..." + &text.chars().skip(length - tail).collect::<String>()
}

/// The policies in groups, the baseline first in each, side by side in tables that `render` makes:
/// as many as fit.
pub(crate) fn side_by_side(
    document: &Document,
    style: Style,
    render: impl Fn(&[&str]) -> String,
) -> String {
    let base = document.baseline.as_str();
    let others: Vec<&str> =
        document.policies.iter().map(String::as_str).filter(|p| *p != base).collect();
    let mut text = String::new();
    for others_beside in (1..SIDE_BY_SIDE).rev() {
        text = if others.is_empty() {
            render(&[base])
        } else {
            let groups = others.chunks(others_beside);
            groups.map(|group| render(&[&[base], group].concat())).collect()
        };
        let fits = |line: &str| visible(line).count() <= style.width;
        if text.lines().all(fits) {
            break;
        }
    }
    text
}

/// The characters of a line that a terminal shows: not its colours.
pub(crate) fn visible(line: &str) -> impl Iterator<Item = char> {
    let mut escape = false;
    line.chars().filter(move |&c| {
        let hidden = escape || c == '\u{1b}';
        escape = hidden && c != 'm';
        !hidden
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn wraps_within_the_width() {
        for width in [80, WIDTH] {
            let style = Style { width, ..Style::default() };
            let text = style.wrap(&format!("  {}", "word ".repeat(60).trim_end()), 4);
            assert!(text.starts_with("  word"));
            let longest = text.lines().map(|l| l.chars().count()).max().unwrap();
            assert!((width - 5..=width).contains(&longest), "{text}");
            assert!(text.lines().skip(1).all(|l| l.starts_with("    ")));
            assert_eq!(text.split_whitespace().count(), 60);
        }
    }

    #[test]
    fn colours_take_no_room() {
        assert_eq!(visible("a\u{1b}[1mb\u{1b}[0m c").collect::<String>(), "ab c");
    }

    #[test]
    fn plain_tables_have_no_escape() {
        let plain = Style::default();
        let mut table = plain.table(["a", "b"]);
        table.add_row([plain.cell("x", Tone::Bad), plain.cell(1, Tone::Good)]);
        assert!(!finish(table, 1).contains('\u{1b}'));
        let bold = Style { colour: true, ..plain };
        assert!(bold.heading("x").contains('\u{1b}'));
    }
}
