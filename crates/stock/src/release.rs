//! Comparison of kernel releases by number.

/// The ends of the releases of Debian's kernels for VMs, and of those with PREEMPT_RT.
pub const CLOUD: &str = "-cloud-amd64";
/// See [`CLOUD`].
pub const RT: &str = "-rt-amd64";

/// The newest release of a series, such as `6.1`; of all, if the series is empty.
pub(crate) fn newest<'a>(releases: impl Iterator<Item = &'a str>, series: &str) -> Option<&'a str> {
    let wanted = numbers(series);
    releases
        // Other packages have similar names: `unsigned-7.3.4`.
        .filter(|release| release.starts_with(|first: char| first.is_ascii_digit()))
        .map(|release| (numbers(release), release))
        // Packages that only depend on others have fewer numbers.
        .filter(|(numbers, _)| numbers.len() > 2 && numbers.starts_with(&wanted))
        .max()
        .map(|(_, release)| release)
}

/// Whether a release is `first` or later.
pub(crate) fn is_from(release: &str, first: &[u64]) -> bool {
    numbers(release).as_slice() >= first
}

/// The numbers by which releases are ordered: `6.12.117+deb12` comes after `6.12.95+deb12`. The number of the
/// architecture does not count.
fn numbers(release: &str) -> Vec<u64> {
    let parts = release.trim_end_matches("-amd64").split(|c: char| !c.is_ascii_digit());
    parts.filter_map(|part| part.parse().ok()).collect()
}

#[cfg(test)]
mod tests {
    use super::{is_from, newest};

    #[test]
    fn releases_are_compared_by_their_numbers() {
        let known = [
            "cloud-amd64",
            "6.12-cloud-amd64",
            "6.12.95+deb12-cloud-amd64",
            "6.12.117+deb12-cloud-amd64",
            "6.1.0-56-cloud-amd64",
            "6.1.0-9-cloud-amd64",
            "unsigned-6.12.117+deb12-cloud-amd64",
        ];
        let of = |series| newest(known.into_iter(), series);
        assert_eq!(of("6.1"), Some("6.1.0-56-cloud-amd64"));
        let rt = ["6.1.0-9-rt-amd64", "6.1.0-56-rt-amd64"];
        assert_eq!(newest(rt.into_iter(), ""), Some(rt[1]));
        assert_eq!(of("6.12"), Some("6.12.117+deb12-cloud-amd64"));
        assert_eq!(of(""), Some("6.12.117+deb12-cloud-amd64"));
        assert!(is_from("7.3.4+deb13-cloud-amd64", &[6, 18]) && is_from("6.18.0", &[6, 18]));
        assert!(!is_from("6.12.117+deb12-cloud-amd64", &[6, 18]));
        assert_eq!((of("5.10"), newest([].into_iter(), "")), (None, None));
    }
}
