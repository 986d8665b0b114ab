//! Draws charts as SVG: the same bytes for the same chart on any machine.
//!
//! A chart is drawn for a width in pixels and is not meant to be scaled: text keeps its size. Colours are variables of
//! a style sheet, so that a page, a dark screen and a printer have their own.

use std::collections::BTreeSet;
use std::fmt::Write;

use super::escape::text as esc;
use super::{Chart, Key, Layer, LegendSymbol, Rect, Slot, Whisker};

/// Colours and strokes of everything drawn; variables are those of [`LIGHT`] and [`DARK`].
pub(crate) const STYLE: &str = include_str!("../../assets/chart.css");
/// Variables for a light background.
pub(crate) const LIGHT: &str = include_str!("../../assets/light.css");
/// Variables for a dark background.
pub(crate) const DARK: &str = include_str!("../../assets/dark.css");

/// Average width of a letter, in pixels.
const LETTER: f64 = 6.3;
/// Height of a line of text.
const LINE: f64 = 16.0;
/// Longest label at a tick of the vertical axis, in letters.
const LONGEST: usize = 30;
/// Number of colours; further series repeat them with another dash.
const SERIES: usize = 8;

/// The chart with this width in pixels, as an `svg` element for a page with [`STYLE`].
pub(crate) fn draw(chart: &Chart, width: f64) -> String {
    Drawing::new(chart, width, 0.0).element("")
}

/// A common legend of several charts, as an HTML list.
pub(crate) fn legend(keys: &[Key]) -> String {
    let mut out = String::from("<ul class=\"legend\" aria-label=\"Colours\">");
    for key in keys {
        let (class, label) = (class(key.slot), esc(&key.label));
        let _ = write!(
            out,
            "<li><svg width=\"12\" height=\"12\" aria-hidden=\"true\"><rect class=\"bx {class}\" \
             width=\"12\" height=\"12\"/></svg>{label}</li>"
        );
    }
    out.push_str("</ul>");
    out
}

/// The chart as a separate file, with its title, for light and dark backgrounds.
pub(crate) fn file(chart: &Chart, width: f64) -> String {
    let mut drawing = Drawing::new(chart, width, LINE + 8.0);
    let style = format!(
        "<style>:root{{{LIGHT}}}@media(prefers-color-scheme:dark){{:root{{{DARK}}}}}\
         .ground{{fill:var(--ground)}}{STYLE}</style>\
         <rect class=\"ground\" width=\"100%\" height=\"100%\" rx=\"6\"/>"
    );
    let title = esc(&chart.title);
    let _ = write!(drawing.out, "<text class=\"title\" x=\"12\" y=\"20\">{title}</text>");
    let mut out = drawing.element(&style);
    out.push('\n');
    out
}

/// A number of pixels with one decimal, without needless zeros.
fn px(v: f64) -> String {
    let tenths = (v * 10.0).round() as i64;
    if tenths % 10 == 0 { format!("{}", tenths / 10) } else { format!("{}", tenths as f64 / 10.0) }
}

/// The classes of a slot: colour, and dash of lines.
fn class(slot: Slot) -> String {
    match slot {
        Slot::Series(n) if n < SERIES => format!("s{n}"),
        Slot::Series(n) => format!("s{} again", 1 + (n - 1) % (SERIES - 1)),
        Slot::Simulated(n) => class(Slot::Series(n)) + " sim",
        Slot::Part(n) => format!("p{n}"),
        Slot::Event => "ev".to_owned(),
    }
}

/// The colour of a series on a light background, as `#rrggbb`.
pub(crate) fn colour(series: usize) -> &'static str {
    let name = class(Slot::Series(series));
    let name = name.split(' ').next().unwrap_or_default();
    let value = LIGHT
        .split(';')
        .find_map(|part| part.trim().strip_prefix("--")?.strip_prefix(name)?.strip_prefix(':'));
    value.unwrap_or("#000000")
}

struct Drawing<'c> {
    chart: &'c Chart,
    out: String,
    width: f64,
    height: f64,
    left: f64,
    top: f64,
    plot_width: f64,
}

