//! `--set PATH=VALUE` and matrix axes: changing one field of the tree by its path.

use crate::diagnostic::{Collector, Diagnostics, Sources, Span, nearest};
use crate::toml_read::node::parse_value;
use crate::toml_read::{Node, NodeValue, TableNode};

/// Name of the option in diagnostics.
const OPTION: &str = "--set";
/// Keys that hold arrays of tables, which `--set` can change but not create.
const ARRAYS: [&str; 9] = ["load", "vm", "task", "step", "device", "probe", "at", "storm", "view"];

/// One override of a field.
///
/// The path goes from table to table by key; entries of `[[load]]`, `[[vm]]`, `[[vm.task]]`,
/// `[[vm.device]]` and `[[storm]]` are addressed by their `name`, those without a name by their index. The value
/// is TOML, where plain words need no quotes: `vm.guest.task.cyclictest.interval=1ms`,
/// `compare.policy=["vanilla","dynamic"]`, `policy.dynamic.means=nice -20`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Set {
    text: String,
    equals: usize,
    /// Path of the table in which the written path begins; empty: the root.
    table: String,
}

impl Set {
    /// Takes `PATH=VALUE` apart.
    ///
    /// # Errors
    ///
    /// No `=`, or nothing before it.
    pub fn parse(text: &str) -> Result<Self, Diagnostics> {
        match text.find('=') {
            Some(equals) if !text[..equals].trim().is_empty() => {
                Ok(Self { text: text.to_owned(), equals, table: String::new() })
            }
            _ => {
                let mut sources = Sources::default();
                let source = sources.add(OPTION, text);
                let span = Span { source, start: 0, end: text.len() };
                let help = Some("write PATH=VALUE, like host.pcpus=8".to_owned());
                let message = "this is not PATH=VALUE".to_owned();
                Err(sources.diagnose(span, message, help).into())
            }
        }
    }

    /// Sets a value (as TOML) at a path.
    pub fn of(path: &str, value: &str) -> Self {
        Self { text: format!("{path}={value}"), equals: path.len(), table: String::new() }
    }

    /// The same, with its path in this table. Diagnostics show the path as written.
    #[must_use]
    pub fn within(self, table: &str) -> Self {
        Self { table: table.to_owned(), ..self }
    }

    /// The whole text, for diagnostics.
    pub fn text(&self) -> &str {
        &self.text
    }

    /// The path, as written.
    pub fn path(&self) -> &str {
        self.text[..self.equals].trim()
    }

    /// Changes the tree. `source` is the index of [`Set::add_to`].
    pub(crate) fn apply(&self, source: usize, root: &mut Node, errors: &Collector) {
        let value = &self.text[self.equals + 1..];
        let lead = value.len() - value.trim_start().len();
        let node = parse_value(value.trim(), source, self.equals + 1 + lead);
        let mut path = Path::parse(&self.text[..self.equals], source, 0);
        let table = self.table.split('.').filter(|part| !part.is_empty());
        path.parts.splice(0..0, table.map(|part| (part.to_owned(), path.whole)));
        path.set(root, node, errors);
    }

    /// Adds the text to the sources of spans.
    pub(crate) fn add_to(&self, sources: &mut Sources) -> usize {
        sources.add(OPTION, &self.text)
    }
}

/// A path to a field: keys and where each is written.
#[derive(Clone, Debug)]
pub(crate) struct Path {
    parts: Vec<(String, Span)>,
    whole: Span,
}

impl Path {
    /// Splits at dots; a part may be in quotes. `offset` is where the text starts in its source.
    pub(crate) fn parse(text: &str, source: usize, offset: usize) -> Self {
        let mut parts = Vec::new();
        let mut at = offset;
        for part in text.split('.') {
            let lead = part.len() - part.trim_start().len();
            let word = part.trim();
            let span = Span { source, start: at + lead, end: at + lead + word.len() };
            parts.push((word.trim_matches(['"', '\'']).to_owned(), span));
            at += part.len() + 1;
        }
        Self { parts, whole: Span { source, start: offset, end: offset + text.len() } }
    }

