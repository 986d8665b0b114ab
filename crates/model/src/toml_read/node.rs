//! The spanned tree.

use toml::Spanned;
use toml::de::{DeTable, DeValue};

use crate::diagnostic::{Diagnostic, Diagnostics, Sources, Span};

/// Largest text accepted, in bytes.
const MAX_TEXT: usize = 4 << 20;
/// Most syntax errors shown: one mistake can confuse the parser for the rest of the file.
const MAX_SYNTAX_ERRORS: usize = 8;

/// A value and its place.
#[derive(Clone, Debug)]
pub(crate) struct Node {
    pub(crate) value: NodeValue,
    pub(crate) span: Span,
}

/// A value read from a file and its place (for a default: the table without the key).
#[derive(Clone, Debug)]
pub(crate) struct Placed<T> {
    pub(crate) value: T,
    pub(crate) span: Span,
}

impl<T> Placed<T> {
    /// Place of a key, if given.
    pub(crate) fn span_of(given: &Option<Self>) -> Option<Span> {
        given.as_ref().map(|given| given.span)
    }
}

/// The shapes TOML knows.
#[derive(Clone, Debug)]
pub(crate) enum NodeValue {
    /// A string; dates end up here too, as written.
    String(String),
    /// An integer; `None` when it does not fit 64 bits.
    Integer(Option<i64>),
    /// A float.
    Float(f64),
    /// `true` or `false`.
    Bool(bool),
    /// An array, or an array of tables.
    Array(Vec<Node>),
    /// A table.
    Table(TableNode),
}

/// A table in the order of its text.
#[derive(Clone, Debug, Default)]
pub(crate) struct TableNode {
    /// Key, where the key stands, value.
    pub(crate) entries: Vec<(String, Span, Node)>,
}

impl TableNode {
    pub(crate) fn get(&self, key: &str) -> Option<&Node> {
        self.entries.iter().find(|(k, _, _)| k == key).map(|(_, _, node)| node)
    }

    pub(crate) fn get_mut(&mut self, key: &str) -> Option<&mut Node> {
        self.entries.iter_mut().find(|(k, _, _)| k == key).map(|(_, _, node)| node)
    }
}

impl Node {
    /// The table inside, if it is one.
    pub(crate) fn as_table(&self) -> Option<&TableNode> {
        match &self.value {
            NodeValue::Table(table) => Some(table),
            _ => None,
        }
    }

    /// The keys of the table inside, in the order of the text.
    pub(crate) fn keys(&self) -> impl Iterator<Item = &str> {
        self.as_table().into_iter().flat_map(|table| &table.entries).map(|(key, ..)| key.as_str())
    }

    /// The string inside, if it is one.
    pub(crate) fn as_str(&self) -> Option<&str> {
        match &self.value {
            NodeValue::String(text) => Some(text),
            _ => None,
        }
    }

    /// Its kind, with an article, for messages.
    pub(crate) fn what(&self) -> &'static str {
        match &self.value {
            NodeValue::String(_) => "a string",
            NodeValue::Integer(_) => "an integer",
            NodeValue::Float(_) => "a float",
            NodeValue::Bool(_) => "a boolean",
            NodeValue::Array(_) => "a list",
            NodeValue::Table(_) => "a table",
        }
    }

    /// The value as TOML has it.
    pub(crate) fn toml(&self) -> String {
        match &self.value {
            NodeValue::String(text) => toml::Value::String(text.clone()).to_string(),
            NodeValue::Float(x) if x.fract() == 0.0 => format!("{x:.1}"),
            NodeValue::Array(items) => {
                let items: Vec<String> = items.iter().map(Self::toml).collect();
                format!("[{}]", items.join(", "))
            }
            NodeValue::Table(table) => {
                let entry =
                    |(key, _, value): &(String, Span, Self)| format!("{key} = {}", value.toml());
                let entries: Vec<String> = table.entries.iter().map(entry).collect();
                format!("{{ {} }}", entries.join(", "))
            }
            _ => self.text(),
        }
    }

    /// The value without quotes, for labels of matrix cells.
    pub(crate) fn text(&self) -> String {
        match &self.value {
            NodeValue::String(text) => text.clone(),
            NodeValue::Integer(Some(i)) => i.to_string(),
            NodeValue::Integer(None) => "out of range".to_owned(),
            NodeValue::Float(x) => x.to_string(),
            NodeValue::Bool(b) => b.to_string(),
            NodeValue::Array(items) => {
                let items: Vec<String> = items.iter().map(Self::text).collect();
                format!("[{}]", items.join(", "))
            }
            NodeValue::Table(_) => "{...}".to_owned(),
        }
    }
}