impl<'c> Drawing<'c> {
    fn new(chart: &'c Chart, width: f64, above: f64) -> Self {
        let inset = if above > 0.0 { 12.0 } else { 0.0 };
        let words = chart.y.words(chart.height, false);
        let longest = words.iter().map(|(_, w)| w.chars().count().min(LONGEST)).max().unwrap_or(0);
        let left = (longest as f64 * LETTER + 12.0).min(width * 0.45).max(30.0) + inset;
        let mut this = Self {
            chart,
            out: String::new(),
            width,
            height: 0.0,
            left,
            top: above,
            plot_width: width - left - 16.0,
        };
        this.legend(inset);
        let below_legend = this.top;
        this.top += if chart.y.label.is_empty() { 6.0 } else { LINE + 6.0 };
        this.height = this.top + chart.height + 2.0 * LINE + 8.0;
        this.axes(&words, below_legend, inset);
        for layer in &chart.layers {
            this.layer(layer);
        }
        this
    }

    fn element(self, inside: &str) -> String {
        let (w, h) = (px(self.width), px(self.height));
        let title = esc(&self.chart.title);
        let about = esc(&format!("{}. {}", self.chart.title, self.chart.caption));
        format!(
            "<svg xmlns=\"http://www.w3.org/2000/svg\" class=\"chart\" role=\"img\" \
             aria-label=\"{about}\" viewBox=\"0 0 {w} {h}\" width=\"{w}\" height=\"{h}\">\
             <title>{title}</title>{inside}{}</svg>",
            self.out
        )
    }

    fn x(&self, v: f64) -> f64 {
        self.left + self.chart.x.place(v).clamp(-0.01, 1.01) * self.plot_width
    }

    fn y(&self, v: f64) -> f64 {
        self.top + (1.0 - self.chart.y.place(v).clamp(-0.01, 1.01)) * self.chart.height
    }

    /// Entries side by side, on as many lines as they need.
    fn legend(&mut self, inset: f64) {
        if self.chart.legend.is_empty() {
            return;
        }
        let mut x = inset;
        let mut y = self.top + LINE - 4.0;
        for key in &self.chart.legend {
            let label = cut(&key.label, ((self.width - 40.0) / LETTER) as usize);
            let size = 26.0 + label.chars().count() as f64 * LETTER + 10.0;
            if x > inset && x + size > self.width {
                (x, y) = (inset, y + LINE);
            }
            self.key(key, &label, x, y);
            x += size;
        }
        self.top = y + 8.0;
    }

    fn key(&mut self, key: &Key, label: &str, x: f64, y: f64) {
        let (class, mid) = (class(key.slot), px(y - 4.0));
        let sign = match key.sign {
            LegendSymbol::Line => format!("<path class=\"ln {class}\" d=\"M{} {mid}h20\"/>", px(x)),
            LegendSymbol::Dot => dot_path(key.slot, 6.0, &format!("M{} {mid}h0", px(x + 10.0))),
            LegendSymbol::Box => format!(
                "<rect class=\"bx {class}\" x=\"{}\" y=\"{}\" width=\"12\" height=\"10\"/>",
                px(x + 6.0),
                px(y - 9.0)
            ),
        };
        let _ = write!(
            self.out,
            "{sign}<text x=\"{}\" y=\"{}\">{}</text>",
            px(x + 24.0),
            px(y),
            esc(label)
        );
    }

