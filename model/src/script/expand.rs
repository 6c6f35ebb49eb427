//! Variables and expansions: a static reading of what the shell would substitute.
//!
//! What only a run would tell (command substitutions, variables of the environment) becomes a mark
//! inside the value, so that the rest of the value can still be used and the error can show its text.

use std::collections::BTreeMap;

use super::lexer::{Piece, quoted_pieces};
use super::parser::Word;
use super::{ScriptError, arithmetic};

/// Bytes of expansion that one script may cause.
const MAX_WORK: u64 = 1 << 24;
/// Work that a field costs beside its bytes.
const PER_FIELD: usize = 64;
/// Deepest nesting of expansions.
const MAX_NESTING: u32 = 24;
/// Longest value that a pattern is applied to.
const MAX_PATTERN_VALUE: usize = 4_096;
/// Surrounds the number of an unknown part. A private-use character: input that has it loses it.
const MARK: char = '\u{f8ff}';

/// A variable.
#[derive(Clone, Debug, PartialEq)]
pub(super) enum Variable {
    Scalar(String),
    Array(Vec<String>),
}

/// Variables, positional arguments, and the unknown parts met so far.
#[derive(Default)]
pub(super) struct Environment {
    pub variables: BTreeMap<String, Variable>,
    pub arguments: Vec<String>,
    unknown: Vec<String>,
    work: u64,
    nesting: u32,
    /// In tests and patterns an unset variable is empty; elsewhere it may come from the environment.
    pub unset_is_empty: bool,
}

/// What a parameter stands for.
enum Value {
    One(String),
    /// `$@` and `${name[@]}`: one field each where quoted.
    Many(Vec<String>),
}

/// `text` without characters that mean something here.
pub(crate) fn sanitize(text: &str) -> String {
    text.replace('\r', "").replace(MARK, "\u{fffd}")
}

/// Whether `value` has a part that is not known.
pub(super) fn is_unknown(value: &str) -> bool {
    value.contains(MARK)
}

impl Environment {
    /// Counts work; a script that causes more than its share is refused.
    pub fn spend(&mut self, work: usize) -> Result<(), ScriptError> {
        self.work = self.work.saturating_add(work as u64);
        if self.work > MAX_WORK {
            return Err(ScriptError::TooMuch { limit: MAX_WORK });
        }
        Ok(())
    }

    /// A value that is not known, standing for `text`.
    pub fn unknown(&mut self, text: impl Into<String>) -> String {
        self.unknown.push(text.into());
        format!("{MARK}{}{MARK}", self.unknown.len() - 1)
    }

    /// `value` as the script writes it.
    pub fn shown(&self, value: &str) -> String {
        let mut shown = String::new();
        for (place, part) in value.split(MARK).enumerate() {
            match part.parse::<usize>().ok().filter(|_| place % 2 == 1).and_then(|n| self.unknown.get(n)) {
                Some(text) => shown.push_str(text),
                None => shown.push_str(part),
            }
        }
        shown
    }

    /// The value of a scalar, or the first of an array.
    pub fn scalar(&self, name: &str) -> Option<&str> {
        match self.variables.get(name)? {
            Variable::Scalar(value) => Some(value),
            Variable::Array(values) => values.first().map(String::as_str),
        }
    }

    /// A known whole number.
    pub fn integer(&self, name: &str) -> Option<i64> {
        self.scalar(name)?.trim().parse().ok()
    }

    /// Sets a scalar, or adds to it (or to an array) where `append`.
    pub fn assign(&mut self, name: &str, value: String, append: bool) -> Result<(), ScriptError> {
        self.spend(value.len() + 1)?;
        match self.variables.get_mut(name) {
            Some(Variable::Scalar(old)) if append => {
                old.push_str(&value);
                let length = old.len();
                self.spend(length)?;
            }
            Some(Variable::Array(values)) if append => match values.first_mut() {
                Some(first) => first.push_str(&value),
                None => values.push(value),
            },
            _ => {
                self.variables.insert(name.to_owned(), Variable::Scalar(value));
            }
        }
        Ok(())
    }

