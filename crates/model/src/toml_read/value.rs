//! Scalars and lists, of which tables are made.
//!
//! A single value is checked here; combinations of values are checked when a plan is resolved.

use schemars::{Schema, SchemaGenerator, json_schema};

use super::node::{Node, NodeValue, Placed};
use crate::diagnostic::Collector;

/// A type that a key's value can have.
pub(crate) trait Value: Sized {
    /// What is allowed, for messages: "a duration like "500us"".
    fn what() -> String;

    /// Reads it; `None`, with an error, if it is wrong.
    fn read(node: &Node, errors: &Collector) -> Option<Self>;

    /// Its JSON schema.
    fn schema(generator: &mut SchemaGenerator) -> Schema;
}

/// A value written as a string with its own grammar.
pub(crate) trait Text: Sized {
    /// Allowed values: a noun phrase with examples.
    const WHAT: &'static str;
    /// Regular expression of the grammar, for editors; ranges are checked by `parse` only.
    const PATTERN: &'static str;
    /// Whether an integer without quotes is accepted.
    const INTEGERS: bool = false;

    /// Reads the text; the error says what is wrong with it.
    fn parse(text: &str) -> Result<Self, String>;
}

impl<T: Text> Value for T {
    fn what() -> String {
        T::WHAT.to_owned()
    }

    fn read(node: &Node, errors: &Collector) -> Option<Self> {
        let integer;
        let text = match &node.value {
            NodeValue::String(text) => text.as_str(),
            NodeValue::Integer(Some(i)) if T::INTEGERS => {
                integer = i.to_string();
                &integer
            }
            other => {
                // Of a bare number it is said what is wrong with its text, which may be that it has no unit.
                let text = match other {
                    NodeValue::Integer(Some(i)) => i.to_string(),
                    NodeValue::Float(x) => x.to_string(),
                    _ => String::new(),
                };
                let wrong = (!text.is_empty()).then(|| T::parse(&text).err()).flatten();
                let what = || format!("expected a string, found {}", node.what());
                let message = wrong.unwrap_or_else(what);
                errors.error_help(node.span, message, format!("write {}", T::WHAT));
                return None;
            }
        };
        match T::parse(text) {
            Ok(value) => Some(value),
            Err(message) => {
                errors.error_help(node.span, message, format!("write {}", T::WHAT));
                None
            }
        }
    }

    fn schema(_: &mut SchemaGenerator) -> Schema {
        let kinds = if T::INTEGERS { vec!["string", "integer"] } else { vec!["string"] };
        json_schema!({ "type": kinds, "pattern": T::PATTERN })
    }
}

impl Text for String {
    const WHAT: &'static str = "a string";
    const PATTERN: &'static str = "";

    fn parse(text: &str) -> Result<Self, String> {
        Ok(text.to_owned())
    }
}

/// A name to which other parts of the file, `--set` paths and reports refer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Name(pub(crate) String);

/// Longest name; reports print them in table columns.
const MAX_NAME: usize = 48;

impl Text for Name {
    const WHAT: &'static str =
        "a name of at most 48 letters, digits, `-` and `_`, like \"build-1\"";
    const PATTERN: &'static str = "^[A-Za-z0-9_-]{1,48}$";

    fn parse(text: &str) -> Result<Self, String> {
        let legal = |c: char| c.is_ascii_alphanumeric() || c == '-' || c == '_';
        if text.is_empty() {
            Err("a name cannot be empty".to_owned())
        } else if text.len() > MAX_NAME {
            Err(format!("a name longer than {MAX_NAME} characters"))
        } else if let Some(bad) = text.chars().find(|c| !legal(*c)) {
            Err(format!("a name cannot contain `{}`", bad.escape_debug()))
        } else {
            Ok(Self(text.to_owned()))
        }
    }
}

impl Value for bool {
    fn what() -> String {
        "true or false".to_owned()
    }

    fn read(node: &Node, errors: &Collector) -> Option<Self> {
        if let NodeValue::Bool(value) = node.value {
            return Some(value);
        }
        let message = format!("expected true or false, found {}", node.what());
        errors.error_help(node.span, message, "write true or false, without quotes");
        None
    }

    fn schema(_: &mut SchemaGenerator) -> Schema {
        json_schema!({ "type": "boolean" })
    }
}

/// An integer from `MIN` to `MAX`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Int<const MIN: i64, const MAX: i64>(i64);

impl<const MIN: i64, const MAX: i64> Int<MIN, MAX> {
    /// The number, for ranges without negative numbers (anything below 0 gives 0).
    pub(crate) fn get(self) -> u64 {
        u64::try_from(self.0).unwrap_or(0)
    }

    /// The number, for ranges that fit 32 bits (anything above gives the largest).
    pub(crate) fn get32(self) -> u32 {
        u32::try_from(self.get()).unwrap_or(u32::MAX)
    }
}

impl<const MIN: i64, const MAX: i64> Value for Int<MIN, MAX> {
    fn what() -> String {
        format!("an integer from {MIN} to {MAX}")
    }

    fn read(node: &Node, errors: &Collector) -> Option<Self> {
        let problem = match node.value {
            NodeValue::Integer(Some(i)) if (MIN..=MAX).contains(&i) => return Some(Self(i)),
            NodeValue::Integer(Some(i)) => format!("{i} is out of range"),
            NodeValue::Integer(None) => "the number is out of range".to_owned(),
            _ => format!("expected an integer, found {}", node.what()),
        };
        errors.error_help(node.span, problem, format!("write {}", Self::what()));
        None
    }

