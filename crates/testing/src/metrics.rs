//! Names of metrics in a text.

use std::collections::BTreeSet;

/// The words of a text that begin with `vcoop_` and one of these prefixes: metrics in an exposition, a page of the
/// documentation or a dashboard. Comments of an exposition are left out.
pub fn metric_names(text: &str, prefixes: &[&str]) -> BTreeSet<String> {
    let lines = text.lines().filter(|line| !line.starts_with("# "));
    let words = lines.flat_map(|line| line.split(|c: char| !c.is_ascii_alphanumeric() && c != '_'));
    let wanted = |word: &&str| {
        let rest = word.strip_prefix("vcoop_");
        rest.is_some_and(|rest| prefixes.iter().any(|prefix| rest.starts_with(prefix)))
    };
    words.filter(wanted).map(str::to_owned).collect()
}
