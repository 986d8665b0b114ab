//! Text that people are shown: characters from elsewhere, and lines. A crate of its own, so that what looks for VMs needs no
//! scenarios for it.

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

/// Sets words in lines of at most `width` characters. The first line starts with `lead`, the others with `rest`, which
/// is ASCII. A single word that is wider stays whole.
pub fn wrap<'a>(
    words: impl Iterator<Item = &'a str>,
    lead: &str,
    rest: &str,
    width: usize,
) -> String {
    let mut out = lead.to_owned();
    let (mut used, mut fresh) = (lead.chars().count(), true);
    for word in words {
        let size = word.chars().count();
        if !fresh && used + 1 + size > width {
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