    fn schema(_: &mut SchemaGenerator) -> Schema {
        json_schema!({ "type": "integer", "minimum": MIN, "maximum": MAX })
    }
}

/// A factor from a millionth to 1000, kept in millionths so that nothing downstream needs floats.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Factor {
    /// Millionths.
    pub(crate) ppm: u64,
}

impl Value for Factor {
    fn what() -> String {
        "a factor above 0, from 0.000001 to 1000, like 1.5".to_owned()
    }

    fn read(node: &Node, errors: &Collector) -> Option<Self> {
        let value = match node.value {
            NodeValue::Integer(Some(i @ 1..=1000)) => i as f64,
            NodeValue::Float(x) => x,
            NodeValue::Integer(_) => 0.0,
            _ => {
                let message = format!("expected a number, found {}", node.what());
                errors.error_help(node.span, message, format!("write {}", Self::what()));
                return None;
            }
        };
        if !(1e-6..=1e3).contains(&value) {
            let help = format!("write {}", Self::what());
            errors.error_help(node.span, "the factor is out of range", help);
            return None;
        }
        // IEEE multiplication and rounding are exact by definition: the same everywhere, unlike the
        // transcendental functions.
        Some(Self { ppm: (value * 1e6).round() as u64 })
    }

    fn schema(_: &mut SchemaGenerator) -> Schema {
        json_schema!({ "type": "number", "minimum": 1e-6, "maximum": 1000 })
    }
}

/// A list; every wrong item is reported.
impl<T: Value> Value for Vec<Placed<T>> {
    fn what() -> String {
        format!("a list, each item {}", T::what())
    }

    fn read(node: &Node, errors: &Collector) -> Option<Self> {
        let NodeValue::Array(items) = &node.value else {
            let message = format!("expected a list, found {}", node.what());
            errors.error_help(node.span, message, format!("write {}", Self::what()));
            return None;
        };
        let mut read = Self::new();
        for item in items {
            if let Some(value) = T::read(item, errors) {
                read.push(Placed { value, span: item.span });
            }
        }
        (read.len() == items.len()).then_some(read)
    }

    fn schema(generator: &mut SchemaGenerator) -> Schema {
        json_schema!({ "type": "array", "items": T::schema(generator) })
    }
}

/// One value for all, or a list with one for each.
#[derive(Clone, Debug)]
pub(crate) enum OneOrEach<T> {
    /// For all.
    One(T),
    /// One each.
    Each(Vec<Placed<T>>),
}

impl<T: Value> Value for OneOrEach<T> {
    fn what() -> String {
        format!("{}, or a list with one for each vCPU", T::what())
    }

    fn read(node: &Node, errors: &Collector) -> Option<Self> {
        match node.value {
            NodeValue::Array(_) => Vec::read(node, errors).map(Self::Each),
            _ => T::read(node, errors).map(Self::One),
        }
    }

    fn schema(generator: &mut SchemaGenerator) -> Schema {
        let one = T::schema(generator);
        json_schema!({ "anyOf": [one, { "type": "array", "items": one }] })
    }
}

/// Any table, as it is written.
impl Value for Node {
    fn what() -> String {
        "a table".to_owned()
    }

    fn read(node: &Node, errors: &Collector) -> Option<Self> {
        if node.as_table().is_some() {
            return Some(node.clone());
        }
        errors.error(node.span, format!("expected a table, found {}", node.what()));
        None
    }

    fn schema(_: &mut SchemaGenerator) -> Schema {
        json_schema!({ "type": "object" })
    }
}

/// Declares an enum whose variants are words; with `for`, the words of an existing enum.
macro_rules! choice {
    (
        $(#[$about:meta])+
        $vis:vis enum $name:ident {
            $( $(#[doc = $doc:literal])+ $(#[default $($none:tt)?])? $variant:ident = $word:literal ),+ $(,)?
        }
    ) => {
        $crate::named! {
            $(#[$about])+
            #[derive(Clone, Copy, Debug, PartialEq, Eq)]
            $vis enum $name {
                $( $(#[doc = $doc])+ $(#[default $($none)?])? $variant = $word, )+
            }
        }

        $crate::toml_read::value::choice! {
            for $name { $( $(#[doc = $doc])+ $variant = $word ),+ }
        }
    };
    (for $name:ident { $( $(#[doc = $doc:literal])+ $variant:ident = $word:literal ),+ $(,)? }) => {
        impl $crate::toml_read::Value for $name {
            fn what() -> String {
                let words = [$( concat!("\"", $word, "\"") ),+];
                format!("one of {}", words.join(", "))
            }

            fn read(
                node: &$crate::toml_read::Node,
                errors: &$crate::diagnostic::Collector,
            ) -> Option<Self> {
                match node.as_str() {
                    $( Some($word) => Some($name::$variant), )+
                    Some(other) => {
                        let help = $crate::diagnostic::nearest(other, "allowed", [$($word),+]);
                        let message = format!("`{other}` is not known here");
                        errors.error_help(node.span, message, help);
                        None
                    }
                    None => {
                        let message = format!("expected a string, found {}", node.what());
                        errors.error_help(node.span, message, format!("write {}", Self::what()));
                        None
                    }
                }
            }

            fn schema(_: &mut schemars::SchemaGenerator) -> schemars::Schema {
                let words = [$($word),+];
                let abouts = [$(concat!($($doc),+).trim()),+];
                schemars::json_schema!({ "enum": words, "markdownEnumDescriptions": abouts })
            }
        }
    };
}
pub(crate) use choice;
