//! Bytes of a shell script to tokens, without recursion: nesting is counted, never followed.

use super::ScriptError;

/// A token and the line it begins on.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Token {
    pub kind: Kind,
    pub line: u32,
}

#[derive(Clone, Debug, PartialEq)]
pub(super) enum Kind {
    Word(Vec<Piece>),
    /// `NAME=(` or `NAME+=(`; words follow up to [`Kind::ArrayClose`].
    ArrayOpen {
        name: String,
        append: bool,
    },
    ArrayClose,
    /// `((…))` as a command.
    Arithmetic(String),
    /// Newline or `;` or `&`.
    End,
    CaseEnd,
    And,
    Or,
    Pipe,
    Open,
    Close,
    /// A redirection whose target is the next word.
    Redirect,
}

/// A part of a word. `quoted` values are not split into fields.
#[derive(Clone, Debug, PartialEq)]
pub(super) enum Piece {
    Text {
        text: String,
        quoted: bool,
    },
    /// What stands in `${…}`, or the name after `$`.
    Parameter {
        text: String,
        quoted: bool,
    },
    /// What stands in `$((…))`.
    Arithmetic {
        text: String,
    },
    /// `$(…)`, backticks or a process substitution, with its delimiters: never run.
    Command {
        text: String,
        quoted: bool,
    },
}

/// Splits `text` into tokens.
pub(super) fn tokens(text: &str) -> Result<Vec<Token>, ScriptError> {
    let mut lexer = Lexer::new(text);
    lexer.run()?;
    Ok(lexer.tokens)
}

/// Splits the inside of a double-quoted string into pieces (also the word of `${name:-word}`).
pub(super) fn quoted_pieces(text: &str) -> Result<Vec<Piece>, ScriptError> {
    let mut lexer = Lexer::new(text);
    while let Some(c) = lexer.next() {
        match c {
            // Quotes of their own may stand in the word of a default.
            '"' => {}
            '\'' if lexer.rest_has('\'') => lexer.single_quoted()?,
            _ => lexer.in_double_quotes(c)?,
        }
    }
    Ok(lexer.word)
}

struct Lexer {
    chars: Vec<char>,
    at: usize,
    line: u32,
    tokens: Vec<Token>,
    word: Vec<Piece>,
    word_line: u32,
    in_array: bool,
    in_test: bool,
    /// Delimiters of here-documents that begin at the next newline, and whether tabs before them go.
    here: Vec<(String, bool)>,
}

impl Lexer {
    fn new(text: &str) -> Self {
        Self {
            chars: text.chars().collect(),
            at: 0,
            line: 1,
            tokens: Vec::new(),
            word: Vec::new(),
            word_line: 1,
            in_array: false,
            in_test: false,
            here: Vec::new(),
        }
    }

    fn peek(&self) -> Option<char> {
        self.chars.get(self.at).copied()
    }

    fn next(&mut self) -> Option<char> {
        let c = self.peek()?;
        self.at += 1;
        if c == '\n' {
            self.line += 1;
        }
        Some(c)
    }

    fn take(&mut self, c: char) -> bool {
        let found = self.peek() == Some(c);
        if found {
            self.next();
        }
        found
    }

    fn rest_has(&self, c: char) -> bool {
        self.chars[self.at..].contains(&c)
    }

    fn run(&mut self) -> Result<(), ScriptError> {
        loop {
            if self.word.is_empty() {
                self.word_line = self.line;
            }
            let Some(c) = self.next() else { break };
            match c {
                ' ' | '\t' | '\r' => self.end_word(),
                '\n' => self.newline(),
                '#' if self.word.is_empty() => self.comment(),
                '\\' => self.escape(),
                '\'' => self.single_quoted()?,
                '"' => self.double_quoted()?,
                '$' | '`' => self.dollar(c, false)?,
                '(' | ')' => self.parenthesis(c)?,
                ';' | '&' | '|' => self.operator(c),
                '<' | '>' => self.redirect(c)?,
                _ => self.push(c, false),
            }
        }
        self.end_word();
        self.token(Kind::End);
        Ok(())
    }

    fn push(&mut self, c: char, quoted: bool) {
        match self.word.last_mut() {
            Some(Piece::Text { text, quoted: q }) if *q == quoted => text.push(c),
            _ => self.word.push(Piece::Text { text: c.into(), quoted }),
        }
    }

    fn token(&mut self, kind: Kind) {
        self.tokens.push(Token { kind, line: self.word_line });
    }