    /// Sets an array, or adds to it.
    pub fn assign_array(&mut self, name: &str, values: Vec<String>, append: bool) {
        match self.variables.get_mut(name) {
            Some(Variable::Array(old)) if append => old.extend(values),
            Some(Variable::Scalar(old)) if append => {
                let all = std::iter::once(std::mem::take(old)).chain(values).collect();
                self.variables.insert(name.to_owned(), Variable::Array(all));
            }
            _ => {
                self.variables.insert(name.to_owned(), Variable::Array(values));
            }
        }
    }

    /// The fields of a word: unquoted expansions are split at white space.
    pub fn fields(&mut self, word: &Word) -> Result<Vec<String>, ScriptError> {
        let mut fields = Fields::default();
        for piece in &word.pieces {
            match piece {
                Piece::Text { text, .. } => fields.text(text),
                Piece::Parameter { text, quoted } => match (self.parameter(text)?, quoted) {
                    (Value::One(value), true) => fields.text(&value),
                    (Value::One(value), false) => fields.split(&value),
                    (Value::Many(values), true) => fields.each(&values),
                    (Value::Many(values), false) => {
                        for value in &values {
                            fields.split(value);
                            fields.end();
                        }
                    }
                },
                Piece::Arithmetic { text } => fields.text(&self.arithmetic(text)?),
                Piece::Command { text, .. } => {
                    let value = self.unknown(text.clone());
                    fields.text(&value);
                }
            }
        }
        fields.end();
        self.spend(fields.done.iter().map(|field| field.len() + PER_FIELD).sum())?;
        Ok(fields.done)
    }

    /// The value of pieces as one string.
    pub fn text(&mut self, pieces: &[Piece]) -> Result<String, ScriptError> {
        let mut value = String::new();
        for piece in pieces {
            match piece {
                Piece::Text { text, .. } => value.push_str(text),
                Piece::Parameter { text, .. } => match self.parameter(text)? {
                    Value::One(one) => value.push_str(&one),
                    Value::Many(many) => value.push_str(&many.join(" ")),
                },
                Piece::Arithmetic { text } => value.push_str(&self.arithmetic(text)?),
                Piece::Command { text, .. } => value.push_str(&self.unknown(text.clone())),
            }
            self.spend(value.len() + 1)?;
        }
        Ok(value)
    }

    /// The word of `${name:-word}`, or the inside of `$((…))`.
    fn nested(&mut self, text: &str) -> Result<String, ScriptError> {
        self.nesting += 1;
        if self.nesting > MAX_NESTING {
            return Err(ScriptError::TooDeep { line: 0, limit: MAX_NESTING });
        }
        let value = self.text(&quoted_pieces(text)?);
        self.nesting -= 1;
        value
    }

    fn arithmetic(&mut self, text: &str) -> Result<String, ScriptError> {
        let value = self.calculate(text)?;
        Ok(match value {
            Some(value) => value.to_string(),
            None => self.unknown(format!("$(({text}))")),
        })
    }

    /// Value of an arithmetic expression, if it is known.
    pub fn calculate(&mut self, text: &str) -> Result<Option<i64>, ScriptError> {
        let text = self.nested(text)?;
        self.spend(text.len())?;
        Ok(if is_unknown(&text) { None } else { arithmetic::evaluate(&text, &|name| self.integer(name)) })
    }

    /// What `${text}` stands for.
    fn parameter(&mut self, text: &str) -> Result<Value, ScriptError> {
        self.spend(text.len() + 1)?;
        if let Some(counted) = text.strip_prefix('#').filter(|name| !name.is_empty()) {
            return Ok(Value::One(self.length(counted, text)));
        }
        if let Some(name) = text.strip_prefix('!').filter(|name| !name.is_empty()) {
            let target = self.scalar(name).filter(|target| is_name(target)).map(str::to_owned);
            let value = target.and_then(|target| self.scalar(&target).map(str::to_owned));
            return Ok(Value::One(value.unwrap_or_else(|| self.unknown(format!("${{{text}}}")))));
        }
        let (name, rest) = split_name(text);
        let (subscript, operator) = match rest.strip_prefix('[').and_then(|rest| rest.split_once(']')) {
            Some((subscript, operator)) => (Some(subscript), operator),
            None => (None, rest),
        };
        if subscript.is_some_and(|s| s == "@" || s == "*") || name == "@" || name == "*" {
            let size = self.borrowed(name).iter().map(|value| value.len() + PER_FIELD).sum();
            self.spend(size)?;
            let mut values = self.borrowed(name).to_vec();
            if values.is_empty() && operator.trim_start_matches(':').starts_with('-') {
                let default = self.nested(operator.trim_start_matches(':').trim_start_matches('-'))?;
                values = default.split_whitespace().map(str::to_owned).collect();
            }
            let star = subscript == Some("*") || name == "*";
            return Ok(if star { Value::One(values.join(" ")) } else { Value::Many(values) });
        }
        let value = match subscript {
            Some(subscript) => self.element(name, subscript)?,
            None => self.single(name),
        };
        self.operate(name, value, operator, text).map(Value::One)
    }

