//! Declared tables: keys with type, default and documentation.

use schemars::{JsonSchema, Schema, SchemaGenerator};
use serde_json::{Map, Value as Json, json};

use super::node::{self, Node, NodeValue, Placed, TableNode};
use super::value::Value;
use crate::diagnostic::{Collector, Span, nearest};

/// A table type, as [`table!`] declares it.
pub(crate) trait Table: Sized {
    /// Documentation of the table.
    const ABOUT: &'static str;

    /// Reads the declared keys. Reports all errors; `None` if a required value is missing or wrong.
    fn read_fields(reader: &mut Reader<'_>) -> Option<Self>;

    /// Adds the declared keys to a schema.
    fn describe(schema: &mut TableSchema<'_>);
}

/// Reads one table, key by key, and so finds keys that were not declared.
#[derive(Debug)]
pub(crate) struct Reader<'r> {
    /// Keys and values.
    pub(crate) table: &'r TableNode,
    /// Place of the table, for errors about missing keys.
    pub(crate) span: Span,
    /// Where errors go.
    pub(crate) errors: &'r Collector<'r>,
    known: Vec<&'static str>,
    all_known: bool,
}

impl<'r> Reader<'r> {
    /// A reader of `node`; `None`, with an error, if that is no table.
    pub(crate) fn open(node: &'r Node, errors: &'r Collector<'r>) -> Option<Self> {
        match node.as_table() {
            Some(table) => {
                Some(Self { table, span: node.span, errors, known: Vec::new(), all_known: false })
            }
            None => {
                errors.error(node.span, format!("expected a table, found {}", node.what()));
                None
            }
        }
    }

    /// Reads one key as the type of the field.
    pub(crate) fn field<F: Field>(&mut self, key: &'static str, default: &str) -> Option<F> {
        let key = key.trim_start_matches("r#");
        if !F::FLAT {
            self.known.push(key);
        }
        F::read(self, key, default)
    }

    /// Accepts all keys, if the allowed ones cannot be determined.
    pub(crate) fn accept_all(&mut self) {
        self.all_known = true;
    }

    /// Refuses every key that was not read.
    pub(crate) fn finish(self) {
        if self.all_known {
            return;
        }
        for (key, span, _) in &self.table.entries {
            if !self.known.contains(&key.as_str()) {
                let help = nearest(key, "keys allowed here", &self.known);
                self.errors.error_help(*span, format!("unknown key `{key}`"), help);
            }
        }
    }
}

/// Reads a whole table of one declared type.
pub(crate) fn read_table<T: Table>(node: &Node, errors: &Collector) -> Option<T> {
    let mut reader = Reader::open(node, errors)?;
    let value = T::read_fields(&mut reader);
    reader.finish();
    value
}

/// How a field of a [`table!`] is read, by its type.
pub(crate) trait Field: Sized {
    /// Reads the key; `default` is TOML text, empty if there is none.
    fn read(reader: &mut Reader<'_>, key: &'static str, default: &str) -> Option<Self>;

    /// The schema of its value.
    fn schema(generator: &mut SchemaGenerator) -> Schema;

    /// Whether the key is required.
    const REQUIRED: bool = false;

    /// Whether it stands for the keys of another table.
    const FLAT: bool = false;

    /// Adds the key to the schema of a table.
    fn describe(schema: &mut TableSchema<'_>, key: &str, default: &str, about: &str) {
        schema.key::<Self>(key, default, about);
    }
}

/// Keys that several tables have, declared once: they are among the table's own keys.
#[derive(Clone, Debug)]
pub(crate) struct SharedKeys<T>(pub(crate) T);

impl<T: Table + JsonSchema> Field for SharedKeys<T> {
    fn read(reader: &mut Reader<'_>, _: &'static str, _: &str) -> Option<Self> {
        T::read_fields(reader).map(Self)
    }

    fn schema(generator: &mut SchemaGenerator) -> Schema {
        T::json_schema(generator)
    }

    const FLAT: bool = true;

    fn describe(schema: &mut TableSchema<'_>, _: &str, _: &str, _: &str) {
        T::describe(schema);
    }
}

/// Required, unless the declaration gives a default.
impl<T: Value> Field for Placed<T> {
    fn read(reader: &mut Reader<'_>, key: &'static str, default: &str) -> Option<Self> {
        let given = reader.table.get(key);
        if given.is_none() && default.is_empty() {
            let help = format!("add `{key} = ...` ({})", T::what());
            reader.errors.error_help(reader.span, format!("missing key `{key}`"), help);
            return None;
        }
        let absent;
        let node = match given {
            Some(node) => node,
            None => {
                absent = node::default_value(default, reader.span);
                &absent
            }
        };
        let value = T::read(node, reader.errors)?;
        Some(Self { value, span: node.span })
    }