    fn end_word(&mut self) {
        if self.word.is_empty() {
            return;
        }
        let word = std::mem::take(&mut self.word);
        match literal(&word) {
            Some("[[") => self.in_test = true,
            Some("]]") => self.in_test = false,
            _ => {}
        }
        self.token(Kind::Word(word));
    }

    fn newline(&mut self) {
        self.end_word();
        if !self.in_array && !self.in_test {
            self.token(Kind::End);
        }
        for (delimiter, tabs) in std::mem::take(&mut self.here) {
            self.skip_here(&delimiter, tabs);
        }
    }

    fn skip_here(&mut self, delimiter: &str, tabs: bool) {
        while self.peek().is_some() {
            let mut line = String::new();
            while let Some(c) = self.next().filter(|&c| c != '\n') {
                line.push(c);
            }
            let line = if tabs { line.trim_start_matches('\t') } else { &line };
            if line.trim_end_matches('\r') == delimiter {
                return;
            }
        }
    }

    fn comment(&mut self) {
        while self.peek().is_some_and(|c| c != '\n') {
            self.next();
        }
    }

    fn escape(&mut self) {
        // A carriage return before the newline is an editor's, not the author's.
        if self.peek() == Some('\r') && self.chars.get(self.at + 1) == Some(&'\n') {
            self.next();
        }
        match self.next() {
            None | Some('\n') => {}
            Some(c) => self.push(c, true),
        }
    }

    fn single_quoted(&mut self) -> Result<(), ScriptError> {
        let line = self.line;
        self.word.push(Piece::Text { text: String::new(), quoted: true });
        loop {
            match self.next() {
                Some('\'') => return Ok(()),
                Some(c) => self.push(c, true),
                None => return Err(ScriptError::Unterminated { line, what: "single quote '" }),
            }
        }
    }

    fn double_quoted(&mut self) -> Result<(), ScriptError> {
        let line = self.line;
        self.word.push(Piece::Text { text: String::new(), quoted: true });
        loop {
            match self.next() {
                Some('"') => return Ok(()),
                Some(c) => self.in_double_quotes(c)?,
                None => return Err(ScriptError::Unterminated { line, what: "double quote \"" }),
            }
        }
    }

    fn in_double_quotes(&mut self, c: char) -> Result<(), ScriptError> {
        match c {
            '\\' => match self.next() {
                Some('\n') | None => {}
                Some(c @ ('"' | '\\' | '$' | '`')) => self.push(c, true),
                Some(c) => {
                    self.push('\\', true);
                    self.push(c, true);
                }
            },
            '$' | '`' => self.dollar(c, true)?,
            c => self.push(c, true),
        }
        Ok(())
    }

    fn dollar(&mut self, first: char, quoted: bool) -> Result<(), ScriptError> {
        if first == '`' {
            let text = self.until_backtick()?;
            self.word.push(Piece::Command { text, quoted });
            return Ok(());
        }
        match self.peek() {
            Some('{') => {
                self.next();
                let text = self.balanced('{', '}', "${")?;
                self.word.push(Piece::Parameter { text, quoted });
            }
            Some('(') if self.chars.get(self.at + 1) == Some(&'(') => {
                self.at += 2;
                let text = self.balanced('(', ')', "$((")?;
                // `$((a) + b)` cannot be told from arithmetic earlier; a missing second parenthesis can.
                if !self.take(')') {
                    let text = format!("$(({text})");
                    self.word.push(Piece::Command { text, quoted });
                    return Ok(());
                }
                self.word.push(Piece::Arithmetic { text });
            }
            Some('(') => {
                self.next();
                let text = format!("$({})", self.balanced('(', ')', "$(")?);
                self.word.push(Piece::Command { text, quoted });
            }
            Some('\'') if !quoted => {
                self.next();
                self.single_quoted()?;
            }
            Some(c) if c.is_ascii_alphabetic() || c == '_' => {
                let mut text = String::new();
                while let Some(c) = self.peek().filter(|c| c.is_ascii_alphanumeric() || *c == '_') {
                    self.next();
                    text.push(c);
                }
                self.word.push(Piece::Parameter { text, quoted });
            }
            Some(c) if c.is_ascii_digit() || "@*#?$!-".contains(c) => {
                self.next();
                self.word.push(Piece::Parameter { text: c.into(), quoted });
            }
            _ => self.push('$', quoted),
        }
        Ok(())
    }