    fn axes(&mut self, words: &[(f64, String)], label_top: f64, inset: f64) {
        let (left, right) = (self.left, self.left + self.plot_width);
        let (top, bottom) = (self.top, self.top + self.chart.height);
        let mut lines = String::new();
        let mut texts = String::new();
        for (v, word) in words {
            let y = self.y(*v);
            if self.chart.y.grid {
                let _ = write!(lines, "M{} {}H{}", px(left), px(y), px(right));
            }
            let word = esc(&cut(word, ((left - inset - 6.0) / LETTER) as usize + 1));
            let at = px(left - 6.0);
            let _ =
                write!(texts, "<text class=\"e\" x=\"{at}\" y=\"{}\">{word}</text>", px(y + 4.0));
        }
        let across = self.chart.x.words(self.plot_width, true);
        let mut until = f64::NEG_INFINITY;
        for (v, word) in &across {
            let x = self.x(*v);
            if self.chart.x.grid {
                let _ = write!(lines, "M{} {}V{}", px(x), px(top), px(bottom));
            }
            // Words that would touch the one before, or leave the picture, are left out.
            let half = word.chars().count() as f64 * LETTER / 2.0;
            // At the edge there is room for a wide font.
            let centre = x.min(self.width - 1.15 * half - 1.0);
            if centre - half < until {
                continue;
            }
            until = centre + half + 5.0;
            let (x, y, word) = (px(centre), px(bottom + LINE), esc(word));
            let _ = write!(texts, "<text class=\"m\" x=\"{x}\" y=\"{y}\">{word}</text>");
        }
        let _ = write!(self.out, "<path class=\"grid\" d=\"{lines}\"/>{texts}");
        if !self.chart.y.label.is_empty() {
            let (y, label) = (px(label_top + LINE - 4.0), esc(&self.chart.y.label));
            let _ = write!(
                self.out,
                "<text class=\"axis\" x=\"{}\" y=\"{y}\">{label}</text>",
                px(inset)
            );
        }
        if !self.chart.x.label.is_empty() {
            let (y, label) = (px(bottom + 2.0 * LINE), esc(&self.chart.x.label));
            let x = px(right);
            let _ = write!(self.out, "<text class=\"axis e\" x=\"{x}\" y=\"{y}\">{label}</text>");
        }
        let frame = format!("M{} {}V{}H{}", px(left), px(top), px(bottom), px(right));
        let _ = write!(self.out, "<path class=\"frame\" d=\"{frame}\"/>");
    }

    fn layer(&mut self, layer: &Layer) {
        match layer {
            Layer::Line { slot, points, step, faint, .. } => {
                self.line(*slot, points, *step, *faint);
            }
            Layer::Dots { slot, points, size, .. } => self.dots(*slot, points, *size),
            Layer::Boxes { slot, boxes } => self.boxes(*slot, boxes),
            Layer::Whiskers { slot, whiskers } => {
                whiskers.iter().for_each(|whisker| self.whisker(*slot, whisker));
            }
            Layer::Rule { at, label } => self.rule(*at, label),
            Layer::Words { words } => {
                for (x, y, word) in words {
                    // Not across the axis.
                    let half = word.chars().count() as f64 * LETTER / 2.0;
                    let (x, y) = (px(self.x(*x).max(self.left + half)), px(self.y(*y) + 4.0));
                    let word = esc(word);
                    let _ =
                        write!(self.out, "<text class=\"m s\" x=\"{x}\" y=\"{y}\">{word}</text>");
                }
            }
        }
    }

    fn line(&mut self, slot: Slot, points: &[(f64, f64)], step: bool, faint: bool) {
        let mut path = String::new();
        let mut pen: Option<(String, String)> = None;
        for (x, y) in points {
            if !x.is_finite() || !y.is_finite() {
                pen = None;
                continue;
            }
            let (x, y) = (px(self.x(*x)), px(self.y(*y)));
            let _ = match &pen {
                None => write!(path, "M{x} {y}"),
                // Steps below a tenth of a pixel are not drawn.
                Some((px, py)) if *px == x && *py == y => Ok(()),
                Some((_, py)) if step && *py == y => write!(path, "H{x}"),
                Some(_) if step => write!(path, "H{x}V{y}"),
                Some(_) => write!(path, "L{x} {y}"),
            };
            pen = Some((x, y));
        }
        let faint = if faint { " faint" } else { "" };
        let _ = write!(self.out, "<path class=\"ln {}{faint}\" d=\"{path}\"/>", class(slot));
    }