    fn schema(generator: &mut SchemaGenerator) -> Schema {
        T::schema(generator)
    }

    const REQUIRED: bool = true;
}

/// Optional. A wrong value is reported and then treated as absent, so that reading goes on.
impl<T: Value> Field for Option<Placed<T>> {
    fn read(reader: &mut Reader<'_>, key: &'static str, _: &str) -> Option<Self> {
        let node = reader.table.get(key);
        Some(node.and_then(|node| {
            T::read(node, reader.errors).map(|value| Placed { value, span: node.span })
        }))
    }

    fn schema(generator: &mut SchemaGenerator) -> Schema {
        T::schema(generator)
    }
}

/// An array of tables (`[[load]]`), empty if missing.
impl<T: Table + JsonSchema> Field for Vec<T> {
    fn read(reader: &mut Reader<'_>, key: &'static str, _: &str) -> Option<Self> {
        let Some(node) = reader.table.get(key) else { return Some(Self::new()) };
        let NodeValue::Array(items) = &node.value else {
            let message = format!("`{key}` is {}, but there can be several", node.what());
            let help = format!("write it as an array of tables: [[...{key}]]");
            reader.errors.error_help(node.span, message, help);
            return Some(Self::new());
        };
        Some(items.iter().filter_map(|item| read_table(item, reader.errors)).collect())
    }

    fn schema(generator: &mut SchemaGenerator) -> Schema {
        let items = generator.subschema_for::<T>();
        schemars::json_schema!({ "type": "array", "items": items })
    }
}

/// A single table (`[host]`); read as an empty one if missing, so that its defaults apply.
#[derive(Clone, Debug)]
pub(crate) struct SubTable<T> {
    /// The table read.
    pub(crate) value: T,
    /// Its written keys, and their places.
    pub(crate) given: Vec<(String, Span)>,
}

impl<T: Table + JsonSchema> Field for SubTable<T> {
    fn read(reader: &mut Reader<'_>, key: &'static str, _: &str) -> Option<Self> {
        let empty;
        let node = match reader.table.get(key) {
            Some(node) => node,
            None => {
                let value = NodeValue::Table(TableNode::default());
                empty = Node { value, span: reader.span };
                &empty
            }
        };
        let keys = node.as_table().map(|t| t.entries.iter());
        let given = keys.into_iter().flatten().map(|(key, span, _)| (key.clone(), *span));
        let given = given.collect();
        Some(Self { value: read_table(node, reader.errors)?, given })
    }

    fn schema(generator: &mut SchemaGenerator) -> Schema {
        generator.subschema_for::<T>()
    }
}

/// Tables with names of the user's choice (`[policy.NAME]`), in the order of the text.
#[derive(Clone, Debug)]
pub(crate) struct NamedTables<T>(pub(crate) Vec<(Placed<String>, T)>);

impl<T: Table + JsonSchema> Field for NamedTables<T> {
    fn read(reader: &mut Reader<'_>, key: &'static str, _: &str) -> Option<Self> {
        let Some(node) = reader.table.get(key) else { return Some(Self(Vec::new())) };
        let Some(table) = node.as_table() else {
            let message = format!("`{key}` is {}, expected tables [{key}.NAME]", node.what());
            reader.errors.error(node.span, message);
            return Some(Self(Vec::new()));
        };
        let mut named = Vec::new();
        for (name, span, node) in &table.entries {
            if let Some(value) = read_table(node, reader.errors) {
                named.push((Placed { value: name.clone(), span: *span }, value));
            }
        }
        Some(Self(named))
    }

    fn schema(generator: &mut SchemaGenerator) -> Schema {
        let values = generator.subschema_for::<T>();
        schemars::json_schema!({ "type": "object", "additionalProperties": values })
    }
}

/// Builds the schema of a table.
#[derive(Debug)]
pub(crate) struct TableSchema<'g> {
    generator: &'g mut SchemaGenerator,
    properties: Map<String, Json>,
    required: Vec<String>,
}

impl<'g> TableSchema<'g> {
    /// A schema without keys.
    pub(crate) fn new(generator: &'g mut SchemaGenerator) -> Self {
        Self { generator, properties: Map::new(), required: Vec::new() }
    }

