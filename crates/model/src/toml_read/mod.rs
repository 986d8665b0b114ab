//! Reads TOML into typed tables, and keeps the place of every value.
//!
//! A plain serde derive stops at the first error and forgets positions once the types are built;
//! scenario files need all errors at once, and errors about *combinations* of values need
//! positions long after parsing. So a text becomes a tree of spanned [`Node`]s, `--set` edits the
//! tree, and the [`table!`](crate::toml_read::table) declarations read it. The same declarations
//! yield the JSON schema and the reference, so that a key, its default and its documentation
//! exist once.

pub(crate) mod node;
pub(crate) mod table;
pub(crate) mod units;
pub(crate) mod value;

pub(crate) use node::{Node, NodeValue, Placed, TableNode};
pub(crate) use table::{Reader, Table, TableSchema};
pub(crate) use value::{Text, Value};