/// Leaves of nested tables: path, place of the last key, value. Keys without quotes nest, and the path is put together
/// again. What `is_leaf` says of a table counts below the first one.
pub(crate) fn leaves<'n>(
    node: &'n Node,
    is_leaf: &dyn Fn(&Node) -> bool,
) -> Vec<(String, Span, &'n Node)> {
    let mut found = Vec::new();
    for (key, span, value) in node.as_table().into_iter().flat_map(|table| &table.entries) {
        if value.as_table().is_none() || is_leaf(value) {
            found.push((key.clone(), *span, value));
        } else {
            let below = leaves(value, is_leaf).into_iter();
            found.extend(below.map(|(path, span, node)| (format!("{key}.{path}"), span, node)));
        }
    }
    found
}

/// Parses a file into a table node whose spans point into `sources[source]`.
///
/// # Errors
///
/// The first syntax errors that the parser finds.
pub(crate) fn parse_document(
    sources: &Sources,
    source: usize,
    text: &str,
) -> Result<Node, Diagnostics> {
    let at = |range: Option<std::ops::Range<usize>>| {
        let range = range.unwrap_or(0..0);
        Span { source, start: range.start, end: range.end }
    };
    if text.len() > MAX_TEXT {
        let message = format!("the file is larger than {} MiB", MAX_TEXT >> 20);
        return Err(sources.diagnose(at(None), message, None).into());
    }
    let (table, errors) = DeTable::parse_recoverable(text);
    if errors.is_empty() {
        let span = Span { source, start: 0, end: 0 };
        return Ok(Node { value: NodeValue::Table(table_node(table.get_ref(), source)), span });
    }
    let found = errors
        .iter()
        .take(MAX_SYNTAX_ERRORS)
        .map(|e| sources.diagnose(at(e.span()), sentence(e.message()), None))
        .collect::<Vec<Diagnostic>>();
    Err(Diagnostics(found))
}

/// The parser's message on one line.
fn sentence(message: &str) -> String {
    format!("not valid TOML: {}", message.split_whitespace().collect::<Vec<_>>().join(" "))
}

/// Parses a lone value (`--set`, a default), shifting its spans by `offset` in its source; text
/// that is no TOML value is taken as a bare string, so that `5ms` needs no quotes in a shell.
pub(crate) fn parse_value(text: &str, source: usize, offset: usize) -> Node {
    let whole = Span { source, start: offset, end: offset + text.len() };
    match DeValue::parse(text) {
        Ok(value) => {
            let mut node = value_node(&value, source);
            node.move_spans(&|s| Span { start: s.start + offset, end: s.end + offset, ..s });
            node.span = whole;
            node
        }
        Err(_) => Node { value: NodeValue::String(text.to_owned()), span: whole },
    }
}

/// A default of a declaration; every span is that of the table without the key.
pub(crate) fn default_value(text: &str, table: Span) -> Node {
    let mut node = parse_value(text, table.source, 0);
    node.move_spans(&|_| table);
    node
}

impl Node {
    fn move_spans(&mut self, moved: &impl Fn(Span) -> Span) {
        self.span = moved(self.span);
        match &mut self.value {
            NodeValue::Array(items) => items.iter_mut().for_each(|i| i.move_spans(moved)),
            NodeValue::Table(table) => {
                for (_, span, node) in &mut table.entries {
                    *span = moved(*span);
                    node.move_spans(moved);
                }
            }
            _ => {}
        }
    }
}

fn value_node(value: &Spanned<DeValue<'_>>, source: usize) -> Node {
    let range = value.span();
    let span = Span { source, start: range.start, end: range.end };
    let value = match value.get_ref() {
        DeValue::String(text) => NodeValue::String(text.to_string()),
        DeValue::Integer(i) => NodeValue::Integer(i64::from_str_radix(i.as_str(), i.radix()).ok()),
        DeValue::Float(x) => NodeValue::Float(x.as_str().parse().unwrap_or(f64::NAN)),
        DeValue::Boolean(b) => NodeValue::Bool(*b),
        DeValue::Datetime(date) => NodeValue::String(date.to_string()),
        DeValue::Array(items) => {
            NodeValue::Array(items.iter().map(|i| value_node(i, source)).collect())
        }
        DeValue::Table(table) => NodeValue::Table(table_node(table, source)),
    };
    Node { value, span }
}

/// The parser sorts keys by name; this restores the order of the text by their spans.
fn table_node(table: &DeTable<'_>, source: usize) -> TableNode {
    let mut entries: Vec<(String, Span, Node)> = table
        .iter()
        .map(|(key, value)| {
            let range = key.span();
            let span = Span { source, start: range.start, end: range.end };
            (key.get_ref().to_string(), span, value_node(value, source))
        })
        .collect();
    entries.sort_by_key(|(_, span, _)| span.start);
    TableNode { entries }
}
