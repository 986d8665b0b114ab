//! Small parsers of foreign text.

use std::fs::File;
use std::io::{self, Read};
use std::path::Path;

use rustix::io::Errno;

/// The first `max` bytes of a file, and whether there are more.
pub(crate) fn read(path: &Path, max: usize) -> io::Result<(Vec<u8>, bool)> {
    let mut bytes = Vec::new();
    File::open(path)?.take(max as u64 + 1).read_to_end(&mut bytes)?;
    let more = bytes.len() > max;
    bytes.truncate(max);
    Ok((bytes, more))
}

/// A result of reading; `None`: there is nothing that this user may read.
///
/// # Errors
///
/// File descriptors or memory ran out, which says nothing about what there is.
pub(crate) fn there<T>(read: io::Result<T>) -> io::Result<Option<T>> {
    match read {
        Err(e)
            if matches!(
                Errno::from_io_error(&e),
                Some(Errno::MFILE | Errno::NFILE | Errno::NOMEM)
            ) =>
        {
            Err(e)
        }
        read => Ok(read.ok()),
    }
}

/// Text that is safe to print: the first `max` bytes, with escapes for control characters, characters that reorder or
/// hide their neighbours, and bytes that are not UTF-8. Ordinary text is unchanged.
pub(crate) fn shown(bytes: &[u8], max: usize) -> String {
    let bytes = &bytes[..bytes.len().min(max)];
    let mut out = String::with_capacity(bytes.len());
    for chunk in bytes.utf8_chunks() {
        chunk.valid().chars().for_each(|c| vcoop_text::show(c, &mut out));
        out.extend(chunk.invalid().iter().flat_map(|b| b.escape_ascii()).map(char::from));
    }
    out
}

/// A decimal number consisting only of digits.
pub(crate) fn number<T: std::str::FromStr>(bytes: &[u8]) -> Option<T> {
    if !bytes.iter().all(u8::is_ascii_digit) {
        return None;
    }
    std::str::from_utf8(bytes).ok()?.parse().ok()
}

/// Name and start time (in clock ticks) of a thread, from a `stat` file of `/proc`.
pub(crate) fn stat(bytes: &[u8]) -> Option<(&[u8], u64)> {
    // The name may contain anything, including parentheses, spaces and line ends; the rest contains no `)`.
    let open = bytes.iter().position(|b| *b == b'(')?;
    let close = bytes.iter().rposition(|b| *b == b')')?;
    let name = bytes.get(open + 1..close)?;
    // The state, field 3, is the first after the name; the start time is field 22.
    let start = bytes[close + 1..].trim_ascii().split(|b| *b == b' ').nth(19)?;
    Some((name, number(start)?))
}

/// The cgroup of a process for the CPU controller: of version 1 if mounted, else of version 2.
pub(crate) fn cgroup(bytes: &[u8]) -> Option<&[u8]> {
    let mut unified = None;
    for line in bytes.split(|b| *b == b'\n') {
        let mut fields = line.splitn(3, |b| *b == b':');
        let (_, Some(controllers), Some(path)) = (fields.next(), fields.next(), fields.next())
        else {
            continue;
        };
        if controllers.split(|b| *b == b',').any(|c| c == b"cpu") {
            return Some(path);
        }
        if controllers.is_empty() {
            unified = Some(path);
        }
    }
    unified
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn text_to_show_keeps_words_and_escapes_the_rest() {
        let shown = |bytes: &[u8]| shown(bytes, 16);
        assert_eq!(shown("web-Ω 1".as_bytes()), "web-Ω 1");
        assert_eq!(shown(b"a\nb\x1b[2J\0"), "a\\nb\\u{1b}[2J\\u{0}");
        assert_eq!(shown("x\u{202e}y\u{feff}".as_bytes()), "x\\u{202e}y\\u{feff}");
        assert_eq!(shown(b"\xff\xfeok"), "\\xff\\xfeok");
        assert_eq!(shown(&[b'a'; 10_000]).len(), 16);
    }

    #[test]
    fn a_stat_line_is_read_whatever_the_thread_is_called() {
        let of = |name: &str| {
            format!("7 ({name}) S 1 1 1 0 -1 4 0 0 0 0 6 4 0 0 20 0 6 0 106516 1598 12283 18446\n")
        };
        for name in ["CPU 0/KVM", "", ") R 1 1", "a (b) c", "a\nb"] {
            assert_eq!(stat(of(name).as_bytes()), Some((name.as_bytes(), 106_516)), "{name:?}");
        }
        assert_eq!(stat(b"7 (a) S 1 2 3"), None);
        assert_eq!(stat(b")("), None);
        assert_eq!(stat(b""), None);
        assert_eq!(stat(of("a").replace("106516", "-1").as_bytes()), None);
    }

    #[test]
    fn numbers_are_digits() {
        assert_eq!(number::<u32>(b"12"), Some(12));
        for bad in ["", "+1", "-1", "1 ", "4294967296", "1x"] {
            assert_eq!(number::<u32>(bad.as_bytes()), None, "{bad:?}");
        }
    }

    #[test]
    fn the_cgroup_is_that_of_the_cpu_controller() {
        let v1 = b"3:cpuset:/a\n2:cpu,cpuacct:/machine/b\n0::/c\n";
        assert_eq!(cgroup(v1), Some(b"/machine/b".as_slice()));
        assert_eq!(cgroup(b"2:cpuset:/a\n0::/c:d\n"), Some(b"/c:d".as_slice()));
        assert_eq!(cgroup(b"0:"), None);
    }
}
