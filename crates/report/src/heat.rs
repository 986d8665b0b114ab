//! Heat maps: a grid of cells, as SVG and as text.

use std::fmt::Write;
use std::ops::Range;

use crate::chart::escape::text as esc;
use crate::chart::svg::{DARK, LIGHT, STYLE};
use crate::style::{Style, finish};
use vcoop_text::wrap;

/// Width of a cell, pixels.
const WIDTH: usize = 132;
/// Height of a cell, pixels.
const HEIGHT: usize = 58;
/// Height of a line of text, pixels.
const LINE: usize = 15;
/// Space left of the cells, pixels.
const LEFT: usize = 96;
/// Number of colours, `s1` to `s7`; `s0` is for cells without one.
const COLOURS: usize = 7;

/// A cell.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Tile {
    /// Lines in it, the first one in bold; at most three.
    pub lines: Vec<String>,
    /// Number of its colour; none for a cell without a value.
    pub colour: Option<usize>,
    /// Strength of the colour, 0 to 1.
    pub strength: f64,
    /// Tooltip.
    pub hint: String,
}

/// A heat map.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Heat {
    /// What it shows.
    pub title: String,
    /// What varies across, with its unit.
    pub across: String,
    /// Values across.
    pub columns: Vec<String>,
    /// What varies down.
    pub down: String,
    /// Values down.
    pub rows: Vec<String>,
    /// Row by row.
    pub tiles: Vec<Vec<Tile>>,
    /// Sentences below it.
    pub notes: Vec<String>,
}

impl Heat {
    /// As a separate file, for light and dark backgrounds; the same bytes for the same map.
    pub fn svg(&self) -> String {
        let width = (LEFT + self.columns.len() * WIDTH + 16).max(420);
        let top = 2 * LINE + 34;
        let below = top + self.rows.len() * HEIGHT;
        let wrapped = |note: &String| wrap(note.split_whitespace(), "", "", width / 6);
        let notes: Vec<String> = self.notes.iter().map(wrapped).collect();
        let notes: Vec<&str> = notes.iter().flat_map(|note| note.lines()).collect();
        let height = below + 12 + notes.len() * LINE + 6;
        let mut out = format!(
            "<svg xmlns=\"http://www.w3.org/2000/svg\" class=\"chart\" width=\"{width}\" \
             height=\"{height}\" viewBox=\"0 0 {width} {height}\" role=\"img\">\
             <title>{title}</title><style>:root{{{LIGHT}}}@media(prefers-color-scheme:dark){{:root\
             {{{DARK}}}}}.ground{{fill:var(--ground)}}.tile{{fill:var(--c);stroke:var(--ground);\
             stroke-width:2}}.chart .b{{font-weight:600}}{STYLE}</style>\n\
             <rect class=\"ground\" width=\"100%\" height=\"100%\" rx=\"6\"/>\n\
             <text class=\"title\" x=\"12\" y=\"22\">{title}</text>\n",
            title = esc(&self.title),
        );
        let middle = LEFT + self.columns.len() * WIDTH / 2;
        let _ = writeln!(
            out,
            "<text class=\"axis m\" x=\"{middle}\" y=\"{}\">{}</text>\n\
             <text class=\"axis e\" x=\"{}\" y=\"{}\">{}</text>",
            top - LINE - 6,
            esc(&self.across),
            LEFT - 10,
            top - 6,
            esc(&self.down),
        );
        for (i, column) in self.columns.iter().enumerate() {
            let x = LEFT + i * WIDTH + WIDTH / 2;
            let _ = writeln!(
                out,
                "<text class=\"m\" x=\"{x}\" y=\"{}\">{}</text>",
                top - 6,
                esc(column)
            );
        }
        for (i, (row, tiles)) in self.rows.iter().zip(&self.tiles).enumerate() {
            let y = top + i * HEIGHT;
            let (x, middle) = (LEFT - 10, y + HEIGHT / 2 + 4);
            let _ = writeln!(out, "<text class=\"e\" x=\"{x}\" y=\"{middle}\">{}</text>", esc(row));
            for (j, tile) in tiles.iter().enumerate() {
                draw(&mut out, tile, LEFT + j * WIDTH, y);
            }
        }
        for (i, note) in notes.iter().enumerate() {
            let y = below + 20 + i * LINE;
            let _ = writeln!(out, "<text class=\"axis\" x=\"12\" y=\"{y}\">{}</text>", esc(note));
        }
        out + "</svg>\n"
    }