    /// The same, with every part at one place (a key of `[matrix]`).
    pub(crate) fn at(text: &str, span: Span) -> Self {
        let parts = text
            .split('.')
            .map(|p| (p.trim().trim_matches(['"', '\'']).to_owned(), span))
            .collect();
        Self { parts, whole: span }
    }

    /// First key.
    pub(crate) fn root(&self) -> &str {
        self.parts.first().map_or("", |(part, _)| part)
    }

    /// Sets a value at the path. Optional tables on the way are created; entries of arrays must exist.
    pub(crate) fn set(&self, root: &mut Node, value: Node, errors: &Collector) {
        let mut here = root;
        let mut done = String::new();
        let Some(((last, last_span), way)) = self.parts.split_last() else { return };
        for (part, span) in way {
            let Some(next) = step(here, part, *span, &done, errors) else { return };
            here = next;
            if !done.is_empty() {
                done.push('.');
            }
            done.push_str(part);
        }
        match &mut here.value {
            NodeValue::Table(table) => match table.get_mut(last) {
                Some(Node { value: NodeValue::Array(items), .. })
                    if items.iter().any(|i| i.as_table().is_some()) =>
                {
                    let message = format!("`{last}` holds tables: one value cannot replace them");
                    let help = format!("go on with a name and a field: {}...", self.text() + ".");
                    errors.error_help(*last_span, message, help);
                }
                Some(node) => *node = value,
                None => table.entries.push((last.clone(), *last_span, value)),
            },
            NodeValue::Array(items) => match entry(items, last) {
                Some(i) if items[i].as_table().is_none() => items[i] = value,
                Some(_) => {
                    let message = format!("`{last}` has fields: one value cannot replace them");
                    let help = format!("go on with a field: {}...", self.text() + ".");
                    errors.error_help(*last_span, message, help);
                }
                None => {
                    let message = format!("`{done}` has no entry `{last}`");
                    errors.error_help(*last_span, message, entries_help(last, items));
                }
            },
            _ => {
                let message = format!("`{done}` is {}: it has no fields", here.what());
                errors.error(self.whole, message);
            }
        }
    }

    fn text(&self) -> String {
        self.parts.iter().map(|(part, _)| part.as_str()).collect::<Vec<_>>().join(".")
    }
}

/// One table further down the path.
fn step<'n>(
    here: &'n mut Node,
    part: &str,
    span: Span,
    done: &str,
    errors: &Collector,
) -> Option<&'n mut Node> {
    let what = here.what();
    match &mut here.value {
        NodeValue::Table(table) => {
            if table.get(part).is_none() {
                // A policy may be named like an array: `step`.
                if done != "policy" && ARRAYS.contains(&part) {
                    errors.error(span, format!("there is no [[{part}]] here"));
                    return None;
                }
                let empty = Node { value: NodeValue::Table(TableNode::default()), span };
                table.entries.push((part.to_owned(), span, empty));
            }
            table.get_mut(part)
        }
        NodeValue::Array(items) => {
            if let Some(i) = entry(items, part) {
                return items.get_mut(i);
            }
            let message = format!("`{done}` has no entry `{part}`");
            errors.error_help(span, message, entries_help(part, items));
            None
        }
        _ => {
            errors.error(span, format!("`{done}` is {what}: it has no field `{part}`"));
            None
        }
    }
}

/// The entry of an array with this name, or at this index.
fn entry(items: &[Node], part: &str) -> Option<usize> {
    let named = items.iter().position(|item| entry_name(item) == Some(part));
    named.or_else(|| part.parse().ok().filter(|i| *i < items.len()))
}

fn entry_name(item: &Node) -> Option<&str> {
    item.as_table()?.get("name")?.as_str()
}

fn entries_help(wrong: &str, items: &[Node]) -> String {
    nearest(wrong, "entries", items.iter().filter_map(entry_name))
}