    /// `${#name}` or `${#name[@]}`.
    fn length(&mut self, counted: &str, text: &str) -> String {
        let (name, rest) = split_name(counted);
        let length = match rest {
            "[@]" | "[*]" => Some(self.borrowed(name).len()),
            "" => self.single(name).filter(|value| !is_unknown(value)).map(|value| value.chars().count()),
            _ => None,
        };
        match length {
            Some(length) => length.to_string(),
            None => self.unknown(format!("${{{text}}}")),
        }
    }

    /// The values of an array or of the arguments; a scalar is an array of one.
    fn borrowed(&self, name: &str) -> &[String] {
        match (name, self.variables.get(name)) {
            ("@" | "*", _) => &self.arguments,
            (_, Some(Variable::Array(values))) => values,
            (_, Some(Variable::Scalar(value))) => std::slice::from_ref(value),
            (_, None) => &[],
        }
    }

    fn element(&mut self, name: &str, subscript: &str) -> Result<Option<String>, ScriptError> {
        let Some(index) = self.calculate(subscript)? else { return Ok(None) };
        let index = usize::try_from(index).ok();
        Ok(index.and_then(|index| self.borrowed(name).get(index).cloned()))
    }

    /// A scalar or a positional argument; `None` where it is not set.
    fn single(&self, name: &str) -> Option<String> {
        match name.parse::<usize>() {
            Ok(position) => self.arguments.get(position.checked_sub(1)?).cloned(),
            Err(_) if name == "#" => Some(self.arguments.len().to_string()),
            Err(_) => self.scalar(name).map(str::to_owned),
        }
    }

    fn operate(
        &mut self,
        name: &str,
        value: Option<String>,
        operator: &str,
        text: &str,
    ) -> Result<String, ScriptError> {
        let written = || if operator.is_empty() { format!("${name}") } else { format!("${{{text}}}") };
        // With a colon an empty value counts as unset.
        let (colon, word) = match operator.strip_prefix(':') {
            Some(rest) if rest.starts_with(['-', '=', '+', '?']) => (true, rest),
            _ => (false, operator),
        };
        let set = value.clone().filter(|value| !colon || !value.is_empty());
        match (word.chars().next(), value) {
            (Some('-'), _) => match set {
                Some(value) => Ok(value),
                None => self.nested(&word[1..]),
            },
            (Some('='), _) => match set {
                Some(value) => Ok(value),
                None => {
                    let value = self.nested(&word[1..])?;
                    self.assign(name, value.clone(), false)?;
                    Ok(value)
                }
            },
            (Some('+'), _) => match set {
                Some(_) => self.nested(&word[1..]),
                None => Ok(String::new()),
            },
            (Some('?'), _) => Ok(set.unwrap_or_else(|| self.unknown(written()))),
            (None, Some(value)) => Ok(value),
            (_, None) if self.unset_is_empty => Ok(String::new()),
            (_, None) => Ok(self.unknown(written())),
            (Some(_), Some(value)) => {
                let changed = if is_unknown(&value) { None } else { self.change(&value, operator)? };
                Ok(changed.unwrap_or_else(|| self.unknown(written())))
            }
        }
    }