    /// As text: a table with the lines of a cell below each other. Columns that do not fit are in further tables.
    pub fn words(&self, style: Style) -> String {
        let mut out = style.wrap(&self.title, 2);
        let mut shown = 0;
        while shown < self.columns.len() {
            let fits = |end: &usize| {
                let table = self.table(shown..*end);
                table.lines().all(|line| line.chars().count() <= style.width)
            };
            let ends = shown + 2..=self.columns.len();
            let end = ends.rev().find(fits).unwrap_or(shown + 1);
            out += &format!("\n{}", self.table(shown..end));
            shown = end;
        }
        for note in &self.notes {
            out += "\n";
            out += &style.wrap(note, 0);
        }
        out
    }

    /// These columns, without colours.
    fn table(&self, columns: Range<usize>) -> String {
        let style = Style::default();
        let head = format!("{} \\ {}", self.down, self.across);
        let heads = [&head].into_iter().chain(&self.columns[columns.clone()]);
        let mut table = style.table(heads.map(String::as_str));
        for (row, tiles) in self.rows.iter().zip(&self.tiles) {
            let cell = |tile: &Tile| match tile.lines.as_slice() {
                [] => "-".to_owned(),
                lines => lines.join("\n"),
            };
            table.add_row([row.clone()].into_iter().chain(tiles[columns.clone()].iter().map(cell)));
        }
        finish(table, usize::MAX)
    }
}

fn draw(out: &mut String, tile: &Tile, x: usize, y: usize) {
    let slot = tile.colour.map_or(0, |n| 1 + n % COLOURS);
    let strength = if tile.colour.is_none() { 0.12 } else { tile.strength.clamp(0.0, 1.0) };
    let _ = writeln!(
        out,
        "<g><title>{}</title><rect class=\"tile s{slot}\" x=\"{x}\" y=\"{y}\" width=\"{WIDTH}\" \
         height=\"{HEIGHT}\" rx=\"3\" fill-opacity=\"{strength:.2}\"/>",
        esc(&tile.hint)
    );
    let first = y + (HEIGHT - tile.lines.len() * LINE) / 2 + 11;
    for (i, line) in tile.lines.iter().enumerate() {
        let class = if i == 0 { "m b" } else { "m s" };
        let (x, y) = (x + WIDTH / 2, first + i * LINE);
        let _ = writeln!(out, "<text class=\"{class}\" x=\"{x}\" y=\"{y}\">{}</text>", esc(line));
    }
    out.push_str("</g>\n");
}

#[cfg(test)]
mod tests {
    use super::*;

    fn heat() -> Heat {
        let tile = |words: &str| Tile {
            lines: vec![words.to_owned(), "0.5x".to_owned()],
            colour: Some(0),
            strength: 0.5,
            hint: "4 points".to_owned(),
        };
        Heat {
            title: "A <map>".to_owned(),
            across: "ratio".to_owned(),
            columns: vec!["1".to_owned(), "2".to_owned()],
            down: "vms".to_owned(),
            rows: vec!["1".to_owned()],
            tiles: vec![vec![tile("dynamic"), Tile::default()]],
            notes: vec!["A note.".to_owned()],
        }
    }

    #[test]
    fn a_picture_has_every_cell_and_no_markup_of_others() {
        let svg = heat().svg();
        assert_eq!(svg.matches("class=\"tile").count(), 2);
        assert!(svg.contains("A &lt;map&gt;") && !svg.contains("<map>"));
        assert!(svg.contains("dynamic</text>") && svg.contains("A note."));
        assert_eq!(svg.matches("<g>").count(), svg.matches("</g>").count());
    }

    #[test]
    fn words_stand_in_columns() {
        let words = heat().words(Style::default());
        assert!(
            words.contains("\n\n  vms \\ ratio  1        2\n  1            dynamic  -\n"),
            "{words}"
        );
        assert!(words.contains("\n               0.5x\n"), "{words}");
    }

    #[test]
    fn columns_that_do_not_fit_stand_below() {
        let words = heat().words(Style { width: 24, ..Style::default() });
        assert!(words.contains("\n               0.5x\n\n  vms \\ ratio  2\n"), "{words}");
    }
}