    /// Adds a field: a key, or several.
    pub(crate) fn field<F: Field>(&mut self, key: &str, default: &str, about: &str) {
        F::describe(self, key, default, about);
    }

    /// Adds a key.
    fn key<F: Field>(&mut self, key: &str, default: &str, about: &str) {
        let schema = F::schema(self.generator);
        self.add(key, schema, default, about, F::REQUIRED && default.is_empty());
    }

    /// The part of [`Self::key`] that does not depend on the type, compiled only once for hundreds of keys.
    fn add(&mut self, key: &str, schema: Schema, default: &str, about: &str, required: bool) {
        let key = key.trim_start_matches("r#");
        let mut schema = schema.to_value();
        if let Some(object) = schema.as_object_mut() {
            object.insert("description".to_owned(), json!(about.trim()));
            if !default.is_empty() {
                object.insert("default".to_owned(), default_json(default));
            }
        }
        self.properties.insert(key.to_owned(), schema);
        if required {
            self.required.push(key.to_owned());
        }
    }

    /// Adds a key whose value is one fixed word (`kind`).
    pub(crate) fn constant(&mut self, key: &str, value: &str, about: &str) {
        let schema = json!({ "const": value, "description": about });
        self.properties.insert(key.to_owned(), schema);
        self.required.push(key.to_owned());
    }

    /// The object schema.
    pub(crate) fn finish(self, about: &str) -> Schema {
        let Self { properties, required, .. } = self;
        schemars::json_schema!({
            "type": "object",
            "description": about.trim(),
            "properties": properties,
            "required": required,
            "additionalProperties": false,
        })
    }
}

fn default_json(text: &str) -> Json {
    fn convert(node: &Node) -> Json {
        match &node.value {
            NodeValue::String(text) => json!(text),
            NodeValue::Integer(i) => json!(i),
            NodeValue::Float(x) => json!(x),
            NodeValue::Bool(b) => json!(b),
            NodeValue::Array(items) => items.iter().map(convert).collect(),
            NodeValue::Table(_) => Json::Null,
        }
    }
    convert(&node::default_value(text, Span::default()))
}

/// Declares a table: documentation, keys, types and defaults, once for reader, schema and reference. `key: At<T>` is
/// required, `key: At<T> = "default"` is not, `key: Option<At<T>>` has no default value, `Vec<T>` is an array of
/// tables, `Flat<T>` stands for the keys of another table. A table with an example (`struct T = "{ ... }"`) is also a
/// value: a key of type `At<T>` or `Option<At<T>>`.
macro_rules! table {
    (
        $(#[doc = $about:literal])+
        $vis:vis struct $name:ident $(= $what:literal)? {
            $( $(#[doc = $doc:literal])+ $key:ident : $type:ty $(= $default:literal)? ),* $(,)?
        }
    ) => {
        $(#[doc = $about])+
        #[derive(Clone, Debug)]
        $vis struct $name {
            $( $(#[doc = $doc])+ pub(crate) $key: $type, )*
        }

        impl $crate::toml_read::Table for $name {
            const ABOUT: &'static str = concat!($($about),+);

            fn read_fields(
                reader: &mut $crate::toml_read::Reader<'_>,
            ) -> Option<Self> {
                // All fields are read before any is missed: every error is reported.
                $( let $key = reader.field::<$type>(stringify!($key), concat!($($default)?)); )*
                Some(Self { $( $key: $key?, )* })
            }

            fn describe(schema: &mut $crate::toml_read::TableSchema<'_>) {
                $( schema.field::<$type>(
                    stringify!($key), concat!($($default)?), concat!($($doc),+),
                ); )*
            }
        }

        impl schemars::JsonSchema for $name {
            fn schema_name() -> std::borrow::Cow<'static, str> {
                stringify!($name).into()
            }

            fn json_schema(generator: &mut schemars::SchemaGenerator) -> schemars::Schema {
                let mut schema = $crate::toml_read::TableSchema::new(generator);
                <Self as $crate::toml_read::Table>::describe(&mut schema);
                schema.finish(<Self as $crate::toml_read::Table>::ABOUT)
            }
        }

        $( impl $crate::toml_read::Value for $name {
            fn what() -> String {
                $what.to_owned()
            }

            fn read(
                node: &$crate::toml_read::Node,
                errors: &$crate::diagnostic::Collector,
            ) -> Option<Self> {
                $crate::toml_read::table::read_table(node, errors)
            }

            fn schema(generator: &mut schemars::SchemaGenerator) -> schemars::Schema {
                generator.subschema_for::<Self>()
            }
        } )?
    };
}
pub(crate) use table;
