//! Tokens to statements. Nesting is bounded by [`MAX_DEPTH`], so recursion is too.

use std::rc::Rc;

use super::ScriptError;
use super::lexer::{Kind, Piece, Token, literal};

/// Deepest nesting of statements.
pub(super) const MAX_DEPTH: u32 = 48;

/// A word and its line.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Word {
    pub pieces: Vec<Piece>,
    pub line: u32,
}

/// `NAME=(…)`.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Array {
    pub name: String,
    pub append: bool,
    pub words: Vec<Word>,
}

#[derive(Clone, Debug, PartialEq)]
pub(super) enum Statement {
    /// A simple command: assignments and words in order, redirections dropped.
    Simple {
        words: Vec<Word>,
        arrays: Vec<Array>,
    },
    /// `((…))`.
    Arithmetic(String),
    /// Commands joined by `&&` and `||`: each runs if the last status equals its flag.
    Chain {
        first: Box<Statement>,
        rest: Vec<(bool, Statement)>,
    },
    /// Conditions with bodies; `else` has no condition.
    If(Vec<(Option<Vec<Statement>>, Vec<Statement>)>),
    For {
        name: String,
        words: Option<Vec<Word>>,
        body: Vec<Statement>,
    },
    While {
        condition: Vec<Statement>,
        until: bool,
        body: Vec<Statement>,
    },
    Case {
        word: Word,
        arms: Vec<(Vec<Word>, Vec<Statement>)>,
    },
    Group(Vec<Statement>),
    Function {
        name: String,
        body: Rc<Vec<Statement>>,
    },
}

/// Parses tokens, leniently: what is not understood is skipped, never an error. Only nesting beyond
/// [`MAX_DEPTH`] is one.
pub(super) fn statements(tokens: &[Token]) -> Result<Vec<Statement>, ScriptError> {
    let mut parser = Parser { tokens, at: 0, depth: 0 };
    let mut all = Vec::new();
    while parser.at < tokens.len() {
        all.extend(parser.list(&[])?);
        // A stray terminator.
        parser.at += 1;
    }
    Ok(all)
}

struct Parser<'a> {
    tokens: &'a [Token],
    at: usize,
    depth: u32,
}

