//! Text from elsewhere that people are shown.

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
