//! Lists of flags: words as a shell splits them, with nothing expanded.

use super::ListError;

/// Splits `text` at blanks and line ends. Quotes hold words together, `#` begins a comment, a backslash takes
/// the next character as it is and joins lines.
pub(super) fn words(text: &str) -> Result<Vec<String>, ListError> {
    let mut words = Vec::new();
    let mut word: Option<String> = None;
    let mut line = 1;
    let mut characters = text.chars().filter(|&c| c != '\r').peekable();
    while let Some(c) = characters.next() {
        match c {
            ' ' | '\t' | '\n' => words.extend(word.take()),
            '#' if word.is_none() => while characters.next_if(|&c| c != '\n').is_some() {},
            '\\' => match characters.next() {
                Some('\n') => line += 1,
                next => word.get_or_insert_default().extend(next),
            },
            '"' | '\'' => {
                let start = line;
                let word = word.get_or_insert_default();
                loop {
                    match characters.next() {
                        Some(end) if end == c => break,
                        Some('\\') if c == '"' => word.extend(characters.next()),
                        Some(inner) => {
                            line += u32::from(inner == '\n');
                            word.push(inner);
                        }
                        None => return Err(ListError::Unterminated { line: start, quote: c }),
                    }
                }
            }
            c => word.get_or_insert_default().push(c),
        }
        line += u32::from(c == '\n');
    }
    words.extend(word);
    match words.first() {
        Some(first) if !first.starts_with('-') => Err(ListError::NoFlag { word: first.clone() }),
        _ => Ok(words),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn words_are_split_as_a_shell_splits_them() {
        let text = "--a 1 # --no\n--b='x y' \\\n  2\n\"--c\"\r\n#--d\n--e \\# f#g";
        assert_eq!(words(text).expect("words"), ["--a", "1", "--b=x y", "2", "--c", "--e", "#", "f#g"]);
        assert_eq!(words(" \n# nothing\n"), Ok(Vec::new()));
        assert_eq!(words("--a\n\n'x"), Err(ListError::Unterminated { line: 3, quote: '\'' }));
        assert_eq!(words("x --a"), Err(ListError::NoFlag { word: "x".to_owned() }));
    }
}
