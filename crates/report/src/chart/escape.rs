//! Escapes untrusted text in HTML, SVG and scripts. Users choose the names of scenarios, policies and loads.

/// Text as the content of an element or of a quoted attribute, for HTML and XML.
///
/// Characters that neither may contain, and characters that change the direction of text, become U+FFFD.
pub(crate) fn text(s: &str) -> String {
    let mut out = String::with_capacity(s.len());
    for c in s.chars() {
        match c {
            '&' => out.push_str("&amp;"),
            '<' => out.push_str("&lt;"),
            '>' => out.push_str("&gt;"),
            '"' => out.push_str("&quot;"),
            '\'' => out.push_str("&#39;"),
            '\n' | '\t' => out.push(c),
            c if c.is_control() || is_unfit(c) => out.push('\u{fffd}'),
            c => out.push(c),
        }
    }
    out
}

/// Whether a character is invalid in XML, or reorders its neighbours.
fn is_unfit(c: char) -> bool {
    matches!(c, '\u{202a}'..='\u{202e}' | '\u{2066}'..='\u{2069}' | '\u{fffe}' | '\u{ffff}')
}

/// JSON for a `script` element: no tag in it can end the element.
pub(crate) fn script(json: &str) -> String {
    json.replace('<', "\\u003c").replace('\u{2028}', "\\u2028").replace('\u{2029}', "\\u2029")
}

/// A name as part of an `id` or a file's name: lower-case letters, digits, dashes.
pub(crate) fn id(s: &str) -> String {
    let mut out = String::new();
    for c in s.chars() {
        if c.is_ascii_alphanumeric() {
            out.push(c.to_ascii_lowercase());
        } else if !out.ends_with('-') && !out.is_empty() {
            out.push('-');
        }
    }
    out.trim_end_matches('-').to_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn markup_stays_text() {
        assert_eq!(text(r#"<a b='c'>&""#), "&lt;a b=&#39;c&#39;&gt;&amp;&quot;");
        assert_eq!(text("a\u{0}\u{202e}\u{1b}b\n"), "a\u{fffd}\u{fffd}\u{fffd}b\n");
        assert_eq!(script(r#"{"a":"</script>"}"#), r#"{"a":"\u003c/script>"}"#);
    }

    #[test]
    fn ids_are_plain() {
        assert_eq!(id("guest.cyclictest p99 <x>"), "guest-cyclictest-p99-x");
        assert_eq!(id("../../etc"), "etc");
    }
}