    /// Prefix and suffix removal, replacement, case, substring; `None` for anything else.
    fn change(&mut self, value: &str, operator: &str) -> Result<Option<String>, ScriptError> {
        if value.len() > MAX_PATTERN_VALUE {
            return Ok(None);
        }
        self.spend(value.len() * value.len() / 16)?;
        let removal = [("%%", false, true), ("%", false, false), ("##", true, true), ("#", true, false)];
        for (symbol, prefix, longest) in removal {
            if let Some(pattern) = operator.strip_prefix(symbol) {
                let pattern = self.nested(pattern)?;
                return Ok(Some(removed(value, &pattern, prefix, longest).to_owned()));
            }
        }
        Ok(match operator {
            "^^" => Some(value.to_uppercase()),
            ",," => Some(value.to_lowercase()),
            _ => match operator.strip_prefix('/') {
                Some(rest) => {
                    let (all, rest) = match rest.strip_prefix('/') {
                        Some(rest) => (true, rest),
                        None => (false, rest),
                    };
                    let (pattern, new) = rest.split_once('/').unwrap_or((rest, ""));
                    let (pattern, new) = (self.nested(pattern)?, self.nested(new)?);
                    let plain = !pattern.is_empty() && !pattern.contains(['*', '?', '[']);
                    plain.then(|| value.replacen(&pattern, &new, if all { usize::MAX } else { 1 }))
                }
                None => None,
            },
        })
    }
}

/// Collects the fields of a word.
#[derive(Default)]
struct Fields {
    done: Vec<String>,
    open: Option<String>,
}

impl Fields {
    fn text(&mut self, text: &str) {
        self.open.get_or_insert_default().push_str(text);
    }

    fn end(&mut self) {
        self.done.extend(self.open.take());
    }

    fn split(&mut self, value: &str) {
        if value.starts_with(char::is_whitespace) {
            self.end();
        }
        for (place, part) in value.split_whitespace().enumerate() {
            if place > 0 {
                self.end();
            }
            self.text(part);
        }
        if value.ends_with(char::is_whitespace) {
            self.end();
        }
    }

    fn each(&mut self, values: &[String]) {
        for (place, value) in values.iter().enumerate() {
            if place > 0 {
                self.end();
            }
            self.text(value);
        }
    }
}

/// Splits a parameter into its name and what follows.
fn split_name(text: &str) -> (&str, &str) {
    let end = text.find(|c: char| !c.is_ascii_alphanumeric() && c != '_').unwrap_or(text.len());
    match (end, text.chars().next()) {
        (0, Some(special)) => text.split_at(special.len_utf8()),
        _ => text.split_at(end),
    }
}

/// Whether `text` is a variable's name.
pub(super) fn is_name(text: &str) -> bool {
    text.starts_with(|c: char| c.is_ascii_alphabetic() || c == '_')
        && text.chars().all(|c| c.is_ascii_alphanumeric() || c == '_')
}

fn removed<'a>(value: &'a str, pattern: &str, prefix: bool, longest: bool) -> &'a str {
    let mut cuts: Vec<usize> = value.char_indices().map(|(at, _)| at).chain([value.len()]).collect();
    // From the shortest removal to the longest.
    if !prefix {
        cuts.reverse();
    }
    if longest {
        cuts.reverse();
    }
    for cut in cuts {
        let (head, tail) = value.split_at(cut);
        let (gone, kept) = if prefix { (head, tail) } else { (tail, head) };
        if matches(pattern, gone) {
            return kept;
        }
    }
    value
}

/// Whether `text` matches a pattern of `*`, `?` and plain characters.
pub(super) fn matches(pattern: &str, text: &str) -> bool {
    let (pattern, text): (Vec<char>, Vec<char>) = (pattern.chars().collect(), text.chars().collect());
    let (mut p, mut t) = (0, 0);
    let mut star = None;
    while t < text.len() {
        match pattern.get(p) {
            Some('*') => {
                star = Some((p, t));
                p += 1;
            }
            Some(&c) if c == '?' || c == text[t] => {
                p += 1;
                t += 1;
            }
            _ => match star {
                Some((at, from)) => {
                    star = Some((at, from + 1));
                    (p, t) = (at + 1, from + 1);
                }
                None => return false,
            },
        }
    }
    pattern[p..].iter().all(|&c| c == '*')
}
