//! Sets of CPUs, and lists of them as the kernel writes them.

use std::collections::BTreeSet;

/// CPUs that a set has room for: the most that a Linux kernel is built for.
pub const MOST_CPUS: u32 = 8192;

/// Some CPUs.
pub type Cpus = BTreeSet<u32>;

/// Reads a list: `0-3,7`, with a newline or without. Nothing is the empty set. `None`: this is none.
pub fn parse(text: &str) -> Option<Cpus> {
    let mut cpus = Cpus::new();
    let text = text.trim_ascii();
    if text.is_empty() {
        return Some(cpus);
    }
    for run in text.split(',') {
        let (first, last) = run.split_once('-').unwrap_or((run, run));
        let (first, last) = (number(first)?, number(last)?);
        if first > last || last >= MOST_CPUS {
            return None;
        }
        cpus.extend(first..=last);
    }
    Some(cpus)
}

/// Digits only: `parse` would take a sign.
fn number(word: &str) -> Option<u32> {
    word.bytes().all(|b| b.is_ascii_digit()).then(|| word.parse().ok())?
}

/// Writes a list as the kernel does.
pub fn show(cpus: &Cpus) -> String {
    vcoop_threads::cpu_list(&cpus.iter().copied().collect::<Vec<u32>>())
}

#[cfg(test)]
mod tests {
    use super::{Cpus, MOST_CPUS, parse, show};
    use proptest::prelude::{any, prop_assert, prop_assert_eq, proptest};

    #[test]
    fn lists_are_read_as_the_kernel_writes_them() {
        assert_eq!(parse("0-2,5,7-7\n"), Some(Cpus::from([0, 1, 2, 5, 7])));
        for empty in ["", "\n", " \n"] {
            assert_eq!(parse(empty), Some(Cpus::new()), "{empty:?}");
        }
        assert_eq!(parse("0-4095").map(|cpus| cpus.len()), Some(4096));
        for none in ["a", "1-", "-1", "3-1", "0,,1", "0-8192", "+1", "1 2", "0-99999999999"] {
            assert_eq!(parse(none), None, "{none:?}");
        }
    }

    proptest! {
        #[test]
        fn any_text_is_read_or_refused(text in any::<String>()) {
            if let Some(cpus) = parse(&text) {
                prop_assert!(cpus.iter().all(|cpu| *cpu < MOST_CPUS));
                prop_assert_eq!(parse(&show(&cpus)), Some(cpus));
            }
        }
    }
}