impl Parser<'_> {
    fn kind(&self) -> Option<&Kind> {
        self.tokens.get(self.at).map(|token| &token.kind)
    }

    fn line(&self) -> u32 {
        self.tokens.get(self.at).map_or(0, |token| token.line)
    }

    /// The reserved word here, if it is one of `words`.
    fn keyword(&self, words: &[&str]) -> bool {
        matches!(self.kind(), Some(Kind::Word(word)) if literal(word).is_some_and(|text| words.contains(&text)))
    }

    fn take_keyword(&mut self, word: &str) -> bool {
        let found = self.keyword(&[word]);
        self.at += usize::from(found);
        found
    }

    fn skip_ends(&mut self) {
        while matches!(self.kind(), Some(Kind::End)) {
            self.at += 1;
        }
    }

    fn enter(&mut self) -> Result<(), ScriptError> {
        self.depth += 1;
        if self.depth > MAX_DEPTH {
            return Err(ScriptError::TooDeep { line: self.line(), limit: MAX_DEPTH });
        }
        Ok(())
    }

    /// Statements up to a terminator: one of `until`, `)`, `;;` or the end.
    fn list(&mut self, until: &[&str]) -> Result<Vec<Statement>, ScriptError> {
        self.enter()?;
        let mut all = Vec::new();
        loop {
            self.skip_ends();
            match self.kind() {
                None | Some(Kind::Close | Kind::CaseEnd | Kind::ArrayClose) => break,
                _ if self.keyword(until) => break,
                _ => {}
            }
            let before = self.at;
            all.extend(self.chain()?);
            if self.at == before {
                self.at += 1;
            }
        }
        self.depth -= 1;
        Ok(all)
    }

    fn chain(&mut self) -> Result<Option<Statement>, ScriptError> {
        let Some(first) = self.pipeline()? else { return Ok(None) };
        let mut rest = Vec::new();
        loop {
            let on = match self.kind() {
                Some(Kind::And) => true,
                Some(Kind::Or) => false,
                _ => break,
            };
            self.at += 1;
            self.skip_ends();
            match self.pipeline()? {
                Some(next) => rest.push((on, next)),
                None => break,
            }
        }
        Ok(Some(if rest.is_empty() { first } else { Statement::Chain { first: Box::new(first), rest } }))
    }

    /// A pipeline: its commands one after another, since none of them is run.
    fn pipeline(&mut self) -> Result<Option<Statement>, ScriptError> {
        while self.take_keyword("!") || self.take_keyword("time") {}
        let Some(first) = self.command()? else { return Ok(None) };
        let mut all = vec![first];
        while matches!(self.kind(), Some(Kind::Pipe)) {
            self.at += 1;
            self.skip_ends();
            all.extend(self.command()?);
        }
        Ok(Some(if all.len() == 1 { all.swap_remove(0) } else { Statement::Group(all) }))
    }

    fn command(&mut self) -> Result<Option<Statement>, ScriptError> {
        match self.kind() {
            Some(Kind::Open) => {
                self.at += 1;
                let body = self.list(&[])?;
                if matches!(self.kind(), Some(Kind::Close)) {
                    self.at += 1;
                }
                return Ok(Some(Statement::Group(body)));
            }
            Some(Kind::Arithmetic(text)) => {
                let text = text.clone();
                self.at += 1;
                return Ok(Some(Statement::Arithmetic(text)));
            }
            _ => {}
        }
        if self.take_keyword("if") {
            return self.conditional().map(Some);
        }
        if self.take_keyword("for") || self.take_keyword("select") {
            return self.for_loop().map(Some);
        }
        if self.keyword(&["while", "until"]) {
            let until = self.keyword(&["until"]);
            self.at += 1;
            let condition = self.list(&["do"])?;
            let body = self.body()?;
            return Ok(Some(Statement::While { condition, until, body }));
        }
        if self.take_keyword("case") {
            return self.case().map(Some);
        }
        if self.take_keyword("{") {
            let body = self.list(&["}"])?;
            self.take_keyword("}");
            return Ok(Some(Statement::Group(body)));
        }
        if let Some(name) = self.function_name() {
            self.skip_ends();
            self.enter()?;
            let body = match self.command()? {
                Some(Statement::Group(body)) => body,
                other => other.into_iter().collect(),
            };
            self.depth -= 1;
            return Ok(Some(Statement::Function { name, body: Rc::new(body) }));
        }
        Ok(self.simple())
    }

    fn conditional(&mut self) -> Result<Statement, ScriptError> {
        let mut arms = Vec::new();
        loop {
            let condition = self.list(&["then", "fi"])?;
            self.take_keyword("then");
            let body = self.list(&["elif", "else", "fi"])?;
            arms.push((Some(condition), body));
            if self.take_keyword("elif") {
                continue;
            }
            if self.take_keyword("else") {
                arms.push((None, self.list(&["fi"])?));
            }
            self.take_keyword("fi");
            return Ok(Statement::If(arms));
        }
    }

    fn for_loop(&mut self) -> Result<Statement, ScriptError> {
        let name = match self.kind() {
            Some(Kind::Word(word)) => literal(word).unwrap_or_default().to_owned(),
            _ => String::new(),
        };
        self.at += 1;
        self.skip_ends();
        let words = self.take_keyword("in").then(|| {
            let mut words = Vec::new();
            while let Some(Kind::Word(pieces)) = self.kind() {
                words.push(Word { pieces: pieces.clone(), line: self.line() });
                self.at += 1;
            }
            words
        });
        self.skip_ends();
        let body = self.body()?;
        Ok(Statement::For { name, words, body })
    }

    fn body(&mut self) -> Result<Vec<Statement>, ScriptError> {
        self.take_keyword("do");
        let body = self.list(&["done"])?;
        self.take_keyword("done");
        Ok(body)
    }

    fn case(&mut self) -> Result<Statement, ScriptError> {
        let Some(Kind::Word(pieces)) = self.kind() else { return Ok(Statement::Group(Vec::new())) };
        let word = Word { pieces: pieces.clone(), line: self.line() };
        self.at += 1;
        self.skip_ends();
        self.take_keyword("in");
        let mut arms = Vec::new();
        loop {
            self.skip_ends();
            if self.take_keyword("esac") || self.kind().is_none() {
                return Ok(Statement::Case { word, arms });
            }
            let before = self.at;
            let mut patterns = Vec::new();
            loop {
                match self.kind() {
                    Some(Kind::Word(pieces)) => {
                        patterns.push(Word { pieces: pieces.clone(), line: self.line() });
                    }
                    Some(Kind::Pipe | Kind::Open) => {}
                    _ => break,
                }
                self.at += 1;
            }
            if matches!(self.kind(), Some(Kind::Close)) {
                self.at += 1;
            }
            let body = self.list(&["esac"])?;
            if matches!(self.kind(), Some(Kind::CaseEnd)) {
                self.at += 1;
            }
            if self.at == before {
                self.at += 1;
            }
            arms.push((patterns, body));
        }
    }

    /// The name of a function defined here: `name()` or `function name`.
    fn function_name(&mut self) -> Option<String> {
        let word = |parser: &Self, at: usize| match parser.tokens.get(at).map(|token| &token.kind) {
            Some(Kind::Word(word)) => literal(word).map(str::to_owned),
            _ => None,
        };
        let is = |parser: &Self, at: usize, kind: Kind| parser.tokens.get(at).is_some_and(|t| t.kind == kind);
        let explicit = self.keyword(&["function"]);
        let at = self.at + usize::from(explicit);
        let parentheses = is(self, at + 1, Kind::Open) && is(self, at + 2, Kind::Close);
        if !explicit && !parentheses {
            return None;
        }
        let name = word(self, at)?;
        self.at = at + if parentheses { 3 } else { 1 };
        Some(name)
    }

    fn simple(&mut self) -> Option<Statement> {
        let (mut words, mut arrays) = (Vec::new(), Vec::new());
        let start = self.at;
        loop {
            let line = self.line();
            match self.kind() {
                Some(Kind::Word(pieces)) => words.push(Word { pieces: pieces.clone(), line }),
                Some(Kind::ArrayOpen { name, append }) => {
                    let (name, append) = (name.clone(), *append);
                    self.at += 1;
                    arrays.push(Array { name, append, words: self.array_words() });
                    continue;
                }
                Some(Kind::Redirect) => {
                    self.at += 1;
                    if !matches!(self.kind(), Some(Kind::Word(_))) {
                        continue;
                    }
                }
                _ => break,
            }
            self.at += 1;
        }
        (self.at > start).then_some(Statement::Simple { words, arrays })
    }

    /// Words up to and including the closing parenthesis.
    fn array_words(&mut self) -> Vec<Word> {
        let mut words = Vec::new();
        loop {
            match self.kind() {
                None => return words,
                Some(Kind::ArrayClose) => {
                    self.at += 1;
                    return words;
                }
                Some(Kind::Word(pieces)) => words.push(Word { pieces: pieces.clone(), line: self.line() }),
                Some(_) => {}
            }
            self.at += 1;
        }
    }
}
