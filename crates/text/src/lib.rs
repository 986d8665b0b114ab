//! Text that people are shown: characters from elsewhere, words of commands, and lines. A crate of its own, so that
//! what looks for VMs needs no scenarios for it.

/// Adds a character of foreign text to what is printed: a control character, and one that reorders or
/// hides its neighbours, as an escape; any other as it is.
pub fn show(c: char, out: &mut String) {
    match c {
        '\u{61c}' | '\u{feff}' | '\u{200b}'..='\u{200f}' | '\u{2028}'..='\u{202e}' => {
            out.extend(c.escape_unicode());
        }
        '\u{2060}'..='\u{206f}' => out.extend(c.escape_unicode()),
        c if c.is_control() => out.extend(c.escape_default()),
        c => out.push(c),
    }
}

/// A word, quoted for a shell.
pub fn quoted(word: &str) -> String {
    let plain = |c: char| c.is_ascii_alphanumeric() || "-_./=,:+@%".contains(c);
    if !word.is_empty() && word.chars().all(plain) {
        return word.to_owned();
    }
    format!("'{}'", word.replace('\'', r"'\''"))
}

/// A command of vcoop about a name, such as a VM's, and its options. A name that looks like an option stands behind `--`.
pub fn about(command: &str, name: &str, options: &str) -> String {
    let options = if options.is_empty() { String::new() } else { format!(" {options}") };
    match (name.starts_with('-'), quoted(name)) {
        (true, name) => format!("{command}{options} -- {name}"),
        (false, name) => format!("{command} {name}{options}"),
    }
}

/// Sets words in lines of at most `width` characters. The first line starts with `lead`, the others with `rest`, which
/// is ASCII. A single word that is wider stays whole. A number stays with the word after it, which may be its unit,
/// where both fit a line.
pub fn wrap<'a>(
    words: impl Iterator<Item = &'a str>,
    lead: &str,
    rest: &str,
    width: usize,
) -> String {
    let mut out = lead.to_owned();
    let (mut used, mut fresh) = (lead.chars().count(), true);
    let mut words = words.peekable();
    while let Some(word) = words.next() {
        let size = word.chars().count();
        let unit =
            words.peek().filter(|_| is_number(word)).map_or(0, |unit| unit.chars().count() + 1);
        let together = if rest.len() + size + unit > width { size } else { size + unit };
        if !fresh && used + 1 + together > width {
            out.push('\n');
            out.push_str(rest);
            (used, fresh) = (rest.len(), true);
        }
        if !fresh {
            out.push(' ');
            used += 1;
        }
        out.push_str(word);
        used += size;
        fresh = false;
    }
    out
}

/// Whether it ends in a digit and has no letter, as `12`, `~3.4`, `(1` and `8/16`.
fn is_number(word: &str) -> bool {
    word.ends_with(|c: char| c.is_ascii_digit()) && !word.contains(char::is_alphabetic)
}

#[cfg(test)]
mod tests {
    use super::{about, quoted, wrap};

    #[test]
    fn words_are_quoted_where_a_shell_would_split_them() {
        assert_eq!(quoted("host.pcpus=8"), "host.pcpus=8");
        assert_eq!(quoted("policy.dynamic.means=nice -20"), "'policy.dynamic.means=nice -20'");
        assert_eq!(quoted("a'b"), r"'a'\''b'");
        assert_eq!(quoted(""), "''");
    }

    #[test]
    fn a_name_is_no_option() {
        assert_eq!(about("vcoop observe", "a b", "--for 1s"), "vcoop observe 'a b' --for 1s");
        assert_eq!(about("vcoop observe", "-x", "--for 1s"), "vcoop observe --for 1s -- -x");
        assert_eq!(about("vcoop detach", "-x", ""), "vcoop detach -- -x");
    }

    #[test]
    fn a_number_stays_with_its_unit() {
        let lines = |text: &str, width| wrap(text.split(' '), "", "  ", width);
        assert_eq!(lines("it took 12 us at most", 10), "it took\n  12 us at\n  most");
        assert_eq!(lines("it took (1.5 s)", 12), "it took\n  (1.5 s)");
        // Without a unit after it, or one that fits, the line is filled as ever.
        assert_eq!(lines("it is in part 12.", 10), "it is in\n  part 12.");
        assert_eq!(lines("12 interruptions", 10), "12\n  interruptions");
        assert_eq!(lines("at CPU2 and 3", 9), "at CPU2\n  and 3");
    }
}
