//! Places in a publication's file.

use std::ops::Range;

use toml::Spanned;
use toml::de::{DeTable, DeValue};
use vcoop_model::diagnostic::Diagnostic;

/// A step of a path into a file: a key of a table, or an item of a list.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Step<'s> {
    Key(&'s str),
    Item(usize),
}

impl<'s> From<&'s str> for Step<'s> {
    fn from(key: &'s str) -> Self {
        Self::Key(key)
    }
}

impl From<usize> for Step<'_> {
    fn from(item: usize) -> Self {
        Self::Item(item)
    }
}

/// The text of a file, for messages about it.
#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) struct Origin {
    /// Its name in diagnostics.
    pub(crate) file: String,
    /// All of it.
    pub(crate) text: String,
}

impl Origin {
    /// A diagnostic at a path. If a step does not exist, at the last one that does.
    pub(crate) fn at(
        &self,
        path: &[Step<'_>],
        message: String,
        help: Option<String>,
    ) -> Diagnostic {
        Diagnostic::at(&self.file, &self.text, self.range(path), message, help)
    }

    fn range(&self, path: &[Step<'_>]) -> Range<usize> {
        let mut range = 0..0;
        let Ok(root) = DeTable::parse(&self.text) else { return range };
        let [Step::Key(first), rest @ ..] = path else { return range };
        let mut next: Option<&Spanned<DeValue<'_>>> = root.get_ref().get(*first);
        let mut steps = rest.iter();
        while let Some(value) = next {
            range = value.span();
            next = match (value.get_ref(), steps.next()) {
                (DeValue::Table(table), Some(Step::Key(key))) => table.get(*key),
                (DeValue::Array(items), Some(Step::Item(i))) => items.get(*i),
                _ => None,
            };
        }
        range
    }
}