    fn until_backtick(&mut self) -> Result<String, ScriptError> {
        let line = self.line;
        let mut text = String::from('`');
        loop {
            match self.next() {
                Some('`') => break,
                Some('\\') => text.extend(self.next()),
                Some(c) => text.push(c),
                None => return Err(ScriptError::Unterminated { line, what: "backtick `" }),
            }
        }
        text.push('`');
        Ok(text)
    }

    /// Text up to the `close` that matches an `open` just read; quotes hide both.
    fn balanced(&mut self, open: char, close: char, what: &'static str) -> Result<String, ScriptError> {
        let line = self.line;
        let mut text = String::new();
        let mut depth = 1u32;
        let mut quote = None;
        loop {
            let Some(c) = self.next() else { return Err(ScriptError::Unterminated { line, what }) };
            match (c, quote) {
                ('\\', q) if q != Some('\'') => {
                    text.push(c);
                    text.extend(self.next());
                    continue;
                }
                ('"' | '\'', None) => quote = Some(c),
                (c, Some(q)) if c == q => quote = None,
                (c, None) if c == open => depth += 1,
                (c, None) if c == close => depth -= 1,
                _ => {}
            }
            if depth == 0 {
                return Ok(text);
            }
            text.push(c);
        }
    }

    fn parenthesis(&mut self, c: char) -> Result<(), ScriptError> {
        if self.in_test {
            self.end_word();
            self.push(c, true);
            self.end_word();
            return Ok(());
        }
        if c == ')' {
            self.end_word();
            let array = std::mem::take(&mut self.in_array);
            self.token(if array { Kind::ArrayClose } else { Kind::Close });
            return Ok(());
        }
        let assigned = literal(&self.word).and_then(|text| text.strip_suffix('=')).map(str::to_owned);
        if let Some(name) = assigned.filter(|_| !self.in_array) {
            self.word.clear();
            let append = name.ends_with('+');
            let name = name.trim_end_matches('+').to_owned();
            self.token(Kind::ArrayOpen { name, append });
            self.in_array = true;
        } else if self.word.is_empty() && self.take('(') {
            let text = self.balanced('(', ')', "((")?;
            self.take(')');
            self.token(Kind::Arithmetic(text));
        } else {
            self.end_word();
            self.token(Kind::Open);
        }
        Ok(())
    }

    fn operator(&mut self, c: char) {
        if self.in_test && c != ';' {
            self.end_word();
            self.push(c, true);
            if self.take(c) {
                self.push(c, true);
            }
            self.end_word();
            return;
        }
        if c == '&' && self.peek() == Some('>') {
            // `&>file`: the redirection follows.
            self.end_word();
            return;
        }
        self.end_word();
        let twice = self.take(c);
        let kind = match (c, twice) {
            (';', true) => Kind::CaseEnd,
            ('&', true) => Kind::And,
            ('|', true) => Kind::Or,
            ('|', false) => {
                self.take('&');
                Kind::Pipe
            }
            _ => Kind::End,
        };
        self.token(kind);
    }

    fn redirect(&mut self, c: char) -> Result<(), ScriptError> {
        if self.in_test {
            self.end_word();
            self.push(c, true);
            self.end_word();
            return Ok(());
        }
        if literal(&self.word).is_some_and(|text| text.bytes().all(|b| b.is_ascii_digit())) {
            self.word.clear();
        }
        if self.take('(') {
            let text = format!("{c}({})", self.balanced('(', ')', "process substitution")?);
            self.word.push(Piece::Command { text, quoted: true });
            return Ok(());
        }
        self.end_word();
        if c == '<' && self.take('<') {
            if !self.take('<') {
                self.here_document();
                return Ok(());
            }
        } else {
            self.take('>');
            self.take('|');
        }
        if self.take('&') {
            while self.peek().is_some_and(|c| c.is_ascii_digit() || c == '-') {
                self.next();
            }
            return Ok(());
        }
        self.token(Kind::Redirect);
        Ok(())
    }

    fn here_document(&mut self) {
        let tabs = self.take('-');
        while self.peek().is_some_and(|c| c == ' ' || c == '\t') {
            self.next();
        }
        let mut delimiter = String::new();
        while let Some(c) = self.peek().filter(|c| !c.is_whitespace() && !";|&<>()".contains(*c)) {
            self.next();
            if !"'\"\\".contains(c) {
                delimiter.push(c);
            }
        }
        self.here.push((delimiter, tabs));
    }
}

/// The text of a word without expansions or quotes.
pub(super) fn literal(word: &[Piece]) -> Option<&str> {
    match word {
        [Piece::Text { text, quoted: false }] => Some(text),
        _ => None,
    }
}
