//! Text of unknown origin in messages: no control sequence reaches a terminal, and no length is the input's.

use core::fmt;

/// Characters shown of a value.
const VALUE_CHARS: usize = 60;

/// A value from a file or the command line: quoted, escaped, and cut in the middle if it is long.
pub const fn value(text: &str) -> impl fmt::Display {
    Shown { text, most: VALUE_CHARS, quoted: true }
}

/// A message that may hold such values: control characters are escaped, and all but the first and last
/// characters, `most` in number, is left out.
pub const fn message(text: &str, most: usize) -> impl fmt::Display {
    Shown { text, most, quoted: false }
}

/// Some of many values, and how many more there are.
pub(crate) fn list(values: &[String]) -> String {
    const MOST: usize = 12;
    let shown: Vec<_> = values.iter().take(MOST).map(|v| message(v, VALUE_CHARS).to_string()).collect();
    let more = values.len() - shown.len();
    let rest = if more > 0 { format!(" and {more} more") } else { String::new() };
    shown.join(", ") + &rest
}

struct Shown<'a> {
    text: &'a str,
    most: usize,
    quoted: bool,
}

impl fmt::Display for Shown<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let quote = if self.quoted { "\"" } else { "" };
        f.write_str(quote)?;
        let text = self.text;
        if text.chars().nth(self.most).is_none() {
            self.escaped(f, text)?;
        } else {
            let tail = self.most / 3;
            let head = self.most - tail;
            let end = text.char_indices().nth(head).map_or(text.len(), |(at, _)| at);
            let start = text.char_indices().rev().take(tail).last().map_or(text.len(), |(at, _)| at);
            self.escaped(f, &text[..end])?;
            f.write_str("…")?;
            self.escaped(f, &text[start..])?;
        }
        f.write_str(quote)
    }
}

impl Shown<'_> {
    fn escaped(&self, f: &mut fmt::Formatter<'_>, text: &str) -> fmt::Result {
        text.chars().try_for_each(|c| match c {
            '\'' => fmt::Write::write_char(f, c),
            '"' | '\\' if !self.quoted => fmt::Write::write_char(f, c),
            _ => write!(f, "{}", c.escape_debug()),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn values_are_escaped_and_cut() {
        assert_eq!(value("a × \"b\"\u{1b}[2J").to_string(), "\"a × \\\"b\\\"\\u{1b}[2J\"");
        let long = value(&"\0".repeat(1 << 20)).to_string();
        assert_eq!(long.matches("\\0").count(), VALUE_CHARS);
        assert!(long.contains('…'));
        assert_eq!(value(&"x".repeat(60)).to_string().len(), 62);
    }

    #[test]
    fn messages_keep_their_quotes_and_both_ends() {
        assert_eq!(message("no \"q\"\u{202e}\n", 20).to_string(), "no \"q\"\\u{202e}\\n");
        assert_eq!(message("0123456789", 6).to_string(), "0123…89");
    }

    #[test]
    fn lists_end() {
        let many: Vec<_> = (0..20).map(|i| i.to_string()).collect();
        assert!(list(&many).ends_with("10, 11 and 8 more"));
        assert_eq!(list(&many[..2]), "0, 1");
    }
}
