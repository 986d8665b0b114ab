//! Items without their repetitions.

/// Each item once, in order of first appearance.
///
/// For the few names of a table or a report: takes time in the square of their number.
pub fn distinct<T: PartialEq>(items: impl IntoIterator<Item = T>) -> Vec<T> {
    let mut found = Vec::new();
    for item in items {
        if !found.contains(&item) {
            found.push(item);
        }
    }
    found
}

#[cfg(test)]
mod tests {
    use super::distinct;

    #[test]
    fn what_comes_up_first_stays_first() {
        assert_eq!(distinct(["b", "a", "b", "c", "a"]), ["b", "a", "c"]);
    }
}