    /// Dots that fall on the same pixel are one.
    fn dots(&mut self, slot: Slot, points: &[(f64, f64)], size: f64) {
        let places: BTreeSet<(i64, i64)> = points
            .iter()
            .filter(|(x, y)| x.is_finite() && y.is_finite())
            .map(|(x, y)| (self.x(*x).round() as i64, self.y(*y).round() as i64))
            .collect();
        let mut path = String::new();
        for (x, y) in places {
            let _ = write!(path, "M{x} {y}h0");
        }
        self.out.push_str(&dot_path(slot, size, &path));
    }

    fn boxes(&mut self, slot: Slot, boxes: &[Rect]) {
        let _ = write!(self.out, "<g class=\"bx {}\">", class(slot));
        for rect in boxes {
            let (x0, x1) = (self.x(rect.x.0), self.x(rect.x.1));
            let (y0, y1) = (self.y(rect.y.0), self.y(rect.y.1));
            let (w, h) = ((x1 - x0).abs(), (y1 - y0).abs());
            if h < 0.05 {
                continue;
            }
            let _ = write!(
                self.out,
                "<rect x=\"{}\" y=\"{}\" width=\"{}\" height=\"{}\">",
                px(x0.min(x1)),
                px(y0.min(y1)),
                px(w.max(0.3)),
                px(h)
            );
            if !rect.hint.is_empty() {
                let _ = write!(self.out, "<title>{}</title>", esc(&rect.hint));
            }
            self.out.push_str("</rect>");
        }
        self.out.push_str("</g>");
    }

    fn whisker(&mut self, slot: Slot, whisker: &Whisker) {
        let mut path = String::new();
        let at = if whisker.horizontal { self.y(whisker.at) } else { self.x(whisker.at) };
        if let Some([lo, hi]) = whisker.interval {
            let _ = if whisker.horizontal {
                let (lo, hi) = (px(self.x(lo)), px(self.x(hi)));
                let (y, a, b) = (px(at), px(at - 3.0), px(at + 3.0));
                write!(path, "M{lo} {y}H{hi}M{lo} {a}V{b}M{hi} {a}V{b}")
            } else {
                let (lo, hi) = (px(self.y(lo)), px(self.y(hi)));
                let (x, a, b) = (px(at), px(at - 3.0), px(at + 3.0));
                write!(path, "M{x} {lo}V{hi}M{a} {lo}H{b}M{a} {hi}H{b}")
            };
        }
        let (class, hint, value) = (class(slot), esc(&whisker.hint), whisker.value);
        let (x, y) = if whisker.horizontal { (self.x(value), at) } else { (at, self.y(value)) };
        let _ = write!(
            self.out,
            "<g class=\"wk {class}\"><title>{hint}</title><path d=\"{path}\"/>\
             <circle cx=\"{}\" cy=\"{}\" r=\"4\"/></g>",
            px(x),
            px(y)
        );
    }

    fn rule(&mut self, at: f64, label: &str) {
        let (top, bottom) = (px(self.top), px(self.top + self.chart.height));
        let _ = write!(self.out, "<path class=\"rule\" d=\"M{} {top}V{bottom}\"/>", px(self.x(at)));
        if !label.is_empty() {
            let size = label.chars().count() as f64 * LETTER;
            let x = px((self.x(at) + 4.0).min(self.width - size));
            let (y, label) = (px(self.top + 12.0), esc(label));
            let _ = write!(self.out, "<text class=\"s\" x=\"{x}\" y=\"{y}\">{label}</text>");
        }
    }
}

/// Dots with a diameter where a path stops; those of simulated values are hollow.
fn dot_path(slot: Slot, size: f64, path: &str) -> String {
    let dots = |class: &str, size: f64| {
        format!("<path class=\"dt {class}\" stroke-width=\"{}\" d=\"{path}\"/>", px(size))
    };
    let hole = match slot {
        Slot::Simulated(_) => dots("hole", size - 3.0),
        _ => String::new(),
    };
    dots(&class(slot), size) + &hole
}

/// Cuts a text to this many letters.
fn cut(word: &str, most: usize) -> String {
    if word.chars().count() <= most {
        return word.to_owned();
    }
    let head: String = word.chars().take(most.saturating_sub(1)).collect();
    format!("{head}\u{2026}")
}
